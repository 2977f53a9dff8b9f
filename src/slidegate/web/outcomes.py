"""What became of a request: handed to the observers that ask for it when the answer has been sent.

The end of a request that passed is that of the last piece of the body; of a websocket, of the application's call.
Whatever comes after the end, such as a background task that fails, is not part of it. A request without an end of its
own was cancelled: the client left.
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
        """Report a request whose answer was sent to its end."""
        refusal = exchange.refusal
        if refusal is None:
            self.observers.request(self._passed(exchange, "success", exchange.status))
        else:
            self.observers.request(self._refused(exchange, refusal))

    def left(self, exchange: Exchange, error: BaseException | None) -> None:
        """Report a request that the application is done with before it has answered to the end, or by an exception."""
        status = exchange.status
        if exchange.refusal is not None:
            outcome = self._refused(exchange, exchange.refusal)
        elif error is None or isinstance(error, WebSocketDisconnect):
            is_done = status and exchange.scope["type"] == "websocket"
            outcome = self._passed(exchange, "success" if is_done else "cancelled", status)
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            outcome = self._passed(exchange, "cancelled", status)
        else:
            outcome = self._passed(exchange, "exception", status or _FAILED)
        self.observers.request(outcome)

    def _passed(self, exchange: Exchange, ended: Ended, status: int) -> Outcome:
        """Return the outcome of a request that was let through, or whose client left while it waited for that."""
        decisions: list[Decision] = []
        rules: list[str] = []
        for _, decision in exchange.entries:
            decisions.append(decision)
            for asked, _, _ in decision.checks:
                rules.append(asked.label)
        waiting = exchange.waiting
        if waiting is not None:
            decisions.append(waiting)
            rules += [asked.label for asked, _, _ in waiting.checks]
        return Outcome(
            bool(decisions) and waiting is None,
            decisions[-1].reason if decisions else Reason.EXEMPT,
            tuple(rules),
            exchange.shadow_rules,
            self._routes.label(exchange.scope),
            status,
            ended,
            exchange.began_us,
            self._duration_us(exchange),
            exchange.waited_us,
            decisions,
        )

    def _refused(self, exchange: Exchange, refusal: Decision) -> Outcome:
        """Return the outcome of a refused request. The status is 0 where no answer came."""
        rules = refusing_rules(refusal)
        if refusal.reason is Reason.NOBODY or isinstance(refusal, RuleRefusal):
            rules = (refusal.by,)
        return Outcome(
            False,
            refusal.reason,
            rules,
            exchange.shadow_rules,
            exchange.route,
            exchange.status,
            "refused",
            exchange.began_us,
            self._duration_us(exchange),
            exchange.waited_us,
            exchange.decisions,
        )

    def _duration_us(self, exchange: Exchange) -> int:
        """Return how long a request has taken; a clock of the user's may step back."""
        duration_us = self.now_us() - exchange.began_us
        return duration_us if duration_us > 0 else 0
