"""Runs coroutines of a limiter for threads without an event loop.

The methods of a limiter are coroutines. With memory and LMDB they never suspend, so the calling thread runs them to
completion. All other stores, and calls that queue, use an event loop in a thread of its own, from
the first such call until the limiter is closed or garbage-collected. A forked child, which has no copy of the thread,
starts its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from threading import TIMEOUT_MAX, Thread, current_thread
from typing import Any, Final, TypeVar
from weakref import finalize

from ..core.errors import ConfigurationError, StoreTimeout, StoreUnavailable
from ..core.store import COMMAND_DEADLINE_S
from ..stores.forks import ForkHook, ProcessLock, restart_if_forked
from ..stores.shared import on_loop
from .aio import run_at_once

T = TypeVar("T")

JOIN_S: Final = 2.0
"""How long the end of the loop's thread may take."""
STEPS: Final = 3
"""The most deadlines that one call may wait for in sequence: a query, a refund, and another query."""
GRACE_S: Final = 5.0
"""The additional time for a busy event loop."""
_COMMAND_S: Final = STEPS * COMMAND_DEADLINE_S + GRACE_S


class _LoopThread:
    """An event loop and the thread that runs it.

    Args:
        lock: Its lock, under which coroutines are submitted to the loop.

    Attributes:
        end: Ends both; called by `SyncRunner.end`, and at the end of the runner or the process.
        is_over: Whether the loop runs no more coroutines: it was ended, or a coroutine has raised SystemExit.

    Raises:
        RuntimeError: The thread cannot be started.
    """

    def __init__(self, runner: SyncRunner, lock: ProcessLock) -> None:
        self._lock = lock
        self.is_over = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        # A daemon, because the interpreter joins other threads before it runs what `finalize` has registered.
        self.thread = Thread(target=self._serve, name="slidegate-loop", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            self._runner.close()
            raise
        self.end = finalize(runner, self._end)

    def _serve(self) -> None:
        with self._runner:  # its end cancels all tasks
            try:
                self.loop.run_forever()
            finally:
                with self._lock:
                    self.is_over = True
                # A coroutine that was submitted before that becomes a task, so that it is cancelled and not lost.
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()

    def _end(self) -> None:
        with suppress(RuntimeError):  # it has ended, or its last reference was dropped in this thread
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(JOIN_S)


class SyncRunner:
    """Runs coroutines of a limiter for threads without an event loop.

    Args:
        deadline_us: The deadline of the limiter's queries.
        answers_threads: Whether the store answers threads, so that its coroutines never suspend.

    Attributes:
        closed: Whether the limiter is closed, so that its coroutines raise at once.
    """

    def __init__(self, deadline_us: int, *, answers_threads: bool) -> None:
        self.closed = False
        self._answers_threads = answers_threads
        self._deadline_us = deadline_us
        self._running: _LoopThread | None = None
        self._lock = ProcessLock()
        self._in_child = ForkHook(self.restart)
        # What the loop imports: not when it starts, because a child that is forked while another thread imports would
        # wait for the end of that for ever.
        import ctypes  # noqa: F401

        import anyio._backends._asyncio  # noqa: F401

    def restart(self) -> None:
        """Drop the thread, in a child after `fork`: it exists only in the parent.

        The loop and its tasks are never collected, also not when the child ends: that would unregister shared file
        descriptors for the parent, which would then receive no more answers.
        """
        if self._running is not None:
            import ctypes

            self._running.end.detach()
            for part in (self._running, *asyncio.all_tasks(self._running.loop)):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
        self._running = None

    def run_query(self, work: Coroutine[Any, Any, T], wait_us: int = 0) -> T:
        """Run a query of a request, within the limiter's deadline.

        Args:
            wait_us: How long it may also wait for room, in microseconds.

        Raises:
            ConfigurationError: An event loop runs in this thread.
            StoreTimeout: No answer comes.
        """
        return self._run(work, GRACE_S + (STEPS * self._deadline_us + wait_us) / 1_000_000, suspends=wait_us > 0)

    def run_command(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a command of an operator; see `run_query`."""
        return self._run(work, _COMMAND_S, suspends=False)

    def _run(self, work: Coroutine[Any, Any, T], max_s: float, *, suspends: bool) -> T:
        """Run a coroutine: in this thread if it never suspends, else on the loop."""
        if on_loop():
            work.close()
            raise ConfigurationError(
                "limiter.sync blocks, and would block the event loop that runs in this thread; write `await "
                "limiter.hit(...)`, or with limiter.limited `async with` or `async def`, or call it in a thread, for "
                "example with asyncio.to_thread"
            )
        if not self.closed and (suspends or not self._answers_threads):
            return self._run_on_loop(work, min(max_s, TIMEOUT_MAX))
        return run_at_once(work)

    def _run_on_loop(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the loop, and return its result. An interrupt of the caller, as by Ctrl-C, cancels it.

        Args:
            timeout_s: How long to wait. Stores have their own deadlines, so only a blocked loop takes longer.

        Raises:
            StoreTimeout: No result came in time.
            StoreUnavailable: The thread cannot be started, or has ended.
        """
        restart_if_forked()
        try:
            with self._lock:
                if self._running is None or self._running.is_over:
                    self._running = _LoopThread(self, self._lock)
                # Within the lock, so that `end` comes later, and cancels it.
                future = asyncio.run_coroutine_threadsafe(work, self._running.loop)
        except (RuntimeError, OSError) as error:
            work.close()
            raise StoreUnavailable(f"the event loop for threads does not run: {error}") from error
        try:
            # Not `result(timeout_s)`: its TimeoutError is the same as one that a signal handler raises.
            if not wait([future], timeout_s).done:
                raise StoreTimeout(f"the event loop for threads has been blocked for {timeout_s:g} s")
            return future.result()
        except CancelledError:
            raise StoreUnavailable("the event loop for threads has ended") from None
        finally:
            future.cancel()

    def end(self) -> None:
        """End the thread; in that thread itself do nothing: another thread has to do it afterwards."""
        with self._lock:
            if self._running is None or self._running.thread is current_thread():
                return
            running, self._running = self._running, None
        running.end()
