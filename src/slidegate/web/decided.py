"""The decisions about one request, which its middlewares share, and what applications read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

DECIDED_KEY: Final = "slidegate"
"""The scope key of the decisions about a request."""
UNCOUNTED: Final = (Reason.ALLOWLISTED, Reason.DISABLED)


class Decided(list[tuple["RateLimitMiddleware", Decision]]):
    """The decisions about a request, each with the middleware that made it, in order.

    Applications read `decision`; `charge`, `settle` and `strike` read the list. It does not refer to the scope, which
    refers to it.
    """

    exempt: tuple[RateLimitMiddleware, ...] = ()
    """The middlewares whose ban policies ignore the request, because a rule exempts it or it is a CORS preflight."""
    has_left = False
    """Whether the client left while the request waited for room."""
    waited_us: int | None = None
    """How long the request has waited for room; None if it has not."""
    shadow_rules: tuple[str, ...] = ()
    """The labels of the shadow rules that would have refused the request."""
    is_refused = False
    """Whether a middleware, or a limit at an endpoint, has refused the request before its response began."""

    @property
    def decision(self) -> Decision:
        """The first refusal, else the last decision that a limit made, else the last one.

        Raises:
            ConfigurationError: There is no decision yet.
        """
        decisions = self.latest()
        if not decisions:
            raise ConfigurationError(
                'scope["slidegate"].decision: nothing is decided about this request yet; read it in the application, '
                "not in a function of a rule"
            )
        refusals = [decision for decision in decisions if not decision.allowed]
        counted = [decision for decision in decisions if decision.readings]
        return refusals[0] if refusals else (counted or decisions)[-1]

    def latest(self) -> list[Decision]:
        """Return the decisions, without refusals after which the same middleware has decided again."""
        last = dict(self)
        return [decision for middleware, decision in self if decision.allowed or last[middleware] is decision]

    def is_exempt_from(self, middleware: RateLimitMiddleware) -> bool:
        """Return whether the ban policies of a middleware ignore the request."""
        own = [decision for other, decision in self if other is middleware]
        return middleware in self.exempt or any(decision.reason in UNCOUNTED for decision in own)


def decided_about(scope: Scope, who: str) -> Decided:
    """Return the decisions about a request, which may have ended.

    Args:
        scope: The scope of the request.
        who: The name of the calling function, for the error message.

    Raises:
        ConfigurationError: There is no middleware around the endpoint.
    """
    decided: Decided | None = scope.get(DECIDED_KEY)
    if decided is None:
        raise no_middleware(who)
    return decided


def decision_of(request: HTTPConnection) -> Decision:
    """Return what was decided about a request: the first refusal, else the last decision that a limit made.

    It works in the application, after the response, and in tasks that outlive it.

    Args:
        request: The request, or the websocket.

    Returns:
        The decision of the middlewares and limits at endpoints so far. If no rule counts the request its reason is
        EXEMPT, for a client on the allowlist ALLOWLISTED, and while the middleware is switched off DISABLED.

    Raises:
        ConfigurationError: There is no middleware around the endpoint, or nothing is decided yet.
    """
    return decided_about(request.scope, "decision_of").decision


def no_middleware(who: str) -> ConfigurationError:
    return ConfigurationError(
        f"{who}: there is no RateLimitMiddleware around this endpoint; write app.add_middleware(RateLimitMiddleware), "
        "with rules or without"
    )
