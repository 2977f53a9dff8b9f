"""The results of statistics, for the whole limiter, a rule or a route: each is a sum of series.

Slices are numbered by a clock that starts at Unix time when the limiter is created and then follows the monotonic
clock: slices of several processes align, and a step of the system clock moves none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

from ..core.errors import ConfigurationError, quoted
from ..core.limits import parse_duration_us
from ..core.windows.slices import MetricSummary, Slice
from .recorder import NO_ROUTE_AT_ALL
from .series import KEPT, Series, SeriesName

_CHARTED: Final = ("pass", "block", "banned", "blocked", "shadow_refused")


class Traffic(NamedTuple):
    """The stats of a group of requests, such as those of one rule.

    Events: ``pass`` and ``block``; ``occupied_pass`` (admitted after waiting, also counted in ``pass``); ``banned``,
    ``blocked`` and ``unavailable`` (also counted in ``block``); the status class of each response, such as ``2xx``;
    and ``success``, ``exception`` or ``cancelled`` when an admitted request ends. A client that disconnects while its
    request is queued counts only as ``cancelled``.

    Attributes:
        seen: The events, and the response times of admitted requests.
    """

    seen: MetricSummary

    @property
    def passed(self) -> int:
        """Admitted requests."""
        return self.seen.count("pass")

    @property
    def refused(self) -> int:
        """Requests refused: by a limit, a ban or a list."""
        return self.seen.count("block")

    @property
    def banned(self) -> int:
        """Requests refused by a ban; also counted in `refused`."""
        return self.seen.count("banned")

    @property
    def blocked(self) -> int:
        """Requests refused by a list or a blocking rule; also counted in `refused`."""
        return self.seen.count("blocked")

    @property
    def shadow_refused(self) -> int:
        """Requests that a shadow rule would have refused."""
        return self.seen.count("shadow_refused")

    @property
    def exceptions(self) -> int:
        """Admitted requests that ended in an exception of the application."""
        return self.seen.count("exception")

    @property
    def qps(self) -> float:
        """Admitted requests per second."""
        return self.seen.qps()


class Worker(NamedTuple):
    """A limiter of a process that publishes its stats.

    Attributes:
        name: A unique name: ``"host:pid:1f3a9c02"``.
        host: The name of its host.
        pid: Its process ID.
        age_s: The age of its stats in seconds; 0.0 for this worker.
        here: Whether it is this process.
    """

    name: str
    host: str
    pid: int
    age_s: float
    here: bool


class Stats(NamedTuple):
    """The stats of recent requests.

    Attributes:
        rules: Stats by the name of the rule. A request that several rules counted appears under each; a refused
            request, under the rules that refused it.
        routes: Stats by the template of the route and its methods, for example ``GET /items/{id}``.
        total: The stats of all requests.
        workers: The workers included, this one first; empty if only this process was read.
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
    """Stats as a time series, for a chart.

    Attributes:
        start_us: When the first step began, in microseconds of Unix time.
        step_us: The length of a step in microseconds: 5 seconds, a minute or five minutes.
        points: The steps, oldest first, at most 288; the last one is still running.
    """

    start_us: int
    step_us: int
    points: tuple[Point, ...]


class Span(NamedTuple):
    """The steps of a window.

    Attributes:
        step_us: The length of a step in microseconds, that of a slice.
        steps: The number of steps, including the current one.
    """

    step_us: int
    steps: int

    @classmethod
    def of(cls, window: str | float | timedelta) -> Span:
        """Return the steps of a window: 5 seconds up to five minutes, a minute up to an hour, else five minutes.

        Raises:
            ConfigurationError: The window is not a duration, or is longer than 24 hours.
        """
        window_us = parse_duration_us(window, "window")
        for step_us, kept in KEPT.items():
            if window_us <= step_us * kept:
                return cls(step_us, -(-window_us // step_us))
        raise ConfigurationError(
            f'window: {quoted(window)} is longer than the stats kept; expected at most 24h, for example "6h"'
        )

    def first(self, now_us: int) -> int:
        """Return the number of the first step."""
        return now_us // self.step_us - self.steps + 1


Parts: TypeAlias = dict[SeriesName, dict[int, Slice]]
"""The slices of each series by number."""


class RecentStats(NamedTuple):
    """The slices of a window; stats and charts are sums of them.

    Attributes:
        span: The window in steps.
        first: The number of its first step.
        start_us: When the first step began, in microseconds of Unix time.
        parts: The slices of each series.
    """

    span: Span
    first: int
    start_us: int
    parts: Parts

    @classmethod
    def of(cls, recorded: Iterable[Series], window: str | float | timedelta, now_us: int) -> RecentStats:
        """Return the slices of the last `window`, rounded up to whole slices, including the current one.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
        """
        span = Span.of(window)
        first = span.first(now_us)
        read = {series.name: series.read(span.step_us, first, span.steps) for series in recorded}
        parts = {name: slices for name, slices in read.items() if slices}
        return cls(span, first, first * span.step_us, parts)

    def stats(self, workers: tuple[Worker, ...] = ()) -> Stats:
        """Return the stats of the whole window, by rule and by route."""
        total, by_rule, by_route = Slice(), dict[str, Slice](), dict[str, Slice]()
        for (rules, route), slices in self.parts.items():
            some = _sum(slices.values())
            total.add(some)
            for rule in dict.fromkeys(rules):
                by_rule.setdefault(rule, Slice()).add(some)
            if route != NO_ROUTE_AT_ALL:
                by_route.setdefault(route, Slice()).add(some)
        return Stats(self._traffic(by_rule), self._traffic(by_route), Traffic(self._summary(total)), workers)

    def _traffic(self, by_name: Mapping[str, Slice]) -> dict[str, Traffic]:
        return {name: Traffic(self._summary(some)) for name, some in sorted(by_name.items())}

    def _summary(self, some: Slice) -> MetricSummary:
        return some.summary(self.start_us, self.span.step_us * self.span.steps)

    def chart(self, rule: str | None = None, route: str | None = None) -> Chart:
        """Return the stats of each step, for all requests or for one rule or route."""
        steps = [Slice() for _ in range(self.span.steps)]
        for step, some in self._slices(rule, route):
            steps[step].add(some)
        return Chart(self.start_us, self.span.step_us, tuple(map(_point, steps)))

    def counts(self, event: str, rule: str | None = None, route: str | None = None) -> list[int]:
        """Return the number of events of one kind in each step."""
        counts = [0] * self.span.steps
        for step, some in self._slices(rule, route):
            counts[step] += some.events.get(event, 0)
        return counts

    def _slices(self, rule: str | None, route: str | None) -> Iterator[tuple[int, Slice]]:
        """Yield (step, slice) for each slice of the given rule or route."""
        for (rules, to), slices in self.parts.items():
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
