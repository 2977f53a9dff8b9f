"""Waiting requests: their messages are read ahead, and the charge is handed back if the client disconnects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from starlette.types import Message, Receive

from ..core.decision import Decision
from ..core.reservation import Reservation
from ..limiter import Limiter
from ..limiter.aio import on_asyncio, result_of, to_the_end

_MOST_AHEAD_BYTES: Final = 65_536
"""How much of a body is read while a request waits. After that, a disconnect is noticed only when its turn comes."""
_MESSAGE_BYTES: Final = 256
"""The estimated memory of a message besides its body."""


class ReadAhead:
    """A receive channel that is read ahead while one or more tasks wait.

    On asyncio, a pending read is never cancelled but kept for the next reader, because some servers, such as granian,
    lose the message otherwise. The channels of trio servers lose nothing.

    Args:
        receive: The channel.
    """

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self._early: deque[Message] = deque()
        self._begun: asyncio.Future[Message] | None = None

    async def __call__(self) -> Message:
        """Return the next message."""
        while not self._early:
            if self._begun is None:
                return await self.receive()
            await self._read()
        return self._early.popleft()

    async def while_there(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Run `wait` until it returns or the client disconnects; return False in the latter case."""

        async def watch(waiting: anyio.CancelScope) -> None:
            while self._goes_on():
                await self._read()
            if self._is_over():
                waiting.cancel()

        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            try:
                await wait()
            except Exception as error:  # the task group would wrap it in an exception group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return not self._is_over()

    def close(self) -> None:
        """Cancel a pending read: there are no more readers."""
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None

    def _goes_on(self) -> bool:
        """Return whether to read further: not after a disconnect or a websocket message, nor beyond the byte limit."""
        if self._early and (self._is_over() or self._early[-1]["type"] == "websocket.receive"):
            return False
        return sum(len(message.get("body", b"")) + _MESSAGE_BYTES for message in self._early) < _MOST_AHEAD_BYTES

    def _is_over(self) -> bool:
        return bool(self._early) and self._early[-1]["type"].endswith(".disconnect")

    async def _read(self) -> None:
        """Wait for a message; the first task that is woken stores it for the readers."""
        if not on_asyncio():
            self._early.append(await self.receive())
            return
        if self._begun is None:
            self._begun = asyncio.ensure_future(self.receive())
            self._begun.add_done_callback(_retrieve)
        begun = self._begun
        message = await result_of(begun)
        if self._begun is begun:
            self._begun = None
            self._early.append(message)


async def refund(*charged: tuple[Limiter, Sequence[Reservation]]) -> None:
    """Hand back all reservations to their limiters, even if the caller is cancelled meanwhile."""

    async def hand_back() -> None:
        for limiter, reservations in charged:
            await limiter.engine.refund(reservations)

    if all(limiter.engine.per_process or not reservations for limiter, reservations in charged):
        await hand_back()  # never suspends, so it cannot be cancelled
    else:
        await to_the_end(hand_back())


async def until_disconnect(
    channel: ReadAhead, limiter: Limiter, ask: Callable[[], Awaitable[Decision]]
) -> Decision | None:
    """Await a decision; return None if the client disconnects meanwhile.

    Nothing stays charged if the client disconnects, or the request is cancelled, at the moment of admission.

    Args:
        channel: The channel of the request.
        limiter: The limiter to refund units to.
        ask: Waits and returns the decision.
    """
    decision: Decision | None = None

    async def wait() -> None:
        nonlocal decision
        decision = await ask()

    there = False
    try:
        there = await channel.while_there(wait)
    finally:
        if not there and decision is not None:
            await refund((limiter, decision.take_back()))
    return decision if there else None


def _retrieve(begun: asyncio.Future[Message]) -> None:
    """Retrieve the exception of a read without waiters, or the event loop would log it."""
    if not begun.cancelled():
        begun.exception()
