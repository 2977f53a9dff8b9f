"""What a child of `fork` begins anew.

A child has only the thread that forked. A lock that another thread of its parent held would stay locked for ever, and
what that thread was changing may be half changed. So in the child each object makes new locks, forgets what belongs to
threads, event loops and requests of the parent, and repairs the rest.

Python tells what it forks itself. A server in C that has Python inside, such as uWSGI, may fork without telling it; so
who uses files or threads of the process calls `restart_if_forked` first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import WeakSet


class InChild:
    """Calls a function in every child, as long as this object exists; the function must not wait for other threads."""

    def __init__(self, restart: Callable[[], object]) -> None:
        self.restart = restart
        _objects.add(self)


class ProcessLock:
    """A lock; a child has a new one, whoever held that of its parent."""

    def __init__(self) -> None:
        self.restart()
        _objects.add(self)

    def restart(self) -> None:
        """Make a new lock."""
        self._lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


_objects: Final[WeakSet[InChild | ProcessLock]] = WeakSet()
_noticing: Final = Lock()
_process = os.getpid()


def restart_if_forked() -> None:
    """Begin anew in a child that Python does not know of; its other threads wait until that is done."""
    if os.getpid() != _process:
        with _noticing:
            if os.getpid() != _process:
                _in_child()


def _in_child() -> None:
    global _process
    for each in list(_objects):
        each.restart()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
