"""The hooks that depend on the status or the end of a response: `count_if`, strikes, permits, outcomes.

Each is there only for requests whose rules, or whose observers, need it. A request ends with the last message of its
body, a websocket when the application's call returns. Anything after the end, such as a failing background task, does
not affect the outcome. A request that never reaches its end is reported as cancelled: the client has disconnected.
"""

from __future__ import annotations

from collections.abc import Awaitable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Decision, Reason
from ..limiter.aio import in_background
from ..limiter.engine import Engine
from ..limiter.observers import Ended, Outcome, tell
from .exchange import Exchange, Hook, is_failure
from .routes import RouteLabels

if TYPE_CHECKING:
    from .bans import BanSignals
    from .responses import Refusals
    from .rule_set import Plan
    from .rules import Rule

_DECISION: Final = itemgetter(1)
_FAILED: Final = 500
"""The status that a server sends if the application raises before it answers."""


class CountIf(Hook):
    """Hands back the units that a rule has charged, unless its `count_if` counts the response.

    Args:
        rule: The rule.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._count_if: Any = rule.count_if

    async def start(self, exchange: Exchange, status: Any) -> None:
        """See `Hook.start`."""
        middleware = exchange.middleware
        charged = [
            (decision, index)
            for decision in exchange.own
            if decision.allowed
            for index, (bucket, _, _) in enumerate(decision.checks)
            if bucket.by is self._rule  # and not another of its name
        ]
        if charged and not await middleware.calls.ask(self._rule, status, "count_if", self._count_if, bool, True):
            for decision, index in charged:
                await middleware.limiter.engine.refund(decision.begin_refund(index))


class StrikeForStatus(Hook):
    """Strikes for the status of a response; a status that is no signal costs a look-up.

    The status of a refusal, by whichever middleware or limit within, is none of the application.
    """

    def start(self, exchange: Exchange, status: Any) -> Awaitable[object] | None:
        """See `Hook.start`."""
        signals = exchange.middleware.signals
        if status not in signals.by_kind or not all(map(_DECISION, exchange.decided)):
            return None
        return signals.strike_for(status, exchange.scope, exchange)


class Release(Hook):
    """Releases the permits of a request, even if it is cancelled meanwhile. Of several, the first releases all."""

    starts = False
    ends = True

    def end(self, exchange: Exchange, error: BaseException | None) -> Awaitable[object] | None:
        """See `Hook.end`."""
        limiter, permits, exchange.permits = exchange.middleware.limiter, exchange.permits, ()
        for name, tenant in permits:  # before the store, so that the right waiter asks for the permit
            limiter.engine.queues.count_permit(name, tenant, -1)
        charges = [limiter.engine.release(decision) for decision in exchange.own]
        if not any(charges):
            return None
        released = limiter.engine.refund(*charges)
        if isinstance(error, GeneratorExit):  # a coroutine that is being closed cannot await
            in_background(released)
            return None
        return released


def hooks_of(plan: Plan, signals: BanSignals) -> list[Hook]:
    """Return the hooks for the responses to the requests of a plan. Permits are last: their release is awaited."""
    strikes = signals.on_status and not plan.is_exempt
    hooks: list[Hook] = [StrikeForStatus()] if strikes else []
    hooks += [CountIf(bound.rule) for bound in plan.limiting if bound.rule.count_if is not None]
    return [*hooks, Release()] if any(bound.permits is not None for bound in plan.limiting) else hooks


class RefusalReport(Hook):
    """Reports a refusal when its request ends, unless the request was decided again after it.

    Args:
        refusals: Reports to the observers.
        scope: The request where it was refused.
        decision: The refusal.
        status: The status of the default answer.
    """

    starts = False
    ends = True

    def __init__(self, refusals: Refusals, scope: Scope, decision: Decision, status: int) -> None:
        self._refusals = refusals
        self._scope = scope
        self._decision = decision
        self._status = status

    def end(self, exchange: Exchange, error: BaseException | None) -> None:
        """See `Hook.end`."""
        if exchange.report is self and exchange.refusal is self._decision:
            self._refusals.report(exchange, self._scope, self._decision, self._status)


class Report(Hook):
    """Reports the outcomes of requests.

    Args:
        engine: The engine of the limiter.
        routes: Determines the routes of requests.
    """

    starts = False
    ends = True

    def __init__(self, engine: Engine, routes: RouteLabels) -> None:
        self._clock = engine.clock
        self._unix_us = engine.unix_us
        self._observers = engine.observers
        self._routes = routes

    def end(self, exchange: Exchange, error: BaseException | None) -> None:
        """See `Hook.end`."""
        duration_us = (self._clock.monotonic_ns() - exchange.began_ns) // 1_000
        route, observers, decided = self._routes.label(exchange.scope), self._observers, exchange.decided
        told = observers.requests
        if decided.exempt and _is_uncounted(exchange):
            told = observers.exempt
        elif exchange.is_complete and len(decided) == 1 and not decided.shadowed:
            ((_, decision),) = decided
            if decision.allowed:
                told = observers.outcomes
                tell(observers.passed, (decision.checks, route, duration_us))
        if told:
            tell(told, self._outcome(exchange, error, route, duration_us))

    def _outcome(self, exchange: Exchange, error: BaseException | None, route: str, duration_us: int) -> Outcome:
        decided, status = exchange.decided, exchange.status or exchange.answered(error)
        decisions = [decision for _, decision in decided if decision.reason is not Reason.DISABLED]
        refusal: Decision | None = None
        ended: Ended = "success"
        if decisions and not decisions[-1].allowed:
            # Not if a limit at an endpoint refuses after the response has begun: the connection breaks.
            refusal = None if error is not None and exchange.status and is_failure(error) else decisions[-1]
        if decided.left is not None:  # whatever the application answers then
            ended, status = "cancelled", decided.left_with
        elif refusal not in (None, decided.cut_short):
            ended = "refused"
        elif not exchange.is_complete:
            ended, status = _ended(exchange, error, status)
        began_us = self._unix_us() - duration_us
        shadow_rules = tuple([label for _, label in decided.shadowed])
        return Outcome(decisions, refusal, shadow_rules, route, status, ended, began_us, duration_us)


def _is_uncounted(exchange: Exchange) -> bool:
    """Return whether a request has passed, and neither a limit nor a shadow rule has counted it."""
    return not exchange.observed and all(one.allowed and not one.checks for _, one in exchange.decided)


def _ended(exchange: Exchange, error: BaseException | None, status: Any) -> tuple[Ended, Any]:
    """Return how a request that was not refused has ended before its response was complete, and its status."""
    if error is not None and is_failure(error):
        is_answered = status and not exchange.status
        return "success" if is_answered else "exception", status or _FAILED
    is_done = status and exchange.scope["type"] == "websocket"
    return ("success" if is_done and (error is None or isinstance(error, WebSocketDisconnect)) else "cancelled"), status
