"""The decisions about one request, which its middlewares share, and what applications read and charge by them.

`charge` adds units after the admission of a request, `settle` replaces an estimate by the actual use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from starlette.requests import HTTPConnection

from ..core.arguments import expect
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, closest, quoted
from ..core.reservation import Reservation
from ..limiter import check_cost
from ..limiter.aio import answer_to_the_end
from ..limiter.engine import Engine
from .client_ip import NOBODY, Client
from .headers import windows_of

if TYPE_CHECKING:
    from ..core.bans.policy import BanPolicy
    from .exchange import Exchange
    from .middleware import RateLimitMiddleware

DECIDED_KEY: Final = "slidegate"
"""The scope key of the decisions about a request."""
EXCHANGE_KEY: Final = "slidegate.exchange"
"""The scope key of the exchange of the innermost middleware that a request is in; None outside of all."""
UNCOUNTED: Final = (Reason.ALLOWLISTED, Reason.DISABLED)
"""Why nothing at all counts a request."""
EXEMPT: Final = Decision(True, Reason.EXEMPT)
OFF: Final = Decision(True, Reason.DISABLED)


class Decided(list[tuple["RateLimitMiddleware", Decision]]):
    """The decisions about a request, each with the middleware that made it, in order.

    Applications read `decision`; `charge`, `settle` and `strike` read the list. It does not refer to the scope, which
    refers to it.
    """

    exempt: tuple[RateLimitMiddleware, ...] = ()
    """The middlewares whose ban policies ignore the request, because a rule exempts it or it is a CORS preflight."""
    left: Decision | None = None
    """The refusal of a wait during which the client has left; None if it did not."""
    left_with: Any = None
    """The status that was sent before the client left."""
    cut_short: Decision | None = None
    """The refusal of a wait that was cancelled. That ends the request, unless a timeout within it has done so."""
    shadowed: tuple[tuple[RateLimitMiddleware, str], ...] = ()
    """The labels of the shadow rules that would have refused the request, each with its middleware."""
    struck: tuple[tuple[RateLimitMiddleware, BanPolicy], ...] = ()
    """The ban policies that the request has struck."""
    client: Client = NOBODY
    """The client that the middleware which the request has entered last has found at its entrance."""
    around: tuple[tuple[RateLimitMiddleware, Client], ...] = ()
    """The middlewares around that one, the outermost first, each with the client that it has found."""

    @property
    def decision(self) -> Decision:
        """The last decision that refuses the request, else the last one that a limit made, else the last one.

        A refusal after which the request was decided again is none of them.

        Raises:
            ConfigurationError: There is no decision yet.
        """
        decisions = [decision for _, decision in self]
        if not decisions:
            raise ConfigurationError(
                'scope["slidegate"].decision: nothing is decided about this request yet; read it in the application, '
                "not in a function of a rule"
            )
        last = decisions[-1]
        if last.readings or not last.allowed:
            return last
        telling = [decision for decision in decisions if decision.readings and decision.allowed]
        return telling[-1] if telling else last

    def entered(self, middleware: RateLimitMiddleware, outer: Exchange) -> Decided:
        """Note that the request enters a middleware within another one.

        What that middleware has noted about an earlier use of the scope is forgotten: that was another request.
        """
        self.around = _around(middleware, (*self.around, (outer.middleware, outer.client)), outer.middleware)
        forgotten = [decision for other, decision in self if other is middleware]
        if forgotten:
            self[:] = [decided for decided in self if decided[0] is not middleware]
            if any(decision is self.left for decision in forgotten):
                self.left = self.left_with = None
            if any(decision is self.cut_short for decision in forgotten):
                self.cut_short = None
        self.exempt = tuple([other for other in self.exempt if other is not middleware])
        self.struck = tuple([struck for struck in self.struck if struck[0] is not middleware])
        self.shadowed = tuple([shadowed for shadowed in self.shadowed if shadowed[0] is not middleware])
        return self

    def client_of(self, middleware: RateLimitMiddleware) -> Client:
        """Return the client that a middleware has found at its entrance."""
        for other, client in self.around:
            if other is middleware:
                return client
        return self.client

    def strikes(self, middleware: RateLimitMiddleware, policy: BanPolicy) -> bool:
        """Return whether this is the first signal of the request for a ban policy, and note it: each is struck once."""
        is_first = (middleware, policy) not in self.struck
        if is_first:
            self.struck = (*self.struck, (middleware, policy))
        return is_first

    def is_exempt_from(self, middleware: RateLimitMiddleware) -> bool:
        """Return whether the ban policies of a middleware ignore the request."""
        own = [decision for other, decision in self if other is middleware]
        return middleware in self.exempt or any(decision.reason in UNCOUNTED for decision in own)


def _around(
    inner: RateLimitMiddleware,
    known: Sequence[tuple[RateLimitMiddleware, Client]],
    outer: RateLimitMiddleware,
) -> tuple[tuple[RateLimitMiddleware, Client], ...]:
    """Return the middlewares around `inner`, given those around the one that was entered last and then `outer`.

    The latter may be one of the former, where a middleware within it has returned. An application may also send its
    request through all middlewares again.
    """
    found: list[tuple[RateLimitMiddleware, Client]] = []
    for middleware, client in known:
        if middleware is inner:
            break
        found.append((middleware, client))
        if middleware is outer:
            break
    return tuple(found)


def of_request(request: HTTPConnection, key: str, who: str) -> Any:
    """Return what middlewares keep of a request in its scope.

    Args:
        request: The request, or the websocket.
        key: `DECIDED_KEY`, also after the end, or `EXCHANGE_KEY`.
        who: The name of the calling function, for the error message.

    Returns:
        What they keep; None without a middleware while limits are off, as in a test that calls an endpoint itself.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, or `request` is no request.
    """
    scope = getattr(request, "scope", None)
    if scope is None:
        raise ConfigurationError(f"{who}: expected a Request or WebSocket, for example request, not {quoted(request)}")
    found = scope.get(key)
    if found is None and Engine.counting:
        raise ConfigurationError(
            f"{who}: there is no RateLimitMiddleware around this endpoint; write "
            "app.add_middleware(RateLimitMiddleware), with rules or without, and as the last one if a handler for "
            "Exception calls this: a middleware around it may copy the scope"
        )
    return found


def decision_of(request: HTTPConnection) -> Decision:
    """Return the decision about a request: the refusal, else the last decision of a limit.

    It works in the application, after the response, and in tasks that outlive it.

    Args:
        request: The request, or the websocket.

    Returns:
        The decision of the middlewares and limits at endpoints so far. If no rule counts the request its reason is
        EXEMPT, for a client on the allowlist ALLOWLISTED, and while the middleware is switched off DISABLED.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, or nothing is decided yet.
    """
    decided: Decided | None = of_request(request, DECIDED_KEY, "decision_of")
    return OFF if decided is None else decided.decision


async def charge(request: HTTPConnection, units: int | Mapping[str, int], *, rule: str | None = None) -> Decision:
    """Charge more units for an admitted request, during or after its response.

    The units are recorded even if they exceed the limit. Later requests are then refused until enough units have left
    the window; a debt lasts at most one window. A response that has not started shows in RateLimit what is left then.
    What is begun is carried out: if the caller is cancelled, as when the client leaves a stream, the call still returns
    when the units are charged, and the cancellation arrives at the next await.

    Args:
        request: The request, or the websocket.
        units: How many, 0 or more; or those of several rules, which are charged at once:
            ``{"tokens": 900, "cents": 2}``.
        rule: The name of the rule to charge; required if several apply.

    Returns:
        The decision for the keys after the charge. A rule that does not count this request (its client is on the
        allowlist, its plan is unlimited, the middleware is switched off) is not charged; without others the reason is
        EXEMPT.

    Raises:
        ConfigurationError: There is no rule of that name, several were counted and none is named, `units` is not a
            whole number, or the limiters of the rules differ. Nothing is charged then.
    """
    charges = [(*counted[-1], units) for counted, units in _asked(request, units, rule, "charge", "units")]
    if not charges:
        return EXEMPT
    checks = [(*decision.checks[index][:2], units) for _, decision, index, units in charges]
    charged = await answer_to_the_end(charges[0][0].limiter.engine.charge(checks))
    for at, (_, decision, index, _) in enumerate(charges):
        decision.recount(index, charged, at)
    return charged


async def settle(request: HTTPConnection, used: int | Mapping[str, int], *, rule: str | None = None) -> bool:
    """Replace the units charged on admission by those that the request used, once.

    The rule charges an estimate first, so that concurrent requests cannot exceed the limit together. The difference is
    charged, even if that exceeds the limit, or handed back. What is begun is carried out, as by `charge`.

    Args:
        request: The request, or the websocket.
        used: The units that it used, 0 or more; or those of several rules, which are settled at once:
            ``{"tokens": 900, "cents": 2}``.
        rule: The name of the rule; required if several apply.

    Returns:
        Whether this call has settled a rule: False for a second call, and if no rule counts this request. An estimate
        that has left its window meanwhile cannot be handed back and need not be.
        True if the store did not answer in time: it may have processed the call, and a second one could count twice.

    Raises:
        ConfigurationError: There is no rule of that name, several were counted and none is named, `used` is not a
            whole number, or the limiters of the rules differ. Nothing is settled then.
    """
    unused: dict[int, list[Reservation]] = {}  # by decision: each is refunded by itself
    above: list[tuple[Decision, int, Check]] = []
    engine: Engine | None = None
    for charges, units in _asked(request, used, rule, "settle", "used"):
        middleware, decision, index = charges[-1]
        engine = middleware.limiter.engine
        missing = _take_unused(charges, units, unused)
        if missing:
            bucket, key, _ = decision.checks[index]
            above.append((decision, index, (bucket, key, missing)))
    if engine is None or not unused:
        return False
    charged = await engine.settle([check for _, _, check in above], [*unused.values()])
    if charged is not None:
        for at, (decision, index, _) in enumerate(above):
            decision.recount(index, charged, at)
    return True


def _take_unused(charges: Sequence[_Charge], used: int, unused: dict[int, list[Reservation]]) -> int:
    """Settle the charges of a rule that are not settled yet.

    Args:
        charges: The charges.
        used: The units that the request used.
        unused: Receives what is to be refunded, by the identity of its decision.

    Returns:
        How many units were used beyond the charges; 0 if all of them were settled before.
    """
    missing = used
    is_settled = True
    for _, decision, index in charges:
        for reservation in decision.reservations:
            if reservation.index == index and not reservation.ended:
                cost = decision.checks[index][2]
                kept = min(cost, missing)
                missing -= kept
                unused.setdefault(id(decision), []).extend(decision.begin_refund(index, cost - kept))
                reservation.ended = True
                is_settled = False
    return 0 if is_settled else missing


_Charge: TypeAlias = tuple["RateLimitMiddleware", Decision, int]
"""A middleware, its decision, and the index of a check in it."""


def _asked(
    request: HTTPConnection, given: int | Mapping[str, int], rule: str | None, who: str, what: str
) -> list[tuple[Sequence[_Charge], int]]:
    """Return what a request was charged for each rule that a call is about, and the units of the call.

    Args:
        request: The request.
        given: The units of one rule, or of each rule by its name.
        rule: The name of the one rule, if it is named.
        who: The name of the calling function, for error messages.
        what: The name of its argument.

    Raises:
        ConfigurationError: As for `charge`.
    """
    named: Sequence[tuple[str | None, int]]
    if not isinstance(given, Mapping):
        named = [(rule, given)]
    elif given and rule is None:
        named = [*given.items()]
    else:
        shown = quoted(given) if rule is None else f"rule={quoted(rule)} beside them"
        raise ConfigurationError(f'expected the units of rules, for example {{"tokens": 900}}, not {shown}', what)
    for _, units in named:
        check_cost(units, what)
    counted = [(_charges_of(request, name, who), units) for name, units in named]
    found = [(charges, units) for charges, units in counted if charges]
    if len({id(charges[-1][0].limiter) for charges, _ in found}) > 1:
        names = ", ".join(repr(name) for name, _ in named)
        raise ConfigurationError(f"{who}: the rules {names} count in different limiters; write one call for each")
    return found


def _charges_of(request: HTTPConnection, rule: str | None, what: str) -> Sequence[_Charge]:
    """Return what a request was charged for a rule.

    There are several charges if a later one was for what was missing from a larger cost, and none if the rule counts it
    not.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, no such rule, or several that must be named.
    """
    expect("rule", rule, str, '"api"')
    decided: Decided | None = of_request(request, DECIDED_KEY, what)
    if decided is None:
        return ()
    counted: dict[str, list[_Charge]] = {}
    for middleware, decision in decided:
        for index, (bucket, _, _) in enumerate(decision.checks):
            if not bucket.is_permit:
                counted.setdefault(bucket.label, []).append((middleware, decision, index))
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule in counted:
        middleware, decision, index = counted[rule][-1]
        last = middleware, windows_of(decision.checks[index])
        return [one for one in counted[rule] if (one[0], windows_of(one[1].checks[one[2]])) == last]
    # Exempt, allowlisted or on an unlimited plan: an uncounted request is not charged later either.
    names_above = {bucket.label for middleware, _ in decided for bucket in middleware.buckets()}
    is_uncounted = any(decision.reason in UNCOUNTED for _, decision in decided)
    if is_uncounted or rule in names_above or (rule is None and not counted):
        return ()
    names = ", ".join(map(repr, counted)) or "none"
    problem = "name one of them" if rule is None else f"{quoted(rule)} is no rule here{closest(rule, names_above)}"
    raise ConfigurationError(f"{what}: the rules counted on this request are: {names}; {problem}")
