"""What applications ask about a request: its client, the decisions, and what it is charged.

`charge` adds units after the admission of a request, `settle` replaces an estimate by the actual use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from starlette.requests import HTTPConnection

from ..core.buckets import Check, windows_of
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, closest, quoted
from ..core.reservation import Reservation
from ..limiter import check_cost
from ..limiter.callers import living
from ..limiter.engine import Engine
from .client_ip import client_ip
from .plan import DISABLED, EXEMPT
from .policy import Policy
from .visit import Visit, visit_of

_UNCOUNTED: Final = (Reason.ALLOWLISTED, Reason.DISABLED)  # why nothing at all counts a request


def client_key(request: HTTPConnection) -> str:
    """Return the key of a request's client as the innermost middleware sees it; behind trusted proxies, IPv6 by prefix.

    It is for functions of the request, such as ``key=lambda request: account_of(request) or client_key(request)``, and
    for calls of a `Limiter`, at an endpoint and while the middleware is switched off, too. The client is determined
    when the request arrives, whatever middlewares within write into the scope.

    Args:
        request: The request, or the websocket.

    Returns:
        An address such as ``203.0.113.7``, a network such as ``2001:db8::/64``, ``unknown-peer``, or ``peer:NAME`` if
        the server names something else, as test clients do.

    Raises:
        ConfigurationError: There is no middleware around the endpoint.
    """
    visit = visit_of(request, "client_key")
    if visit is None:
        return client_ip().locate(request.scope)[0]
    innermost = visit.active() or visit
    return innermost.client.key


def decision_of(request: HTTPConnection) -> Decision:
    """Return the decision about a request: the refusal, else the last decision of a limit.

    It works in the application, after the response, and in tasks that outlive it.

    Args:
        request: The request, or the websocket.

    Returns:
        The decision of the middlewares and limits at endpoints so far. If no rule counts the request its reason is
        EXEMPT, for a client on the allowlist ALLOWLISTED, and while the middleware is switched off DISABLED. Its
        `shadow_rules` would have refused the request.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, or nothing is decided yet.
    """
    visit = visit_of(request, "decision_of")
    if visit is None:
        return DISABLED
    decisions = [decision for _, decision in visit.decisions]
    if not decisions:
        raise ConfigurationError(
            "decision_of(request): nothing is decided about this request yet; call it in the application, not in a "
            "function of a rule"
        )
    decision = decisions[-1]
    if decision.allowed:  # the last admission by a limit says more than one that counted nothing
        admissions = [earlier for earlier in decisions if earlier.readings and earlier.allowed]
        decision = (admissions or decisions)[-1]
    *_, outermost = visit.visits()
    if outermost.shadow_rules:
        if not decision.readings:  # many requests have this object
            decision = copy(decision)
        decision.shadow_rules = outermost.shadow_rules
    return decision


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
            whole number or has names beside `rule`, or the limiters of the rules differ. Nothing is charged then.
    """
    more = [(charges[-1], units) for charges, units in _named_charges(request, units, rule, "charge", "units")]
    if not more:
        return EXEMPT
    return await _charge_all(more[0][0].policy.engine, more) or EXEMPT


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
            whole number or has names beside `rule`, or the limiters of the rules differ. Nothing is settled then.
    """
    unused: dict[int, list[Reservation]] = {}  # by the identity of a decision: each is refunded by itself
    more: list[tuple[_Charge, int]] = []
    engine: Engine | None = None
    for charges, units in _named_charges(request, used, rule, "settle", "used"):
        missing = _end_charges(charges, units, unused)
        if missing is None:
            continue
        engine = charges[-1].policy.engine
        if missing:
            more.append((charges[-1], missing))
    if engine is None:  # none was left to settle
        return False
    await _charge_all(engine, more, [*unused.values()])
    return True


class _Charge(NamedTuple):
    """One check of a decision.

    Attributes:
        policy: The policy of the middleware.
        decision: The decision.
        place: Which of its checks.
        check: This check.
    """

    policy: Policy
    decision: Decision
    place: int
    check: Check

    @property
    def windows_key(self) -> tuple[Policy, object]:
        """What the charges of the same windows have in common: the policy, and the windows."""
        return self.policy, windows_of(self.check)

    def costing(self, units: int) -> Check:
        """Return the same check with other units."""
        bucket, key, _ = self.check
        return bucket, key, units


async def _charge_all(
    engine: Engine, more: Sequence[tuple[_Charge, int]], unused: Collection[Sequence[Reservation]] = ()
) -> Decision | None:
    """Charge more units of some charges and refund unused ones, at once; their decisions get the readings after it."""
    charged = await engine.settle([charge.costing(units) for charge, units in more], unused)
    if charged is not None:
        for index, (charge, _) in enumerate(more):
            charge.decision.recount(charge.place, charged, index)
    return charged


def _end_charges(charges: Sequence[_Charge], used: int, unused: dict[int, list[Reservation]]) -> int | None:
    """Mark the charges of a rule as settled.

    Args:
        charges: The charges.
        used: The units that the request used.
        unused: Gets what is to be refunded of each decision, which may be nothing.

    Returns:
        The units beyond the charges; None if all of them were settled before.
    """
    missing = used
    is_settled = False
    for policy, decision, place, check in charges:
        for reservation in decision.reservations:
            if reservation.index != place or reservation.ended:
                continue
            cost = check[2]
            kept = min(cost, missing)
            missing -= kept
            unused.setdefault(id(decision), []).extend(decision.begin_refund(place, cost - kept))
            is_settled = reservation.ended = True
            policy.engine.reservations.close(decision, check)
    if not is_settled:
        return None
    return missing


def _named_charges(
    request: HTTPConnection, units: int | Mapping[str, int], rule: str | None, caller: str, argument: str
) -> list[tuple[Sequence[_Charge], int]]:
    """Return what a request was charged for each rule that a call names, and the units of the call.

    A rule has several charges if a later one was for what was missing from a larger cost. One that does not count the
    request is left out.

    Args:
        request: The request.
        units: The units of one rule, or of each rule by its name.
        rule: The name of the one rule; None for the only one.
        caller: The name of the calling function, for error messages.
        argument: The name of its argument.

    Raises:
        ConfigurationError: As for `charge`.
    """
    by_rule: Mapping[Any, Any] = {rule: units}
    if isinstance(units, Mapping):
        if rule is not None:
            raise ConfigurationError(
                f"{caller}: rule={rule!r} cannot be combined with the names in {units!r}; remove one of them"
            )
        by_rule = units
    for number in by_rule.values():
        check_cost(number, argument)
    visit = visit_of(request, caller)
    if visit is None:
        return []
    counted = _charges_by_rule(visit)
    named: list[tuple[Sequence[_Charge], int]] = []
    for name, number in by_rule.items():
        if name is None and len(counted) == 1:
            (name,) = counted
        if name in counted:
            latest = counted[name][-1].windows_key
            named.append(([charge for charge in counted[name] if charge.windows_key == latest], number))
        elif name is not None or counted:
            _check_uncounted(visit, name, counted, caller)
    if len({charges[-1].policy.limiter for charges, _ in named}) > 1:
        names = ", ".join(map(repr, by_rule))
        raise ConfigurationError(f"{caller}: the rules {names} count in different limiters; write one call for each")
    return named


def _charges_by_rule(visit: Visit) -> dict[str, list[_Charge]]:
    """Return what a request was charged by its admissions, by the names of the rules."""
    counted: dict[str, list[_Charge]] = {}
    for policy, decision in visit.decisions:
        if not decision.allowed:
            continue
        for place, check in enumerate(decision.checks):
            bucket = check[0]
            if not bucket.is_permit:
                counted.setdefault(bucket.label, []).append(_Charge(policy, decision, place, check))
    return counted


def _check_uncounted(visit: Visit, rule: str | None, counted: Iterable[str], caller: str) -> None:
    """Check that a rule which has not counted a request exists: what is not counted is not charged later either.

    Raises:
        ConfigurationError: There is no such rule, or several that must be named.
    """
    if any(decision.reason in _UNCOUNTED for _, decision in visit.decisions):  # on the allowlist, or switched off
        return
    names_above = {known.label for policy, _ in visit.decisions for known in living(policy.rules.first_by_name)}
    if rule in names_above:
        return
    names = ", ".join(map(repr, counted)) or "none"
    raise ConfigurationError(
        f"{caller}: the rules counted on this request are: {names}; name one of them, not "
        f"{quoted(rule)}{closest(rule, names_above)}"
    )
