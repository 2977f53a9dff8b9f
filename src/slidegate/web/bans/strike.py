"""Strikes of the application's own: a wrong password, a forged token."""

from __future__ import annotations

from typing import Literal

from starlette.requests import HTTPConnection

from ...core.bans.in_force import Ban, clean_reason
from ...core.errors import ConfigurationError, closest
from ...core.limits import check_whole
from ..record import OFF, RECORD, Record
from .signals import Offence


async def strike(
    request: HTTPConnection, weight: int | Literal["ban"] = 1, reason: str = "", *, policy: str | None = None
) -> Ban | None:
    """Hold something against whoever sent a request, and return the ban if that was one strike too many.

    The request itself goes on; a ban refuses the next. Nothing is held against clients on an allowlist, on routes that
    a rule exempts, and for addresses that the policy may not ban.

    Args:
        request: The request, or the websocket.
        weight: How many strikes it stands for, 1 or more, or ``"ban"`` for all that a ban takes.
        reason: For the operator; clients do not see it.
        policy: The name of the ban policy; needed where several stand above.

    Raises:
        ConfigurationError: No policy of that name stands above, several do and none is named, or the weight cannot be
            used.
    """
    if weight != "ban":
        check_whole(weight, 1, 1_000_000, "strike: weight", 'or "ban", for example 1')
    record: Record | None = request.scope.get(RECORD)
    if record is None and OFF not in request.scope:
        raise ConfigurationError("strike: no RateLimitMiddleware stands above; write app.add_middleware(...)")
    if record is None:
        return None
    # The innermost first, so that the outermost of two of one name remains.
    judges = {name: judge for judge in reversed(record.judges) for name in judge.abuse.policies}
    if policy is None and len(judges) == 1:
        (policy,) = judges
    judge = judges.get(policy) if policy is not None else None
    if judge is None or policy is None:
        names = ", ".join(map(repr, judges)) or "none; write RateLimitMiddleware(..., bans=BanPolicy())"
        problem = "name one of them" if policy is None else f"{policy!r} is none{closest(policy, list(judges))}"
        raise ConfigurationError(f"strike: the ban policies above are: {names}; {problem}")
    if record.spared_by(judge):
        return None
    held = judge.abuse.policies[policy]
    whole = held.after.amount if weight == "ban" else weight
    return await judge.strike(request.scope, Offence(held, whole, clean_reason(reason)))
