"""Charges after the admission of a request: `charge` adds units, `settle` replaces an estimate by the actual use."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection

from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, closest
from ..limiter import Limiter, check_cost
from ..limiter.aio import to_the_end
from .decided import decided_about

_UNCOUNTED: Final = Decision(True, Reason.EXEMPT)


async def charge(request: HTTPConnection, units: int, *, rule: str | None = None) -> Decision:
    """Charge more units for an admitted request, during or after its response.

    The units are recorded even if they exceed the limit. Later requests are then refused until enough units have left
    the window; a debt lasts at most one window.

    Args:
        request: The request, or the websocket.
        units: How many, 0 or more.
        rule: The name of the rule to charge; required if several apply.

    Returns:
        The decision for the key after the charge. If the rule does not count this request (its client is on the
        allowlist, its plan is unlimited, the middleware is switched off), nothing is charged and the reason is EXEMPT.

    Raises:
        ConfigurationError: There is no rule of that name, several were counted and none is named, or `units` is not a
            whole number.
    """
    check_cost(units, "units")
    counted = _find(request, rule, "charge")
    if counted is None:
        return _UNCOUNTED
    limiter, decision, index = counted
    bucket, key, _ = decision.checks[index]
    return await limiter.engine.charge(((bucket, key, units),))


async def settle(request: HTTPConnection, used: int, *, rule: str | None = None) -> bool:
    """Replace the units that a request was charged on admission by the units it used, once.

    The rule charges an estimate first, so that concurrent requests cannot exceed the limit together. The difference is
    charged, even if that exceeds the limit, or handed back. Cancelling the call does not interrupt it.

    Args:
        request: The request, or the websocket.
        used: The units that it used, 0 or more.
        rule: The name of the rule; required if several apply.

    Returns:
        Whether this call has settled the request: False for a second call, and if the rule does not count this request.
        An estimate that has left its window meanwhile cannot be handed back and need not be.
        True if the store did not answer in time: it may have processed the call, and a second one could count twice.

    Raises:
        ConfigurationError: There is no rule of that name, several were counted and none is named, or `used` is not a
            whole number.
    """
    check_cost(used, "used")
    counted = _find(request, rule, "settle")
    if counted is None:
        return False
    limiter, decision, index = counted
    bucket, key, estimate = decision.checks[index]
    own = [reservation for reservation in decision.reservations if reservation.index == index]
    if not own or own[0].ended:
        return False
    unused = decision.take_back(index, max(estimate - used, 0))
    for reservation in own:
        reservation.ended = True
    if used > estimate:
        await to_the_end(limiter.engine.charge(((bucket, key, used - estimate),)))
    elif unused:
        await to_the_end(limiter.engine.refund(unused))
    return True


def _find(request: HTTPConnection, rule: str | None, what: str) -> tuple[Limiter, Decision, int] | None:
    """Return the limiter, the decision and the index of the check that counted a request for a rule; None if none did.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, no such rule, or several that must be named.
    """
    decided = decided_about(request.scope, what)
    counted = {
        bucket.label: (middleware.limiter, decision, index)
        for middleware, decision in decided
        for index, (bucket, _, _) in enumerate(decision.checks)
        if not bucket.is_permit
    }
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule in counted:
        return counted[rule]
    # Exempt, allowlisted or on an unlimited plan: an uncounted request is not charged later either.
    names_above = {name for middleware, _ in decided for name in middleware.names()}
    is_uncounted = any(decision.reason in (Reason.ALLOWLISTED, Reason.DISABLED) for _, decision in decided)
    if is_uncounted or rule in names_above or (rule is None and not counted):
        return None
    names = ", ".join(map(repr, counted)) or "none"
    problem = "name one of them" if rule is None else f"{rule!r} is no rule here{closest(rule, names_above)}"
    raise ConfigurationError(f"{what}: the rules counted on this request are: {names}; {problem}")
