"""The stats of recent requests of this process, by rule and by route.

A series belongs to the rules that counted a request and to the route that it went to, so a request is recorded once,
however many rules counted it. The stats of a rule are the sum of its series, and so are those of a route.

Slices are named by Unix time as it was when the process began, and run by the monotonic clock from there: so those of
several processes fit each other, and no step of the system's clock moves one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from threading import Lock
from time import monotonic_ns, time_ns
from typing import Final, NamedTuple, TypeAlias

from ..core.errors import ConfigurationError, quoted
from ..core.limits import parse_duration_us
from ..core.statistics.series import KEPT, Series
from ..core.statistics.slices import MetricSummary, Slice
from ..core.store import Clock, Event
from ..stores.forks import begin_anew_in_child

MAX_SERIES: Final = 200
"""A series that is always busy takes 50 KB for its buffer and 160 KB for its slices, or 430 KB where every bucket of
each slice is in use. So all of them take 42 MB, and never more than 96 MB."""
OTHER: Final = "(other)"
"""The rule and the route of requests that came when all series were taken."""
UNROUTED: Final = "(no route)"
"""The route of requests that match no route."""
NO_ROUTE_AT_ALL: Final = ""
"""The route of a series that counts something about a rule beside its requests, such as refusals by its shadow."""
_CHARTED: Final = ("pass", "block", "banned", "blocked", "shadow_refused")
_NS_PER_US: Final = 1_000


class Traffic(NamedTuple):
    """The stats of some requests.

    Events: ``pass`` and ``block``; ``occupied_pass`` (admitted by waiting, in ``pass`` as well); ``banned`` and
    ``blocked`` (in ``block`` as well); the status classes of all answers, ``2xx`` and so on; and ``success``,
    ``exception`` or ``cancelled`` at the end of those that were let through. A client that leaves while it waits for
    its turn is ``cancelled`` and nothing else.

    Attributes:
        seen: Events, and the response times of requests that were let through.
        units: Units that rules charged to the requests that passed: a request that two rules count is charged twice.
    """

    seen: MetricSummary
    units: int = 0

    @property
    def passed(self) -> int:
        """Requests let through."""
        return self.seen.count("pass")

    @property
    def refused(self) -> int:
        """Requests refused: by a limit, a ban or a list."""
        return self.seen.count("block")

    @property
    def banned(self) -> int:
        """Requests refused by a ban; they are in `refused` as well."""
        return self.seen.count("banned")

    @property
    def blocked(self) -> int:
        """Requests refused by a list or a rule that blocks; they are in `refused` as well."""
        return self.seen.count("blocked")

    @property
    def shadow_refused(self) -> int:
        """Requests that shadow rules would have refused, and let through."""
        return self.seen.count("shadow_refused")

    @property
    def exceptions(self) -> int:
        """Requests let through that ended in an exception of the application."""
        return self.seen.count("exception")

    @property
    def qps(self) -> float:
        """Requests let through a second."""
        return self.seen.qps()


class Worker(NamedTuple):
    """A limiter of a process that publishes its stats.

    Attributes:
        name: Tells it apart: ``"host:pid:1f3a9c02"``.
        host: The name of its host.
        pid: The number of its process.
        age_s: How old its stats are, in seconds; 0.0 for this one.
        here: Whether it is the limiter that was asked.
    """

    name: str
    host: str
    pid: int
    age_s: float
    here: bool


class Stats(NamedTuple):
    """The stats of recent requests.

    Attributes:
        rules: Stats by the name of the rule. A request that several rules counted is in each of them; a refused
            request is in those rules that had no room.
        routes: Stats by the template of the route and its methods, for example ``GET /items/{id}``.
        total: The stats of all requests.
        workers: The workers whose requests these are, this one first; empty where nobody else was asked.
    """

    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    total: Traffic
    workers: tuple[Worker, ...] = ()


class Point(NamedTuple):
    """A step of a chart."""

    passed: int
    refused: int
    banned: int
    blocked: int
    shadow_refused: int
    p50_us: float | None
    p95_us: float | None


class Chart(NamedTuple):
    """Stats step by step, for a chart.

    Attributes:
        start_us: When the first step began, in microseconds of Unix time.
        step_us: The length of a step: 5 seconds, a minute or five minutes.
        points: The steps, oldest first; the last one is not over. At most 288.
    """

    start_us: int
    step_us: int
    points: tuple[Point, ...]


class Span(NamedTuple):
    """The steps of a window.

    Attributes:
        step_us: The length of a step, which is that of a slice.
        steps: How many there are, the running one included.
    """

    step_us: int
    steps: int

    @classmethod
    def of(cls, window: str | float | timedelta) -> Span:
        """Return the steps of a window: 5 seconds up to five minutes, a minute up to an hour, else five minutes.

        Raises:
            ConfigurationError: The window cannot be read, or is longer than is remembered.
        """
        window_us = parse_duration_us(window, "window")
        for step_us, kept in KEPT.items():
            if window_us <= step_us * kept:
                return cls(step_us, -(-window_us // step_us))
        raise ConfigurationError(
            f'window: {quoted(window)} is longer than is remembered; expected at most 24h, for example "6h"'
        )

    def first(self, now_us: int) -> int:
        """Return the number of the first step."""
        return now_us // self.step_us - self.steps + 1


SeriesName: TypeAlias = tuple[tuple[str, ...], str, tuple[int, ...]]
"""The rules that counted the requests of a series, the route that they went to, and what one costs under each rule."""
Parts: TypeAlias = dict[SeriesName, dict[int, Slice]]
"""The slices of each series, by their numbers."""


class RecentStats(NamedTuple):
    """What is remembered of a window: the stats and charts of everything, a rule or a route are sums of it.

    Attributes:
        span: The window in steps.
        first: The number of its first step.
        start_us: When that began, in microseconds of Unix time.
        parts: The slices of each series.
    """

    span: Span
    first: int
    start_us: int
    parts: Parts

    def stats(self, workers: tuple[Worker, ...] = ()) -> Stats:
        """Return the stats of the whole window, by rule and by route."""
        sums = {name: _sum(slices.values()) for name, slices in self.parts.items()}
        rules = sorted({rule for rules, _, _ in sums for rule in rules})
        routes = sorted({route for _, route, _ in sums} - {NO_ROUTE_AT_ALL})

        def together(chosen: Iterable[SeriesName], rule: str | None = None) -> Traffic:
            whole, units = Slice(), 0
            for name in chosen:
                counted, costs = name[0], name[2]
                some = sums[name]
                whole.add(some)
                each = sum(costs) if rule is None else costs[counted.index(rule)]
                units += some.events.get("pass", 0) * each + some.events.get("extra_units", 0)
            whole.events = {event: times for event, times in whole.events.items() if times and event != "extra_units"}
            return Traffic(whole.summary(self.start_us, self.span.step_us * self.span.steps), units)

        return Stats(
            {rule: together((name for name in sums if rule in name[0]), rule) for rule in rules},
            {route: together(name for name in sums if name[1] == route) for route in routes},
            together(sums),
            workers,
        )

    def chart(self, rule: str | None = None, route: str | None = None) -> Chart:
        """Return the stats step by step, of everything or of one rule or route."""
        steps = [Slice() for _ in range(self.span.steps)]
        for step, some in self._slices(rule, route):
            steps[step].add(some)
        return Chart(self.start_us, self.span.step_us, tuple(map(_point, steps)))

    def counts(self, event: str, rule: str | None = None, route: str | None = None) -> list[int]:
        """Return how often an event happened in each step."""
        counts = [0] * self.span.steps
        for step, some in self._slices(rule, route):
            counts[step] += some.events.get(event, 0)
        return counts

    def _slices(self, rule: str | None, route: str | None) -> Iterator[tuple[int, Slice]]:
        """Yield (step, slice) of each series under a rule or of a route."""
        for (rules, to, _), slices in self.parts.items():
            if (rule is None or rule in rules) and (route is None or route == to):
                for number, some in slices.items():
                    yield number - self.first, some


def _sum(slices: Iterable[Slice]) -> Slice:
    whole = Slice()
    for some in slices:
        whole.add(some)
    return whole


def _point(step: Slice) -> Point:
    passed, refused, banned, blocked, shadow_refused = (step.events.get(event, 0) for event in _CHARTED)
    return Point(passed, refused, banned, blocked, shadow_refused, step.rt.quantile(0.5), step.rt.quantile(0.95))


class Statistics:
    """The series of all requests.

    Args:
        clock: Returns microseconds; by default the monotonic clock, from the Unix time of this moment on.
        emit: Hears of the event ``series_full``.

    Attributes:
        costs: How many units a request costs under a rule, where that is not 1.
        started: Called when there is a new series.
    """

    def __init__(self, clock: Clock | None, emit: Callable[[Event], None]) -> None:
        ahead_us = (time_ns() - monotonic_ns()) // _NS_PER_US if clock is None else 0
        self.now_us: Final[Clock] = (lambda: monotonic_ns() // _NS_PER_US + ahead_us) if clock is None else clock
        """Returns the time at which stats are read."""
        self.ticks: Final[Clock] = monotonic_ns if clock is None else clock
        """Returns ticks, by which requests are recorded; they run as the time does. A request reads this clock
        twice, so it must not pay for a division each time: the series make microseconds of ticks."""
        self.costs: dict[str, int] = {}
        self.started: Callable[[], None] = _nothing
        self.ticks_per_us: Final = _NS_PER_US if clock is None else 1
        """Ticks in a microsecond."""
        self._ahead_us = ahead_us
        self._emit = emit
        self._lock = Lock()
        self._series: dict[tuple[tuple[str, ...], str], Series] = {}
        self._following: list[Callable[[Series], None]] = []
        begin_anew_in_child(self.forget)

    def series(self, rules: tuple[str, ...], route: str) -> Series:
        """Return the series of some rules and a route; beyond `MAX_SERIES` series, the one for all the others."""
        return self._series.get((rules, route)) or self._new(rules, route)

    def add(self, rule: str, event: str, amount: int) -> None:
        """Add to a count of a rule that is about no route, such as the refusals of its shadow."""
        self.series((rule,), NO_ROUTE_AT_ALL).add(self.now_us(), event, amount)

    def recent(self, window: str | float | timedelta) -> RecentStats:
        """Return what is remembered of the last `window`, rounded up to whole slices, the running one included.

        Raises:
            ConfigurationError: The window is longer than is remembered.
        """
        span = Span.of(window)
        first = span.first(self.now_us())
        read = {series.name: series.read(span.step_us, first, span.steps) for series in self.listed()}
        parts = {name: slices for name, slices in read.items() if slices}
        return RecentStats(span, first, first * span.step_us, parts)

    def listed(self) -> list[Series]:
        """Return all series."""
        with self._lock:
            return list(self._series.values())

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
        """Forget all counts, as in a child of `fork`: they belong to its parent."""
        self._lock = Lock()
        for series in self._series.values():
            series.forget()

    def _new(self, rules: tuple[str, ...], route: str) -> Series:
        with self._lock:
            name = (rules, route) if len(self._series) < MAX_SERIES else ((OTHER,), OTHER)
            costs = tuple([self.costs.get(rule, 1) for rule in name[0]])
            before = self._series.get(name)
            series = before or Series(*name, costs, self.ticks_per_us, self._ahead_us)
            self._series[name] = series
            following = [] if before else self._following[:]
        for hear in following:
            hear(series)
        if before is None and name[1] is OTHER:
            message = f"{MAX_SERIES} series of rules and routes are recorded; further ones count as {OTHER}"
            self._emit(Event("series_full", message, {"max_series": MAX_SERIES}))
        self.started()
        return series


def _nothing() -> None:
    """Do nothing."""
