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
from starlette.types import Scope
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Bucket, Decision, Reason, RuleRefusal
from ..core.memo import remember
from ..core.statistics.metrics import OVERFLOW
from ..core.statistics.series import MAX_NOTED, Outcome, Series
from ..limiter import Limiter
from .request import RequestLimits
from .routes import RouteIndex

Counted: TypeAlias = Bucket | tuple[Bucket, ...]
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

    def begin(self, scope: Scope, request: RequestLimits) -> None:
        """Note the outcome of an answer before its end: that of a websocket, or a long one."""
        if request.series is not None:
            return
        request.series = series = self._series(scope, request)
        now = self.now()
        series.note(outcome("pass", class_of(request.status)), now, now)
        if request.waited:
            series.note(_WAITED, now, now)

    def end(self, scope: Scope, request: RequestLimits, how: str) -> None:
        """Note the end of the answer: ``"success"``, ``"exception"`` or ``"cancelled"``."""
        request.counted = True
        if request.series is not None:
            request.series.note(outcome(how, rt=True), request.began, self.now())
            return
        series = self._series(scope, request)
        if how == "success":
            what = _WHOLE.get(request.status) or _WHOLE[0]
        else:
            what = outcome("pass", how, class_of(request.status), rt=True)
        ended = self.now()
        series.noted.append((what, request.began, ended))
        if len(series.noted) >= MAX_NOTED:
            series.fold()
        if request.waited:
            series.note(_WAITED, ended, ended)

    def fail(self, scope: Scope, request: RequestLimits, error: BaseException) -> None:
        """Note an exception of the application, or its cancellation."""
        if isinstance(error, WebSocketDisconnect):
            self.leave(scope, request)
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            self._give_up(scope, request, "cancelled")
        else:
            self._give_up(scope, request, "exception", 500)

    def leave(self, scope: Scope, request: RequestLimits) -> None:
        """Note that the application is done."""
        done = request.status and scope["type"] == "websocket"
        self._give_up(scope, request, "success" if done else "cancelled")

    def _give_up(self, scope: Scope, request: RequestLimits, how: str, status: int = 0) -> None:
        """Note an end that is not that of the answer; the status is the one that the server sends instead."""
        if request.status:
            self.end(scope, request, how)
            return
        request.answered = request.counted = True
        now = self.now()
        came = bool(request.entries) and not (request.waited and not request.entries[-1][1].allowed)
        events = filter(None, ("pass" if came else "", class_of(status) if status else "", how))
        self._series(scope, request).note(outcome(*events, rt=came), request.began if came else now, now)

    def _series(self, scope: Scope, request: RequestLimits) -> Series:
        """Return the series of a request that the application has seen."""
        entries = request.entries
        counted: Counted
        if len(entries) == 1 and len(checks := entries[0][1].checks) == 1:
            counted = checks[0][0]
        else:
            counted = tuple([bucket for _, decision in entries for bucket, _, _ in decision.checks])
        router, endpoint = scope.get("router"), scope.get("endpoint")
        known = self._passed.get((counted, id(endpoint)))
        if known is not None and known[1] is router:
            return known[0]
        labels = (counted.label,) if isinstance(counted, Bucket) else tuple([bucket.label for bucket in counted])
        # Frontends are no routes here: FastAPI gives them no endpoint, by which routes are remembered.
        series = self._statistics.series(labels, self._routes.label(scope))
        if len(self._routes.candidates(scope)) <= 1:  # else the path decides
            # Keep the endpoint alive, or id() could be reused for another object.
            remember(self._passed, (counted, id(endpoint)), (series, router, endpoint))
        return series

    def refuse(self, request: RequestLimits, refusal: Decision, route: str) -> None:
        """Note a refusal: its rules are those that had no room. The status is 0 where no answer came."""
        request.counted = True
        labels: tuple[str, ...] = ()
        if len(refusal.checks) == 1 and refusal.readings:
            labels = (refusal.checks[0][0].label,)
        elif refusal.reason is Reason.NOBODY or isinstance(refusal, RuleRefusal):
            labels = (refusal.by,)
        elif refusal.readings:
            violated = {state.rule for state in refusal.violated}
            labels = tuple([bucket.label for bucket, _, _ in refusal.checks if bucket.rule in violated])
        series = self._statistics.series(labels, route)
        by_status = _LIMITED
        if not refusal.readings and refusal.reason in _SHUT:
            by_status = _refused_by(str(refusal.reason))
        now = self.now()
        series.note(by_status.get(request.status) or by_status[-1], now, now)
