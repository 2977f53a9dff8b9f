"""What restarts in a child of `fork`.

A child has only the thread that forked. A lock that another thread of its parent held would stay locked for ever, and
data that this thread was changing may be half changed. So in the child each object makes new locks, drops the state of
threads, event loops and requests of the parent, and repairs the rest.

Python runs hooks after its own forks. A server in C that embeds Python, such as uWSGI, may fork without them; so code
that uses files or threads of the process calls `restart_if_forked` first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Lock, RLock, get_ident
from typing import Final, TypeVar, TypeVarTuple
from weakref import WeakSet

Args = TypeVarTuple("Args")
T = TypeVar("T")

POLL_S: Final = 0.000_5
_RESERVED_FROM_S: Final = 0.002
_RESERVED_UNTIL_S: Final = 0.05


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
        """Make a new lock; a signal handler that asks for it in the middle of what its thread does need not wait."""
        self._lock = RLock()

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__


class ThreadLock:
    """A lock between the threads of this process, which an event loop can reserve.

    A thread without an event loop waits for the others. One with a loop only tries: others may hang, as on a disk. But
    threads release the interpreter while they hold the lock, so by tries alone a loop would hardly ever get it beside
    busy threads. So a loop that was refused reserves the lock, and soon no other thread acquires it, for as long as the
    loop may need until its next try::

        refused                no other thread acquires it
           |------ 2 ms ------|------------ 48 ms ------------|

    A signal handler runs in the middle of what its thread does, and may raise an error there. So a thread is *inside*
    from before it asks for the lock until it has released it, and who is inside is refused: the end of the second call
    would release what the first one has acquired. A thread that comes in does not have the lock. So if it has the lock
    when it leaves, it has acquired it in this call, wherever that was interrupted. Only the lock itself can say so, an
    `RLock`, which no other thread can release: a note of ours would come a moment after `acquire`, and a handler may
    raise in between.

    Attributes:
        lock: The lock itself, for a fork, which waits for others and may come from a handler.
    """

    def __init__(self) -> None:
        self.restart()
        _objects.add(self)

    def restart(self) -> None:
        """Make a new lock."""
        self.lock = RLock()
        self._inside: set[int] = set()
        self._reserved_by = 0  # a thread
        self._reserved_s = 0.0

    def run(self, wait_s: float, do: Callable[[*Args], T], *args: *Args) -> T | None:
        """Call a function under the lock, and return its answer.

        Args:
            wait_s: How long to wait for other threads; 0 on an event loop, or less where it is late.
            do: Called with `args`.
            args: Its arguments.

        Returns:
            None as well if others hold or reserve the lock for so long, or this thread is inside.
        """
        thread = get_ident()
        if thread in self._inside:
            return None
        try:
            self._inside.add(thread)
            if (not self._reserved_by and self.lock.acquire(False)) or self._wait(wait_s):
                return do(*args)
            return None
        finally:  # a function of ours for this could be ended before its first line
            try:
                self.lock.release()
            except RuntimeError:  # this thread has not acquired it
                pass
            finally:
                self._inside.discard(thread)

    def _wait(self, wait_s: float) -> bool:
        """Acquire the lock, for which others are in the way; return False if they are for so long."""
        thread, until_s = get_ident(), time.monotonic() + wait_s
        while self._reserved_by not in (0, thread):
            now_s = time.monotonic()
            if not _RESERVED_FROM_S <= now_s - self._reserved_s < _RESERVED_UNTIL_S:
                break
            if now_s >= until_s:
                return False
            time.sleep(POLL_S)
        if not self.lock.acquire(timeout=max(until_s - time.monotonic(), 0.0)):
            return False
        if self._reserved_by == thread:
            self._reserved_by = 0
        return True

    def reserve(self) -> None:
        """Reserve the lock for this thread, which was refused, unless another one has reserved it."""
        now_s = time.monotonic()
        if not self._reserved_by or now_s - self._reserved_s >= _RESERVED_UNTIL_S:
            self._reserved_by, self._reserved_s = get_ident(), now_s


_objects: Final[WeakSet[ForkHook | ProcessLock | ThreadLock]] = WeakSet()
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
