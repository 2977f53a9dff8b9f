"""An event loop in a thread of its own, for threads without one.

Asynchronous stores need an event loop. Threads without one run their calls on this loop, and block. One thread serves
all limiters of a process. It starts with the first call, and ends when the last limiter that used it is closed. As a
daemon it does not delay the exit of the interpreter. `fork` copies no threads, so a child starts its own.
"""

from __future__ import annotations

import atexit
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from threading import Lock, Thread, current_thread
from typing import Any, Final, TypeVar
from weakref import WeakSet

import anyio
from anyio.from_thread import BlockingPortal

from ..core.errors import StoreTimeout, StoreUnavailable
from ..stores.forks import begin_anew_in_child

T = TypeVar("T")

JOIN_S: Final = 2.0
_ENDED: Final = "the event loop for threads has ended"


class SharedPortal:
    """The portal of this process; its thread runs while any user needs it."""

    def __init__(self) -> None:
        self._left_behind: list[_Running] = []
        self._running: _Running | None = None
        self.forget()

    def run(self, user: object, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the loop, and return its result. An interrupt of the caller, as by Ctrl-C, cancels it.

        Args:
            user: The thread runs until `release` is called for every user that is still alive.
            work: The coroutine.
            timeout_s: How long to wait. Stores have their own deadlines, so only a blocked loop takes longer.

        Raises:
            StoreTimeout: No result came in time.
            StoreUnavailable: The thread cannot be started, or has ended.
        """
        try:
            with self._lock:
                running = self._running = self._running or _Running()
                self._users.add(user)
            future = running.start(work)
        except BaseException:
            work.close()
            raise
        try:
            # Not `result(timeout_s)`: its TimeoutError could not be told from one that a signal handler raises.
            if not wait([future], timeout_s).done:
                raise StoreTimeout(f"the event loop for threads has been blocked for {timeout_s:g} s")
            return future.result()
        except CancelledError:
            raise StoreUnavailable(_ENDED) from None
        finally:
            future.cancel()

    def release(self, user: object) -> None:
        """End the thread if no other user needs it."""
        with self._lock:
            if self._running is not None and self._running.thread is current_thread():
                return  # a limiter is closed on the loop itself; its caller releases afterwards
            self._users.discard(user)
            if self._users:
                return
            running, self._running = self._running, None
        if running is not None:
            running.end()

    def end(self) -> None:
        """End the thread, because the interpreter exits."""
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def forget(self) -> None:
        """Start from scratch, as in a child after `fork`: the thread exists only in the parent."""
        if self._running is not None:
            # Keep the loop: collecting it in the child would unregister the shared file descriptors for the parent.
            self._left_behind.append(self._running)
        self._lock, self._running = Lock(), None
        self._users: WeakSet[object] = WeakSet()


class _Running:
    """A portal and its thread.

    Raises:
        StoreUnavailable: The thread or the loop cannot be started.
    """

    def __init__(self) -> None:
        self._started = Future[BlockingPortal]()
        # A daemon, because the interpreter joins other threads before it runs the `atexit` handlers.
        self.thread = Thread(target=self._serve, name="slidegate-loop", daemon=True)
        try:
            self.thread.start()
            self._portal = self._started.result()
        except (RuntimeError, OSError) as error:
            raise StoreUnavailable(f"the event loop for threads cannot be started: {error}") from error

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        try:
            return self._portal.start_task_soon(lambda: work)
        except RuntimeError:
            raise StoreUnavailable(_ENDED) from None

    def end(self) -> None:
        """Cancel the running tasks, and end the thread."""
        with suppress(RuntimeError):  # it has already ended
            self._portal.start_task_soon(self._portal.stop, True)
        self.thread.join(JOIN_S)

    def _serve(self) -> None:
        async def serve() -> None:
            async with BlockingPortal() as portal:
                self._started.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(serve)
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)


PORTAL: Final = SharedPortal()
"""The portal of this process."""

begin_anew_in_child(PORTAL.forget)
atexit.register(PORTAL.end)
