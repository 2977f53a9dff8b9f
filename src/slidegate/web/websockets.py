"""Open websockets: limits on their messages, and their end when the client is banned.

The handshake is a request as any other. From then on each message from the client is a question to the limiter, by the
client's key. A ban is looked up when a message comes or goes and the last look is ten seconds old, so that a websocket
costs nothing while it is silent. A websocket that is closed here looks to the application as if the client had left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from starlette.types import Message

from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.errors import StoreError
from ..core.limit_texts import parse_limits
from ..core.limits import AnyLimit
from ..core.options import options_checked
from ..limiter.aio import answer_of
from ..limiter.engine import Engine
from .refusals import POLICY_VIOLATION, TRY_AGAIN_LATER, close_websocket
from .signals import Signals
from .visit import Visit

LOOK_EVERY_US: Final = 10_000_000
"""How old the last look for a ban of the client may be when a message comes or goes."""


class MessageLimits:
    """Limits for the messages of a client over its websockets: ``MessageLimits("10/second")``.

    They count what the client sends, over all of its websockets together. A message over a limit closes its websocket
    with code 1013.

    Args:
        limits: As for `Rule`: ``"10/second"``, ``"10/second; 100/minute"``, a `Limit`, a `Quota`, or several.

    Raises:
        ConfigurationError: The limits are invalid.
    """

    @options_checked
    def __init__(self, limits: str | AnyLimit | Iterable[str | AnyLimit]) -> None:
        self.limits = parse_limits(limits)

    def __repr__(self) -> str:
        return f"<MessageLimits {'; '.join(map(str, self.limits))}>"


class GuardedWebSocket:
    """The messages of a websocket that a middleware has let in.

    From the end of the handshake on it stands between the application and the server.

    Args:
        visit: The handshake.
    """

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._receive = visit.receive_from
        self._send_on = visit.send_on
        self._engine: Engine = visit.policy.engine
        self._subjects = visit.client.subjects
        self._checks: Sequence[Check] = ()
        if visit.policy.messages is not None:
            self._checks = ((visit.policy.messages, visit.client.key, 1),)
        self._looked_us = self._engine.monotonic_us()
        self._ended: Message | None = None
        self._is_closed = False  # from here or by the application, which may deny the handshake instead
        self._unread: deque[Message] = deque()
        visit.receive_from = self.receive
        visit.send_on = self.send

    async def receive(self) -> Message:
        """Return the next message, or a disconnect if the websocket is closed for it."""
        if self._ended is not None:
            return self._ended
        if self._unread:
            message = self._unread.popleft()
        else:
            message = await self._receive()
        try:
            if message["type"] != "websocket.disconnect":
                await self._end_if_banned()
            if message["type"] == "websocket.receive" and self._checks and not self._is_closed:
                await self._count()
        except BaseException:  # this read is given up, for example after a timeout, and the next one gets the message
            self._unread.append(message)
            raise
        return self._ended or message

    async def send(self, message: Message) -> None:
        """Forward a message of the application; raise `OSError` after the end (ASGI, "Send after disconnect")."""
        await self._end_if_banned()
        is_close = message["type"] not in ("websocket.accept", "websocket.send")
        if self._ended is None:
            self._is_closed = is_close
            if is_close and message.get("code") in (POLICY_VIOLATION, TRY_AGAIN_LATER):  # of a limit at an endpoint
                await close_websocket(self._send_on, message["code"], message.get("reason") or "")
            else:
                await self._send_on(message)
        elif not is_close:
            raise OSError(self._ended["reason"])

    async def _count(self) -> None:
        """Ask the limiter for a message, and end the websocket if it is refused."""
        answer = self._engine.hit(self._checks, self._subjects)
        decision = answer if isinstance(answer, Decision) else await answer  # `answer_of` takes a microsecond
        if decision.allowed:
            return
        is_banned = decision.reason is Reason.BANNED
        scope = self._visit.scope  # None for a task of the application that outlives its call
        try:
            if decision.reason is Reason.LIMITED and scope is not None:
                self._visit.struck = ()  # each message strikes
                signals: Signals = self._visit.policy.signals
                is_banned = bool(await signals.strike_quietly(self._visit, signals.by_refusal, scope))
        finally:  # also if this read is given up meanwhile, as the next one would count the message again
            if is_banned:
                await self._end(POLICY_VIOLATION, "banned")
            elif decision.reason is Reason.UNAVAILABLE:
                await self._end(TRY_AGAIN_LATER, "messages cannot be counted now")
            else:
                await self._end(TRY_AGAIN_LATER, "message limit exceeded")

    async def _end_if_banned(self) -> None:
        """Look whether the client is banned if the last look is old enough, and end the websocket if it is."""
        now_us = self._engine.monotonic_us()
        if now_us - self._looked_us < LOOK_EVERY_US or self._is_closed:
            return
        ban = None
        with suppress(StoreError):  # the next look decides
            ban = await answer_of(self._engine.find_ban(self._subjects))
        self._looked_us = now_us
        if ban is not None:
            await self._end(POLICY_VIOLATION, "banned")

    async def _end(self, code: int, reason: str) -> None:
        """Close the websocket, if it is open; the application gets a disconnect from now on."""
        if not self._is_closed:
            self._is_closed = True
            self._ended = {"type": "websocket.disconnect", "code": code, "reason": reason}
            with suppress(OSError):  # the client has left, which the application learns in the same way
                await close_websocket(self._send_on, code, reason)
            await self._visit.end()
