"""Counts that only grow: everything that a window has seen since it was made.

A window forgets. An exporter of metrics must not forget, because its readers take the difference of two readings. So
the totals stand beside the window, and are fed where its records are counted many at once. Times have the buckets
that the semantic conventions of OpenTelemetry and the client libraries of Prometheus give to durations of requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

BOUNDS_US: Final = (
    *(5_000, 10_000, 25_000, 50_000, 75_000),
    *(100_000, 250_000, 500_000, 750_000),
    *(1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000),
)
"""The upper bounds of all buckets but the last, which has none, in microseconds. A time that equals one is in it."""


@dataclass(frozen=True, slots=True)
class LifetimeTotals:
    """Everything so far.

    Attributes:
        events: Counts by name.
        times: How many times lie in each bucket of `BOUNDS_US`, the last one being of all longer times.
        sum_us: The sum of all times.
    """

    events: Mapping[str, int]
    times: tuple[int, ...]
    sum_us: int

    # A frozen object of a compiled class cannot be filled later, so a copy goes through the constructor.
    def __reduce__(self) -> tuple[Any, ...]:
        return LifetimeTotals, (self.events, self.times, self.sum_us)

    def count(self, event: str) -> int:
        """Return how often an event happened."""
        return self.events.get(event, 0)


class Lifetime:
    """Counts events and times, and forgets nothing. Its owner sees to it that one thread uses it at a time.

    Memory is bounded by the number of different names: the owner passes none that a client has made.
    """

    __slots__ = ("_events", "_sum_us", "_times")

    def __init__(self) -> None:
        self._events: dict[str, int] = {}
        self._times = [0] * (len(BOUNDS_US) + 1)
        self._sum_us = 0

    def add(self, events: Mapping[str, int], times_us: Sequence[int] = ()) -> None:
        """Count events and times.

        Args:
            events: How often each name came.
            times_us: Times in microseconds, 0 or more each, in any order.
        """
        for event, times in events.items():
            self._events[event] = self._events.get(event, 0) + times
        if times_us:
            self._sum_us += sum(times_us)
            ascending = sorted(times_us)
            before = 0
            for place, bound_us in enumerate(BOUNDS_US):
                upto = bisect_right(ascending, bound_us, before)
                self._times[place] += upto - before
                before = upto
                if before == len(ascending):
                    return
            self._times[-1] += len(ascending) - before

    def totals(self) -> LifetimeTotals:
        """Return everything so far."""
        return LifetimeTotals(dict(self._events), tuple(self._times), self._sum_us)
