"""Calls a function twice a second, as long as an application runs: by a timer of asyncio, or by a task of trio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import anyio

from ..core.store import Store
from .aio import on_asyncio, on_loop

INTERVAL_S: Final = 0.5


class Ticker:
    """Calls a coroutine function every half second.

    Args:
        store: What the function queries.
        call: The function; it raises nothing.
        is_needed: Returns whether it has to be called again. If it never has, nothing is ever started.

    Attributes:
        loop: The event loop that calls it, under trio the token of its run; None if none does.
        task: The latest call by asyncio.
        due: Whether `start` has to be called before the next question is asked.
    """

    def __init__(self, store: Store, call: Callable[[], Awaitable[None]], is_needed: Callable[[], bool]) -> None:
        self._store = store
        self._call = call
        self._is_needed = is_needed
        self._next_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.stop()

    def stop(self) -> None:
        """Call the function no more, until `start` is called again."""
        self._home: asyncio.AbstractEventLoop | None = None
        self.loop: asyncio.AbstractEventLoop | object | None = None
        self.due = self._is_needed()

    def start(self) -> bool:
        """Call the function from now on, in the first event loop that called this: those of threads may be short-lived.

        In a thread without an event loop, call it now, if half a second has passed and the store answers threads.

        Returns:
            Whether the function is called.
        """
        if self._home is not None and self._home.is_closed():
            self._home = self.loop = None
        if self._home is None and on_asyncio():
            self._home = asyncio.get_running_loop()
        if not self._is_needed():
            return False
        if self._home is not None:
            self.due = False
            if self.loop is not self._home:
                self.loop = self._home
                self._home.call_soon_threadsafe(self._begin, self._home)
        elif self.loop is None and on_loop():
            self.due = False
            trio = sys.modules["trio"].lowlevel
            self.loop = trio.current_trio_token()
            trio.spawn_system_task(self._repeat, self.loop)
        elif self.loop is None and monotonic() >= self._next_s and self._store.answers_threads():
            self._next_s = monotonic() + INTERVAL_S
            self._call_here()
        return True

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is loop:
            self.task = loop.create_task(self._call_and_reschedule(loop))

    async def _call_and_reschedule(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._call()
        finally:
            if self._goes_on(loop) and not loop.is_closed():
                loop.call_later(INTERVAL_S, self._begin, loop)

    async def _repeat(self, token: object) -> None:
        """Call the function until the trio run, which cancels this task, or the limiter ends."""
        try:
            while self._goes_on(token):
                await self._call()
                await anyio.sleep(INTERVAL_S)
        finally:
            if self.loop is token:
                self.stop()

    def _goes_on(self, loop: object) -> bool:
        if self.loop is loop and not self._is_needed():
            self.loop = None
        return self.loop is loop

    def _call_here(self) -> None:
        """Run the function in this thread; it never suspends with a store that answers threads."""
        calling = self._call().__await__()
        next(calling, None)
        calling.close()
