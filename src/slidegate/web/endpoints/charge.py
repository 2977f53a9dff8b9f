"""Costs that are known only afterwards: tokens of a language model, bytes of an answer."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection

from ...core.decision import Decision, Reason
from ...core.errors import ConfigurationError, closest
from ...limiter import check_cost
from ..request import RequestLimits
from ..scope_keys import OFF, RECORD

_UNCOUNTED: Final = Decision(True, Reason.EXEMPT)


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
    record: RequestLimits | None = request.scope.get(RECORD)
    if record is None and OFF not in request.scope:
        raise ConfigurationError("charge: no RateLimitMiddleware stands above; write app.add_middleware(...)")
    if record is None:
        return _UNCOUNTED
    counted = {
        bucket.rule: (step.side.limiter, (bucket, key, units))
        for step in record.steps
        for bucket, key, _ in step.decision.checks
        if not bucket.held
    }
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule in counted:
        limiter, check = counted[rule]
        return await limiter.charge_all((check,))
    # Exempt, allowlisted, an unlimited plan: a request that is not counted costs nothing afterwards either.
    known = record.names()
    if rule in known or (rule is None and not counted):
        return _UNCOUNTED
    names = ", ".join(map(repr, counted)) or "none"
    problem = "name one of them" if rule is None else f"{rule!r} is no rule here{closest(rule, known)}"
    raise ConfigurationError(f"charge: the rules counted on this request are: {names}; {problem}")
