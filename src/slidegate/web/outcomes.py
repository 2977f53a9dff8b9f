"""What became of a request, for the observers who ask for it: they hear of it when the answer is out.

The end of a request that passed is that of the last piece of the body; of a websocket, of the application's call.
Whatever comes after the end, such as a background task that fails, is not told. A request without an end of its own
was cancelled: the client left.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Decision, Reason, RuleRefusal
from ..limiter.engine import Engine
from ..limiter.observers import Ended, Outcome, refusing_rules
from .exchange import Exchange
from .routes import RouteIndex

_FAILED: Final = 500
"""What a server sends where the application raises before it answers."""


class Outcomes:
    """Hands what became of requests to the observers of a limiter.

    Args:
        engine: The engine of the limiter.
        routes: Finds the routes that requests came by.

    Attributes:
        observers: The observers.
        now_us: Returns the time.
    """

    def __init__(self, engine: Engine, routes: RouteIndex) -> None:
        self.observers = engine.observers
        self.now_us = engine.now_us
        self._routes = routes

    def answered(self, exchange: Exchange) -> None:
        """Tell of a request whose answer was sent to its end."""
        if exchange.refusal is not None:
            self._refused(exchange, exchange.refusal)
        else:
            self._passed(exchange, "success", exchange.status)

    def left(self, exchange: Exchange, error: BaseException | None) -> None:
        """Tell of a request that the application is done with before it has answered to the end, or by an exception."""
        if exchange.refusal is not None:
            self._refused(exchange, exchange.refusal)
        elif error is None or isinstance(error, WebSocketDisconnect):
            is_done = exchange.status and exchange.scope["type"] == "websocket"
            self._passed(exchange, "success" if is_done else "cancelled", exchange.status)
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            self._passed(exchange, "cancelled", exchange.status)
        else:
            self._passed(exchange, "exception", exchange.status or _FAILED)

    def _passed(self, exchange: Exchange, ended: Ended, status: int) -> None:
        """Tell of a request that was let through, or whose client left while it waited for that."""
        decisions: list[Decision] = exchange.decisions
        waiting = exchange.waiting
        allowed = bool(decisions) and waiting is None
        if waiting is not None:
            decisions.append(waiting)
        rules = tuple([asked.label for decision in decisions for asked, _, _ in decision.checks])
        reason = decisions[-1].reason if decisions else Reason.EXEMPT
        self._hand_over(exchange, decisions, allowed, reason, rules, self._routes.label(exchange.scope), status, ended)

    def _refused(self, exchange: Exchange, refusal: Decision) -> None:
        """Tell of a refused request. The status is 0 where no answer came."""
        rules = refusing_rules(refusal)
        if refusal.reason is Reason.NOBODY or isinstance(refusal, RuleRefusal):
            rules = (refusal.by,)
        route, status = exchange.route, exchange.status
        self._hand_over(exchange, exchange.decisions, False, refusal.reason, rules, route, status, "refused")

    def _hand_over(
        self,
        exchange: Exchange,
        decisions: list[Decision],
        allowed: bool,
        reason: Reason,
        rules: tuple[str, ...],
        route: str,
        status: int,
        ended: Ended,
    ) -> None:
        began_us, shadows = exchange.began_us, exchange.shadow_rules
        took_us = max(self.now_us() - began_us, 0)
        self.observers.request(
            Outcome(
                allowed, reason, rules, shadows, route, status, ended, began_us, took_us, exchange.waited_us, decisions
            )
        )
