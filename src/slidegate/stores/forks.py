"""Locks and state across `fork`.

If another thread held a lock during a fork, nobody would ever release it in the child. So the forking thread acquires
all registered locks before the fork, when the data that they guard is consistent, and both processes release them
afterwards. The child then resets state that only its parent can use: threads, event loops and counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock, local
from typing import Final
from weakref import WeakKeyDictionary, WeakMethod

PATIENCE_S: Final = 1.0
"""Other threads hold these locks for microseconds; a lock that takes longer is held by the forking thread itself."""


class _Held(local):
    """The locks that each thread has acquired for its fork; several threads may fork at the same time."""

    def __init__(self) -> None:
        self.locks: list[Lock] = []


_known: Final[WeakKeyDictionary[Lock, None]] = WeakKeyDictionary()
"""The registered locks, in the order in which they are acquired."""
_listing: Final = Lock()
_held: Final = _Held()
_resets_in_child: Final[list[WeakMethod[Callable[[], object]]]] = []


def hold_over_fork(lock: Lock) -> None:
    """Acquire a lock before every fork, and release it afterwards.

    If two locks are held at the same time, the one that is acquired first has to be registered first.
    """
    with _listing:
        _known[lock] = None


def begin_anew_in_child(method: Callable[[], object]) -> None:
    """Call a method of an object in every child, as long as the object exists. It must not acquire locks."""
    with _listing:
        _resets_in_child[:] = [known for known in _resets_in_child if known() is not None]
        _resets_in_child.append(WeakMethod(method))


def _before() -> None:
    _take(_listing)
    known = list(_known)
    _release_all()
    for lock in known:
        _take(lock)
    _take(_listing)  # after those, because a thread that holds one of them may be about to register another
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
    for known in _resets_in_child:
        if (method := known()) is not None:
            method()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before, after_in_parent=_release_all, after_in_child=_in_child)
