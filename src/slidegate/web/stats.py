"""The stats of requests: each is counted once, under the rules that counted it and the route that it went to.

The first message out tells the outcome and the status, and by then routers have written the route into the scope. A
refusal is counted then. The end of a request that passed is that of the last piece of the body; of a websocket, of the
application's call. Whatever comes after the end, such as a background task that fails, is not counted. A request
without an end of its own was cancelled: the client left.

A request pays for a look into a memo and one small tuple: its `Series` counts later, many at once. What is noted
holds an outcome and two moments: never the scope, nor the path, nor anything else that a client has chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Decision, LimitSet, Reason, RuleRefusal
from ..core.memo import remember
from ..core.statistics.metrics import OVERFLOW
from ..core.statistics.series import MAX_NOTED, Outcome, Series
from ..limiter import Limiter
from .exchange import Exchange
from .routes import RouteIndex

Counted: TypeAlias = LimitSet | tuple[LimitSet, ...]
"""The bucket that counted a request, where it is one; else all of them."""

_CLASSES: Final = {status: f"{status // 100}xx" for status in range(100, 600)}
_SHUT: Final = frozenset({Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE})


@cache
def outcome(*events: str, rt: bool = False) -> Outcome:
    """Return the one `Outcome` of some events; they are of this package, so there are few."""
    return Outcome(*events, rt=rt)


def class_of(status: int) -> str:
    """Return ``"2xx"`` for 204, and so on."""
    return _CLASSES.get(status, OVERFLOW)


_WHOLE: Final = {
    status: outcome("pass", "success", name, rt=True) for status, name in {**_CLASSES, 0: OVERFLOW}.items()
}
"""What a whole answer counts, by its status; 0 stands for every status beyond 100 to 599."""
_WAITED: Final = outcome("occupied_pass")
"""What a request counts beside that, if it waited before it was let through."""


@cache
def _refused_by(reason: str) -> Mapping[int, Outcome]:
    """Return what a refusal counts, by its status; the reason is empty where a limit refused.

    0 stands for no answer at all, and -1 for every status beyond 100 to 599.
    """
    names = {**_CLASSES, 0: "", -1: OVERFLOW}
    return {status: outcome(*filter(None, ("block", reason, name))) for status, name in names.items()}


_LIMITED: Final = _refused_by("")


class RequestStats:
    """Counts requests.

    Args:
        limiter: The limiter with the `stats` that tell of them.
        routes: Finds the routes that requests came by.

    Attributes:
        now: Returns the moments to note, in ticks.
    """

    def __init__(self, limiter: Limiter, routes: RouteIndex) -> None:
        self._statistics = limiter.engine.statistics
        self.now = self._statistics.ticks
        self._routes = routes
        self._passed: dict[tuple[Counted, int], tuple[Series, object, object]] = {}

    def begin(self, exchange: Exchange) -> None:
        """Note the outcome of an answer before its end: that of a websocket, or a long one."""
        if exchange.series is not None:
            return
        exchange.series = series = self._series(exchange)
        now = self.now()
        series.note(outcome("pass", class_of(exchange.status)), now, now)
        if exchange.waited:
            series.note(_WAITED, now, now)

    def end(self, exchange: Exchange, how: str) -> None:
        """Note the end of the answer: ``"success"``, ``"exception"`` or ``"cancelled"``."""
        exchange.stats = None
        if exchange.series is not None:
            exchange.series.note(outcome(how, rt=True), exchange.began, self.now())
            return
        series = self._series(exchange)
        if how == "success":
            what = _WHOLE.get(exchange.status) or _WHOLE[0]
        else:
            what = outcome("pass", how, class_of(exchange.status), rt=True)
        ended = self.now()
        series.noted.append((what, exchange.began, ended))
        if len(series.noted) >= MAX_NOTED:
            series.fold()
        if exchange.waited:
            series.note(_WAITED, ended, ended)

    def leave(self, exchange: Exchange, error: BaseException | None) -> None:
        """Note that the application is done, before it has answered to the end, or by an exception."""
        if exchange.refusal is not None and not exchange.status:
            self.refuse(exchange, exchange.refusal)
        elif error is None or isinstance(error, WebSocketDisconnect):
            done = exchange.status and exchange.scope["type"] == "websocket"
            self._give_up(exchange, "success" if done else "cancelled")
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            self._give_up(exchange, "cancelled")
        else:
            self._give_up(exchange, "exception", 500)

    def _give_up(self, exchange: Exchange, how: str, status: int = 0) -> None:
        """Note an end that is not that of the answer; the status is the one that the server sends instead."""
        if exchange.status:
            self.end(exchange, how)
            return
        exchange.stats = None
        now = self.now()
        came = bool(exchange.entries) and exchange.waiting is None
        events = filter(None, ("pass" if came else "", class_of(status) if status else "", how))
        self._series(exchange).note(outcome(*events, rt=came), exchange.began if came else now, now)

    def _series(self, exchange: Exchange) -> Series:
        """Return the series of a request that the application has seen."""
        scope, entries = exchange.scope, exchange.entries
        counted: Counted
        if len(entries) == 1 and len(checks := entries[0][1].checks) == 1:
            counted = checks[0][0]
        else:
            decisions = [*exchange.decisions, *([] if exchange.waiting is None else [exchange.waiting])]
            counted = tuple([bucket for decision in decisions for bucket, _, _ in decision.checks])
        router, endpoint = scope.get("router"), scope.get("endpoint")
        known = self._passed.get((counted, id(endpoint)))
        if known is not None and known[1] is router:
            return known[0]
        labels = (counted.label,) if isinstance(counted, LimitSet) else tuple([bucket.label for bucket in counted])
        # Frontends are no routes here: FastAPI gives them no endpoint, by which routes are remembered.
        series = self._statistics.series(labels, self._routes.label(scope))
        if len(self._routes.candidates(scope)) <= 1:  # else the path decides
            # Keep the endpoint alive, or id() could be reused for another object.
            remember(self._passed, (counted, id(endpoint)), (series, router, endpoint))
        return series

    def refuse(self, exchange: Exchange, refusal: Decision) -> None:
        """Note a refusal: its rules are those that had no room. The status is 0 where no answer came."""
        exchange.stats = None
        labels: tuple[str, ...] = ()
        if len(refusal.checks) == 1 and refusal.readings:
            labels = (refusal.checks[0][0].label,)
        elif refusal.reason is Reason.NOBODY or isinstance(refusal, RuleRefusal):
            labels = (refusal.by,)
        elif refusal.readings:
            violated = {state.rule for state in refusal.violated}
            labels = tuple([bucket.label for bucket, _, _ in refusal.checks if bucket.rule in violated])
        series = self._statistics.series(labels, exchange.route)
        by_status = _LIMITED
        if not refusal.readings and refusal.reason in _SHUT:
            by_status = _refused_by(str(refusal.reason))
        now = self.now()
        series.note(by_status.get(exchange.status) or by_status[-1], now, now)
