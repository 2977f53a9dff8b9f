"""Limits on the messages that arrive over an accepted websocket.

Only ``websocket.receive`` counts. The order and the content of what passes is that of the client; a message beyond the
limit ends the connection, is dropped, or waits for its place, and nothing behind it is read meanwhile, so a client that
goes on sending is held back by the flow control of its own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

import anyio
from starlette.types import Message, Receive, Scope, Send

from ...core.bans.in_force import Guarded
from ...core.decision import Bucket, Decision, Reason
from ...core.errors import ConfigurationError
from ...core.limits import Limit, parse_limits
from ...limiter import Limiter
from ..keys.client_ip import ClientAddress
from ..keys.key import Key
from .held import Held

MessageKey: TypeAlias = Literal["connection", "client"] | Key
OnExceeded: TypeAlias = Literal["close", "drop", "wait"]

T = TypeVar("T")

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

    def attach(self, scope: Scope, socket: Watched) -> Counted:
        """Return a connection with its messages counted."""
        if self._key == "connection":
            # What lives as long as the connection needs no store that others share, and goes when it goes.
            own = Limiter()
            return Counted(socket, self._bucket, own, Held(own, scope, lambda _: "connection"), self._on_exceeded)
        client_key, find = self._client.locate(scope)[0], self._key.find if isinstance(self._key, Key) else None
        key = Held(self._limiter, scope, lambda s: client_key if find is None else find(s, self._limiter, client_key))
        return Counted(socket, self._bucket, self._limiter, key, self._on_exceeded)


class Watched:
    """A connection, seen from the application, that ends when its client is banned: at its next message, or before.

    Args:
        receive: The server's channel.
        send: The server's channel.
        guarded: Returns whose bans end it.
        banned: Tells whether a ban refuses the client now.
        struck: Called for each message that a limit refused.
        accepted: Called with the connection when the application has accepted it; tells whether somebody looks after
            it from then on, and may interrupt it.

    Attributes:
        over: Whether it has ended, by a message of either side.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        guarded: Callable[[], Sequence[Guarded]],
        banned: Callable[[], Awaitable[bool]],
        struck: Callable[[], Awaitable[None]],
        accepted: Callable[[Watched], bool],
    ) -> None:
        self._receive = receive
        self._send = send
        self._guarded = guarded
        self.banned = banned
        self.struck = struck
        self._accepted = accepted
        self._looked_after = False
        self._waiting: asyncio.Task[object] | None = None
        self._interrupted = False
        self.over = False
        self._last: Message | None = None
        self._early: list[Message] = []

    @property
    def guarded(self) -> Sequence[Guarded]:
        """Whose bans end it."""
        return self._guarded()

    @property
    def channels(self) -> tuple[Receive, Send]:
        """The channels for the application."""
        return self.receive, self.send

    async def receive(self) -> Message:
        """Return the next message, or a disconnect."""
        if self._last is not None:
            return self._last
        message = self._early.pop() if self._early else await self._unless_interrupted(self._receive())
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
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        return self._last

    async def shut_out(self) -> Message:
        """Close the connection of a client that is banned."""
        return await self.close(POLICY_VIOLATION, "banned")

    async def interrupt(self) -> None:
        """Close the connection of a client that is banned, whatever the application waits for.

        Its waiting ends first: there are servers that do not close while they are asked for a message. It is told of
        the end when the close was sent, because what it does then may end the connection in another way.
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

    async def wait(self, wait_us: int) -> bool:
        """Wait, and tell whether the client is still there."""
        await self._unless_interrupted(self._wait(wait_us))
        return not self._interrupted and (not self._early or self._early[0]["type"] != "websocket.disconnect")

    async def _wait(self, wait_us: int) -> None:
        if not self._early:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_ahead, tasks.cancel_scope)
                await anyio.sleep(wait_us / 1_000_000)
                tasks.cancel_scope.cancel()
        else:
            await anyio.sleep(wait_us / 1_000_000)

    async def _read_ahead(self, waiting: anyio.CancelScope) -> None:
        """Read one message: the channel says in no other way that the client has gone."""
        message = await self._receive()
        self._early.append(message)
        if message["type"] == "websocket.disconnect":
            waiting.cancel()


class Counted:
    """A connection whose messages are counted.

    Args:
        socket: The connection.
        bucket: What its messages are counted in.
        limiter: Where.
        key: Returns the key under which they are.
        on_exceeded: What becomes of a message beyond the limit.
    """

    def __init__(
        self, socket: Watched, bucket: Bucket, limiter: Limiter, key: Held[str], on_exceeded: OnExceeded
    ) -> None:
        self._socket = socket
        self._bucket = bucket
        self._key = key
        self._limiter = limiter
        self._on_exceeded = on_exceeded

    @property
    def channels(self) -> tuple[Receive, Send]:
        """The channels for the application."""
        return self.receive, self._socket.send

    async def receive(self) -> Message:
        """Return the next message that has room, or a disconnect."""
        while True:
            message = await self._socket.receive()
            if message["type"] != "websocket.receive":
                return message
            decision = await self._hit()
            while self._on_exceeded == "wait" and not decision.allowed and decision.reason is not Reason.BANNED:
                if not await self._socket.wait(decision.retry_after_us or 0):
                    return await self._socket.receive()
                if await self._socket.banned():
                    return await self._socket.shut_out()
                decision = await self._hit()
            if decision.allowed:
                return message
            if decision.reason is Reason.BANNED:
                return await self._socket.shut_out()
            if decision.reason is Reason.LIMITED:
                await self._socket.struck()
            if self._on_exceeded == "close":
                return await self._socket.close(TRY_AGAIN_LATER, "message limit exceeded")

    async def _hit(self) -> Decision:
        answer = self._limiter.internals.decide(((self._bucket, self._key(), 1),), ())
        return answer if isinstance(answer, Decision) else await answer
