"""Limits on the messages that arrive over an accepted websocket.

Only ``websocket.receive`` counts. The order and the content of the messages that pass are the client's; a message
beyond the limit ends the connection, is dropped, or waits for its place, and nothing behind it is read meanwhile, so a
client that goes on sending is held back by the flow control of its own connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

import anyio
from starlette.types import Message, Receive, Scope, Send

from ...core.arguments import names_checked
from ...core.decide import Place, decide, enter_periods
from ...core.decision import Bucket, Decision, Reason
from ...core.errors import ConfigurationError, quoted
from ...core.limits import AnyLimit, Limit, parse_limits
from ...core.store import Clock
from ...limiter import Limiter
from ...limiter.waiting import may_wait
from ..keys.client_ip import ClientAddress
from ..keys.key import Key
from ..request import unless_left
from .guarded import GuardedWebSocket

MessageKey: TypeAlias = Literal["connection", "client"] | Key
Beyond: TypeAlias = Literal["close", "drop", "wait"]

TRY_AGAIN_LATER: Final = 1013
"""The close code of a connection that went beyond a message limit (IANA's registry of close codes)."""
FOR_EVER_US: Final = 10**15
MOST_WAITING: Final = 2**31
_BANNED: Final = Decision(False, Reason.BANNED)


class MessageLimits:
    """The limits of messages over an accepted websocket: ``MessageLimits("10/second", beyond="drop")``.

    Args:
        limits: As for `Rule`: ``"10/second"``, ``"10/second; 100/minute"``, a `Limit`, a `Quota`, or several.
        key: ``"connection"`` counts the messages of each websocket by itself, in this process; ``"client"`` those of
            all websockets of a client together, in the limiter; or a key such as `header`, also in the limiter.
        beyond: The action on a message beyond the limit: ``"close"`` ends the websocket with code 1013, ``"drop"``
            leaves the message out, ``"wait"`` holds it, and all behind it, until there is room.

    Attributes:
        limits: The limits.
        key: The key by which messages are counted.
        beyond: The action on a message beyond the limit.

    Raises:
        ConfigurationError: A value cannot work.
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
                f'MessageLimits: key: expected "connection", "client" or a key such as header, not {quoted(key)}'
            )
        if beyond not in ("close", "drop", "wait"):
            raise ConfigurationError(f'MessageLimits: beyond: expected "close", "drop" or "wait", not {quoted(beyond)}')
        self.limits = parse_limits(limits)
        if beyond == "wait" and not all(isinstance(limit, Limit) for limit in self.limits):
            raise ConfigurationError(
                'MessageLimits: beyond: nobody waits until a quota starts anew; write "close" or "drop" beside a quota'
            )
        self.key = key
        self.beyond = beyond

    def __repr__(self) -> str:
        return f"<MessageLimits {'; '.join(map(str, self.limits))}, {self.beyond}>"


class MessageCounter:
    """Counts the messages of the websockets of one gate.

    Args:
        messages: The limits, the key, and the action beyond a limit.
        limiter: The limiter that counts clients.
        client: Finds the client's address.
        claimed: An identity that no other middleware on the limiter has.
    """

    def __init__(self, messages: MessageLimits, limiter: Limiter, client: ClientAddress, claimed: str) -> None:
        waits = messages.beyond == "wait"
        self._bucket = Bucket(
            claimed, messages.limits, wait_us=FOR_EVER_US if waits else 0, wait_max=MOST_WAITING if waits else 0
        )
        self._key = messages.key
        self._beyond = messages.beyond
        self._limiter = limiter
        self._client = client

    def buckets(self) -> Sequence[Bucket]:
        """Return the bucket that clients share; a connection by itself counts in a store of its own."""
        return () if self._key == "connection" else (self._bucket,)

    def attach(self, scope: Scope, socket: GuardedWebSocket) -> Counted:
        """Return a connection with its messages counted."""
        engine = self._limiter.engine
        if self._key == "connection":
            return Counted(socket, OwnCounts(self._bucket, engine.statistics.now_us).hit, self._beyond)
        client_key, find = self._client.locate(scope)[0], self._key.find if isinstance(self._key, Key) else None
        key = client_key if find is None else find(scope, self._limiter, client_key)
        checks = ((self._bucket, key, 1),)
        return Counted(socket, lambda: engine.lines.decide(checks, ()), self._beyond, self._limiter)


class OwnCounts:
    """The counts of one connection. They live as long as it does, so they need no store that others share.

    Args:
        bucket: The bucket of its messages.
        clock: Returns Unix time in microseconds.
    """

    __slots__ = ("_checks", "_clock", "_places")

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._checks = ((bucket, "connection", 1),)
        self._clock = clock
        windows = {limit.same_window: b"" for limit in bucket.limits}
        self._places: list[Place] = [(limit, 1, windows, limit.same_window) for limit in bucket.limits]

    def hit(self) -> Decision:
        """Count a message."""
        now_us = self._clock()
        enter_periods(self._places, now_us, now_us)
        return decide(self._checks, self._places, now_us)


class Counted:
    """A connection whose messages are counted.

    Args:
        socket: The connection.
        hit: Counts a message.
        beyond: The action on a message beyond the limit.
        limiter: The limiter in whose lines messages wait; None where none comes before another, as in one connection.
    """

    def __init__(
        self,
        socket: GuardedWebSocket,
        hit: Callable[[], Decision | Awaitable[Decision]],
        beyond: Beyond,
        limiter: Limiter | None = None,
    ) -> None:
        self._socket = socket
        self._count = hit
        self._beyond = beyond
        self._limiter = limiter

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
            while self._beyond == "wait" and not decision.allowed and decision.reason is not Reason.BANNED:
                later = await unless_left(self._socket, self._limiter, partial(self._wait, decision))
                if later is None:
                    return await self._socket.receive()
                decision = later
            if decision.allowed:
                return message
            if decision.reason is Reason.BANNED:
                return await self._socket.shut_out()
            if decision.reason is Reason.LIMITED:
                await self._socket.struck()
            if self._beyond == "close":
                return await self._socket.close(TRY_AGAIN_LATER, "message limit exceeded")

    async def _wait(self, refused: Decision) -> Decision:
        """Wait for room, and return what the counts say then."""
        if self._limiter is not None and may_wait(refused):
            return await self._limiter.engine.lines.wait(refused, self._socket.guarded)
        await anyio.sleep((refused.retry_after_us or 0) / 1_000_000)
        return _BANNED if await self._socket.banned() else await self._hit()

    async def _hit(self) -> Decision:
        answer = self._count()
        return answer if isinstance(answer, Decision) else await answer
