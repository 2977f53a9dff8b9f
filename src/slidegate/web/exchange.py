"""One request: what was decided about it, and its answer as it leaves: ``scope["slidegate"]`` in an application.

The outermost middleware makes one `Exchange` for a request, and gives the application its `send`: header fields are
added to the first message of the answer, and what waits for the status of the answer or for its end is done there.
Each middleware enters its decision, the outermost first, and a limit at an endpoint adds one for the middleware above
it. All of them refuse by `strike` and `refuse`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..core.bans.ban import Ban, BanSubject
from ..core.decision import Check, Decision, Reason, StruckRefusal, tightest_first
from ..core.errors import ConfigurationError
from ..limiter import Limiter
from ..limiter.aio import in_background
from .headers import HeaderWriter, add_several, completed
from .routes import UNROUTED
from .waiting import ReadAhead, refund, until_disconnect

if TYPE_CHECKING:
    from collections.abc import Set

    from .bans import BanSignals
    from .callbacks import UserCallbacks
    from .endpoint_refusals import EndpointRefusal
    from .endpoints import EndpointBuckets
    from .outcomes import Outcomes
    from .responses import Answer, Refusals
    from .rule_set import BoundRule
    from .rules import Rule

SCOPE_KEY: Final = "slidegate"
"""The key of a request's `Exchange` in its ASGI scope."""
ENDED_KEY: Final = "slidegate.ended"
"""The key in the scope of a request that has ended: tasks that outlive it still charge and settle."""
DISABLED_KEY: Final = "slidegate.off"
"""The scope key that a disabled middleware sets."""
STATUS: Final = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}
"""The messages that start a response, and the status of each where the message does not say."""
_BODIES: Final = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.http.response.body",
    }
)
"""The messages that are a piece of a body."""
Hook: TypeAlias = Callable[[Scope, Any, Iterable[tuple[bytes, bytes]]], Awaitable[None]]
"""Is called with the status and the header fields of an answer before it goes out, as the application wrote them."""


class Parts:
    """What a middleware is made of, as its requests and the limits at endpoints below use it.

    Args:
        limiter: The limiter that it asks.
        names: The names that users gave to its rules.
        signals: Its ban policies, and the signals that they strike for.
        endpoints: The buckets of the limits at endpoints below it.
        refusals: Answers the requests that it, or one of those limits, refuses, and tells of them.
        headers: Writes its header fields.
        outcomes: Reports to observers what became of its requests.
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
"""One decision about a request, and the middleware that made it or that is around the endpoint that did."""


class Decided:
    """What was decided about a request: it stays in the scope when the request has ended, for tasks that outlive it.

    Args:
        parts: Those of the middleware nearest above: limits at endpoints count there.
        entries: The decisions, each with the middleware that made it or that is around the endpoint that did, the
            outermost first.
        exempt: The middlewares whose policies hold nothing of this request against its client: a rule exempts it, or a
            browser sends it by itself.

    Attributes:
        parts: The same.
        entries: The same.
        exempt: The same.
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
        """The decision that matters most: a refusal, else the one that admits the fewest further requests."""
        return tightest(self.decisions)

    def names(self) -> set[str]:
        """Return the names of all rules that stand on the way of this request, counted or not."""
        above = {self.parts, *(parts for parts, _ in self.entries)}
        return set().union(*(parts.names | parts.endpoints.names() for parts in above))

    def exempt_from(self, parts: Parts) -> bool:
        """Return whether the policies of a middleware hold nothing of this request against its client."""
        return parts in self.exempt or allowlisted(self.entries)


class Exchange(Decided):
    """A request that is under way, and its answer.

    Args:
        parts: Those of the outermost middleware.
        scope: The scope of the request.
        send: Sends to the client.

    Attributes:
        scope: The same.
        outcomes: Reports what became of the request; None once that is done, or where no observer asks.
        began_us: When the request came, where somebody asks.
    """

    exempt: Sequence[Parts] = ()
    status: Any = 0  # of whatever type the application writes it
    """The status of the answer, from its first message on."""
    refusal: Decision | None = None
    """The decision that refuses the request, if one does."""
    raised: EndpointRefusal | None = None
    """The refusal that a limit at an endpoint has raised."""
    on_start: Sequence[Hook] = ()
    """Called one after the other when the status of the answer is known."""
    holds = False
    """Whether the request holds anything that is given back when it ends: permits, or a channel."""

    route = UNROUTED
    """The route of a request that is refused, as outcomes and events name it."""
    waiting: Decision | None = None
    """The refusal in spite of which the request waits for room; it stays where the client leaves meanwhile."""
    waited_us: int | None = None
    """How long the request has waited for room; None if it has not."""
    shadow_rules: tuple[str, ...] = ()
    """The names of the shadow rules that would have refused the request."""
    looked: Sequence[tuple[Limiter, Check]] = ()
    """The checks of shadow rules, each with the limiter that was asked."""
    to_look: Sequence[BoundRule] = ()
    """The shadow rules that look on if the request is let in after a wait."""
    _told = False
    _trailers = False
    _channels: Sequence[ReadAhead] = ()
    _asked: Sequence[tuple[object, str]] = ()

    def __init__(self, parts: Parts, scope: Scope, send: Send) -> None:
        self.parts = parts
        self.entries: list[Entry] = []
        self.scope = scope
        self._send = send
        self._headers = parts.headers
        outcomes = parts.outcomes
        wanted = outcomes.observers.requests
        self.outcomes: Outcomes | None = outcomes if wanted else None
        self.began_us = outcomes.now_us() if wanted else 0

    def enter(self, decision: Decision) -> bool:
        """Enter a decision of the middleware where the request is now, if it lets it pass; return whether it does."""
        if decision.allowed:
            self.entries.append((self.parts, decision))
        return decision.allowed

    def turn(self, limit: object, rule: str) -> int:
        """Return how many other limits at endpoints asked under this identity before: 0 for the first.

        Two limits that look alike are two limits all the same, and each counts.
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
        self, receive: Receive, refusal: Decision, limiter: Limiter, subjects: Sequence[BanSubject]
    ) -> Decision | None:
        """Wait for room in spite of a refusal; return the last decision, or None if the client left.

        Args:
            receive: The channel of the request, which is read meanwhile; `read_ahead` returns what it is read from.
            refusal: The refusal.
            limiter: The limiter that gave it.
            subjects: The keys and addresses whose bans refuse the request.
        """
        channel = self.read_ahead(receive)
        self.waiting = refusal
        decision = await until_disconnect(channel, limiter, lambda: self.queue(refusal, limiter, subjects))
        if decision is not None:
            self.waiting = None
        return decision

    async def queue(self, refusal: Decision, limiter: Limiter, subjects: Sequence[BanSubject]) -> Decision:
        """Wait in the queues of a limiter, and note how long; return the last decision."""
        engine, began_us = limiter.engine, None

        def begins() -> None:
            nonlocal began_us
            began_us = engine.now_us()

        try:
            return await engine.queues.wait(refusal, subjects, begins)
        finally:
            if began_us is not None:
                self.waited_us = (self.waited_us or 0) + max(engine.now_us() - began_us, 0)

    async def strike(self, scope: Scope, refusal: Decision) -> Decision:
        """Strike for a refusal, if it is the first of the request and by a limit.

        Args:
            scope: The scope as the middleware or the endpoint sees it that refuses.
            refusal: The refusal.

        Returns:
            The refusal as it reads after the bans that this has made.
        """
        if self.refusal is not None or self.status or not is_limited(refusal):
            return refusal
        self.refusal = refusal
        # Each store has a time of its own, but the length of a ban is the same in all.
        bans = await self.strike_for_refusal(scope)
        lengths = [ban.ends_us - ban.made_us for ban in bans if ban.ends_us is not None]
        return StruckRefusal(refusal, max(lengths)) if lengths and refusal.readings else refusal

    async def strike_for_refusal(self, scope: Scope) -> list[Ban]:
        """Strike for a refusal under the policies of all middlewares on the way; return the bans that this made."""
        outer: list[BanSignals] = []
        bans: list[Ban] = []
        for parts in dict.fromkeys([*(parts for parts, _ in self.entries), self.parts]):
            if parts.signals.on_refusal and parts not in self.exempt:
                bans += await parts.signals.strike_for("refused", scope, outer)
            outer.append(parts.signals)
        return bans

    def refuse(self, scope: Scope, refusal: Decision) -> Answer:
        """Enter a refusal, tell of the first one, and return its answer.

        Args:
            scope: The scope as the middleware or the endpoint sees it that refuses.
            refusal: The refusal.
        """
        parts = self.parts
        answer = parts.refusals.answer(refusal, self.entries)
        self.entries.append((parts, refusal))
        if not self.status:
            self.refusal = refusal
            if not self._told:
                self._told = True
                if "endpoint" in scope:
                    self.route = parts.endpoints.routes.label(scope)
                parts.refusals.tell(scope, refusal, self.route, answer[0])
        return answer

    # -- the answer ----------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the answer. It is no coroutine function: most messages have nothing to wait for."""
        kind = message["type"]
        if not self.status and kind in STATUS:
            if self.on_start:
                return self._send_start(message)
            message = self._started(message, kind)
            if kind != "websocket.close":  # the only start that is an end too
                return self._send(message)
        if (self.holds or self.outcomes is not None) and is_last(message, self._trailers):
            return self._send_and_end(message)
        return self._send(message)

    async def _send_start(self, message: Message) -> None:
        """Send the start of an answer whose status somebody waits for."""
        status = message.get("status") or STATUS[message["type"]]
        await self.start(self.scope, status, message.get("headers", ()))
        await self.send(message)

    def _started(self, message: Message, kind: str) -> Message:
        """Return the first message of the answer with the header fields."""
        self.status = message.get("status") or STATUS[kind]
        self._trailers = bool(message.get("trailers", False))  # an application may write any value
        if kind == "websocket.close":
            return message
        fields, entries = message.get("headers", ()), self.entries
        if self.raised is not None:
            fields = completed(fields, self.raised.needed)
        fields = self._headers.add(fields, entries[0][1]) if len(entries) == 1 else add_several(fields, entries)
        # Another message, because an application may send one prepared message again and again.
        return {**message, "headers": fields}

    async def start(self, scope: Scope, status: Any, fields: Iterable[tuple[bytes, bytes]], first: int = 0) -> None:
        """Call the hooks, from the given one on: the status of the answer is known."""
        hooks, self.on_start = self.on_start[first:], self.on_start[:first]
        for hook in hooks:
            await hook(scope, status, fields)

    async def _send_and_end(self, message: Message) -> None:
        """Send the last message; behind it give back the permits of the request, and report what became of it.

        Whatever an application does afterwards, such as background tasks, holds no permit.
        """
        await self._send(message)
        if self.holds:
            await self.release()
        outcomes, self.outcomes = self.outcomes, None
        if outcomes is not None:
            outcomes.answered(self)

    # -- what it holds -------------------------------------------------------------------------------------------------

    def read_ahead(self, receive: Receive) -> ReadAhead:
        """Return a channel of this request, to be read while it waits, until it ends: one for all who wait there."""
        known = self.channel_of(receive)
        if isinstance(known, ReadAhead):
            return known
        self.holds = True
        channel = ReadAhead(receive)
        self._channels = (*self._channels, channel)
        return channel

    def channel_of(self, receive: Receive) -> Receive:
        """Return the channel from which something is read that was read ahead."""
        return next((channel for channel in self._channels if receive in (channel, channel.receive)), receive)

    async def release(self) -> None:
        """Give back the permits that the request holds, also if it is cancelled meanwhile. It does so once."""
        await refund(*[(parts.limiter, decision.take_back(held=True)) for parts, decision in self.entries])

    @property
    def is_open(self) -> bool:
        """Whether `end` has anything to do where the application has not raised."""
        return self.holds or self.raised is not None or self.outcomes is not None

    def leave(self) -> None:
        """Leave in the scope what was decided."""
        # Whoever gets the same scope again, from a retry for example, makes another request of it.
        self.scope.pop(SCOPE_KEY, None)
        # This holds no scope, so nothing is left to the garbage collector.
        self.scope[ENDED_KEY] = Decided(self.parts, self.entries, self.exempt)

    async def end(self, error: BaseException | None = None) -> None:
        """Give back all that the request holds, and report what became of it: the application is done.

        Args:
            error: The exception by which it ended.
        """
        channels, self._channels = self._channels, ()
        for channel in channels:
            channel.close()
        try:
            if self.holds and isinstance(error, GeneratorExit):  # it is closed with its event loop: nothing is awaited
                in_background(self.release())
            elif self.holds:
                await self.release()
        finally:
            outcomes, self.outcomes = self.outcomes, None
            if outcomes is not None:
                outcomes.left(self, error)


def begin(parts: Parts, scope: Scope, send: Send, outer: Exchange | None) -> Exchange:
    """Return the exchange of a request that enters a middleware.

    Args:
        parts: Those of the middleware.
        scope: The scope of the request.
        send: Sends to the client.
        outer: The exchange that a middleware further out has made.
    """
    if outer is None:
        exchange = scope[SCOPE_KEY] = Exchange(parts, scope, send)
        return exchange
    outer.parts = parts
    return outer


def hand_back_uncounted(
    calls: UserCallbacks, rule: Rule, limiter: Limiter, decision: Decision, index: int | None = None
) -> Hook:
    """Return a hook that hands back what a rule has charged, unless its `count_if` counts the answer.

    Args:
        calls: Calls the `count_if`.
        rule: The rule.
        limiter: The limiter that was asked.
        decision: Its decision.
        index: The number of the rule's check; by default all of them are the rule's. Permits stay.
    """

    async def settle(scope: Scope, status: Any, fields: Iterable[tuple[bytes, bytes]]) -> None:
        if decision.reservations and not await calls.counts(rule, status, fields, scope):
            await refund((limiter, decision.take_back(index, held=False)))

    return settle


def is_last(message: Message, trailers: bool) -> bool:
    """Return whether nothing of the answer comes after a message.

    Args:
        message: The message.
        trailers: Whether the answer ends with trailers.
    """
    kind = message["type"]
    if kind in _BODIES:
        return not message.get("more_body", False) and not trailers
    return kind == "websocket.close" or (kind == "http.response.trailers" and not message.get("more_trailers", False))


def is_limited(decision: Decision) -> bool:
    """Return whether a limit decided: a refusal by a list or a ban has no readings."""
    return bool(decision.readings) or decision.reason is Reason.NOBODY


def is_preflight(scope: Scope) -> bool:
    """Return whether a request is a CORS preflight (Fetch standard, section 3.2.2)."""
    if scope.get("method") != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


def decided_about(scope: Scope, who: str) -> Decided | None:
    """Return what was decided about a request, also when it has ended; None if the middlewares are switched off.

    Args:
        scope: The scope of the request.
        who: Who asks.

    Raises:
        ConfigurationError: There is no middleware around the endpoint.
    """
    decided: Decided | None = scope.get(SCOPE_KEY) or scope.get(ENDED_KEY)
    if decided is None and DISABLED_KEY not in scope:
        raise no_middleware(who)
    return decided


def no_middleware(who: str) -> ConfigurationError:
    """Return the error of something that needs a middleware around it."""
    return ConfigurationError(
        f"{who}: there is no RateLimitMiddleware around this endpoint; write app.add_middleware(RateLimitMiddleware), "
        "with rules or without"
    )


def asked_checks(entries: Iterable[Entry], limiter: Limiter) -> list[Check]:
    """Return what a limiter was asked on this request so far."""
    return [check for parts, decision in entries if parts.limiter is limiter for check in decision.checks]


def is_asked(entries: Iterable[Entry], rule: str) -> bool:
    """Return whether counts of this identity were asked for on this request."""
    for _, decision in entries:
        for bucket, _, _ in decision.checks:
            if bucket.rule == rule:
                return True
    return False


def allowlisted(entries: Iterable[Entry]) -> bool:
    """Return whether the client is on the allowlist of a middleware on the way."""
    return any(decision.reason is Reason.ALLOWLISTED for _, decision in entries)


def tightest(decisions: Iterable[Decision]) -> Decision:
    """Return the decision that matters most to the client: a refusal, else the one that admits the fewest further
    requests of its cost.

    Raises:
        ConfigurationError: There is none yet.
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
    """Return whether a server makes a 500 of an exception: not of one that says that the client has gone."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))
