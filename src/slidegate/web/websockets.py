"""Accepted websockets: limits on their messages, and closing them when the client is banned.

Only ``websocket.receive`` counts. Admitted messages keep their order and content; a message over the limit closes the
connection or is dropped.

The websocket of a banned client is closed within ten seconds. Messages do not query the store for bans: one task per
event loop does, as long as websockets are open. It queries the bans of many connections in one call, and narrows down
by halves only if there is one. The server notifies the application of the close, as of any disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal, TypeAlias
from weakref import WeakSet

from starlette.types import Message, Scope, Send

from ..core.arguments import names_checked
from ..core.bans.ban import Ban, BanSubject
from ..core.decide import WindowRef, decide, in_periods
from ..core.decision import Bucket, Check, Decision, Reason
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit, parse_limits
from ..core.logs import logger
from ..core.store import Clock
from ..limiter import Limiter
from ..limiter.aio import in_background
from .client_ip import ClientAddress
from .endpoint_refusals import TOO_MANY, TRY_AGAIN_LATER
from .keys import Key, parts_of
from .path_params import PathParam
from .responses import POLICY_VIOLATION, close_websocket
from .waiting import Peeked

MessageKey: TypeAlias = Literal["connection", "client"] | Key
Beyond: TypeAlias = Literal["close", "drop"]
Count: TypeAlias = Callable[[], Decision | Awaitable[Decision]]

EVERY_S: Final = 5.0
"""The pause between two checks for bans: with the deadline of a store, a ban is noticed within 10 s."""
AT_ONCE: Final = 256
"""The number of connections that one query covers."""


class MessageLimits:
    """The limits for messages on an accepted websocket: ``MessageLimits("10/second", beyond="drop")``.

    Args:
        limits: As for `Rule`: ``"10/second"``, ``"10/second; 100/minute"``, a `Limit`, a `Quota`, or several.
        key: ``"connection"`` counts the messages of each websocket separately, in this process; ``"client"`` those of
            all websockets of a client together, in the limiter; or a key such as `header`, also in the limiter.
        beyond: The action on a message over the limit: ``"close"`` closes the websocket with code 1013, ``"drop"``
            discards the message.

    Attributes:
        limits: The limits.
        key: The key by which messages are counted.
        beyond: The action on a message over the limit.

    Raises:
        ConfigurationError: An option is invalid.
    """

    @names_checked
    def __init__(
        self,
        limits: str | AnyLimit | Iterable[str | AnyLimit],
        *,
        key: MessageKey = "connection",
        beyond: Beyond = "close",
    ) -> None:
        if key not in ("connection", "client") and not isinstance(key, Key):
            raise ConfigurationError(
                f'expected "connection", "client" or a key such as header, not {quoted(key)}', "key"
            )
        if any(isinstance(part, PathParam) for part in parts_of(key)):
            raise ConfigurationError(
                f"{key!r} is not known here, before routing; use another key, or write "
                "RateLimit(..., key=path_param(...)) at the endpoint",
                "key",
            )
        if beyond not in ("close", "drop"):
            raise ConfigurationError(f'expected "close" or "drop", not {quoted(beyond)}', "beyond")
        self.limits = parse_limits(limits)
        self.key = key
        self.beyond = beyond

    def __repr__(self) -> str:
        return f"<MessageLimits {'; '.join(map(str, self.limits))}, {self.beyond}>"


class MessageCounter:
    """Counts the messages of the websockets of one middleware.

    Args:
        messages: The limits, the key, and the action on a message over a limit.
        limiter: The limiter that counts clients.
        client: Determines the client's address.
        own_id: An identity that is unique among the middlewares of the limiter.

    Attributes:
        beyond: The action on a message over a limit.
    """

    def __init__(self, messages: MessageLimits, limiter: Limiter, client: ClientAddress, own_id: str) -> None:
        self._bucket = Bucket(own_id, messages.limits)
        self._key = messages.key
        self._limiter = limiter
        self._client = client
        self.beyond = messages.beyond

    def buckets(self) -> Sequence[Bucket]:
        """Return the bucket in the limiter; none if each connection has its own windows."""
        return () if self._key == "connection" else (self._bucket,)

    def count_of(self, scope: Scope) -> Count:
        """Return the function that counts a message of a connection."""
        engine = self._limiter.engine
        if self._key == "connection":
            # These windows live as long as the connection, so they need no shared store.
            windows = {limit.same_window: b"" for limit in self._bucket.limits}
            places: list[WindowRef] = [(limit.counter, 1, windows, limit.same_window) for limit in self._bucket.limits]
            return partial(_count, ((self._bucket, "connection", 1),), places, engine.now_us, engine.unix_us)
        key = self._client.locate(scope)[0]
        if isinstance(self._key, Key):
            key = self._key.find(scope, self._limiter, key)
        return partial(engine.decide, ((self._bucket, key, 1),), ())


def _count(checks: Sequence[Check], places: Sequence[WindowRef], clock: Clock, wall_clock: Clock) -> Decision:
    now_us = clock()
    return decide(checks, in_periods(places, now_us, wall_clock()), now_us)


class GuardedWebSocket:
    """The channels of a websocket for the application: counts its messages, and closes it when its client is banned.

    Args:
        scope: Its scope.
        receive: The server's channel, which is read ahead while the handshake waits.
        send: The server's channel.
        subjects: The keys and addresses whose bans close it.
        sockets: Checks it for bans once the application has accepted it.
        strike: Strikes for a message that a limit refused; returns True if that bans its client.
        messages: Counts its messages; None if they have no limit.

    Attributes:
        over: Whether the connection has been closed by either side.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Peeked,
        send: Send,
        subjects: Sequence[BanSubject],
        sockets: OpenWebSockets,
        strike: Callable[[], Awaitable[bool]],
        messages: MessageCounter | None,
    ) -> None:
        self._receive = receive
        self._send = send
        self.subjects = subjects
        self._sockets = sockets
        self._strike = strike
        self._count = None if messages is None else messages.count_of(scope)
        self._drops = messages is not None and messages.beyond == "drop"
        self._watched = False
        self._waiting: asyncio.Task[object] | None = None
        self._interrupted = False
        self.over = False
        self._last: Message | None = None

    async def receive(self) -> Message:
        """Return the next message within the limits, or a disconnect."""
        message: Message | None = None
        while message is None:
            message = await self._next()
            if self._count is not None and message["type"] == "websocket.receive":
                message = await self._counted(message, self._count)
        return message

    async def _next(self) -> Message:
        """Return the next message, or a disconnect."""
        if self._last is not None:
            return self._last
        message = await self._unless_interrupted(self._receive())
        if message is None or self._interrupted:
            return await self._close_as_banned()
        if self._last is not None:
            return self._last  # it was closed while the application waited
        if message["type"] == "websocket.disconnect":
            self.over = True
        return message

    async def _counted(self, message: Message, count: Count) -> Message | None:
        """Count a message. Return it if it is admitted, else a disconnect, or None if it is dropped."""
        answer = count()
        decision = answer if isinstance(answer, Decision) else await answer
        if decision.allowed:
            return message
        if decision.reason is Reason.BANNED:
            return await self._close_as_banned()
        if decision.reason is Reason.LIMITED and await self._strike():
            return await self._close_as_banned()
        return None if self._drops else await self._close(TRY_AGAIN_LATER, "message limit exceeded")

    async def send(self, message: Message) -> None:
        """Forward a message; raise `OSError` if the connection was closed (ASGI, "Send after disconnect")."""
        if self._last is None:
            if (message.get("code"), message.get("reason")) == (TRY_AGAIN_LATER, TOO_MANY):  # of a limit at an endpoint
                await close_websocket(self._send, TRY_AGAIN_LATER, TOO_MANY)
            else:
                await self._send(message)
            if message["type"] == "websocket.accept":
                self._watched = self._sockets.add(self)
            elif message["type"] == "websocket.close":
                self.over = True
        elif message["type"] != "websocket.close":
            raise OSError(self._last["reason"])

    async def _close(self, code: int, reason: str) -> Message:
        """Close the connection if it is open; return the disconnect message for the application."""
        if self._last is None:
            self._last = {"type": "websocket.disconnect", "code": code, "reason": reason}
            self.over = True
            self._receive.close()
            await close_websocket(self._send, code, reason)
        return self._last

    async def _close_as_banned(self) -> Message:
        """Close the connection of a client that is banned."""
        return await self._close(POLICY_VIOLATION, "banned")

    async def interrupt(self) -> None:
        """Close the connection of a banned client, even while the application waits for a message.

        That wait is cancelled first, because some servers do not close a connection while it is being read. The
        application is notified after the close was sent, because it may react by closing the connection differently.
        """
        if self._interrupted:
            return
        self._interrupted = self._waiting is not None
        if self._waiting is not None:
            self._waiting.cancel()
            return
        with suppress(OSError):  # the client has disconnected
            await self._close_as_banned()

    async def _unless_interrupted(self, waiting: Awaitable[Message]) -> Message | None:
        """Wait for a message; return None if the wait is interrupted because the connection must be closed."""
        if not self._watched:
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


class OpenWebSockets:
    """Closes open websockets of banned clients.

    Args:
        find: Returns a ban that applies to any of the given keys and addresses; None if there is none.
    """

    def __init__(self, find: Callable[[Sequence[BanSubject]], Awaitable[Ban | None]]) -> None:
        self._find = find
        self._open: dict[asyncio.AbstractEventLoop, WeakSet[GuardedWebSocket]] = {}

    def add(self, socket: GuardedWebSocket) -> bool:
        """Check a websocket for bans until it is closed or no longer referenced.

        Returns:
            False under trio, where open websockets are not checked: a ban refuses only the next handshake.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        sockets = self._open.get(loop)
        if sockets is None:
            sockets = self._open[loop] = WeakSet()
            in_background(self._watch(loop, sockets))
        sockets.add(socket)
        return True

    async def _watch(self, loop: asyncio.AbstractEventLoop, sockets: WeakSet[GuardedWebSocket]) -> None:
        try:
            while sockets:
                await asyncio.sleep(EVERY_S)
                try:
                    await self._check(sockets)
                except Exception:
                    logger.exception("checking open websockets for bans failed; will retry")
        finally:
            del self._open[loop]

    async def _check(self, sockets: WeakSet[GuardedWebSocket]) -> None:
        opened = [socket for socket in sockets if not socket.over]
        sockets.intersection_update(opened)
        for first in range(0, len(opened), AT_ONCE):
            await self._close_banned(opened[first : first + AT_ONCE])
            await asyncio.sleep(0)

    async def _close_banned(self, sockets: Sequence[GuardedWebSocket]) -> None:
        if await self._find([subjects for socket in sockets for subjects in socket.subjects]) is None:
            return
        if len(sockets) == 1:
            # A slow client may delay its close; do not let others wait for that.
            in_background(sockets[0].interrupt())
            return
        middle = len(sockets) // 2
        await self._close_banned(sockets[:middle])
        await self._close_banned(sockets[middle:])
