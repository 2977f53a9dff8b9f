"""The state of one request: its decisions and its response. Applications read it as ``scope["slidegate"]``.

The outermost middleware creates one `Exchange` per request and passes `Exchange.send` to the application. That `send`
adds header fields to the first message of the response, runs the hooks that need its status, and cleans up after its
last message. Each middleware records its decision, the outermost first; a limit at an endpoint records its own for the
middleware around it. All of them refuse through `strike` and `refuse`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..core.bans.ban import Ban
from ..core.decision import Check, Decision, Reason, tightest_first
from ..core.errors import ConfigurationError
from ..limiter import Limiter
from ..limiter.aio import in_background
from ..limiter.queues import Ask, Name, Queues
from .headers import HeaderWriter, add_several, completed
from .routes import UNROUTED
from .waiting import Peeked, refund

if TYPE_CHECKING:
    from collections.abc import Set

    from .bans import BanSignals
    from .callbacks import UserCallbacks
    from .decide import Decider
    from .endpoint_refusals import EndpointRefusal
    from .endpoints import EndpointBuckets
    from .outcomes import Outcomes
    from .responses import Answer, Refusals
    from .rules import Rule

SCOPE_KEY: Final = "slidegate"
"""The key of a request's `Exchange` in its ASGI scope."""
ENDED_KEY: Final = "slidegate.ended"
"""The scope key of what was decided about an ended request: tasks that outlive it still charge and settle."""
DISABLED_KEY: Final = "slidegate.off"
"""The scope key that a disabled middleware sets, to its decider, which still knows the client of a request."""
STATUS: Final = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}
"""The messages that start a response, and the default status of each."""
_BODIES: Final = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.http.response.body",
    }
)
"""The messages that carry a part of the body."""
_DISABLED: Final = Decision(True, Reason.DISABLED)
Hook: TypeAlias = Callable[[Scope, Any, Iterable[tuple[bytes, bytes]]], Awaitable[None]]
"""Called with the scope, the status and the header fields of a response before it is sent, as the application wrote
them."""


class Parts:
    """The parts of a middleware that its requests and the limits at endpoints below it use.

    Args:
        limiter: Its limiter.
        names: The names that users gave to its rules.
        signals: Its ban policies, and the signals that they strike for.
        endpoints: The buckets of the limits at endpoints below it.
        refusals: Answers and reports the requests that the middleware or one of those limits refuses.
        headers: Writes its header fields.
        outcomes: Reports the outcomes of its requests to observers.
    """

    __slots__ = ("endpoints", "headers", "limiter", "names", "outcomes", "refusals", "signals")

    def __init__(
        self,
        limiter: Limiter,
        names: Set[str],
        signals: BanSignals,
        endpoints: EndpointBuckets,
        refusals: Refusals,
        headers: HeaderWriter,
        outcomes: Outcomes,
    ) -> None:
        self.limiter = limiter
        self.names = names
        self.signals = signals
        self.endpoints = endpoints
        self.refusals = refusals
        self.headers = headers
        self.outcomes = outcomes


Entry: TypeAlias = tuple[Parts, Decision]
"""A decision, and the parts of the middleware that made it or that wraps the endpoint that did."""
Above: TypeAlias = tuple[Parts, int]
"""The parts of the middleware around another one, and the number of hooks that were registered further out."""


class Decided:
    """The decisions about a request. It stays in the scope after the request has ended, for tasks that outlive it.

    Args:
        parts: The parts of the innermost middleware so far, with which limits at endpoints count.
        entries: The decisions with the parts of their middlewares, the outermost first.
        exempt: The parts of middlewares whose ban policies ignore this request, because a rule exempts it or it is a
            CORS preflight.

    Attributes:
        parts: The parts of the innermost middleware so far.
        entries: The decisions, the outermost first.
        exempt: The parts of middlewares whose ban policies ignore this request.
    """

    def __init__(self, parts: Parts, entries: list[Entry], exempt: Sequence[Parts]) -> None:
        self.parts = parts
        self.entries = entries
        self.exempt = exempt

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of all entries."""
        return [decision for _, decision in self.entries]

    @property
    def decision(self) -> Decision:
        """The most restrictive decision: a refusal, else the one that admits the fewest further requests."""
        return tightest(self.decisions)

    def names(self) -> set[str]:
        """Return the names of all rules of the middlewares and endpoints of this request, counted or not."""
        above = {self.parts, *(parts for parts, _ in self.entries)}
        return set().union(*(parts.names | parts.endpoints.names() for parts in above))

    def exempt_from(self, parts: Parts) -> bool:
        """Return whether the ban policies of a middleware ignore this request."""
        return parts in self.exempt or allowlisted(self.entries)


class Exchange(Decided):
    """A request in progress, and its response.

    Args:
        parts: The parts of the outermost middleware.
        scope: The scope of the request.
        send: Sends to the client.

    Attributes:
        scope: The scope of the request.
        outcomes: Report the outcome of the request to the observers that want it, each with the time of its arrival, in
            microseconds; empty once it is reported.
    """

    exempt: Sequence[Parts] = ()
    status: Any = 0  # of whatever type the application sends
    """The status of the response; 0 before its first message."""
    refusal: Decision | None = None
    """The decision that refuses the request; None if there is none."""
    raised: EndpointRefusal | None = None
    """The exception that a limit at an endpoint has raised; None if there is none."""
    on_start: Sequence[Hook] = ()
    """Called in order as soon as the status of the response is known."""
    holds = False
    """Whether the request holds permits or a channel, which are released when it ends."""

    route = UNROUTED
    """The route of a refused request, as shown in outcomes and events."""
    waiting: Decision | None = None
    """The refusal after which the request waits. It remains set if the client disconnects meanwhile."""
    waited_us: int | None = None
    """How long the request has waited for capacity; None if it has not."""
    shadow_rules: tuple[str, ...] = ()
    """The names of the shadow rules that would have refused the request."""
    looked: Sequence[tuple[Limiter, Check]] = ()
    """The checks of shadow rules, each with its limiter."""
    _shares: Sequence[tuple[Queues, Name, str]] = ()
    _reported = False
    _trailers = False
    _channels: Sequence[Peeked] = ()
    _asked: Sequence[tuple[object, str]] = ()

    def __init__(self, parts: Parts, scope: Scope, send: Send) -> None:
        self.parts = parts
        self.entries: list[Entry] = []
        self.scope = scope
        self._send = send
        self._headers = parts.headers
        outcomes = parts.outcomes
        self.outcomes: Sequence[tuple[Outcomes, int]] = ()
        if outcomes.observers.requests:
            self.outcomes = ((outcomes, outcomes.now_us()),)

    def go_on(self, parts: Parts) -> None:
        """Enter an inner middleware. If it has a limiter of its own, observers of that hear of the request, too."""
        observers = parts.outcomes.observers
        if observers.requests and not self.status:
            is_heard = any(outcomes.observers is observers for outcomes, _ in self.outcomes)
            if not is_heard and all(other.limiter is not parts.limiter for other, _ in self.entries):
                self.outcomes = (*self.outcomes, (parts.outcomes, parts.outcomes.now_us()))
        self.parts = parts

    def enter(self, decision: Decision) -> bool:
        """Record a decision of the current middleware if it admits the request; return whether it does."""
        if decision.allowed:
            self.record(decision)
        return decision.allowed

    def record(self, decision: Decision) -> None:
        """Record a decision of the current middleware. It replaces a refusal of the same checks, asked for again."""
        if self.entries:
            own = self.parts, _rules_and_keys(decision)
            self.entries = [
                (parts, before)
                for parts, before in self.entries
                if before.allowed or (parts, _rules_and_keys(before)) != own
            ]
        self.entries.append((self.parts, decision))

    def turn(self, limit: object, rule: str) -> int:
        """Return how many other limits at endpoints have used this identity on this request; 0 for the first.

        Two equal limits at one endpoint are distinct limits, and both count.
        """
        others = 0
        for other, identity in self._asked:
            if identity == rule:
                if other is limit:
                    return others
                others += 1
        self._asked = (*self._asked, (limit, rule))
        return others

    # -- a refusal -----------------------------------------------------------------------------------------------------

    async def wait(
        self,
        receive: Receive,
        limiter: Limiter,
        rule: Rule,
        name: Name,
        refused: Decision | None,
        ask: Ask,
        tenant: str,
    ) -> Decision:
        """Wait for room and record the time waited; return the last decision.

        If the client leaves meanwhile, `waiting` remains set, and nothing stays charged.

        Args:
            receive: The channel of the request. One message is read ahead; `channel_of` returns the one to use then.
            limiter: The limiter that decides.
            rule: The rule that lets the request wait.
            name: The queue.
            refused: The refusal; None for a request that joins a queue without having asked.
            ask: Asks the limiter.
            tenant: The tenant of the request.
        """
        channel, queues, now_us = self.read_ahead(receive), limiter.engine.queues, limiter.engine.now_us
        channel.begin()
        self.waiting = Decision(False, Reason.LIMITED) if refused is None else refused
        began_us: int | None = None

        def begins() -> None:
            nonlocal began_us
            began_us = now_us()

        bounds = {"wait_us": rule.wait_us, "wait_max": rule.wait_max}
        try:
            decision = await queues.wait(
                name, refused, ask, **bounds, tenant=tenant, is_gone=channel.is_gone, begins=begins
            )
        finally:
            if began_us is not None:
                self.waited_us = (self.waited_us or 0) + max(now_us() - began_us, 0)
        if channel.is_gone():
            await refund((limiter, decision.take_back()))
            return self.waiting
        self.waiting = None
        return decision

    def share(self, queues: Queues, name: Name, tenant: str) -> None:
        """Record that the request has a permit of its tenant's share, until `release`."""
        queues.take(name, tenant)
        self._shares = (*self._shares, (queues, name, tenant))

    async def strike(self, scope: Scope, refusal: Decision) -> Decision:
        """Strike for a refusal if it is the request's first one and a limit caused it.

        Args:
            scope: The scope that the refusing middleware or endpoint received.
            refusal: The refusal.

        Returns:
            The refusal, with the retry-after of the longest ban that the strikes have made.
        """
        if self.refusal is not None or self.status or not is_limited(refusal):
            return refusal
        self.refusal = refusal
        bans = await self.strike_for_refusal(scope)
        lengths = [ban.until_us - ban.since_us for ban in bans if ban.until_us is not None]
        if lengths and refusal.readings:
            refusal.at_least_us = max(lengths)
        return refusal

    async def strike_for_refusal(self, scope: Scope) -> list[Ban]:
        """Strike for a refusal under the policies of all middlewares involved; return the resulting bans."""
        outer: list[BanSignals] = []
        bans: list[Ban] = []
        for parts in dict.fromkeys([*(parts for parts, _ in self.entries), self.parts]):
            if parts.signals.on_refusal and parts not in self.exempt:
                bans += await parts.signals.strike_for("refused", scope, outer)
            outer.append(parts.signals)
        return bans

    def refuse(self, scope: Scope, refusal: Decision) -> Answer:
        """Record a refusal, notify observers of the first one, and return its answer.

        Args:
            scope: The scope that the refusing middleware or endpoint received.
            refusal: The refusal.
        """
        parts = self.parts
        self.record(refusal)
        answer = parts.refusals.answer(refusal, self.entries[:-1])
        if not self.status:
            self.refusal = refusal
            if not self._reported:
                self._reported = True
                if "endpoint" in scope:
                    self.route = parts.endpoints.routes.label(scope)
                parts.refusals.tell(scope, refusal, self.route, answer[0])
        return answer

    # -- the answer ----------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the response. Not a coroutine function: most messages need no await of their own."""
        kind = message["type"]
        if not self.status and kind in STATUS:
            if self.on_start:
                return self._send_start(message)
            message = self._started(message, kind)
            if kind != "websocket.close":  # the only message that both starts and ends a response
                return self._send(message)
        if (self.holds or self.outcomes) and is_last(message, self._trailers):
            return self._send_and_end(message)
        return self._send(message)

    async def _send_start(self, message: Message) -> None:
        """Run the hooks for the status of a response, then send its first message."""
        status = message.get("status") or STATUS[message["type"]]
        await self.start(self.scope, status, message.get("headers", ()))
        await self.send(message)

    def _started(self, message: Message, kind: str) -> Message:
        """Return the first message of the response with the header fields added."""
        started = {**message}  # a copy: an application may reuse one prepared message
        self.status = started.get("status") or STATUS[kind]
        self._trailers = bool(started.get("trailers", False))  # an application may set any value
        if kind == "websocket.close":
            return started
        fields, entries = started.get("headers", ()), self.entries
        if self.raised is not None:
            fields = completed(fields, self.raised.needed)
        started["headers"] = (
            self._headers.add(fields, entries[0][1]) if len(entries) == 1 else add_several(fields, entries)
        )
        return started

    async def start(self, scope: Scope, status: Any, fields: Iterable[tuple[bytes, bytes]], first: int = 0) -> None:
        """Call the hooks, starting at index `first`, with the status and header fields of the response."""
        hooks, self.on_start = self.on_start[first:], self.on_start[:first]
        for hook in hooks:
            await hook(scope, status, fields)

    async def _send_and_end(self, message: Message) -> None:
        """Send the last message, then release the permits of the request and report its outcome.

        Later work of the application, such as background tasks, holds no permit.
        """
        await self._send(message)
        if self.holds:
            await self.release()
        reported, self.outcomes = self.outcomes, ()
        for outcomes, began_us in reported:
            outcomes.answered(self, began_us)

    # -- resources -----------------------------------------------------------------------------------------------------

    def read_ahead(self, receive: Receive) -> Peeked:
        """Return the read-ahead channel of this request for a receive channel; waiters on the same one share it."""
        known = self.channel_of(receive)
        if isinstance(known, Peeked):
            return known
        self.holds = True
        channel = Peeked(receive)
        self._channels = (*self._channels, channel)
        return channel

    def channel_of(self, receive: Receive) -> Receive:
        """Return the read-ahead channel that wraps a receive channel; the channel itself if there is none."""
        return next((channel for channel in self._channels if receive in (channel, channel.receive)), receive)

    async def release(self) -> None:
        """Release the permits that the request holds, even if it is cancelled meanwhile. Idempotent."""
        shares, self._shares = self._shares, ()
        for queues, name, tenant in shares:  # before the store, so that the right waiter asks for the permit
            queues.release(name, tenant)
        await refund(*[(parts.limiter, decision.take_back(held=True)) for parts, decision in self.entries])

    @property
    def is_open(self) -> bool:
        """Whether `end` has anything to do if the application has not raised."""
        return self.holds or self.raised is not None or bool(self.outcomes)

    def leave(self, above: Above | None) -> None:
        """Leave a middleware; the outermost replaces the exchange in the scope by its decisions.

        Args:
            above: What `begin` returned for the middleware.
        """
        if above is not None:
            self.parts = above[0]  # the application further out may go on, with limits at endpoints of its own
            return
        scope = self.scope
        # If the scope is used again, by a retry for example, that is a new request.
        if SCOPE_KEY in scope:
            del scope[SCOPE_KEY]
        # `Decided` does not refer to the scope, so there is no reference cycle.
        scope[ENDED_KEY] = Decided(self.parts, self.entries, self.exempt)

    async def end(self, error: BaseException | None = None) -> None:
        """Release everything that the request holds, and report its outcome: the application has returned or raised.

        Args:
            error: The exception that the application has raised.
        """
        channels, self._channels = self._channels, ()
        for channel in channels:
            channel.close()
        try:
            if self.holds and isinstance(error, GeneratorExit):  # a coroutine that is being closed cannot await
                in_background(self.release())
            elif self.holds:
                await self.release()
        finally:
            reported, self.outcomes = self.outcomes, ()
            for outcomes, began_us in reported:
                outcomes.left(self, error, began_us)


def begin(parts: Parts, scope: Scope, send: Send) -> tuple[Exchange, Send, Above | None]:
    """Let a request enter a middleware.

    Args:
        parts: The parts of the middleware.
        scope: The scope of the request.
        send: Sends to the client.

    Returns:
        The exchange of the request, the `send` for the application, and what the middleware further out goes on with,
        if there is one.
    """
    outer: Exchange | None = scope.get(SCOPE_KEY)
    if outer is None:
        exchange = scope[SCOPE_KEY] = Exchange(parts, scope, send)
        return exchange, exchange.send, None
    above = outer.parts, len(outer.on_start)
    outer.go_on(parts)
    return outer, send, above


def hand_back_uncounted(
    calls: UserCallbacks, rule: Rule, limiter: Limiter, decision: Decision, index: int | None = None
) -> Hook:
    """Return a hook that hands back the units a rule has charged, unless its `count_if` counts the response.

    Args:
        calls: Calls the `count_if`.
        rule: The rule.
        limiter: The limiter that was charged.
        decision: Its decision.
        index: The index of the rule's check; by default all checks belong to the rule. Permits are kept.
    """

    async def settle(scope: Scope, status: Any, fields: Iterable[tuple[bytes, bytes]]) -> None:
        if decision.reservations and not await calls.counts(rule, status, fields, scope):
            await refund((limiter, decision.take_back(index, held=False)))

    return settle


def is_last(message: Message, trailers: bool) -> bool:
    """Return whether a message is the last of its response.

    Args:
        message: The message.
        trailers: Whether the response ends with trailers.
    """
    kind = message["type"]
    if kind in _BODIES:
        return not message.get("more_body", False) and not trailers
    return kind == "websocket.close" or (kind == "http.response.trailers" and not message.get("more_trailers", False))


def is_limited(decision: Decision) -> bool:
    """Return whether a limit decided. Refusals by a list or a ban have no readings."""
    return bool(decision.readings) or decision.reason is Reason.NOBODY


def is_preflight(scope: Scope) -> bool:
    """Return whether a request is a CORS preflight (Fetch standard, section 3.2.2)."""
    if scope.get("method") != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


def decided_about(scope: Scope, who: str) -> Decided | None:
    """Return the decisions about a request, which may have ended; None if the middlewares are switched off.

    Args:
        scope: The scope of the request.
        who: The name of the calling function, for the error message.

    Raises:
        ConfigurationError: There is no middleware around the endpoint.
    """
    decided: Decided | None = scope.get(SCOPE_KEY) or scope.get(ENDED_KEY)
    if decided is None and DISABLED_KEY not in scope:
        raise no_middleware(who)
    return decided


def decision_of(request: HTTPConnection) -> Decision:
    """Return what was decided about a request: the refusal, else the decision that admits the fewest further requests.

    It works in the application, after the response, and in tasks that outlive it.

    Args:
        request: The request, or the websocket.

    Returns:
        The decision of the middlewares and limits at endpoints so far. If no rule counts the request its reason is
        EXEMPT, for a client on the allowlist ALLOWLISTED, and while the middleware is switched off DISABLED.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, or nothing is decided yet.
    """
    decided = decided_about(request.scope, "decision_of")
    return _DISABLED if decided is None else decided.decision


def client_key(request: HTTPConnection) -> str:
    """Return the key of a request's client as the innermost middleware sees it: behind trusted proxies, IPv6 by prefix.

    It is for functions of the request, such as ``key=lambda request: account_of(request) or client_key(request)``, and
    for calls of a `Limiter`, at an endpoint and while the middleware is switched off, too.

    Args:
        request: The request, or the websocket.

    Returns:
        An address such as ``203.0.113.7``, a network such as ``2001:db8::/64``, or ``unknown-peer``.

    Raises:
        ConfigurationError: There is no middleware around the endpoint.
    """
    scope = request.scope
    decided = decided_about(scope, "client_key")
    decider: Decider = scope[DISABLED_KEY] if decided is None else decided.parts.endpoints.decider
    return decider.client(scope).key


def no_middleware(who: str) -> ConfigurationError:
    """Return the error for a function that needs a middleware around the endpoint."""
    return ConfigurationError(
        f"{who}: there is no RateLimitMiddleware around this endpoint; write app.add_middleware(RateLimitMiddleware), "
        "with rules or without"
    )


def _rules_and_keys(decision: Decision) -> list[tuple[str, str]]:
    """Return the identity of the rule and the key of each check of a decision."""
    return [(bucket.name, key) for bucket, key, _ in decision.checks]


def passed_checks(entries: Iterable[Entry], limiter: Limiter) -> list[Check]:
    """Return the checks that this request has passed so far. A refusal has charged nothing: it is asked for again."""
    passed = [decision for parts, decision in entries if decision.allowed and parts.limiter is limiter]
    return [check for decision in passed for check in decision.checks]


def has_passed(entries: Iterable[Entry], rule: str) -> bool:
    """Return whether this request has already passed a rule with this identity."""
    for _, decision in entries:
        for bucket, _, _ in decision.checks if decision.allowed else ():
            if bucket.name == rule:
                return True
    return False


def allowlisted(entries: Iterable[Entry]) -> bool:
    """Return whether the client is on the allowlist of a middleware that the request has passed."""
    return any(decision.reason is Reason.ALLOWLISTED for _, decision in entries)


def tightest(decisions: Iterable[Decision]) -> Decision:
    """Return the most restrictive decision: a refusal, else the one that admits the fewest more requests of its cost.

    Raises:
        ConfigurationError: There is no decision yet.
    """
    every = list(decisions)
    if not every:
        raise ConfigurationError(
            'scope["slidegate"].decision: nothing is decided about this request yet; read it in the application, not '
            "in a function of a rule"
        )
    counted = [(decision, state) for decision in every if (state := decision.binding) is not None]
    for decision in every:
        if not decision.allowed or not counted:
            return decision
    costs = [max(state.cost, 1) for _, state in counted]
    readings = [(0, state.more_after_us, 0, 0) for _, state in counted]
    return counted[tightest_first([state.remaining for _, state in counted], readings, costs)[0]][0]


def is_failure(error: BaseException) -> bool:
    """Return whether a server answers an exception with 500, which it does not when the client has disconnected."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))
