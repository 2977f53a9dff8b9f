"""Waiting with an eye on the client: one that leaves while its request waits leaves its line.

Only the receive channel says that a client has gone, so it is read while waiting, and its messages are handed on
afterwards. It is read no further than the first piece of a longer body, or one message of a websocket: the rest stays
where it is, and the application notices a client that leaves then, as without the gate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
from starlette.types import Message, Receive

from ..core.decision import Decision
from ..limiter import Limiter
from ..limiter.aio import on_asyncio
from .finishing import hand_back


class Ahead:
    """A receive channel that is read ahead while somebody waits.

    A read that has begun is kept for the next reader, and never cancelled: there are servers that lose the message
    then, granian for one. Those for trio are channels of trio's own, which lose nothing.

    Args:
        receive: The channel.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._early: deque[Message] = deque()
        self._begun: asyncio.Future[Message] | None = None

    async def __call__(self) -> Message:
        """Return the next message."""
        if self._early:
            return self._early.popleft()
        return await self._receive() if self._begun is None else await self._finish(self._begun)

    async def while_there(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Do some waiting; False if the client left meanwhile, which ends it."""

        async def watch(waiting: anyio.CancelScope) -> None:
            while self._goes_on():
                self._early.append(await self._read())
            if self._is_over():
                waiting.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            await wait()
            tasks.cancel_scope.cancel()
        return not self._is_over()

    def close(self) -> None:
        """End a read that has begun, because nobody reads any more."""
        if self._begun is not None:
            self._begun.cancel()
            self._begun = None

    def _goes_on(self) -> bool:
        """Tell whether the channel may be read further: to the end of a request that is whole, to a message else."""
        if not self._early:
            return True
        last = self._early[-1]
        return not (last.get("more_body", False) or last["type"] == "websocket.receive" or self._is_over())

    def _is_over(self) -> bool:
        return bool(self._early) and self._early[-1]["type"].endswith(".disconnect")

    async def _read(self) -> Message:
        if not on_asyncio():
            return await self._receive()
        if self._begun is None:
            self._begun = asyncio.ensure_future(self._receive())
            self._begun.add_done_callback(_retrieve)
        return await self._finish(self._begun)

    async def _finish(self, begun: asyncio.Future[Message]) -> Message:
        message = await asyncio.shield(begun)
        self._begun = None
        return message


class Watching(Protocol):
    """A channel that notices a client that leaves: `Ahead`, or a websocket that is watched over."""

    async def while_there(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Do some waiting; False if the client left meanwhile, which ends it."""


async def unless_left(
    channel: Watching, limiter: Limiter | None, ask: Callable[[], Awaitable[Decision]]
) -> Decision | None:
    """Return a decision that takes its time; None if the client left meanwhile.

    A client that leaves just when it is let in, or whose request is cancelled then, is charged nothing.

    Args:
        channel: Notices a client that leaves.
        limiter: Where units are handed back; None for counts that end with their client.
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
        if not there and decision is not None and limiter is not None:
            await hand_back([(limiter, decision)])
    return decision if there else None


def _retrieve(begun: asyncio.Future[Message]) -> None:
    """Take the exception of a read that nobody waits for, or the event loop would report it."""
    if not begun.cancelled():
        begun.exception()
