"""The recent requests of this process, by rule and by route.

A series belongs to the rules that counted a request and to the route that it went to, so a request is recorded once,
however many rules counted it. The figures of a rule are the sum of its series, and so are those of a route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from time import monotonic_ns
from typing import Any, Final

from ..core.durations import format_duration
from ..core.errors import ConfigurationError
from ..core.limits import parse_duration_us
from ..core.protocols import Clock, Event
from ..core.statistics.buffered import BufferedWindow
from ..core.statistics.lifetime import LifetimeTotals
from ..core.statistics.summary import MetricSummary

SLICES: Final = 60
SLICE_US: Final = 5_000_000
MAX_SERIES: Final = 200
"""A series that is always busy takes 275 KB, so all of them take 55 MB."""
OTHER: Final = "(other)"
"""The rule and the route of requests that came when all series were taken."""
UNROUTED: Final = "(no route)"
"""The route of requests that match no route."""
_NS_PER_US: Final = 1_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """The figures of some requests.

    Events: ``pass`` and ``block``; ``occupied_pass`` (admitted by waiting, in ``pass`` as well); ``banned`` and
    ``blocked`` (in ``block`` as well); the status classes of all answers, ``2xx`` and so on; and ``success``,
    ``exception`` or ``cancelled`` at the end of those that were let through. A client that leaves while it waits for
    its turn is ``cancelled`` and nothing else.

    Attributes:
        seen: Events, and the times of requests that were let through: to the first byte and to the end.
    """

    seen: MetricSummary

    # A frozen object of a compiled class cannot be filled later, so a copy goes through the constructor.
    def __reduce__(self) -> tuple[Any, ...]:
        return Traffic, (self.seen,)

    @property
    def passed(self) -> int:
        """Requests let through."""
        return self.seen.count("pass")

    @property
    def refused(self) -> int:
        """Requests refused: by a limit, a ban or a list."""
        return self.seen.count("block")

    @property
    def exceptions(self) -> int:
        """Requests let through that ended in an exception of the application."""
        return self.seen.count("exception")

    @property
    def qps(self) -> float:
        """Requests let through a second."""
        return self.seen.qps()


@dataclass(frozen=True, slots=True)
class Stats:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Stats, (self.rules, self.routes, self.total)


class Series(BufferedWindow):
    """The window of one series."""

    __slots__ = ("route", "rules")

    def __init__(self, rules: tuple[str, ...], route: str, ticks_per_us: int) -> None:
        super().__init__(SLICES, SLICE_US, ticks_per_us)
        self.rules = rules
        self.route = route


class Statistics:
    """The series of all requests.

    Args:
        clock: Returns microseconds; by default the monotonic clock.
        tell: Hears of the event ``series_full``.
    """

    def __init__(self, clock: Clock | None, tell: Callable[[Event], None]) -> None:
        self.now_us: Final[Clock] = _monotonic_us if clock is None else clock
        """Returns the time at which figures are read."""
        self.ticks: Final[Clock] = monotonic_ns if clock is None else clock
        """Returns the same time in ticks, by which requests are recorded. A request reads this clock three times, so it
        must not pay for a division each time: the series make microseconds of ticks."""
        self._ticks_per_us = _NS_PER_US if clock is None else 1
        self._tell = tell
        self._lock = Lock()
        self._series: dict[tuple[tuple[str, ...], str], Series] = {}
        self._following: list[Callable[[Series], None]] = []

    def series(self, rules: tuple[str, ...], route: str) -> Series:
        """Return the series of some rules and a route; beyond `MAX_SERIES` series, the one for all the others."""
        return self._series.get((rules, route)) or self._new(rules, route)

    def read(self, window: str | float | timedelta) -> Stats:
        """Return the figures of the last `window`, rounded up to whole slices, the running one included.

        Raises:
            ConfigurationError: The window is longer than is remembered.
        """
        window_us = parse_duration_us(window, "window")
        slices = -(-window_us // SLICE_US)
        if slices > SLICES:
            longest = format_duration(SLICES * SLICE_US)
            raise ConfigurationError(f"window: {window!r} is longer than is remembered; expected at most {longest}")
        now_us = self.now_us()
        with self._lock:
            listed = list(self._series.values())
        seen = [(series, series.read(now_us, slices)) for series in listed]
        seen = [(series, summary) for series, summary in seen if summary.events]
        rules = sorted({rule for series, _ in seen for rule in series.rules})
        routes = sorted({series.route for series, _ in seen})
        nothing = MetricSummary((now_us // SLICE_US - slices + 1) * SLICE_US, slices * SLICE_US, {})

        def together(of: Iterable[tuple[Series, MetricSummary]]) -> Traffic:
            return Traffic(MetricSummary.merged([summary for _, summary in of] or [nothing]))

        return Stats(
            {rule: together(entry for entry in seen if rule in entry[0].rules) for rule in rules},
            {route: together(entry for entry in seen if entry[0].route == route) for route in routes},
            together(seen),
        )

    def ever(self) -> list[tuple[Series, LifetimeTotals]]:
        """Return everything that was recorded so far, by series. It only grows."""
        with self._lock:
            listed = list(self._series.values())
        return [(series, series.ever()) for series in listed]

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

    def _new(self, rules: tuple[str, ...], route: str) -> Series:
        with self._lock:
            wanted = (rules, route) if len(self._series) < MAX_SERIES else ((OTHER,), OTHER)
            known = self._series.get(wanted)
            series = known or self._series.setdefault(wanted, Series(*wanted, self._ticks_per_us))
            following = [] if known else self._following[:]
        for hear in following:
            hear(series)
        if known is None and wanted[1] is OTHER:
            message = f"{MAX_SERIES} series of rules and routes are recorded; further ones count as {OTHER}"
            self._tell(Event("series_full", message, {"max_series": MAX_SERIES}))
        return series


def _monotonic_us() -> int:
    return monotonic_ns() // _NS_PER_US
