"""Finds the series of a request, and notes its figures there.

A request pays for one look into a memo and one small tuple: `BufferedWindow` counts later, many at once. What is noted
holds an outcome and three moments: never the scope, nor the path, nor anything else that a client has chosen.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Scope

from ...core.barred import RuleBlock
from ...core.decision import Bucket, Decision, Reason
from ...core.memo import remember
from ...core.statistics.buffered import MOST_NOTED, Outcome
from ...core.statistics.metrics import OVERFLOW
from ...limiter import Limiter
from ...limiter.figures.series import Series
from ...limiter.figures.statistics import UNROUTED
from ..matching import below
from ..record import Record
from ..routes import RouteIndex
from .refused_routes import RefusedRoutes

Counted: TypeAlias = Bucket | tuple[Bucket, ...]
"""The bucket that counted a request, where it is one; else all of them."""

_MEMO: Final = 2_048
_MEMO_PATH: Final = 256
_CLASSES: Final = {status: f"{status // 100}xx" for status in range(100, 600)}
_LIMITED: Final = Reason.LIMITED  # CPython 3.11 takes a call to find a member
_SHUT: Final = frozenset({Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE})
_ODD: Final = 0
"""Stands for every status beyond 100 to 599."""


@cache
def outcome(*events: str, rt: bool = False, first: bool = False) -> Outcome:
    """Return the one `Outcome` of some events; they are of this package, so there are few."""
    return Outcome(*events, rt=rt, first=first)


def class_of(status: int) -> str:
    """Return ``"2xx"`` for 204, and so on."""
    return _CLASSES.get(status, OVERFLOW)


def counted_by(record: Record) -> Counted:
    """Return the buckets that counted a request on its way."""
    steps = record.steps
    if len(steps) == 1 and len(checks := steps[0].decision.checks) == 1:
        return checks[0][0]
    return tuple([bucket for step in steps for bucket, _, _ in step.decision.checks])


def _by_status(*events: str, timed: bool = False) -> dict[int | None, Outcome]:
    """Return some events with the class of each status; under None, where no answer came, without one."""
    of_class = {name: outcome(*events, name, rt=timed, first=timed) for name in {*_CLASSES.values(), OVERFLOW}}
    of_status: dict[int | None, Outcome] = {status: of_class[name] for status, name in _CLASSES.items()}
    return of_status | {_ODD: of_class[OVERFLOW], None: outcome(*events, rt=timed, first=timed)}


PASSED: Final = _by_status("pass", "success", timed=True)
"""What a whole answer counts, by its status."""
_REFUSED_BY_LIMIT: Final = _by_status("block")


@cache
def _refused_by(reason: Reason) -> dict[int | None, Outcome]:
    """Return the outcomes of refusals for a reason, which most processes never see."""
    return _by_status("block", *([str(reason)] if reason in _SHUT else []))


class Feed:
    """Records requests.

    Args:
        limiter: The limiter with the `stats` that tell of them.
        app: The application, where no scope names one.

    Attributes:
        now: Returns the moments to note, in ticks.
        ticks_per_us: Ticks in a microsecond.
        known: By the id of an endpoint that one route leads to: the router, the bucket that counted the first request
            there, their series, and the endpoint itself, which has to live as long as its id is remembered.
    """

    def __init__(self, limiter: Limiter, app: ASGIApp) -> None:
        self._statistics = limiter.engine.statistics
        self.now = self._statistics.ticks
        self.ticks_per_us = self._statistics.ticks_per_us
        self._places = RouteIndex()
        self._passed: dict[tuple[Counted, int], tuple[Series, object, object]] = {}
        self.known: dict[int, tuple[object, Bucket, Series, object]] = {}
        self._refused: dict[tuple[Counted | tuple[str, ...], int, str | None, str, str], tuple[Series, object]] = {}
        self._app = app
        self._routes = RefusedRoutes(app)

    def passed(self, scope: Scope, counted: Counted, status: int, began: int, first: int, ended: int) -> None:
        """Note a request that passed and its whole answer.

        Args:
            scope: The scope, into which routers have written the route.
            counted: See `counted_by`.
            status: The status of the answer.
            began: When the request came, in ticks: the start of a microsecond.
            first: When the answer began.
            ended: When the last piece of it came.
        """
        what = PASSED.get(status) or PASSED[_ODD]
        self.series_of_passed(scope, counted).note(what, began, first, ended)

    def refused(self, scope: Scope, refusal: Decision, status: int | None, now: int) -> None:
        """Note a refusal, at the moment when its answer begins.

        Args:
            scope: The scope.
            refusal: The decision.
            status: The status of the answer; None where the client left before it.
            now: The moment, in ticks.
        """
        # CPython 3.11 takes a call to hash a reason, and most refusals are by a limit.
        reason = refusal.reason
        by_status = _REFUSED_BY_LIMIT if reason is _LIMITED else _refused_by(reason)
        series = self._series_of_refused(scope, refusal)
        noted = series.noted
        noted.append((by_status.get(status) or by_status[_ODD], now, now, now))
        if len(noted) >= MOST_NOTED:
            series.fold()

    def series_of_passed(self, scope: Scope, counted: Counted) -> Series:
        """Return the series of a request that the application has seen."""
        router, endpoint = scope.get("router"), scope.get("endpoint")
        asked = counted, id(endpoint)
        known = self._passed.get(asked)
        if known is not None and known[1] is router:
            return known[0]
        labels = (counted.label,) if isinstance(counted, Bucket) else tuple([bucket.label for bucket in counted])
        # Frontends are no routes here: FastAPI gives them no endpoint, by which routes are remembered.
        places = [place for place in self._places.candidates(scope) if place.route.endpoint is not None]
        place = self._places.find(scope) if places else None
        series = self._statistics.series(labels, UNROUTED if place is None else place.label)
        if len(places) <= 1:  # else the path decides
            # Keep the endpoint alive, or id() could be reused for another object.
            remember(self._passed, asked, (series, router, endpoint), _MEMO)
            if isinstance(counted, Bucket):
                remember(self.known, id(endpoint), (router, counted, series, endpoint), _MEMO)
        return series

    def _series_of_refused(self, scope: Scope, refusal: Decision) -> Series:
        """Return the series of a refusal: its rules are those that had no room."""
        by: Bucket | tuple[str, ...] = ()
        if len(refusal.checks) == 1 and refusal.readings:
            by = refusal.checks[0][0]
        elif refusal.reason is Reason.NOBODY or isinstance(refusal, RuleBlock):
            by = (refusal.by,)
        elif refusal.readings:
            violated = {state.rule for state in refusal.violated}
            by = tuple([bucket.label for bucket, _, _ in refusal.checks if bucket.rule in violated])
        # As `RefusedRoutes.of` does it, in fewer calls.
        outermost = scope["router"] if "router" in scope else scope.get("app", self._app)
        root = scope["app_root_path"] if "app_root_path" in scope else scope.get("root_path", "")
        asked = by, id(outermost), scope.get("method"), root, scope["path"]
        known = self._refused.get(asked)
        if known is not None:
            return known[0]
        route = self._routes.find(outermost, scope["type"], scope.get("method", "GET"), below(root, scope["path"]))
        series = self._statistics.series((by.label,) if isinstance(by, Bucket) else by, route)
        if len(scope.get("method", "")) + len(scope["path"]) <= _MEMO_PATH:
            # Keep the application alive, or id() could be reused for another object.
            remember(self._refused, asked, (series, outermost), _MEMO)
        return series
