"""How a request waits in line until it is called: in an event loop, or in a thread without one."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

import anyio

from ..core.decision import Decision
from .aio import on_asyncio


class Waiter(Protocol):
    """How a request waits: in an event loop, or in a thread without one."""

    def now_s(self) -> float:
        """Return the time, by which bounds go."""

    def call(self) -> None:
        """End the wait, from any thread."""

    async def wait(self, wait_s: float) -> None:
        """Wait to be called, for no longer than this."""

    async def answer(self, work: Coroutine[Any, Any, Decision]) -> Decision:
        """Return the answer to a question to the store."""


class LoopWaiter:
    """Waits in an event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()
        self._soon: Callable[[Callable[[], object]], object]
        if on_asyncio():
            self._soon = asyncio.get_running_loop().call_soon_threadsafe
        else:
            self._soon = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon

    def now_s(self) -> float:
        """See `Waiter.now_s`."""
        return anyio.current_time()

    def call(self) -> None:
        """See `Waiter.call`. An event is set in its own thread alone."""
        if self._thread == threading.get_ident():
            self._event.set()
        else:
            with suppress(RuntimeError):  # its event loop has ended, and it with that
                self._soon(self._set)

    def _set(self) -> None:
        self._event.set()

    async def wait(self, wait_s: float) -> None:
        """See `Waiter.wait`."""
        with anyio.move_on_after(wait_s):
            await self._event.wait()
        self._event = anyio.Event()

    async def answer(self, work: Coroutine[Any, Any, Decision]) -> Decision:
        """See `Waiter.answer`."""
        return await work


class ThreadWaiter:
    """Waits in a thread without an event loop; its coroutines never suspend.

    Args:
        ask: Runs a question to the store to its end.
    """

    def __init__(self, ask: Callable[[Coroutine[Any, Any, Decision]], Decision]) -> None:
        self._event = threading.Event()
        self._ask = ask

    def now_s(self) -> float:
        """See `Waiter.now_s`."""
        return monotonic()

    def call(self) -> None:
        """See `Waiter.call`."""
        self._event.set()

    async def wait(self, wait_s: float) -> None:
        """See `Waiter.wait`."""
        self._event.wait(min(wait_s, threading.TIMEOUT_MAX))
        self._event.clear()

    async def answer(self, work: Coroutine[Any, Any, Decision]) -> Decision:
        """See `Waiter.answer`."""
        return self._ask(work)
