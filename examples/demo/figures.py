"""What the limiter's statistics say of a replay, by route.

They remember five minutes, and a log may be a year long: so they are read at the end of each minute of the log in which
there was a request, and put together here.
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
    """The clock of a replay: it stands wherever the log says, and is that of the machine when the replay is over.

    Args:
        stopwatch_ns: Returns nanoseconds of real time.
    """

    def __init__(self, stopwatch_ns: Callable[[], int] = perf_counter_ns) -> None:
        super().__init__()
        self._stopwatch_ns = stopwatch_ns
        self._set_ns = stopwatch_ns()
        self._is_over = False

    def set(self, now_us: int) -> None:
        """Move to `now_us`; real time runs from here."""
        super().set(now_us)
        self._set_ns = self._stopwatch_ns()

    def release(self) -> None:
        """Go by the clock of the machine from now on."""
        self._is_over = True

    def __call__(self) -> int:
        return time_ns() // 1_000 if self._is_over else self.now_us

    def running_us(self) -> int:
        """Return the start of the log's slice and the real time since: when by the log, and how long by the watch."""
        if self._is_over:
            return time_ns() // 1_000
        passed_us = (self._stopwatch_ns() - self._set_ns) // 1_000
        # However slow the machine is, a request stays in the slice in which the log has it.
        return self.now_us // SLICE_US * SLICE_US + min(passed_us, SLICE_US - 1)


@dataclass
class RouteFigures:
    """The figures of one route.

    Attributes:
        events: Counts by name, as in `Traffic`.
        times: Durations of the requests that were let through, in real time.
        busiest_qps: Requests let through a second, in the minute that had most of them.
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
        """The time that 95 % of the requests did not exceed, in microseconds; None where none was let through."""
        return self.times.quantile(0.95)


class Figures:
    """The figures of a replay; made before the application is.

    Args:
        limiter: The limiter of the application.
        clock: The clock of its store.

    Attributes:
        routes: By the template of the route.
    """

    def __init__(self, limiter: Limiter, clock: ReplayClock) -> None:
        self.routes: dict[str, RouteFigures] = {}
        self._clock = clock
        # In the time of the log every request would take none.
        limiter.engine.now_us = clock.running_us
        self._statistics = Statistics(limiter)

    def following(self, records: Iterable[AccessRecord]) -> Iterator[AccessRecord]:
        """Hand on records, which come in the order of their times, and read the figures after each minute."""
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
