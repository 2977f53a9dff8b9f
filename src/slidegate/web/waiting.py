"""What a request does while it waits: its messages are read ahead, and if it leaves, its charge is handed back."""

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
"""How much of a body is read while a request waits; behind that a client that leaves is noticed at its turn."""
_MESSAGE_BYTES: Final = 256
"""What a message takes beside its body."""


class ReadAhead:
    """A receive channel that is read ahead while somebody waits, also several at once.

    A read that has begun is kept for the next reader, and never cancelled: there are servers that lose the message
    then, granian for one. Those for trio are channels of trio's own, which lose nothing.

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
        """Do some waiting; False if the client left meanwhile, which ends it."""

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
            except Exception as error:  # leaving the group it would become a group itself
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return not self._is_over()

    def close(self) -> None:
        """End a read that has begun, because nobody reads any more."""
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None

    def _goes_on(self) -> bool:
        """Return whether the channel may be read further: until the client leaves, as long as that is not too much."""
        if self._early and (self._is_over() or self._early[-1]["type"] == "websocket.receive"):
            return False
        return sum(len(message.get("body", b"")) + _MESSAGE_BYTES for message in self._early) < _MOST_AHEAD_BYTES

    def _is_over(self) -> bool:
        return bool(self._early) and self._early[-1]["type"].endswith(".disconnect")

    async def _read(self) -> None:
        """Wait for a message; the first of those who wait for it puts it where it is read."""
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
    """Hand back all of what was charged to some limiters, also if the caller is cancelled meanwhile."""

    async def hand_back() -> None:
        for limiter, reservations in charged:
            await limiter.engine.refund(reservations)

    if all(limiter.engine.per_process or not reservations for limiter, reservations in charged):
        await hand_back()  # there is nothing to wait for, so nothing to cancel
    else:
        await to_the_end(hand_back())


async def until_disconnect(
    channel: ReadAhead, limiter: Limiter, ask: Callable[[], Awaitable[Decision]]
) -> Decision | None:
    """Return a decision that takes its time; None if the client disconnects meanwhile.

    A client that disconnects just when it is let in, or whose request is cancelled then, is charged nothing.

    Args:
        channel: The channel of the request.
        limiter: Where units are refunded.
        ask: Waits, and decides.
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
    """Take the exception of a read that nobody waits for, or the event loop would report it."""
    if not begun.cancelled():
        begun.exception()
