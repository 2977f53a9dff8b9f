"""The figures that users read: of some requests, of recent ones by rule and route, and step by step for charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ...core.statistics.summary import MetricSummary
from ...core.statistics.tally import Tally

NO_ROUTE_AT_ALL: Final = ""
"""The route of a series that counts something about a rule beside its requests, such as refusals by its shadow."""


class Traffic(NamedTuple):
    """The figures of some requests.

    Events: ``pass`` and ``block``; ``occupied_pass`` (admitted by waiting, in ``pass`` as well); ``banned`` and
    ``blocked`` (in ``block`` as well); the status classes of all answers, ``2xx`` and so on; and ``success``,
    ``exception`` or ``cancelled`` at the end of those that were let through. A client that leaves while it waits for
    its turn is ``cancelled`` and nothing else.

    Attributes:
        seen: Events, and the times of requests that were let through: to the first byte, where the window is no longer
            than five minutes, and to the end.
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


class Stats(NamedTuple):
    """The figures of recent requests.

    Attributes:
        rules: Figures by the name of the rule. A request that several rules counted is in each of them; a refused
            request is in those rules that had no room.
        routes: Figures by the template of the route and its methods, for example ``GET /items/{id}``.
        total: The figures of all requests.
    """

    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    total: Traffic


class Worker(NamedTuple):
    """A limiter of a process that publishes its figures.

    Attributes:
        name: Tells it apart: ``"host:pid:1f3a9c02"``.
        host: The name of its host.
        pid: The number of its process.
        age_s: How old its figures are, in seconds; 0.0 for this one.
        here: Whether it is the limiter that was asked.
    """

    name: str
    host: str
    pid: int
    age_s: float
    here: bool


class AllStats(NamedTuple):
    """The figures of recent requests of all workers.

    Attributes:
        rules: See `Stats`.
        routes: See `Stats`.
        total: See `Stats`.
        workers: The workers that are alive, this one first.
    """

    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    total: Traffic
    workers: tuple[Worker, ...]


class Point(NamedTuple):
    """A step of a chart."""

    passed: int
    refused: int
    banned: int
    shadow_refused: int
    p50_us: float | None
    p95_us: float | None


class Chart(NamedTuple):
    """Figures step by step, for a chart.

    Attributes:
        start_us: When the first step began, in microseconds of Unix time.
        step_us: The length of a step: 5 seconds, a minute or five minutes.
        points: The steps, oldest first; the last one is not over. At most 288.
    """

    start_us: int
    step_us: int
    points: tuple[Point, ...]


class Part(NamedTuple):
    """The figures of some series over some steps.

    Attributes:
        rules: The rules that counted its requests.
        route: The route that they went to.
        costs: How many units a request costs under each of the rules.
        tallies: The counts by step, the oldest being 0.
    """

    rules: tuple[str, ...]
    route: str
    costs: tuple[int, ...]
    tallies: Mapping[int, Tally]


def stats_of(parts: Sequence[Part], start_us: int, span_us: int) -> Stats:
    """Return the figures of all steps together, by rule and by route."""
    rules = sorted({rule for part in parts for rule in part.rules})
    routes = sorted({part.route for part in parts} - {NO_ROUTE_AT_ALL})

    def together(chosen: Iterable[Part], rule: str | None = None) -> Traffic:
        whole, units = Tally(), 0
        for part in chosen:
            each = sum(part.costs) if rule is None else part.costs[part.rules.index(rule)]
            for tally in part.tallies.values():
                whole.add(tally)
                units += units_of(tally.events, each)
        events = {name: many for name, many in whole.events.items() if name != "extra_units" and many}
        return Traffic(MetricSummary(start_us, span_us, events, whole.times()), units)

    return Stats(
        {rule: together((part for part in parts if rule in part.rules), rule) for rule in rules},
        {route: together(part for part in parts if part.route == route) for route in routes},
        together(parts),
    )


def units_of(events: Mapping[str, int], each: int) -> int:
    """Return the units that were charged to requests that passed, of `each` units or of as many as were noted."""
    return events.get("pass", 0) * each + events.get("extra_units", 0)


def chart_of(
    parts: Sequence[Part], start_us: int, step_us: int, steps: int, rule: str | None, route: str | None
) -> Chart:
    """Return the figures step by step, of everything or of one rule or route."""
    whole = [Tally() for _ in range(steps)]
    for part in parts:
        if (rule is None or rule in part.rules) and (route is None or route == part.route):
            for step, tally in part.tallies.items():
                whole[step].add(tally)
    return Chart(start_us, step_us, tuple(_point(tally) for tally in whole))


def _point(tally: Tally) -> Point:
    events, times = tally.events, tally.times()
    passed, refused = events.get("pass", 0), events.get("block", 0)
    banned, shadow_refused = events.get("banned", 0), events.get("shadow_refused", 0)
    return Point(passed, refused, banned, shadow_refused, times.quantile(0.5), times.quantile(0.95))
