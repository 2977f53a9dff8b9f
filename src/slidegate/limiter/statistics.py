"""What happened to requests, by rule and by route, in this process and lately.

A series belongs to the rules that a request was counted by and the route that it went to, so that a request is
recorded once whatever their number; a rule's figures are those of its series put together, and so are a route's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from time import monotonic_ns
from typing import Final

from ..core.durations import format_duration
from ..core.errors import ConfigurationError
from ..core.limits import parse_duration_us
from ..core.protocols import Clock, Event
from ..core.statistics.metrics import MetricWindow
from ..core.statistics.summary import MetricSummary

SLICES: Final = 60
SLICE_US: Final = 5_000_000
MAX_SERIES: Final = 200
"""At 200 KB for one that is busy all the time, 40 MB."""
OTHER: Final = "(other)"
"""The rule and the route of requests for which there was no series left."""
UNROUTED: Final = "(no route)"
"""The route of requests that match none."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What happened to some requests.

    Events: ``pass`` and ``block``; ``occupied_pass`` (admitted by waiting, in ``pass`` as well); ``banned`` and
    ``blocked`` (in ``block`` as well); the status classes of all answers, ``2xx`` and so on; and ``success``,
    ``exception`` or ``cancelled`` at the end of those that were let through. A client that leaves while it waits for
    its turn is ``cancelled`` and nothing else.

    Attributes:
        seen: Events, and the times of requests that were let through: to the first byte and to the end.
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
    def exceptions(self) -> int:
        """Requests let through that ended in an exception of the application."""
        return self.seen.count("exception")

    @property
    def qps(self) -> float:
        """Requests let through a second."""
        return self.seen.qps()


@dataclass(frozen=True, slots=True)
class Stats:
    """What happened lately.

    Attributes:
        rules: By the name of the rule. A request that several rules counted is in each; one that a rule refused is in
            those that had no room.
        routes: By the template of the route and its methods, for example ``GET /items/{id}``.
        total: All requests.
    """

    rules: dict[str, Traffic]
    routes: dict[str, Traffic]
    total: Traffic


class Series(MetricWindow):
    """The window of one series."""

    __slots__ = ("route", "rules")

    def __init__(self, rules: tuple[str, ...], route: str) -> None:
        super().__init__(SLICES, SLICE_US)
        self.rules = rules
        self.route = route


class Statistics:
    """Series of requests.

    Args:
        clock: Returns microseconds; by default the monotonic clock.
        tell: Hears of the event ``series_full``.
    """

    def __init__(self, clock: Clock | None, tell: Callable[[Event], None]) -> None:
        self.now_us: Final[Clock] = _monotonic_us if clock is None else clock
        """Returns the time by which things are recorded."""
        self._tell = tell
        self._lock = Lock()
        self._series: dict[tuple[tuple[str, ...], str], Series] = {}

    def series(self, rules: tuple[str, ...], route: str) -> Series:
        """Return the series of some rules and a route; beyond `MAX_SERIES` of them, one for all the others."""
        return self._series.get((rules, route)) or self._new(rules, route)

    def read(self, window: str | float | timedelta) -> Stats:
        """Return what happened in the last `window`, rounded up to whole slices, the running one included.

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

    def _new(self, rules: tuple[str, ...], route: str) -> Series:
        with self._lock:
            wanted = (rules, route) if len(self._series) < MAX_SERIES else ((OTHER,), OTHER)
            known = self._series.get(wanted)
            series = known or self._series.setdefault(wanted, Series(*wanted))
        if known is None and wanted[1] is OTHER:
            message = f"{MAX_SERIES} series of rules and routes are recorded; further ones count as {OTHER}"
            self._tell(Event("series_full", message, {"max_series": MAX_SERIES}))
        return series


def _monotonic_us() -> int:
    return monotonic_ns() // 1000
