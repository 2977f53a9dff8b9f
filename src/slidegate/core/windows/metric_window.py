"""Counts of the last k slices, for everybody: events, response times, custom events.

One lock for each window. Without it two threads that meet the first moment of a slice both begin it, and what the first
of them has counted is lost.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from ..errors import Whole
from ..limits import check_whole
from .slices import MetricSummary, Slice, SliceRing

EVENTS: Final = ("pass", "block", "exception", "success", "occupied_pass")
OVERFLOW: Final = "other"
MAX_SLICES: Final = 3_600
MAX_NAMES: Final = 1_000
MAX_NAME_LENGTH: Final = 64

_FIXED: Final = (*EVENTS, OVERFLOW)


class MetricWindow:
    """Events, response times and custom events of the last k slices, for all threads.

    The events ``pass``, ``block``, ``exception``, ``success`` and ``occupied_pass`` (admitted by waiting) always have a
    place. Other names get one as they first come, up to `max_names`; a name that comes later, or is longer than 64
    characters, is counted as ``other``. So memory is bounded whatever names are made of: 0.4 KB are usual for a slice
    with times in thirty buckets.

    Args:
        slices: k, 1 to 3600.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.
        max_names: How many custom names have a count of their own, 0 to 1000.

    Attributes:
        dropped: Records that came when their slice had left the ring already.

    Raises:
        ConfigurationError: An argument is outside its range.
    """

    __slots__ = ("_lock", "_names", "_ring", "_size", "dropped", "slice_count", "slice_us")

    def __init__(self, slices: Whole, slice_us: Whole, *, max_names: Whole = 16) -> None:
        example = "for example MetricWindow(slices=60, slice_us=1_000_000)"
        self.slice_count = check_whole(slices, 1, MAX_SLICES, "slices", example)
        self.slice_us = check_whole(slice_us, 1, 2**62, "slice_us", example)
        self._size = len(_FIXED) + check_whole(max_names, 0, MAX_NAMES, "max_names", "for example 16")
        self.dropped = 0
        self._lock = Lock()
        self._names = set(_FIXED)
        self._ring = SliceRing(self.slice_count, self.slice_us)

    def record(self, now_us: int, *events: str, rt_us: int | None = None) -> None:
        """Count events, each once, and a time: all or, where their slice has left the ring, nothing.

        Args:
            now_us: When it happened, in microseconds.
            events: Names, for example ``"pass", "success"``.
            rt_us: A response time in microseconds, 0 or more.

        Raises:
            ValueError: The time is negative.
        """
        if rt_us is not None and rt_us < 0:
            raise ValueError(f"rt_us: expected 0 microseconds or more, not {rt_us!r}")
        with self._lock:
            running = self._ring.open(now_us)
            if running is None:
                self.dropped += 1
                return
            counts = running.events
            for event in events:
                name = event if event in self._names else self._named(event)
                counts[name] = counts.get(name, 0) + 1
            if rt_us is not None:
                running.rt.count_one(rt_us)

    def add(self, now_us: int, counts: Slice) -> None:
        """Count what others have counted of one slice; nothing where that has left the ring.

        Args:
            now_us: A moment of the slice.
            counts: Events and times.
        """
        with self._lock:
            named = Slice(rt=counts.rt)
            for event, times in counts.events.items():
                name = event if event in self._names else self._named(event)
                named.events[name] = named.events.get(name, 0) + times
            self._ring.add(now_us, named)

    def by_number(self, first: int, slices: int) -> dict[int, Slice]:
        """Return the non-empty slices `first` to `first + slices - 1`, by number."""
        with self._lock:
            return self._ring.read(first, slices)

    def take_changed(self, *, every: bool = False) -> set[int]:
        """Return the numbers of the slices to which `add` has added since the last call, or of all."""
        with self._lock:
            return self._ring.take_changed(every=every)

    def read(self, now_us: int, slices: int | None = None) -> MetricSummary:
        """Return the counts of the last `slices` slices, the running one included, all seen at one moment.

        Args:
            now_us: The moment to look at.
            slices: 1 to k; by default all k.

        Raises:
            ValueError: `slices` is outside its range.
        """
        wanted = self.slice_count if slices is None else slices
        check_whole(wanted, 1, self.slice_count, "slices", "no more than the window has")
        first = now_us // self.slice_us - wanted + 1
        whole = Slice()
        with self._lock:
            for part in self._ring.read(first, wanted).values():
                whole.add(part)
        return whole.summary(first * self.slice_us, wanted * self.slice_us)

    def slices(self, now_us: int) -> list[MetricSummary]:
        """Return the k slices that end with the running one, oldest first, empty ones included."""
        first = now_us // self.slice_us - self.slice_count + 1
        with self._lock:
            kept = self._ring.read(first, self.slice_count)
        numbers = range(first, first + self.slice_count)
        return [kept.get(number, Slice()).summary(number * self.slice_us, self.slice_us) for number in numbers]

    def count(self, event: str, now_us: int) -> int:
        """Return how often an event happened in the k slices."""
        return self.read(now_us).count(event)

    def qps(self, now_us: int, event: str = "pass") -> float:
        """Return events a second over k slices; the running one counts as if it were over."""
        return self.read(now_us).qps(event)

    def average_rt(self, now_us: int) -> float | None:
        """Return the mean response time in microseconds, None if there is none."""
        return self.read(now_us).rt.average()

    def min_rt(self, now_us: int) -> int | None:
        """Return the shortest response time in microseconds, None if there is none."""
        return self.read(now_us).rt.min_us

    def quantile(self, share: float, now_us: int) -> float | None:
        """Return the response time in microseconds that `share` of them do not exceed: see `ResponseTimes.quantile`."""
        return self.read(now_us).rt.quantile(share)

    def _named(self, event: str) -> str:
        """Return the name under which an event without a place is counted."""
        if len(self._names) == self._size or len(event) > MAX_NAME_LENGTH:
            return OVERFLOW
        self._names.add(event)
        return event
