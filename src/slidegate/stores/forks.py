"""What `fork` does to locks, and to what belongs to the parent alone.

A lock in the hands of a thread that a child does not have would never be free again there. So the thread that forks
takes all of them before, and both processes let them go after; what they guard is whole at that moment. Then the child
begins anew with what only its parent can go on with: its threads, event loops and counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock, local
from typing import Final
from weakref import WeakKeyDictionary, WeakMethod

PATIENCE_S: Final = 1.0
"""Others hold these locks for microseconds; one that is not free so long is held by the thread that forks."""


class _Held(local):
    """The locks that each thread has taken to fork: others may fork at the same time."""

    def __init__(self) -> None:
        self.locks: list[Lock] = []


_known: Final[WeakKeyDictionary[Lock, None]] = WeakKeyDictionary()
"""In the order in which they are taken."""
_listing: Final = Lock()
_held: Final = _Held()
_begins_anew: Final[list[WeakMethod[Callable[[], object]]]] = []


def hold_over_fork(lock: Lock) -> None:
    """Take a lock before every fork, and let it go after.

    Where two are held at once, the one that is taken first has to be named here first.
    """
    with _listing:
        _known[lock] = None


def begin_anew_in_child(method: Callable[[], object]) -> None:
    """Have a method of an object called in every child, as long as the object lives. It must take no lock."""
    with _listing:
        _begins_anew[:] = [known for known in _begins_anew if known() is not None]
        _begins_anew.append(WeakMethod(method))


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
        _held.locks.append(lock)


def _release_all() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _in_child() -> None:
    _release_all()
    for known in _begins_anew:
        if (method := known()) is not None:
            method()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(before=_before, after_in_parent=_release_all, after_in_child=_in_child)
