"""A receive channel that notices a disconnect while its request waits, and refunds that are not interrupted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from starlette.types import Message, Receive

from ..core.reservation import Reservation
from ..limiter import Limiter
from ..limiter.aio import on_asyncio, to_the_end
from .exchange import Exchange, Hook

_MOST_AHEAD_BYTES: Final = 65_536
"""How much of a body is read while a request waits; a client that disconnects later is not noticed."""
_MESSAGE_BYTES: Final = 256
"""The estimated memory of a message besides its body."""


class Peeked(Hook):
    """Reads messages ahead while a request waits, to notice a disconnect; the application receives them afterwards.

    A read is never cancelled but kept for the next reader, because some servers, such as granian, lose the message
    otherwise. Under trio nothing is read ahead, so only the application notices a disconnect.

    Args:
        receive: The channel; None if it is out of reach.
    """

    starts = False
    ends = True

    def __init__(self, receive: Receive | None) -> None:
        self.receive = receive
        self._early: deque[Message] = deque()
        self._ahead: asyncio.Future[Message] | None = None
        self._is_waiting = False

    def begin(self) -> None:
        """Begin to read ahead: the request waits."""
        self._is_waiting = True
        self._read_on()

    def is_gone(self) -> bool:
        """Return whether the client has disconnected. Callable from any thread."""
        return bool(self._early) and bool(self._early[-1]["type"].endswith(".disconnect"))

    async def __call__(self) -> Message:
        """Return the next message."""
        self._is_waiting = False
        while not self._early:
            ahead = self._ahead
            if ahead is None:
                return await self._next()
            await asyncio.wait([ahead])
            if self._ahead is ahead:  # it has failed
                self._ahead = None
                return ahead.result()
        return self._early.popleft()

    async def _next(self) -> Message:
        assert self.receive is not None, "who has no channel reads none"
        return await self.receive()

    def end(self, exchange: Exchange, error: BaseException | None) -> None:
        """Cancel a pending read: there are no more readers."""
        self._is_waiting = False
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None

    def _read_on(self) -> None:
        """Read the next message, unless it is for the application to read or there are enough of them."""
        if not self._is_waiting or self._ahead is not None or self.receive is None or not on_asyncio():
            return
        if self._early and (self.is_gone() or self._early[-1]["type"] == "websocket.receive"):
            return
        if sum(len(message.get("body", b"")) + _MESSAGE_BYTES for message in self._early) < _MOST_AHEAD_BYTES:
            self._ahead = asyncio.ensure_future(self._next())
            self._ahead.add_done_callback(self._keep)

    def _keep(self, ahead: asyncio.Future[Message]) -> None:
        """Keep a message that was read; an exception stays in `_ahead` for the next reader."""
        if not ahead.cancelled() and ahead.exception() is None:
            self._early.append(ahead.result())
            self._ahead = None
            self._read_on()


async def refund(limiter: Limiter, reservations: Sequence[Reservation]) -> None:
    """Hand back reservations, even if the caller is cancelled meanwhile."""
    answer = limiter.engine.refund(reservations)
    # The former never suspends, so it cannot be cancelled.
    await (answer if limiter.engine.per_process or not reservations else to_the_end(answer))
