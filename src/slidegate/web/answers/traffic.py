"""The figures that the outermost gate records about a request: once, however the request ends.

The first message out tells the outcome and the status, and by then routers have written the route into the scope. The
end is that of the last piece of the body; of a websocket, of the application's call. Whatever comes after the end, such
as a background task that fails, is not recorded. A request without an end of its own was cancelled: the client left.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope
from starlette.websockets import WebSocketDisconnect

from ...core.decision import Decision, Reason
from ...core.memo import remember
from ...core.statistics.metrics import OVERFLOW
from ...limiter import Limiter
from ...limiter.statistics import UNROUTED, Series
from ..paths.below_root import route_path
from ..paths.routes import Place, Places, walk
from ..record import Record
from ..scope_keys import STATUS

_CLASSES: Final = {status: f"{status // 100}xx" for status in range(100, 600)}
_MEMO: Final = 2_048
_MEMO_PATH: Final = 256
_MEMO_ROOTS: Final = 64
_WAITED: Final = Reason.WAITED
_SHUT: Final = frozenset({Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE})


class Feed:
    """Records requests.

    Args:
        limiter: The limiter with the `stats` that tell of them.
        app: The application, where no scope names one.
    """

    def __init__(self, limiter: Limiter, app: ASGIApp) -> None:
        self._statistics = limiter.internals.statistics
        self._app = app
        self.now_us = limiter.internals.statistics.now_us
        self._places = Places()
        self._passed: dict[tuple[object, int, int], tuple[Series, object, object]] = {}
        self._refused: dict[tuple[int, str, str, str], str] = {}
        self._below: dict[int, tuple[object, list[Place]]] = {}

    def series_of_passed(self, scope: Scope, record: Record) -> Series:
        """Return the series of a request that the application has seen."""
        counted: object
        if len(record) == 1 and len(checks := record[0].decision.checks) == 1:
            counted = checks[0][0]
        else:
            counted = tuple([bucket for step in record for bucket, _, _ in step.decision.checks])
        asked = counted, id(scope.get("router")), id(scope.get("endpoint"))
        known = self._passed.get(asked)
        return self._learn(asked, scope, record) if known is None else known[0]

    def _learn(self, asked: tuple[object, int, int], scope: Scope, record: Record) -> Series:
        labels = tuple([bucket.label for step in record for bucket, _, _ in step.decision.checks])
        # Frontends are no routes here: FastAPI gives them no endpoint, by which routes are remembered.
        places = [place for place in self._places.candidates(scope) if place.route.endpoint is not None]
        place = self._places.find(scope) if places else None
        series = self._statistics.series(labels, UNROUTED if place is None else place.label)
        if len(places) <= 1:  # else the path decides
            # Keep the router and the endpoint alive, or id() could be reused for another object.
            remember(self._passed, asked, (series, scope.get("router"), scope.get("endpoint")), _MEMO)
        return series

    def series_of_refused(self, scope: Scope, refusal: Decision) -> Series:
        """Return the series of a refusal: its rules are those that had no room."""
        labels: tuple[str, ...] = ()
        if len(refusal.checks) == 1 and refusal.readings:
            labels = (refusal.checks[0][0].label,)
        elif refusal.reason is Reason.NOBODY:
            labels = (refusal.by,)
        elif refusal.readings:
            violated = {state.rule for state in refusal.violated}
            labels = tuple(bucket.label for bucket, _, _ in refusal.checks if bucket.rule in violated)
        return self._statistics.series(labels, self._route(scope))

    def _route(self, scope: Scope) -> str:
        """Return what to call the route that a request would have gone to, as the outermost router sees it."""
        root = scope.get("router")
        if root is None:
            app = scope.get("app", self._app)
            root = getattr(app, "router", app)
        top = {"path": scope["path"], "root_path": scope["app_root_path"]} if "app_root_path" in scope else scope
        asked = id(root), scope["type"], scope.get("method", "GET"), route_path(top)
        known = self._refused.get(asked)
        if known is None:
            known = _led(self._walk(root), *asked[1:])
            if len(asked[2]) + len(asked[3]) <= _MEMO_PATH:
                remember(self._refused, asked, known, _MEMO)
        return known

    def _walk(self, root: object) -> list[Place]:
        known = self._below.get(id(root))
        if known is None:
            self._refused.clear()
            routed = [place for place in walk(root) if place.route.endpoint is not None]
            known = remember(self._below, id(root), (root, routed), _MEMO_ROOTS)
        return known[1]


def _led(places: list[Place], connection: str, method: str, path: str) -> str:
    """Return the label of the place where a router leads a request: else one with other methods, as for a 405."""
    places = [place for place in places if place.connection == connection]
    for place in places:
        if place.leads(method, path):
            return place.label
    for place in places:
        if place.methods is not None and place.leads(next(iter(place.methods)), path):
            return place.label
    return UNROUTED


class Visit:
    """One request, from its first message out to its last."""

    __slots__ = ("_began_us", "_class", "_feed", "_first_us", "_record", "_refused", "_scope", "_series", "over")

    def __init__(self, feed: Feed, scope: Scope, record: Record) -> None:
        self._feed = feed
        self._scope = scope
        self._record = record
        self._series: Series | None = None
        self.over = False
        self._began_us = feed.now_us()

    def begin(self, message: Message) -> None:
        """Record the first message out."""
        self._first_us = self._feed.now_us()
        kind = message["type"]
        self._class = _CLASSES.get(message.get("status") or STATUS[kind], OVERFLOW)
        record = self._record
        self._refused = record.refused is not None or not record[-1].decision.allowed
        if kind != "http.response.start":
            self._start()

    def go_on(self, message: Message) -> None:
        """Record a piece of the body."""
        if not message.get("more_body", False):
            self.end("success")
        elif self._series is None:
            self._start()  # of a long answer not only when it is over

    def fail(self, error: BaseException) -> None:
        """Record an exception of the application, or its cancellation."""
        if self.over:
            return
        if isinstance(error, WebSocketDisconnect):
            self.leave()
        elif not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            self._give_up("cancelled", 0)
        else:
            self._give_up("exception", 500)

    def leave(self) -> None:
        """Record that the application is done."""
        if not self.over:
            done = self._record.answered and (self._scope["type"] == "websocket" or self._refused)
            self._give_up("success" if done else "cancelled", 0)

    def end(self, outcome: str) -> None:
        """Record the end; the first one counts."""
        if self.over:
            return
        self.over = True
        now_us = self._feed.now_us()
        rt_us = now_us - self._began_us
        first_us = self._first_us - self._began_us
        if rt_us < 0 or first_us < 0:
            rt_us = first_us = 0  # a clock of the user's may run back
        if self._series is not None:
            self._series.record(now_us, outcome, rt_us=rt_us)
        elif self._refused:
            self._refuse(self._first_us, self._class)
        else:
            series = self._feed.series_of_passed(self._scope, self._record)
            series.record(now_us, "pass", self._class, outcome, rt_us=rt_us, first_us=first_us)
            self._note_wait(series)

    def _give_up(self, outcome: str, status: int) -> None:
        """Record an end that is not that of the answer; `status` is the one that the server will send instead, or 0."""
        record = self._record
        if record.answered:
            self.end(outcome)
            return
        record.answered = self.over = True
        now_us = self._feed.now_us()
        events = [outcome] if status == 0 else [_CLASSES[status], outcome]
        if record and record.own_answer():  # a client that was held in a tarpit, for example
            self._refuse(now_us, *events[:-1])
            return
        series = self._feed.series_of_passed(self._scope, record)
        if not record or any(step.decision.reason is _WAITED and not step.decision.charge for step in record):
            series.record(now_us, *events)  # it never came to the application
        else:
            series.record(now_us, "pass", *events, rt_us=max(now_us - self._began_us, 0))

    def _start(self) -> None:
        """Record the outcome before the end."""
        if self._refused:
            self.over = True
            self._refuse(self._first_us, self._class)
            return
        series = self._series = self._feed.series_of_passed(self._scope, self._record)
        series.record(self._first_us, "pass", self._class, first_us=max(self._first_us - self._began_us, 0))
        self._note_wait(series)

    def _refuse(self, now_us: int, *status: str) -> None:
        """Record a refusal, with the class of its status if it was answered."""
        record = self._record
        refusal = record[-1].decision if record.refused is None else record.refused
        events = ("block", str(refusal.reason)) if refusal.reason in _SHUT else ("block",)
        series = self._feed.series_of_refused(self._scope, refusal)
        series.record(now_us, *events, *status)

    def _note_wait(self, series: Series) -> None:
        """Record that a request waited, if it did, before it was let through."""
        for step in self._record:
            if step.decision.reason is _WAITED:
                series.record(self._first_us, "occupied_pass")
                return
