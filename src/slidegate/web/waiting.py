"""A receive channel that notices a disconnect while its request waits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from starlette.types import Message, Receive

from ..limiter.aio import on_asyncio
from .exchange import Exchange, Hook

_MOST_AHEAD_BYTES: Final = 65_536
"""How much of a body is read while a request waits; a client that disconnects later is not noticed."""
_MESSAGE_BYTES: Final = 256
"""The estimated memory of a message besides its body."""
_LAST: Final = ("http.disconnect", "websocket.disconnect", "websocket.receive")
"""The messages after which nothing is read ahead."""


class Peeked(Hook):
    """Reads messages ahead while a request waits, to notice a disconnect; the application receives them afterwards.

    A read is never cancelled but kept for the next reader, because some servers, such as granian, lose the message
    otherwise. Under trio nothing is read ahead, so only the application notices a disconnect.

    Args:
        receive: The channel.
    """

    starts = False
    ends = True

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._early: deque[Message] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._is_waiting = False

    def begin(self) -> None:
        """Begin to read ahead: the request waits."""
        self._is_waiting = True
        is_reading = self._reader is not None and not self._reader.done()
        if not is_reading and on_asyncio():
            self._reader = asyncio.ensure_future(self._read_ahead())
            # asyncio would log a failure that the application does not read.
            self._reader.add_done_callback(lambda reader: reader.cancelled() or reader.exception())

    def is_gone(self) -> bool:
        """Return whether the client has disconnected. Callable from any thread."""
        return bool(self._early) and bool(self._early[-1]["type"].endswith(".disconnect"))

    async def __call__(self) -> Message:
        """Return the next message."""
        self._is_waiting = False
        while not self._early:
            reader = self._reader
            if reader is None:
                return await self._receive()
            await asyncio.wait([reader])
            if self._reader is reader:
                self._reader = None
                reader.result()  # raises what the channel has raised
        return self._early.popleft()

    def end(self, exchange: Exchange, error: BaseException | None) -> None:
        """Cancel a pending read: there are no more readers."""
        self._is_waiting = False
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def _read_ahead(self) -> None:
        """Read until the application reads, the client has left, or there is enough."""
        while self._is_waiting and not (self._early and self._early[-1]["type"] in _LAST):
            if sum(len(message.get("body", b"")) + _MESSAGE_BYTES for message in self._early) >= _MOST_AHEAD_BYTES:
                break
            self._early.append(await self._receive())
