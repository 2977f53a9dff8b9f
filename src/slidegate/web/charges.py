"""What applications read and charge by the decisions about a request.

`charge` adds units after the admission of a request, `settle` replaces an estimate by the actual use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from starlette.requests import HTTPConnection

from ..core.arguments import expect
from ..core.buckets import Check, windows_of
from ..core.decision import Decision
from ..core.errors import ConfigurationError, closest, quoted
from ..core.reservation import Reservation
from ..limiter import check_cost
from ..limiter.aio import answer_to_the_end
from ..limiter.engine import Engine
from .clients import record_of
from .plan import DISABLED, EXEMPT
from .policy import Policy
from .visit import UNCOUNTED, Record


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
    record: Record | None = record_of(request, "decision_of")
    return DISABLED if record is None else record.decision


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
    last: list[_Charge] = []
    checks: list[Check] = []
    for charges, more in _asked(request, units, rule, "charge", "units"):
        last.append(charges[-1])
        checks.append(charges[-1].of(more))
    if not last:
        return EXEMPT
    charged = await answer_to_the_end(last[0].engine.charge(checks))
    for at, one in enumerate(last):
        one.decision.recount(one.place, charged, at)
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
    exceeded: list[_Charge] = []
    checks: list[Check] = []
    engine: Engine | None = None
    for charges, units in _asked(request, used, rule, "settle", "used"):
        last = charges[-1]
        engine = last.engine
        missing = _take_unused(charges, units, unused)
        if missing:
            exceeded.append(last)
            checks.append(last.of(missing))
    if engine is None or not unused:
        return False
    charged = await engine.settle(checks, [*unused.values()])
    if charged is not None:
        for at, one in enumerate(exceeded):
            one.decision.recount(one.place, charged, at)
    return True


class _Charge(NamedTuple):
    """One check of a decision.

    Attributes:
        policy: The policy of the middleware.
        decision: The decision.
        place: Which of its checks.
    """

    policy: Policy
    decision: Decision
    place: int

    @property
    def engine(self) -> Engine:
        """What has charged it."""
        return self.policy.limiter.engine

    @property
    def counted(self) -> tuple[Policy, object]:
        """The policy and the windows that it has charged."""
        return self.policy, windows_of(self.decision.checks[self.place])

    def of(self, units: int) -> Check:
        """Return the same check with other units."""
        bucket, key, _ = self.decision.checks[self.place]
        return bucket, key, units


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
    if len({id(charges[-1].policy.limiter) for charges, _ in found}) > 1:
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
    record: Record | None = record_of(request, what)
    if record is None:
        return ()
    counted: dict[str, list[_Charge]] = {}
    for policy, decision in record.decisions:
        for index, (bucket, _, _) in enumerate(decision.checks):
            if not bucket.is_permit:
                counted.setdefault(bucket.label, []).append(_Charge(policy, decision, index))
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule in counted:
        latest = counted[rule][-1].counted
        return [one for one in counted[rule] if one.counted == latest]
    # Exempt, allowlisted or on an unlimited plan: an uncounted request is not charged later either.
    names_above = {bucket.label for policy, _ in record.decisions for bucket in policy.buckets()}
    is_uncounted = any(decision.reason in UNCOUNTED for _, decision in record.decisions)
    if is_uncounted or rule in names_above or (rule is None and not counted):
        return ()
    names = ", ".join(map(repr, counted)) or "none"
    problem = "name one of them" if rule is None else f"{quoted(rule)} is no rule here{closest(rule, names_above)}"
    raise ConfigurationError(f"{what}: the rules counted on this request are: {names}; {problem}")
