"""The recent requests of this process, by rule and by route.

A series belongs to the rules that counted a request and to the route that it went to, so a request is recorded once,
however many rules counted it. The figures of a rule are the sum of its series, and so are those of a route.

Slices are named by Unix time as it was when the process began, and run by the monotonic clock from there: so those of
several processes fit each other, and no step of the system's clock moves one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from threading import Lock
from time import monotonic_ns, time_ns
from typing import Final
from weakref import WeakSet

from ...core.statistics.lifetime import LifetimeTotals
from ...core.statistics.summary import MetricSummary
from ...core.store import Clock, Event
from .series import Series
from .stats import NO_ROUTE_AT_ALL, Chart, Part, Stats, Traffic, chart_of, stats_of, units_of
from .windows import SLICE_US, Span, span_of

MAX_SERIES: Final = 200
"""A series that is always busy takes 275 KB, and 160 KB more after a day, so all of them take 87 MB."""
OTHER: Final = "(other)"
"""The rule and the route of requests that came when all series were taken."""
UNROUTED: Final = "(no route)"
"""The route of requests that match no route."""
_NS_PER_US: Final = 1_000


class Statistics:
    """The series of all requests.

    Args:
        clock: Returns microseconds; by default the monotonic clock, from the Unix time of this moment on.
        tell: Hears of the event ``series_full``.

    Attributes:
        costs: How many units a request costs under a rule, where that is not 1.
        started: Called when there is a new series.
        published: Whether somebody asks for the slices that were counted in.
    """

    def __init__(self, clock: Clock | None, tell: Callable[[Event], None]) -> None:
        ahead_us = (time_ns() - monotonic_ns()) // _NS_PER_US if clock is None else 0
        self.now_us: Final[Clock] = (lambda: monotonic_ns() // _NS_PER_US + ahead_us) if clock is None else clock
        """Returns the time at which figures are read."""
        self.ticks: Final[Clock] = monotonic_ns if clock is None else clock
        """Returns ticks, by which requests are recorded; they run as the time does. A request reads this clock three
        times, so it must not pay for a division each time: the series make microseconds of ticks."""
        self.costs: dict[str, int] = {}
        self.started: Callable[[], None] = _nothing
        self.published = False
        self._ahead_us = ahead_us
        self.ticks_per_us: Final = _NS_PER_US if clock is None else 1
        """Ticks in a microsecond."""
        self._tell = tell
        self._lock = Lock()
        self._series: dict[tuple[tuple[str, ...], str], Series] = {}
        self._following: list[Callable[[Series], None]] = []
        _all.add(self)

    def series(self, rules: tuple[str, ...], route: str) -> Series:
        """Return the series of some rules and a route; beyond `MAX_SERIES` series, the one for all the others."""
        return self._series.get((rules, route)) or self._new(rules, route)

    def add(self, rule: str, event: str, amount: int) -> None:
        """Add to a figure of a rule that is about no route, such as the refusals of its shadow."""
        self.series((rule,), NO_ROUTE_AT_ALL).add(self.now_us(), event, amount)

    def read(self, window: str | float | timedelta) -> Stats:
        """Return the figures of the last `window`, rounded up to whole slices, the running one included.

        Raises:
            ConfigurationError: The window is longer than is remembered.
        """
        span = span_of(window)
        if span.step_us == SLICE_US:
            return self._read_recent(span.steps)
        first_us = span.first(self.now_us()) * span.step_us
        return stats_of(list(self.parts(first_us, span)), first_us, span.step_us * span.steps)

    def chart(self, window: str | float | timedelta, rule: str | None = None, route: str | None = None) -> Chart:
        """Return the figures of the last `window` step by step.

        Raises:
            ConfigurationError: The window is longer than is remembered.
        """
        span = span_of(window)
        first_us = span.first(self.now_us()) * span.step_us
        return chart_of(list(self.parts(first_us, span)), first_us, *span, rule, route)

    def parts(self, first_us: int, span: Span) -> Iterator[Part]:
        """Yield the counts of each series in some steps, from the moment at which the first of them began."""
        for series in self.listed():
            if tallies := series.tallies(first_us, *span):
                yield Part(series.rules, series.route, series.costs, tallies)

    def listed(self) -> list[Series]:
        """Return all series."""
        with self._lock:
            return list(self._series.values())

    def ever(self) -> list[tuple[Series, LifetimeTotals]]:
        """Return everything that was recorded so far, by series. It only grows."""
        return [(series, series.ever()) for series in self.listed()]

    def follow(self, hear: Callable[[Series], None]) -> None:
        """Tell of every series that is there, and of each that comes, before it is recorded in."""
        with self._lock:
            self._following.append(hear)
            listed = list(self._series.values())
        for series in listed:
            hear(series)

    def unfollow(self, hear: Callable[[Series], None]) -> None:
        """Tell of no more series."""
        with self._lock:
            self._following.remove(hear)

    def forget(self) -> None:
        """Begin anew in a child of `fork`: the counts belong to its parent."""
        self._lock = Lock()
        for series in self._series.values():
            series.forget()

    def _read_recent(self, slices: int) -> Stats:
        """Return the figures of some slices of five seconds, with the times to the first byte."""
        now_us = self.now_us()
        read = [(series, series.read(now_us, slices)) for series in self.listed()]
        seen = [(series, summary) for series, summary in read if summary.events]
        rules = sorted({rule for series, _ in seen for rule in series.rules})
        routes = sorted({series.route for series, _ in seen} - {NO_ROUTE_AT_ALL})
        nothing = MetricSummary((now_us // SLICE_US - slices + 1) * SLICE_US, slices * SLICE_US, {})

        def together(of: Iterable[tuple[Series, MetricSummary]], rule: str | None = None) -> Traffic:
            chosen = list(of)
            units = 0
            for series, summary in chosen:
                each = sum(series.costs) if rule is None else series.costs[series.rules.index(rule)]
                units += units_of(summary.events, each)
            merged = MetricSummary.merged([summary for _, summary in chosen] or [nothing])
            return Traffic(merged.without("extra_units"), units)

        return Stats(
            {rule: together([entry for entry in seen if rule in entry[0].rules], rule) for rule in rules},
            {route: together([entry for entry in seen if entry[0].route == route]) for route in routes},
            together(seen),
        )

    def _new(self, rules: tuple[str, ...], route: str) -> Series:
        with self._lock:
            wanted = (rules, route) if len(self._series) < MAX_SERIES else ((OTHER,), OTHER)
            costs = tuple([self.costs.get(rule, 1) for rule in wanted[0]])
            known = self._series.get(wanted)
            made = Series(*wanted, costs, self.ticks_per_us, self._ahead_us)
            made.touched = set() if self.published else None
            series = known or self._series.setdefault(wanted, made)
            following = [] if known else self._following[:]
        for hear in following:
            hear(series)
        if known is None and wanted[1] is OTHER:
            message = f"{MAX_SERIES} series of rules and routes are recorded; further ones count as {OTHER}"
            self._tell(Event("series_full", message, {"max_series": MAX_SERIES}))
        self.started()
        return series


def _nothing() -> None:
    """Do nothing."""


_all: WeakSet[Statistics] = WeakSet()


def _forked() -> None:
    for statistics in list(_all):
        statistics.forget()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_forked)
