"""Collects the limiter's statistics of a replay by route.

A log may be longer than the statistics reach back. So they are read after each minute of the log that has requests, and
summed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns, time_ns

from slidegate import Limiter
from slidegate.core.windows.histogram import ResponseTimes
from slidegate.logs import AccessRecord
from slidegate.stats import Statistics, Traffic
from slidegate.stats.series import SLICE_US
from slidegate.testing import FakeClock

MINUTE_US = 60_000_000


class ReplayClock(FakeClock):
    """The clock of a replay: the time in the log, and after the replay that of the machine.

    Args:
        stopwatch_ns: Returns nanoseconds of real time.
    """

    def __init__(self, stopwatch_ns: Callable[[], int] = perf_counter_ns) -> None:
        super().__init__()
        self._stopwatch_ns = stopwatch_ns
        self._set_ns = stopwatch_ns()
        self._is_over = False

    def set(self, now_us: int) -> None:
        """Set the time, and restart the stopwatch."""
        super().set(now_us)
        self._set_ns = self._stopwatch_ns()

    def release(self) -> None:
        """Switch to the clock of the machine."""
        self._is_over = True

    def __call__(self) -> int:
        return time_ns() // 1_000 if self._is_over else self.now_us

    def running_us(self) -> int:
        """Return the start of the current slice of the log, plus the real time since `set`, to measure durations."""
        if self._is_over:
            return time_ns() // 1_000
        passed_us = (self._stopwatch_ns() - self._set_ns) // 1_000
        # Cap the duration, so that on a slow machine too a request stays in its slice of the log.
        return self.now_us // SLICE_US * SLICE_US + min(passed_us, SLICE_US - 1)


@dataclass
class RouteFigures:
    """The figures of one route.

    Attributes:
        events: Counts by name, as in `Traffic`.
        times: Durations of admitted requests, in real time.
        busiest_qps: Admitted requests per second in the busiest minute.
    """

    events: Counter[str] = field(default_factory=Counter)
    times: ResponseTimes = field(default_factory=ResponseTimes)
    busiest_qps: float = 0.0

    def add(self, traffic: Traffic) -> None:
        """Add one minute."""
        self.events.update(traffic.seen.events)
        self.times = ResponseTimes.merged([self.times, traffic.seen.rt])
        self.busiest_qps = max(self.busiest_qps, traffic.qps)

    @property
    def p95_us(self) -> float | None:
        """The 95th percentile of the durations in microseconds; None if no request was admitted."""
        return self.times.quantile(0.95)


class Figures:
    """The figures of a replay; create it before the application.

    Args:
        limiter: The limiter of the application.
        clock: The clock of its store.

    Attributes:
        routes: The figures by the template of the route.
    """

    def __init__(self, limiter: Limiter, clock: ReplayClock) -> None:
        self.routes: dict[str, RouteFigures] = {}
        self._clock = clock
        # In virtual time the duration of every request would be 0.
        limiter.engine.now_us = clock.running_us
        self._statistics = Statistics(limiter)

    def following(self, records: Iterable[AccessRecord]) -> Iterator[AccessRecord]:
        """Yield records, which are in chronological order, and read the figures after each minute."""
        minute = None
        for record in records:
            if minute is not None and minute != record.time_us // MINUTE_US:
                self._read(minute)
            minute = record.time_us // MINUTE_US
            yield record
        if minute is not None:
            self._read(minute)

    def _read(self, minute: int) -> None:
        self._clock.set((minute + 1) * MINUTE_US - 1)
        for route, traffic in self._statistics.stats("1m").routes.items():
            self.routes.setdefault(route, RouteFigures()).add(traffic)
