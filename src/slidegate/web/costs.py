"""What a request costs, where that is known only afterwards: `charge` adds units, `settle` replaces an estimate."""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, closest
from ..limiter import Limiter, check_cost
from ..limiter.aio import to_the_end
from .request import RequestLimits, limits_above

_UNCOUNTED: Final = Decision(True, Reason.EXEMPT)


class _Counted(NamedTuple):
    """A check of a request, in the decision that charged it."""

    record: RequestLimits
    limiter: Limiter
    decision: Decision
    place: int


async def charge(request: HTTPConnection, units: int, *, rule: str | None = None) -> Decision:
    """Charge more units for a request that was let through, during or after its response.

    They are recorded even where they go beyond the limit, and then hold the next requests until enough units have left;
    a debt lasts at most one window.

    Args:
        request: The request, or the websocket.
        units: How many, 0 or more.
        rule: The name of the rule to charge; needed where several apply.

    Returns:
        Where the key stands now. Where the rule does not count this request (its client is on the allowlist, its plan
        is unlimited, the middleware is switched off), nothing is charged and the reason is EXEMPT.

    Raises:
        ConfigurationError: No rule of that name stands above, several were counted and none is named, or `units` is no
            whole number.
    """
    check_cost(units, "units")
    counted = _find(request, rule, "charge")
    if counted is None:
        return _UNCOUNTED
    bucket, key, _ = counted.decision.checks[counted.place]
    return await counted.limiter.charge_all(((bucket, key, units),))


async def settle(request: HTTPConnection, used: int, *, rule: str | None = None) -> bool:
    """Replace what a request was charged when it was let in by what it used, once.

    The rule charges an estimate at first, so that requests at the same time cannot pass the limit together. The
    difference is charged, even where that goes beyond the limit, or handed back. Whoever cancels the call does not stop
    it half-way.

    Args:
        request: The request, or the websocket.
        used: The units that it used, 0 or more.
        rule: The name of the rule; needed where several apply.

    Returns:
        Whether the request has been settled by this call: False for a second one, and where the rule does not count
        this request. An estimate that has left its window meanwhile cannot be handed back, nor need it be.

    Raises:
        ConfigurationError: No rule of that name stands above, several were counted and none is named, or `used` is no
            whole number.
    """
    check_cost(used, "used")
    counted = _find(request, rule, "settle")
    if counted is None or not counted.decision.charge:
        return False
    record, limiter, decision, place = counted
    bucket, key, estimate = decision.checks[place]
    if not record.is_first("settled", bucket):
        return False
    if used > estimate:
        await to_the_end(limiter.charge_all(((bucket, key, used - estimate),)))
    elif used < estimate:
        await to_the_end(limiter.refund(decision.take_out(place, estimate - used)))
    return True


def _find(request: HTTPConnection, rule: str | None, what: str) -> _Counted | None:
    """Return what a rule has counted of a request; None where it does not count this one.

    Raises:
        ConfigurationError: No middleware stands above, there is no such rule, or it has to be named.
    """
    record = limits_above(request.scope, what)
    if record is None:
        return None
    counted = {
        bucket.rule: _Counted(record, middleware.limiter, decision, place)
        for middleware, decision in record.entries
        for place, (bucket, _, _) in enumerate(decision.checks)
        if not bucket.held
    }
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule in counted:
        return counted[rule]
    # Exempt, allowlisted, an unlimited plan: a request that is not counted costs nothing afterwards either.
    names_above = record.names()
    if rule in names_above or (rule is None and not counted):
        return None
    names = ", ".join(map(repr, counted)) or "none"
    problem = "name one of them" if rule is None else f"{rule!r} is no rule here{closest(rule, names_above)}"
    raise ConfigurationError(f"{what}: the rules counted on this request are: {names}; {problem}")
