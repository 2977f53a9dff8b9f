"""Counts and times per slice: the form in which statistics of requests are stored, added, read and sent.

A ring keeps the last k slices of equal length. The slice of a time is ``now_us // slice_us``, and a record is added to
the slice of its own time as long as that is in the ring, so a delayed thread loses nothing. Older records, from a clock
that stepped back, are dropped::

        slice    q-k+1                      q-1       q
                 |---------|-- . . . . --|---------|----x           q contains the newest record

Only the slice that was written last is an object. The others are packed into bytes: about 260 for six kinds of events
and times in thirty buckets, a tenth of the size of the objects, and not visited by the garbage collector.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .histogram import ResponseTimes

_BEFORE_ALL: Final = -(2**63)


@dataclass(slots=True)
class Slice:
    """Mutable counts of events and times.

    Attributes:
        events: Counts by name; a count of units may be negative.
        rt: The response times.
    """

    events: dict[str, int] = field(default_factory=dict)
    rt: ResponseTimes = field(default_factory=ResponseTimes)

    def add(self, other: Slice | MetricSummary) -> None:
        """Add all counts and times of a slice or summary."""
        for event, times in other.events.items():
            self.events[event] = self.events.get(event, 0) + times
        self.rt.add(other.rt)

    def summary(self, start_us: int, span_us: int) -> MetricSummary:
        """Return its counts and times as a summary of a span of time, in microseconds."""
        return MetricSummary(start_us, span_us, self.events, self.rt)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The counts of one slice or of several.

    Args:
        start_us: When the first slice started, in microseconds.
        span_us: The total length of the slices, in microseconds.
        events: Counts by name; events that never happened are missing.
        rt: The response times.
    """

    start_us: int
    span_us: int
    events: Mapping[str, int]
    rt: ResponseTimes = field(default_factory=ResponseTimes)

    # The attributes of a frozen, compiled object cannot be set later, so copies are created by the constructor.
    def __reduce__(self) -> tuple[Any, ...]:
        return MetricSummary, (self.start_us, self.span_us, dict(self.events), self.rt)

    def count(self, event: str) -> int:
        """Return how often an event happened."""
        return self.events.get(event, 0)

    def qps(self, event: str = "pass") -> float:
        """Return the events per second over `span_us`, including the part that is still in the future."""
        return self.count(event) * 1_000_000 / self.span_us

    @staticmethod
    def merged(summaries: Sequence[MetricSummary]) -> MetricSummary:
        """Return the sum of the summaries of several windows over the same span.

        Raises:
            ValueError: There are no summaries, or their spans differ.
        """
        spans = {(summary.start_us, summary.span_us) for summary in summaries}
        if len(spans) != 1:
            raise ValueError(f"merged: expected summaries of one span, not of {sorted(spans)}")
        whole = Slice()
        for summary in summaries:
            whole.add(summary)
        return whole.summary(*spans.pop())


class SliceRing:
    """The last k slices of equal length. Not thread-safe: callers hold a lock.

    Args:
        slices: k, the number of slices to keep.
        slice_us: The length of a slice, in microseconds. Slices start at multiples of it.
    """

    __slots__ = ("_newest", "_number", "_packed", "_running", "slice_us", "slices")

    def __init__(self, slices: int, slice_us: int) -> None:
        self.slices = slices
        self.slice_us = slice_us
        self._packed: dict[int, bytes] = {}
        self._newest = self._number = _BEFORE_ALL
        self._running = Slice()

    def open(self, now_us: int) -> Slice | None:
        """Return the slice of a time, for immediate use only; None if it has left the ring."""
        number = now_us // self.slice_us
        if number != self._number:
            if number <= self._newest - self.slices:
                return None
            self._packed[self._number] = _pack(self._running)
            packed = self._packed.pop(number, None)
            self._running = Slice() if packed is None else _unpack(packed)
            self._number = number
            if number > self._newest:
                self._newest = number
                self._forget(number - self.slices)
        return self._running

    def read(self, first: int, slices: int) -> dict[int, Slice]:
        """Return the non-empty slices `first` to `first + slices - 1`, by number."""
        oldest, end = max(first, self._newest - self.slices + 1), first + slices
        slices_by_number = {
            number: _unpack(packed) for number, packed in self._packed.items() if oldest <= number < end
        }
        if oldest <= self._number < end:
            slices_by_number[self._number] = running = Slice()
            running.add(self._running)
        return slices_by_number

    def _forget(self, last: int) -> None:
        """Delete the slices up to number `last`."""
        # The dict is nearly sorted. A slice that was written late comes after newer ones, and is deleted after them.
        while (oldest := next(iter(self._packed))) <= last:
            del self._packed[oldest]
            if not self._packed:
                return


def _pack(some: Slice) -> bytes:
    parts = some.events, some.rt.sum_us, some.rt.min_us, some.rt.buckets
    return pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)


def _unpack(packed: bytes) -> Slice:
    events, *times = pickle.loads(packed)
    return Slice(events, ResponseTimes(*times))
