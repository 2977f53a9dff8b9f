"""What restarts in a child of `fork`.

A child has only the thread that forked. A lock that another thread of its parent held would stay locked for ever, and
data that this thread was changing may be half changed. So in the child each object makes new locks, drops the state of
threads, event loops and requests of the parent, and repairs the rest.

Python runs hooks after its own forks. A server in C that embeds Python, such as uWSGI, may fork without them; so code
that uses files or threads of the process calls `restart_if_forked` first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import WeakSet


class ForkHook:
    """Calls a function in every child, as long as this object exists; the function must not wait for other threads."""

    def __init__(self, restart: Callable[[], object]) -> None:
        self.restart = restart
        _objects.add(self)


class ProcessLock:
    """A lock; a child has a new one, whichever thread held that of its parent.

    The two methods of ``with`` are those of the interpreter's lock, because a signal handler that raises would leave it
    locked at the end of an ``__enter__`` written in Python, or before the first line of such an ``__exit__``.
    """

    def __init__(self) -> None:
        self.restart()
        _objects.add(self)

    def restart(self) -> None:
        """Make a new lock."""
        self._lock = Lock()

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__


_objects: Final[WeakSet[ForkHook | ProcessLock]] = WeakSet()
_noticing: Final = Lock()
_process = os.getpid()


def restart_if_forked() -> None:
    """Restart in a child that Python has not noticed; its other threads wait until that is done."""
    if os.getpid() != _process:
        with _noticing:
            if os.getpid() != _process:
                _in_child()


def _in_child() -> None:
    global _process
    for instance in list(_objects):
        instance.restart()
    _process = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
