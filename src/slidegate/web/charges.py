"""Costs that are known only afterwards: tokens of a language model, bytes of an answer."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from ..core.decision import Decision
from ..core.errors import ConfigurationError, closest
from ..limiter import check_cost
from .judge import RECORD, Record


async def charge(request: HTTPConnection, units: int, *, rule: str | None = None) -> Decision:
    """Charge more units for a request that was let through, during or after its response.

    They are recorded even where they go beyond the limit, and then hold the next requests until enough has left; a debt
    lasts at most one window.

    Args:
        request: The request, or the websocket.
        units: How many, 0 or more.
        rule: The name of the rule to charge; needed where several apply.

    Returns:
        Where the key stands now.

    Raises:
        ConfigurationError: No such rule was counted on this request, several were and none is named, or `units` is no
            whole number.
    """
    check_cost(units, "units")
    record: Record | None = request.scope.get(RECORD)
    counted = {
        bucket.rule: (judge, (bucket, key, units))
        for judge, decision in (zip(record.judges, record, strict=True) if record is not None else ())
        for bucket, key, _ in decision.checks
    }
    if rule is None and len(counted) == 1:
        (rule,) = counted
    if rule not in counted:
        names = ", ".join(map(repr, counted)) or "none"
        problem = "name one of them" if rule is None else f"{rule!r} is not among them{closest(rule, counted)}"
        raise ConfigurationError(f"charge: the rules counted on this request are: {names}; {problem}")
    judge, check = counted[rule]
    return await judge.limiter.charge_all((check,))
