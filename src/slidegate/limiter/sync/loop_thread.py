"""One event loop in a thread of its own, for threads that have none.

A store that is asynchronous is asked on an event loop. Threads without one hand their questions to this one, and wait:

* one thread serves all limiters of a process. It starts with the first question, and ends when the last limiter that
  used it is closed, or with the interpreter, which it does not hold up;
* `fork` copies no threads, so a child begins without one and starts its own;
* a caller that leaves before its answer came, as with Ctrl-C, says first how the answer is undone.

The lock is held for moments, never while anybody waits for a store.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Event, Lock, Thread, current_thread, get_native_id
from time import monotonic
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from ...core.errors import ConfigurationError, StoreTimeout, StoreUnavailable

T = TypeVar("T")
Undo: TypeAlias = Callable[[T], Coroutine[Any, Any, Any]]

END_S: Final = 1.0
"""How long the end of the thread waits for units that are being handed back."""
JOIN_S: Final = 2.0
LOOK_S: Final = 0.2
"""A signal that comes just before a thread waits is seen so much later: CPython does not wake it for that one."""


class LoopThread:
    """The thread of this process, while anybody needs it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users: WeakSet[object] = WeakSet()
        self._calls = 0
        self._running: _Running | None = None
        self._left_behind: list[_Running] = []

    @property
    def runs(self) -> bool:
        """Whether there is a thread."""
        return self._running is not None

    def run(self, user: object, work: Coroutine[Any, Any, T], most_s: float, undo: Undo[T] | None = None) -> T:
        """Do some work on the loop, and return its answer.

        Args:
            user: The thread stays until `release` is called for every user that is still alive.
            work: The work.
            most_s: How long to wait. Stores keep deadlines of their own, so only a loop that stands still needs longer.
            undo: What to do with the answer if the caller leaves before it has it; by default the work is cancelled.

        Raises:
            StoreTimeout: The answer did not come.
            StoreUnavailable: The loop cannot be started, or ended meanwhile.
        """
        try:
            with self._lock:
                running = self._running = self._running or _Running()
                self._users.add(user)
                self._calls += 1
        except BaseException:
            work.close()
            raise
        try:
            return running.run(work, most_s, undo)
        finally:
            with self._lock:
                self._calls -= 1
            self._end_unused(join=True)

    def release(self, user: object, *, join: bool = False) -> None:
        """Let the thread end, once nobody else needs it; with `join`, return when it has ended."""
        with self._lock:
            self._users.discard(user)
        self._end_unused(join=join)

    def end(self) -> None:
        """End the thread, because the interpreter ends."""
        running, self._running = self._running, None
        if running is not None:
            running.end(join=True)

    def forget(self) -> None:
        """Begin anew in a child after `fork`: the thread is the parent's."""
        if self._running is not None:
            # The child shares the file descriptors: a loop that is collected there would unregister them in the parent.
            self._left_behind.append(self._running)
        self._lock, self._users, self._calls, self._running = Lock(), WeakSet(), 0, None

    def _end_unused(self, *, join: bool) -> None:
        with self._lock:
            if self._calls or self._users:
                return
            running, self._running = self._running, None
        if running is not None:
            running.end(join=join)


class _Running:
    """A thread that runs, and its loop.

    Raises:
        StoreUnavailable: No thread can be started.
        ConfigurationError: Threads are not threads here.
    """

    def __init__(self) -> None:
        self._undoing: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._is_real = Future[bool]()
        try:
            self._loop = asyncio.new_event_loop()
        except OSError as error:
            raise StoreUnavailable(f"no event loop can be made for threads: {error}") from error
        # A daemon, because the interpreter waits for other threads before it calls what `atexit` knows.
        self._thread = Thread(target=self._serve, args=(get_native_id(),), name="slidegate-loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise StoreUnavailable(f"no event loop can be started for threads: {error}") from error
        if not self._is_real.result():
            self._loop.close()
            raise ConfigurationError(
                "limiter.sync: threads are replaced here, as by gevent, and a store that is asynchronous needs a real "
                "one; use a memory store or LmdbStore, or leave threads unpatched"
            )

    def run(self, work: Coroutine[Any, Any, T], most_s: float, undo: Undo[T] | None) -> T:
        """See `LoopThread.run`."""
        call, until_s = _Call(work), monotonic() + most_s
        try:
            self._begin(call)
            while not call.ended.wait(LOOK_S):
                if monotonic() >= until_s:
                    raise StoreTimeout(f"the event loop for threads has stood still for {most_s:g} s")
        except BaseException:
            self._leave(call, undo)
            raise
        try:
            return call.result()
        except asyncio.CancelledError:
            raise StoreUnavailable("the event loop for threads has ended") from None

    def end(self, *, join: bool) -> None:
        """End the loop and the thread; with `join`, return when they have ended, or after `JOIN_S`."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)
        if join and current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _serve(self, starter_id: int) -> None:
        is_real = get_native_id() != starter_id
        self._is_real.set_result(is_real)
        if is_real:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_ended())

    async def _until_ended(self) -> None:
        await self._ended.wait()
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=END_S)

    def _begin(self, call: _Call[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(call.begin)
        except RuntimeError:
            raise StoreUnavailable("the event loop for threads has ended") from None

    def _leave(self, call: _Call[T], undo: Undo[T] | None) -> None:
        """Undo a call, from the loop: a signal may have come before the caller knew whether the call began there."""
        try:
            self._loop.call_soon_threadsafe(self._left, call, undo)
        except RuntimeError:  # the loop is closed
            call.drop()

    def _left(self, call: _Call[T], undo: Undo[T] | None) -> None:
        if call.task is None:
            call.drop()
        elif undo is None:
            call.task.cancel()
        else:
            undoing = asyncio.ensure_future(_undo(call.task, undo))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)


class _Call(Generic[T]):
    """Work that a thread asks for.

    Args:
        work: The work.

    Attributes:
        ended: Whether it has ended; the thread waits for this.
        task: The task that does it; None before it has begun.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.ended = Event()
        self.task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Begin the work; the event loop calls this."""
        self.task = asyncio.ensure_future(self._work)
        self.task.add_done_callback(lambda _: self.ended.set())

    def drop(self) -> None:
        """Give up work that has not begun."""
        if self.task is None:
            self._work.close()

    def result(self) -> T:
        """Return the answer of work that has ended, or raise its error."""
        assert self.task is not None, "it has ended"
        return self.task.result()


async def _undo(task: asyncio.Task[T], undo: Undo[T]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())


LOOP_THREAD: Final = LoopThread()
"""The one of this process."""

if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=LOOP_THREAD.forget)
atexit.register(LOOP_THREAD.end)
