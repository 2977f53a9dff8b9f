"""The outcomes of requests, reported to the observers that want them after the response has been sent.

A request ends with the last message of its body, a websocket when the application's call returns. Anything after the
end, such as a failing background task, does not affect the outcome. A request that never reaches its end is reported as
cancelled: the client has disconnected.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.websockets import WebSocketDisconnect

from ..core.decision import Reason
from ..limiter.engine import Engine
from ..limiter.outcome import Ended, Outcome, refusing_rules
from .exchange import Exchange, is_failure
from .responses import label_where_refused
from .routes import UNROUTED, RouteIndex

_FAILED: Final = 500
"""The status that a server sends if the application raises before it answers."""


class Outcomes:
    """Reports the outcomes of requests to the observers of a limiter.

    Args:
        engine: The engine of the limiter.
        routes: Determines the routes of requests.

    Attributes:
        observers: The observers.
        now_us: Returns the time.
    """

    def __init__(self, engine: Engine, routes: RouteIndex) -> None:
        self.observers = engine.observers
        self.now_us = engine.now_us
        self._routes = routes

    def answered(self, exchange: Exchange, began_us: int) -> None:
        """Report a request whose response was sent completely."""
        self._report(exchange, "success", exchange.status, began_us)

    def left(self, exchange: Exchange, error: BaseException | None, began_us: int) -> None:
        """Report a request that the application has left, by returning or raising, before its response was complete."""
        status = exchange.status
        if error is not None and is_failure(error):
            self._report(exchange, "exception", status or _FAILED, began_us)
            return
        is_told = error is None or isinstance(error, WebSocketDisconnect)
        is_done = is_told and status and exchange.scope["type"] == "websocket"
        self._report(exchange, "success" if is_done else "cancelled", status, began_us)

    def _report(self, exchange: Exchange, ended: Ended, status: Any, began_us: int) -> None:
        """Report a request. `ended` and `status` apply only if it was not refused."""
        decisions, refusal, waiting = exchange.decisions, exchange.refusal, exchange.waiting
        if refusal is not None:  # the status is 0 if there was no response
            allowed, reason, ended, status, route = False, refusal.reason, "refused", exchange.status, exchange.route
            route = label_where_refused(refusal) if route == UNROUTED else route
            is_named = refusal.reason is Reason.NOBODY or refusal.status != 0
            rules = (refusal.by,) if is_named else refusing_rules(refusal)
        else:
            if waiting is not None:
                decisions.append(waiting)
            allowed, reason = bool(decisions) and waiting is None, decisions[-1].reason if decisions else Reason.EXEMPT
            rules = tuple([bucket.label for decision in decisions for bucket, _, _ in decision.checks])
            route = self._routes.label(exchange.scope)
        shadows = exchange.shadow_rules
        duration_us = max(self.now_us() - began_us, 0)  # a user-supplied clock may step back
        waited_us, number = exchange.waited_us, status if isinstance(status, int) else _number(status)
        self.observers.request(
            Outcome(allowed, reason, rules, shadows, route, number, ended, began_us, duration_us, waited_us, decisions)
        )


def _number(status: Any) -> int:
    """Return a status that an application wrote as something else than an `int`; 0 if it is no number."""
    try:
        return int(status)
    except (TypeError, ValueError, OverflowError):
        return 0
