"""What was recorded of recent requests, as people read it: the stats of a rule or a route are sums of series.

Slices are named by Unix time as it was when the limiter was made, and run by the monotonic clock from there: so those
of several processes fit each other, and no step of the system's clock moves one.
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
    """The stats of some requests.

    Events: ``pass`` and ``block``; ``occupied_pass`` (admitted by waiting, in ``pass`` as well); ``banned``,
    ``blocked`` and ``unavailable`` (in ``block`` as well); the status classes of all answers, ``2xx`` and so on; and
    ``success``, ``exception`` or ``cancelled`` at the end of those that were let through. A client that leaves while
    it waits for its turn is ``cancelled`` and nothing else.

    Attributes:
        seen: Events, and the response times of requests that were let through.
    """

    seen: MetricSummary

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

    @classmethod
    def of(cls, recorded: Iterable[Series], window: str | float | timedelta, now_us: int) -> RecentStats:
        """Return what series hold of the last `window`, rounded up to whole slices, the running one included.

        Raises:
            ConfigurationError: The window is longer than is remembered.
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
