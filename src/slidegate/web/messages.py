"""Limits on the messages that arrive over an accepted websocket.

Only ``websocket.receive`` counts. The order and the content of what passes is that of the client; a message beyond the
limit ends the connection, is dropped, or waits for its place, and nothing behind it is read meanwhile, so a client that
goes on sending is held back by the flow control of its own connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, TypeAlias

import anyio
from starlette.types import Message, Receive, Scope, Send

from ..core.decision import Bucket, Decision
from ..core.errors import ConfigurationError
from ..core.limits import Limit, parse_limits
from ..limiter import Limiter
from .keys import Key
from .proxies import ClientAddress

MessageKey: TypeAlias = Literal["connection", "client"] | Key
OnExceeded: TypeAlias = Literal["close", "drop", "wait"]

TRY_AGAIN_LATER: Final = 1013
"""The close code of a connection that went beyond a message limit (IANA's registry of close codes)."""
POLICY_VIOLATION: Final = 1008
"""The close code of a connection whose client was banned after it had begun (RFC 6455, section 7.4.1)."""


class MessageLimits:
    """Counts the messages of websockets.

    Args:
        limits: ``"10/second"``.
        key: ``"connection"`` counts each connection by itself, in this process; ``"client"`` all connections of a
            client together, in the limiter; or a key such as `header`, also in the limiter.
        on_exceeded: What to do with a message beyond the limit: ``"close"`` the connection with code 1013, ``"drop"``
            the message, or make it ``"wait"`` until there is room.
        limiter: Where clients are counted.
        client: How the client's address is found.
        claimed: An identity that no other middleware on the limiter has.

    Raises:
        ConfigurationError: A value cannot work.
    """

    def __init__(
        self,
        limits: str | Limit | Iterable[str | Limit],
        key: MessageKey,
        on_exceeded: OnExceeded,
        limiter: Limiter,
        client: ClientAddress,
        claimed: str,
    ) -> None:
        if key not in ("connection", "client") and not isinstance(key, Key):
            raise ConfigurationError(
                f'message_key: expected "connection", "client" or a key such as header, not {key!r}'
            )
        if on_exceeded not in ("close", "drop", "wait"):
            raise ConfigurationError(f'on_exceeded: expected "close", "drop" or "wait", not {on_exceeded!r}')
        self._bucket = Bucket(claimed, parse_limits(limits))
        self._key = key
        self._on_exceeded = on_exceeded
        self._limiter = limiter
        self._client = client

    def attach(
        self, scope: Scope, receive: Receive, send: Send, struck: Callable[[], Awaitable[None]]
    ) -> tuple[Receive, Send]:
        """Return the channels of one connection, with its messages counted; `struck` is called for each refused."""
        if self._key == "connection":
            # What lives as long as the connection needs no store that others share, and goes when it goes.
            limiter, key = Limiter(), "connection"
        else:
            limiter, key = self._limiter, self._client.locate(scope)[0]
            if isinstance(self._key, Key):
                key = self._key.find(scope, limiter, key)
        connection = _Counted(self._bucket, limiter, key, self._on_exceeded, receive, send, struck)
        return connection.receive, connection.send


class _Connection:
    """One connection, seen from the application, that the gate may close."""

    code: int
    reason: str

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._closed = False

    async def close(self) -> Message:
        """Close the connection, if it is open, and return what the application is told."""
        if not self._closed:
            self._closed = True
            await self._send({"type": "websocket.close", "code": self.code, "reason": self.reason})
        return {"type": "websocket.disconnect", "code": self.code, "reason": self.reason}

    async def send(self, message: Message) -> None:
        """Pass a message on; a connection that was closed takes no more (ASGI, "Send after disconnect")."""
        if not self._closed:
            await self._send(message)
        elif message["type"] != "websocket.close":
            raise OSError(self.reason)


class ShutOut(_Connection):
    """A connection that ends at the next message of a client that was banned meanwhile."""

    code = POLICY_VIOLATION
    reason = "banned"

    def __init__(self, banned: Callable[[], Awaitable[bool]], receive: Receive, send: Send) -> None:
        super().__init__(receive, send)
        self._banned = banned

    async def receive(self) -> Message:
        """Return the next message, or a disconnect."""
        if self._closed:
            return await self.close()
        message = await self._receive()
        if message["type"] == "websocket.receive" and await self._banned():
            return await self.close()
        return message


class _Counted(_Connection):
    """A connection whose messages are counted."""

    code = TRY_AGAIN_LATER
    reason = "message limit exceeded"

    def __init__(
        self,
        bucket: Bucket,
        limiter: Limiter,
        key: str,
        on_exceeded: OnExceeded,
        receive: Receive,
        send: Send,
        struck: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(receive, send)
        self._checks = ((bucket, key, 1),)
        self._limiter = limiter
        self._on_exceeded = on_exceeded
        self._struck = struck

    async def receive(self) -> Message:
        """Return the next message that has room, or a disconnect."""
        while not self._closed:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return message
            decision = await self._hit()
            while not decision.allowed and self._on_exceeded == "wait":
                await anyio.sleep((decision.retry_after_us or 0) / 1_000_000)
                decision = await self._hit()
            if decision.allowed:
                return message
            await self._struck()
            if self._on_exceeded == "close":
                break
        return await self.close()

    async def _hit(self) -> Decision:
        answer = self._limiter.decide(self._checks, ())
        return answer if isinstance(answer, Decision) else await answer
