"""Locks that no child gets from `fork` in the hands of a thread that it does not have.

Such a lock would never be free again there. So the thread that forks takes all of them before, and both processes let
them go after; what they guard is whole at that moment.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary

PATIENCE_S: Final = 1.0
"""Others hold these locks for microseconds; one that is not free so long is held by the thread that forks."""

_known: Final[WeakKeyDictionary[Lock, None]] = WeakKeyDictionary()
"""In the order in which they are taken."""
_listing: Final = Lock()
_held: Final[list[Lock]] = []


def hold_over_fork(lock: Lock) -> None:
    """Take a lock before every fork, and let it go after.

    Where two are held at once, the one that is taken first has to be named here first.
    """
    with _listing:
        _known[lock] = None


def _before() -> None:
    _take(_listing)
    known = list(_known)
    _release_all()
    for lock in known:
        _take(lock)
    _take(_listing)  # not before those: who holds one of them may be about to name another
    for lock in [lock for lock in _known if lock not in known]:
        _take(lock)


def _take(lock: Lock) -> None:
    if lock.acquire(timeout=PATIENCE_S):
        _held.append(lock)


def _release_all() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(before=_before, after_in_parent=_release_all, after_in_child=_release_all)
