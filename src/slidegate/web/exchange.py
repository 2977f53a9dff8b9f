"""One request in one middleware: its decisions, its hooks, and the two channels that its application gets.

Each middleware has its own `Exchange`, whose `send` wraps the `send` of the middleware further out. The middlewares of
a request share one thing: the list of decisions (`decided`), which applications find as ``scope["slidegate"]``, also
after the end of the request. What is not configured has no hook, so an ordinary response costs one look at `hooks` for
each message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..core.buckets import Check
from ..core.decision import Decision
from .client_ip import NOBODY, Client, client_ip
from .decided import DECIDED_KEY, EXCHANGE_KEY, Decided, of_request
from .headers import complete, joined

if TYPE_CHECKING:
    from ..limiter.queues import Name
    from .middleware import RateLimitMiddleware

STARTS: Final = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
}
"""The messages that start a response and have header fields, and the default status of each."""
CLOSED: Final = 403
"""The status that servers send for a close before the handshake is accepted."""
_LASTS: Final = (".body", ".pathsend", ".zerocopysend", "websocket.close")
"""How the kinds of messages end that end a response, unless more of the body follows. Trailers come after the end."""


class Hook:
    """Something that depends on the status or the end of a response."""

    starts = True
    """Whether `start` has to be called."""
    ends = False
    """Whether `end` has to be called."""

    def start(self, exchange: Exchange, status: Any) -> Awaitable[object] | None:
        """Act when the status of a response is known, before its first message is sent."""
        return None

    def end(self, exchange: Exchange, error: BaseException | None) -> Awaitable[object] | None:
        """Act once after the last byte of the response, or when the application returns or raises `error` before."""
        return None


class Exchange:
    """One request in one middleware.

    Args:
        middleware: The middleware.
        scope: The scope of the request.
        channel: Its receive channel.
        send: Sends to the client.
        hooks: The hooks for its response.
        decided: The decisions about the request so far, which its middlewares share.

    Attributes:
        channel: Where `receive` reads: the channel of the request, or what was put in front of it.
        send_on: Sends to the client.
        hooks: The hooks that are still to be called.
    """

    status: Any = 0  # of whatever type the application sends
    """The status of the response; 0 before its first message."""
    own: tuple[Decision, ...] = ()
    """The decisions of this middleware: about its rules, then about limits at endpoints within."""
    needed: Sequence[tuple[bytes, bytes]] = ()
    """The header fields of a refusal, which are added to the answer where they are missing, whoever makes it."""
    is_plain = True
    """Whether the answer needs no more fields than those of the only decision that names limits."""
    observed: tuple[Sequence[Check], ...] = ()
    """The checks of shadow rules, of each rule by itself."""
    client: Client = NOBODY
    """The client, as the middleware has found it at its entrance. Later, others may have changed the scope."""
    is_complete = False
    """Whether the last message of the response was sent."""
    report: Hook | None = None
    """What reports the last refusal by a limit at an endpoint, if it still stands when the request ends."""
    banned_us = 0
    """The length of the longest ban that a refusal of the request has caused."""
    permits: tuple[tuple[Name, str], ...] = ()
    """The queues of fair rules of which it has a permit, each with the tenant."""

    began_ns = 0
    """When the request arrived, by `Engine.clock`, if its outcome is reported."""

    def __init__(
        self,
        middleware: RateLimitMiddleware,
        scope: Scope,
        channel: Receive,
        send: Send,
        hooks: Sequence[Hook],
        decided: Decided,
    ) -> None:
        self.middleware = middleware
        self.scope = scope
        self.channel = channel
        self.send_on = send
        self.hooks = hooks
        self.decided = decided

    @property
    def refusal(self) -> Decision | None:
        """The refusal that stands: nothing has decided the request again after it."""
        if not self.own or self.own[-1].allowed:
            return None
        last, _ = self.decided[-1]
        return self.own[-1] if last is self.middleware else None

    def record(self, decision: Decision) -> None:
        """Record a decision of this middleware. Fields show no refusal after which the request was decided again."""
        self.needed = ()
        if self.own:
            if not self.own[-1].allowed:
                self.own = self.own[:-1]
            elif self.own[-1].readings:
                self.is_plain = False
        self.own = (*self.own, decision)
        self.decided.append((self.middleware, decision))

    def receive(self) -> Awaitable[Message]:
        """Receive a message for the application, from the channel as it is by then."""
        return self.channel()

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the response. Not a coroutine function: most messages need no await of their own."""
        if self.status:
            if self.hooks and message["type"].endswith(_LASTS) and not message.get("more_body", False):
                return self.end(None, message)
            return self.send_on(message)
        kind = message["type"]
        if kind in STARTS:
            self.status = message.get("status") or STARTS[kind]
            for hook in self.hooks:
                if hook.starts:
                    return self._start(message)
            if not self.is_plain:
                return self.send_on(self._with_all_fields(message))
            decision = self.own[-1]  # only the last one may name limits
            if decision.readings:
                rendered = decision.checks.rendered or self.middleware.header_writer.render(decision.checks)
                message = message.copy()  # type: ignore[attr-defined]  # an application may send it several times
                message["headers"] = rendered.added_to(message.get("headers", ()), decision)
        elif kind == "websocket.close":
            self.status = CLOSED
            return self._start(message)
        return self.send_on(message)

    def answered(self, error: BaseException | None) -> int:
        """Return the status with which an application around the middleware answers an exception; 0 if none does."""
        return error.status_code if self.middleware.is_within and isinstance(error, HTTPException) else 0

    def complete(self, needed: Sequence[tuple[bytes, bytes]]) -> None:
        """Add the missing ones of some fields to the answer, whoever makes it."""
        self.needed, self.is_plain = needed, False

    def _with_all_fields(self, message: Message) -> Message:
        """Return the first message with the fields of several decisions, and with those that a refusal needs."""
        fields = [*message.get("headers", ())]
        own = self.own
        is_refused = self.refusal is not None
        if own and not own[-1].allowed and not is_refused:  # a middleware within has decided since
            own = own[:-1]
        for decision in own if self.is_plain else joined(own):
            if decision.readings:
                rendered = decision.checks.rendered or self.middleware.header_writer.render(decision.checks)
                fields = rendered.added_to(fields, decision)
        if is_refused and message["type"].endswith("http.response.start"):
            complete(fields, self.needed)
        return {**message, "headers": fields}

    async def _start(self, message: Message) -> None:
        """Call the hooks for the status, which may change what the fields say, then send the first message."""
        await self._call_starts(self.status)
        if message["type"] in STARTS:
            message = self._with_all_fields(message)
        await (self.end(None, message) if message["type"].endswith(_LASTS) else self.send_on(message))

    async def _call_starts(self, status: Any) -> None:
        hooks, self.hooks = self.hooks, [hook for hook in self.hooks if hook.ends]
        for hook in hooks:
            waiting = hook.start(self, status)
            if waiting is not None:
                await waiting

    async def end(self, error: BaseException | None, last: Message | None = None) -> None:
        """Call the hooks that were not called yet: the response is complete, or the application has returned or raised.

        Args:
            error: What it raised.
            last: The last message, to send before. What the application does afterwards has no part in the response.
        """
        if last is not None:
            await self.send_on(last)
            self.is_complete = True
        failure: BaseException | None = None
        if error is not None and is_failure(error) and not self.status:
            try:
                await self._call_starts(self.answered(error) or 500)  # the server will answer so
            except BaseException as raised:  # not `finally`: compiled, it would raise what the application handles
                failure = raised
        hooks, self.hooks = self.hooks, ()
        for hook in hooks:
            waiting = hook.end(self, error)
            if waiting is not None:
                await waiting
        if failure is not None:
            raise failure


def client_key(request: HTTPConnection) -> str:
    """Return the key of a request's client as the innermost middleware sees it; behind trusted proxies, IPv6 by prefix.

    It is for functions of the request, such as ``key=lambda request: account_of(request) or client_key(request)``, and
    for calls of a `Limiter`, at an endpoint and while the middleware is switched off, too.

    Args:
        request: The request, or the websocket.

    Returns:
        An address such as ``203.0.113.7``, a network such as ``2001:db8::/64``, ``unknown-peer``, or ``peer:NAME`` if
        the server names something else, as test clients do.

    Raises:
        ConfigurationError: There is no middleware around the endpoint.
    """
    decided: Decided | None = of_request(request, DECIDED_KEY, "client_key")
    if decided is None:
        return client_ip().locate(request.scope)[0]
    exchange: Exchange | None = request.scope.get(EXCHANGE_KEY)
    return decided.client.key if exchange is None else exchange.client.key


def is_failure(error: BaseException) -> bool:
    """Return whether a server answers an exception with 500, which it does not when the client has disconnected."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))
