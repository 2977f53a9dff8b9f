"""What the middlewares and the limits at endpoints on the way of one request share: ``scope["slidegate"]``.

The outermost middleware makes one `RequestLimits` for a request. Each middleware enters its decision, the outermost
first, and a limit at an endpoint adds one for the middleware above it; `strike`, `charge`, the header fields and the
stats read them. What waits for the status of the answer lies in `on_start`; what a request holds until it ends lies
in its decisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Check, Decision, Reason, tightest_first
from ..core.errors import ConfigurationError
from ..core.statistics.series import Series
from ..limiter import Limiter
from .waiting import Ahead, refund

if TYPE_CHECKING:
    from .bans import BanSignals
    from .callbacks import UserCallbacks
    from .endpoints import EndpointBuckets
    from .responses import RefusalEvents, RefusalResponses
    from .rules import Rule

RECORD: Final = "slidegate"
"""The key of a request's `RequestLimits` in its ASGI scope."""
ENDED: Final = "slidegate.ended"
"""The key in the scope of a request that has ended: tasks that outlive it still charge and settle."""
OFF: Final = "slidegate.off"
"""The key in the ASGI scope by which a middleware that is switched off says that it is there."""
STATUS: Final = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}
"""The messages that start a response, and the status of each where the message does not say."""
Hook: TypeAlias = Callable[[Scope, int, Iterable[tuple[bytes, bytes]]], Awaitable[None]]
"""Hears the status and the header fields of an answer before it goes out."""


class MiddlewareView:
    """One middleware, as its requests show it.

    Args:
        limiter: The limiter that it asks.
        names: The names that users gave to its rules.
        signals: Its ban policies, and the signals that they strike for.
        endpoints: The buckets of the limits at endpoints below it.
        refusals: Answers the requests that it, or one of those limits, refuses.
        refusal_events: Tells of them.
    """

    __slots__ = ("endpoints", "limiter", "names", "refusal_events", "refusals", "signals")

    def __init__(
        self,
        limiter: Limiter,
        names: Set[str],
        signals: BanSignals,
        endpoints: EndpointBuckets,
        refusals: RefusalResponses,
        refusal_events: RefusalEvents,
    ) -> None:
        self.limiter = limiter
        self.names = names
        self.signals = signals
        self.endpoints = endpoints
        self.refusals = refusals
        self.refusal_events = refusal_events


Entry: TypeAlias = tuple[MiddlewareView, Decision]
"""One decision about a request, and the middleware that asked for it or stands above the endpoint that did."""


class Reservation:
    """Units that a rule with a `count_if` has charged before the answer is known.

    Args:
        rule: The rule.
        limiter: The limiter that charged them.
        decision: The decision that they are a part of.
        calls: Calls the `count_if`.
        place: The place of the rule's check in the decision; None where all of it is of this rule.
    """

    __slots__ = ("calls", "decision", "limiter", "place", "rule")

    def __init__(
        self, rule: Rule, limiter: Limiter, decision: Decision, calls: UserCallbacks, place: int | None = None
    ) -> None:
        self.rule = rule
        self.limiter = limiter
        self.decision = decision
        self.calls = calls
        self.place = place

    async def settle(self, scope: Scope, status: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """Refund the units, unless the rule counts an answer with this status and these fields."""
        decision = self.decision
        if not decision.reservations or self.calls.counts(self.rule, status, fields, scope):
            return
        places = range(len(decision.checks)) if self.place is None else (self.place,)
        windows = [place for place in places if not decision.checks[place][0].held]
        await refund(self.limiter, [taken for place in windows for taken in decision.take_back(place)])


class RequestLimits:
    """The decisions about one request, and what is left to do for it.

    Args:
        middleware: The outermost middleware.
        began: When the request came, in ticks of the stats.
        counted: Whether nobody keeps stats.

    Attributes:
        middleware: The middleware nearest above: limits at endpoints count there.
        entries: The decisions, each with the middleware that asked for it or stands above the endpoint that did, the
            outermost first.
        exempt: The middlewares whose policies hold nothing of this request against its client: a rule exempts the
            request, or a browser sends it by itself.
        counted: Whether the stats of the request are complete, or nobody keeps any.
        refusal: The decision that refuses the request, if one does.
        refused_scope: The scope as the refusing middleware or endpoint saw it, until the refusal is counted and told.
        needed: The header fields that the answer must have where a limit at an endpoint has raised the refusal, so that
            handlers of the application may answer.
        handlers: The exception handlers of the application in which it did.
        looked: The checks of rules that only looked on, each with the limiter that was asked.
        answered: Whether a response has begun, or never will.
        status: The status of the answer, from its first message on; before it 0.
        trailers: Whether the answer ends with trailers.
        unfinished: Whether the request holds anything that is given back when it ends: permits, or a channel.
        waited: Whether the request waited for room.
        on_start: Called one after the other when the status of the answer is known.
        series: The series that has counted the request before its end, of a long answer for example.
    """

    __slots__ = (
        "_asked",
        "_channels",
        "answered",
        "began",
        "counted",
        "entries",
        "exempt",
        "handlers",
        "looked",
        "middleware",
        "needed",
        "on_start",
        "refusal",
        "refused_scope",
        "series",
        "status",
        "trailers",
        "unfinished",
        "waited",
    )

    def __init__(self, middleware: MiddlewareView, began: int, *, counted: bool) -> None:
        self.middleware = middleware
        self.began = began
        self.counted = counted
        self.entries: list[Entry] = []
        self.exempt: Sequence[MiddlewareView] = ()
        self.refusal: Decision | None = None
        self.refused_scope: Scope | None = None
        self.handlers: Any = None
        self.looked: Sequence[tuple[Limiter, Check]] = ()
        self.on_start: Sequence[Hook] = ()
        self.needed: Sequence[tuple[bytes, bytes]] = ()
        self.answered = self.unfinished = self.waited = self.trailers = False
        self.status = 0
        self.series: Series | None = None
        self._channels: Sequence[Ahead] = ()
        self._asked: Sequence[tuple[object, str]] = ()

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of all entries."""
        return [decision for _, decision in self.entries]

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one after which the fewest more such requests fit."""
        return tightest(self.decisions)

    def add(self, decision: Decision) -> Entry:
        """Add a decision that a limit at an endpoint asked for, and return its entry."""
        entry = self.middleware, decision
        self.entries.append(entry)
        return entry

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

    def reserve(self, reservation: Reservation) -> None:
        """Note units that the start of the answer settles."""
        self.on_start = [*self.on_start, reservation.settle]

    def read_ahead(self, receive: Receive) -> Ahead:
        """Return a channel of this request, to be read while it waits, until it ends: one for all who wait there."""
        for channel in self._channels:
            if receive in (channel, channel.receive):
                return channel
        self.unfinished = True
        channel = Ahead(receive)
        self._channels = (*self._channels, channel)
        return channel

    def names(self) -> set[str]:
        """Return the names of all rules that stand on the way of this request, counted or not."""
        return self.middleware.endpoints.names().union(*(middleware.names for middleware, _ in self.entries))

    def exempt_from(self, middleware: MiddlewareView) -> bool:
        """Tell whether the policies of a middleware hold nothing of this request against its client."""
        return middleware in self.exempt or allowlisted(self.entries)

    def refuse(self, scope: Scope, refusal: Decision) -> None:
        """Note that a decision refuses the request; stats and events tell of it when the answer starts."""
        self.refusal, self.refused_scope = refusal, scope

    async def start(self, scope: Scope, status: int, fields: Iterable[tuple[bytes, bytes]], first: int = 0) -> None:
        """Call the hooks, from the given place on: the status of the answer is known."""
        hooks, self.on_start = self.on_start[first:], self.on_start[:first]
        for hook in hooks:
            await hook(scope, status, fields)

    async def release(self) -> None:
        """Give back the permits that the request holds, also if it is cancelled meanwhile. It does so once."""
        for middleware, decision in self.entries:
            held = [place for place, (bucket, _, _) in enumerate(decision.checks) if bucket.held]
            if held and decision.reservations:
                await refund(middleware.limiter, [part for place in held for part in decision.take_back(place)])

    async def end(self) -> None:
        """Give back all that the request holds: the application is done."""
        channels, self._channels = self._channels, ()
        for channel in channels:
            channel.close()
        await self.release()


def is_preflight(scope: Scope) -> bool:
    """Tell whether a request is a CORS preflight (Fetch standard, section 3.2.2)."""
    if scope.get("method") != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


def limits_above(scope: Scope, who: str, *, ended: bool = False) -> RequestLimits | None:
    """Return what the middlewares above know of a request; None where they are switched off.

    Args:
        scope: The scope of the request.
        who: Who asks.
        ended: Whether a request that has ended will do.

    Raises:
        ConfigurationError: There are none.
    """
    request: RequestLimits | None = scope.get(RECORD)
    if request is None and ended:
        request = scope.get(ENDED)
    if request is None and OFF not in scope:
        raise ConfigurationError(
            f"{who}: no RateLimitMiddleware stands above; write app.add_middleware(RateLimitMiddleware), with rules or "
            "without"
        )
    return request


def asked_checks(entries: Iterable[Entry], limiter: Limiter) -> list[Check]:
    """Return what a limiter was asked on this request so far."""
    return [check for middleware, decision in entries if middleware.limiter is limiter for check in decision.checks]


def is_asked(entries: Iterable[Entry], rule: str) -> bool:
    """Tell whether counts of this identity were asked for on this request."""
    for _, decision in entries:
        for bucket, _, _ in decision.checks:
            if bucket.rule == rule:
                return True
    return False


def allowlisted(entries: Iterable[Entry]) -> bool:
    """Tell whether the client is on the allowlist of a middleware on the way."""
    return any(decision.reason is Reason.ALLOWLISTED for _, decision in entries)


def tightest(decisions: Iterable[Decision]) -> Decision:
    """Return the decision that matters most to the client: a refusal, else the one after which the fewest more such
    requests fit.

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
    """Tell whether a server makes a 500 of an exception: not of one that says that the client has gone."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))
