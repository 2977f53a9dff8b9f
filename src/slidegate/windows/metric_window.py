"""Counts of the last k slices: events, response times and custom events.

Each window has a lock. Without it, two threads could both begin a new slice, and the counts of the first would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from ..core.arguments import check_whole
from .histogram import ResponseTimes

EVENTS: Final = ("pass", "block", "exception", "success", "occupied_pass")
OVERFLOW: Final = "other"
MAX_SLICES: Final = 3_600
MAX_NAMES: Final = 1_000
MAX_NAME_LENGTH: Final = 64

_FIXED: Final = (*EVENTS, OVERFLOW)
_BEFORE_ALL: Final = -(2**63)


@dataclass(slots=True)
class MetricSummary:
    """The counts of one slice or of several.

    Args:
        start_us: When the first slice started, in microseconds.
        span_us: The total length of the slices, in microseconds.
        events: Counts by name; events that never happened are missing. A count of units may be negative.
        rt: The response times.
    """

    start_us: int
    span_us: int
    events: dict[str, int] = field(default_factory=dict)
    rt: ResponseTimes = field(default_factory=ResponseTimes)

    def count(self, event: str) -> int:
        """Return how often an event happened."""
        return self.events.get(event, 0)

    def qps(self, event: str = "pass") -> float:
        """Return the events per second over `span_us`, including the part that is still in the future."""
        return self.count(event) * 1_000_000 / self.span_us

    def add(self, other: MetricSummary) -> None:
        """Add all counts and times of another summary."""
        for event, times in other.events.items():
            self.events[event] = self.count(event) + times
        self.rt.add(other.rt)

    @staticmethod
    def merged(summaries: Sequence[MetricSummary]) -> MetricSummary:
        """Return the sum of the summaries of several windows over the same span.

        Raises:
            ValueError: There are no summaries, or their spans differ.
        """
        spans = {(summary.start_us, summary.span_us) for summary in summaries}
        if len(spans) != 1:
            raise ValueError(f"merged: expected summaries of one span, not of {sorted(spans)}")
        merged_summary = MetricSummary(*spans.pop())
        for summary in summaries:
            merged_summary.add(summary)
        return merged_summary


class MetricWindow:
    """Events, response times and custom events of the last k slices. Thread-safe.

    The events ``pass``, ``block``, ``exception``, ``success`` and ``occupied_pass`` (admitted by waiting) are always
    counted by name. So are the first `max_names` other names; later names, and those of more than 64 characters, are
    counted as ``other``. So memory is bounded: typically 2 KB for a slice with times in thirty buckets. A record is
    added to the slice of its own time, so a delayed thread loses nothing; it is dropped if that slice has left.

    Args:
        slices: k, the number of slices, 1 to 3600.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.
        max_names: How many custom names have a count of their own, 0 to 1000.

    Attributes:
        dropped: Records that arrived after their slice had left the ring.

    Raises:
        ConfigurationError: An argument is outside its range.
    """

    __slots__ = ("_lock", "_names", "_newest", "_size", "_slices", "dropped", "slice_count", "slice_us")

    def __init__(self, slices: int, slice_us: int, *, max_names: int = 16) -> None:
        example = "for example MetricWindow(slices=60, slice_us=1_000_000)"
        self.slice_count = check_whole(slices, 1, MAX_SLICES, "slices", example)
        self.slice_us = check_whole(slice_us, 1, 2**62, "slice_us", example)
        self._size = len(_FIXED) + check_whole(max_names, 0, MAX_NAMES, "max_names", "for example 16")
        self.dropped = 0
        self._lock = Lock()
        self._names = set(_FIXED)
        self._newest = _BEFORE_ALL
        # Those that are not empty, by number.
        self._slices: dict[int, MetricSummary] = {}

    def record(self, now_us: int, *events: str, rt_us: int | None = None) -> None:
        """Count events, each once, and a response time; drop them if their slice has left the ring.

        Args:
            now_us: When it happened, in microseconds.
            events: Names, for example ``"pass", "success"``.
            rt_us: A response time in microseconds, 0 or more.

        Raises:
            ValueError: The time is negative.
        """
        if rt_us is not None and rt_us < 0:
            raise ValueError(f"rt_us: expected 0 microseconds or more, not {rt_us!r}")
        number = now_us // self.slice_us
        with self._lock:
            if number <= self._newest - self.slice_count:
                self.dropped += 1
                return
            summary = self._slices.get(number)
            if summary is None:
                summary = self._open(number)
            counts = summary.events
            for event in events:
                name = self._name_of(event)
                counts[name] = counts.get(name, 0) + 1
            if rt_us is not None:
                summary.rt.count_all((rt_us,))

    def read(self, now_us: int, slices: int | None = None) -> MetricSummary:
        """Return a consistent sum of the last `slices` slices, the running one included.

        Args:
            now_us: The time of the running slice, in microseconds.
            slices: 1 to k; by default all k.

        Raises:
            ValueError: `slices` is outside its range.
        """
        if slices is None:
            slices = self.slice_count
        check_whole(slices, 1, self.slice_count, "slices", "no more than the window has")
        first = now_us // self.slice_us - slices + 1
        with self._lock:
            return self._sum(first, slices)

    def slices(self, now_us: int) -> list[MetricSummary]:
        """Return the k slices that end with the running one, oldest first, empty ones included."""
        first = now_us // self.slice_us - self.slice_count + 1
        with self._lock:
            return [self._sum(number, 1) for number in range(first, first + self.slice_count)]

    def count(self, event: str, now_us: int) -> int:
        """Return how often an event happened in the k slices."""
        return self.read(now_us).count(event)

    def qps(self, now_us: int, event: str = "pass") -> float:
        """Return the events per second over k slices; the running one counts at its full length."""
        return self.read(now_us).qps(event)

    def average_rt(self, now_us: int) -> float | None:
        """Return the mean response time in microseconds; None if none was recorded."""
        return self.read(now_us).rt.average()

    def min_rt(self, now_us: int) -> int | None:
        """Return the shortest response time in microseconds; None if none was recorded."""
        return self.read(now_us).rt.min_us

    def quantile(self, share: float, now_us: int) -> float | None:
        """Return the `share` quantile of the response times, in microseconds; see `ResponseTimes.quantile`."""
        return self.read(now_us).rt.quantile(share)

    def _sum(self, first: int, slices: int) -> MetricSummary:
        """Return the sum of the slices from number `first`."""
        summary = MetricSummary(first * self.slice_us, slices * self.slice_us)
        for number in range(first, first + slices):
            if number in self._slices:
                summary.add(self._slices[number])
        return summary

    def _open(self, number: int) -> MetricSummary:
        """Begin a slice, and forget those that leave with it."""
        self._newest = max(number, self._newest)
        latest_to_forget = self._newest - self.slice_count
        for old in [number for number in self._slices if number <= latest_to_forget]:
            del self._slices[old]
        summary = self._slices[number] = MetricSummary(number * self.slice_us, self.slice_us)
        return summary

    def _name_of(self, event: str) -> str:
        """Return the name under which an event is counted."""
        if event in self._names:
            return event
        if len(self._names) == self._size or len(event) > MAX_NAME_LENGTH:
            return OVERFLOW
        self._names.add(event)
        return event
