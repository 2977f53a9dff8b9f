"""Strikes of the application's own: a wrong password, a forged token."""

from __future__ import annotations

from typing import Literal

from starlette.requests import HTTPConnection

from ...core.bans.in_force import Ban, clean_reason
from ...core.errors import ConfigurationError, closest
from ...core.limits import check_whole
from ..request import RequestLimits
from ..scope_keys import OFF, RECORD
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
        StoreUnavailable: The store does not answer, and `on_error` is ``"deny"``: whether the client is banned is not
            known.
    """
    if weight != "ban":
        check_whole(weight, 1, 1_000_000, "strike: weight", 'or "ban", for example 1')
    limits: RequestLimits | None = request.scope.get(RECORD)
    if limits is None and OFF not in request.scope:
        raise ConfigurationError("strike: no RateLimitMiddleware stands above; write app.add_middleware(...)")
    if limits is None:
        return None
    # The innermost first, so that the outermost of two of one name remains.
    sides = {name: step.side for step in reversed(limits.steps) for name in step.side.abuse.policies}
    if policy is None and len(sides) == 1:
        (policy,) = sides
    side = sides.get(policy) if policy is not None else None
    if side is None or policy is None:
        names = ", ".join(map(repr, sides)) or "none; write RateLimitMiddleware(..., bans=BanPolicy())"
        problem = "name one of them" if policy is None else f"{policy!r} is none{closest(policy, list(sides))}"
        raise ConfigurationError(f"strike: the ban policies above are: {names}; {problem}")
    if limits.spared_by(side):
        return None
    held = side.abuse.policies[policy]
    whole = held.after.amount if weight == "ban" else weight
    return await side.abuse.strike(Offence(held, whole, clean_reason(reason)), request.scope)
