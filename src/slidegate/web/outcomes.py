"""The outcome of a request, reported to the observers that want it after the response has been sent.

A request ends with the last message of its body, a websocket when the application's call returns. Anything after the
end, such as a failing background task, does not affect the outcome. A request that never reaches its end is reported as
cancelled: the client has disconnected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.websockets import WebSocketDisconnect

from ..core.decision import Decision, Reason
from ..limiter.engine import Engine
from ..limiter.observers import Ended, Outcome, refusing_rules
from .exchange import Exchange, Hook, is_failure
from .responses import label_of_refusal
from .routes import UNROUTED, RouteLabels

_FAILED: Final = 500
"""The status that a server sends if the application raises before it answers."""


class Report(Hook):
    """Reports the outcome of one request. Create it when the request arrives.

    Args:
        engine: The engine of the limiter.
        routes: Determines the routes of requests.
    """

    starts = False
    ends = True

    def __init__(self, engine: Engine, routes: RouteLabels) -> None:
        self._engine = engine
        self._routes = routes
        self._began_us = engine.now_us()

    def end(self, exchange: Exchange, error: BaseException | None) -> None:
        """See `Hook.end`."""
        decisions = exchange.decided.latest()
        refusal: Decision | None = None
        for decision in decisions:
            if not decision.allowed:
                refusal = decision
                break
        if error is not None and exchange.status and is_failure(error):
            refusal = None  # a limit at an endpoint refuses after the response has begun: the connection breaks
        status: Any = exchange.status
        ended: Ended
        rules: Sequence[str]
        if refusal is None or exchange.decided.has_left:
            ended, status = _ended(exchange, error)
            rules = [bucket.label for decision in decisions for bucket, _, _ in decision.checks]
        else:  # the status is 0 if there was no response
            ended, rules = "refused", _refusing(refusal)
        self._engine.observers.request(
            Outcome(
                allowed=bool(decisions) and refusal is None,
                reason=_reason(decisions, refusal),
                rules=tuple(rules),
                shadow_rules=exchange.decided.shadow_rules,
                route=self._label(exchange, refusal),
                status=_number(status),
                ended=ended,
                began_us=self._began_us,
                duration_us=max(self._engine.now_us() - self._began_us, 0),  # a user-supplied clock may step back
                waited_us=exchange.decided.waited_us,
                decisions=decisions,
            )
        )

    def _label(self, exchange: Exchange, refusal: Decision | None) -> str:
        """Return the route of a request, or the label of what has refused it before it reached one."""
        if refusal is None:
            return self._routes.label(exchange.scope)
        route = self._routes.label(exchange.scope) if "endpoint" in exchange.scope else UNROUTED
        return label_of_refusal(refusal) if route == UNROUTED else route


def _ended(exchange: Exchange, error: BaseException | None) -> tuple[Ended, Any]:
    """Return how a request that was not refused has ended, and its status."""
    status = exchange.status
    if exchange.is_complete:
        return "success", status
    if error is not None and is_failure(error):
        return "exception", status or _FAILED
    is_done = status and exchange.scope["type"] == "websocket"
    return ("success" if is_done and (error is None or isinstance(error, WebSocketDisconnect)) else "cancelled"), status


def _reason(decisions: Sequence[Decision], refusal: Decision | None) -> Reason:
    if refusal is not None:
        return refusal.reason
    return decisions[-1].reason if decisions else Reason.EXEMPT


def _refusing(refusal: Decision) -> Sequence[str]:
    return (refusal.by,) if refusal.status else refusing_rules(refusal)


def _number(status: Any) -> int:
    """Return a status that an application may have written as something else than an `int`; 0 if it is no number."""
    try:
        return int(status)
    except (TypeError, ValueError, OverflowError):
        return 0
