"""An accepted websocket that ends when its client is banned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from starlette.types import Message, Receive, Send

from ...core.bans.in_force import Guarded
from ..request import Ahead

T = TypeVar("T")

POLICY_VIOLATION: Final = 1008
"""The close code of a connection whose client was banned after it had begun (RFC 6455, section 7.4.1)."""


class Watched:
    """A connection, seen from the application, that ends when its client is banned: at its next message, or before.

    Args:
        receive: The server's channel, which is read ahead while a message waits.
        send: The server's channel.
        guarded: The keys and addresses whose bans end it.
        banned: Tells whether a ban refuses the client now.
        struck: Called for each message that a limit refused.
        accepted: Called with the connection when the application has accepted it; tells whether somebody looks after
            it from then on, and may interrupt it.

    Attributes:
        over: Whether it has ended, by a message of either side.
    """

    def __init__(
        self,
        receive: Ahead,
        send: Send,
        guarded: Sequence[Guarded],
        banned: Callable[[], Awaitable[bool]],
        struck: Callable[[], Awaitable[None]],
        accepted: Callable[[Watched], bool],
    ) -> None:
        self._receive = receive
        self._send = send
        self.guarded = guarded
        self.banned = banned
        self.struck = struck
        self._accepted = accepted
        self._looked_after = False
        self._waiting: asyncio.Task[object] | None = None
        self._interrupted = False
        self.over = False
        self._last: Message | None = None

    @property
    def channels(self) -> tuple[Receive, Send]:
        """The channels for the application."""
        return self.receive, self.send

    async def receive(self) -> Message:
        """Return the next message, or a disconnect."""
        if self._last is not None:
            return self._last
        message = await self._unless_interrupted(self._receive())
        if message is None or self._interrupted:
            return await self.shut_out()
        if self._last is not None:
            return self._last  # it was closed while the application waited
        if message["type"] == "websocket.disconnect":
            self.over = True
        elif message["type"] == "websocket.receive" and await self.banned():
            return await self.shut_out()
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on; a connection that was closed takes no more (ASGI, "Send after disconnect")."""
        if self._last is None:
            await self._send(message)
            if message["type"] == "websocket.accept":
                self._looked_after = self._accepted(self)
            elif message["type"] == "websocket.close":
                self.over = True
        elif message["type"] != "websocket.close":
            raise OSError(self._last["reason"])

    async def close(self, code: int, reason: str) -> Message:
        """Close the connection, if it is open, and return what the application is told."""
        if self._last is None:
            self._last = {"type": "websocket.disconnect", "code": code, "reason": reason}
            self.over = True
            self._receive.close()
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        return self._last

    async def shut_out(self) -> Message:
        """Close the connection of a client that is banned."""
        return await self.close(POLICY_VIOLATION, "banned")

    async def interrupt(self) -> None:
        """Close the connection of a client that is banned, whatever the application waits for.

        Its waiting ends first: there are servers that do not close while they are asked for a message. It is told of
        the end when the close was sent, because its reaction may end the connection in another way.
        """
        if self._interrupted:
            return
        self._interrupted = self._waiting is not None
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self.shut_out()

    async def _unless_interrupted(self, waiting: Awaitable[T]) -> T | None:
        """Wait for something, and return None where the connection is to be closed meanwhile."""
        if not self._looked_after:
            return await waiting
        task = self._waiting = asyncio.current_task()
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._interrupted or (task is not None and task.uncancel()):
                raise
            return None
        finally:
            self._waiting = None

    async def while_there(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Do some waiting, and tell whether the client is still there."""
        return await self._unless_interrupted(self._receive.while_there(wait)) is True
