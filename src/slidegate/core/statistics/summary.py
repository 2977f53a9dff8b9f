"""The counts of a `MetricWindow`, to read and to put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from .histogram import quantile_us


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Times of one slice or of several.

    Args:
        count: How many were recorded.
        sum_us: Their sum.
        min_us: The shortest, None where there is none.
    """

    count: int = 0
    sum_us: int = 0
    min_us: int | None = None
    _histogram: tuple[int, ...] = field(default=(), repr=False)

    def average(self) -> float | None:
        """Return the mean in microseconds, None where there is none."""
        return self.sum_us / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the time in microseconds that `share` (0 to 1) of them do not exceed.

        Within 5 % between 10 us and 100 s (`histogram` has the formula and its source); below it reads 5 us, above
        100 s, and None where nothing was recorded.

        Raises:
            ValueError: `share` is not between 0 and 1.
        """
        return quantile_us(self._histogram, share)

    @classmethod
    def of(cls, count: int, sum_us: int, min_us: int, histogram: tuple[int, ...]) -> ResponseTimes:
        """Return times that were counted in the buckets of `histogram`."""
        return cls(count, sum_us, min_us, histogram)

    @classmethod
    def merged(cls, several: Iterable[ResponseTimes]) -> ResponseTimes:
        """Return all of several together."""
        some = [times for times in several if times.count]
        return cls(
            sum(times.count for times in some),
            sum(times.sum_us for times in some),
            min((times.min_us for times in some if times.min_us is not None), default=None),
            tuple(map(sum, zip(*(times._histogram for times in some), strict=True))),
        )


_NONE: Final = ResponseTimes()


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The counts of one slice or of several.

    Args:
        start_us: When the first slice started.
        span_us: Length of all of them together.
        events: Counts by name; what never happened is not in it.
        rt: The response times.
        first: The times to the first byte.
    """

    start_us: int
    span_us: int
    events: Mapping[str, int]
    rt: ResponseTimes = _NONE
    first: ResponseTimes = _NONE

    def count(self, event: str) -> int:
        """Return how often an event happened."""
        return self.events.get(event, 0)

    def qps(self, event: str = "pass") -> float:
        """Return events a second over `span_us`, the part that is still to come included."""
        return self.count(event) * 1_000_000 / self.span_us

    def without(self, event: str) -> MetricSummary:
        """Return the same without the counts of an event."""
        if event not in self.events:
            return self
        return replace(self, events={name: many for name, many in self.events.items() if name != event})

    @classmethod
    def merged(cls, summaries: Sequence[MetricSummary]) -> MetricSummary:
        """Return what several windows saw together over one span.

        Raises:
            ValueError: There is none, or their spans differ.
        """
        spans = {(summary.start_us, summary.span_us) for summary in summaries}
        if len(spans) != 1:
            raise ValueError(f"merged: expected summaries of one span, not of {sorted(spans)}")
        return cls(
            *spans.pop(),
            sum((Counter(summary.events) for summary in summaries), Counter()),
            ResponseTimes.merged(summary.rt for summary in summaries),
            ResponseTimes.merged(summary.first for summary in summaries),
        )
