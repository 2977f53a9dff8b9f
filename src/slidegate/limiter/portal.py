"""One event loop in a thread of its own, for threads that have none.

A store that is asynchronous is asked on an event loop. Threads without one hand their questions to this one, and wait.
One thread serves all limiters of a process. It starts with the first question, and ends when the last limiter that used
it is closed, or with the interpreter, which it does not hold up. `fork` copies no threads, so a child starts its own.
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
    """The portal of this process, while anybody needs it."""

    def __init__(self) -> None:
        self._left_behind: list[_Running] = []
        self._running: _Running | None = None
        self.forget()

    def run(self, user: object, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Do some work on the loop, and return its answer. A caller that leaves, as with Ctrl-C, cancels it.

        Args:
            user: The thread stays until `release` is called for every user that is still alive.
            work: The work.
            timeout_s: How long to wait. Stores keep deadlines of their own, so only a loop that stands still takes
                longer.

        Raises:
            StoreTimeout: The answer did not come.
            StoreUnavailable: The thread cannot be started, or ended meanwhile.
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
            # Not by `result`: a signal handler may raise a TimeoutError of its own.
            if not wait([future], timeout_s).done:
                raise StoreTimeout(f"the event loop for threads has stood still for {timeout_s:g} s")
            return future.result()
        except CancelledError:
            raise StoreUnavailable(_ENDED) from None
        finally:
            future.cancel()

    def release(self, user: object) -> None:
        """End the thread, once nobody else needs it."""
        with self._lock:
            if self._running is not None and self._running.thread is current_thread():
                return  # a limiter is closed there, for somebody who releases it afterwards
            self._users.discard(user)
            if self._users:
                return
            running, self._running = self._running, None
        if running is not None:
            running.end()

    def end(self) -> None:
        """End the thread, because the interpreter ends."""
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def forget(self) -> None:
        """Begin anew, as in a child after `fork`: the thread is the parent's."""
        if self._running is not None:
            # The child shares the file descriptors: a loop that is collected there would unregister them in the parent.
            self._left_behind.append(self._running)
        self._lock, self._running = Lock(), None
        self._users: WeakSet[object] = WeakSet()


class _Running:
    """A portal, and the thread that it runs in.

    Raises:
        StoreUnavailable: No thread or no loop can be started.
    """

    def __init__(self) -> None:
        self._started = Future[BlockingPortal]()
        # A daemon, because the interpreter waits for other threads before it calls what `atexit` knows.
        self.thread = Thread(target=self._serve, name="slidegate-loop", daemon=True)
        try:
            self.thread.start()
            self._portal = self._started.result()
        except (RuntimeError, OSError) as error:
            raise StoreUnavailable(f"no event loop can be started for threads: {error}") from error

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start some work on the loop."""
        try:
            return self._portal.start_task_soon(lambda: work)
        except RuntimeError:
            raise StoreUnavailable(_ENDED) from None

    def end(self) -> None:
        """Cancel what is under way, and end the thread."""
        with suppress(RuntimeError):  # it has ended
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
"""The one of this process."""

begin_anew_in_child(PORTAL.forget)
atexit.register(PORTAL.end)
