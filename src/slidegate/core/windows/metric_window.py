"""Counts of the last k slices: events, response times and custom events.

Each window has a lock. Without it, two threads could both begin a new slice, and the counts of the first would be lost.
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
    """Events, response times and custom events of the last k slices. Thread-safe.

    The events ``pass``, ``block``, ``exception``, ``success`` and ``occupied_pass`` (admitted by waiting) are always
    counted by name. So are the first `max_names` other names; later names, and those of more than 64 characters, are
    counted as ``other``. So memory is bounded: typically 0.4 KB for a slice with times in thirty buckets.

    Args:
        slices: k, the number of slices, 1 to 3600.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.
        max_names: How many custom names have a count of their own, 0 to 1000.

    Attributes:
        dropped: Records that arrived after their slice had left the ring.

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

    def read(self, now_us: int, slices: int | None = None) -> MetricSummary:
        """Return a consistent sum of the last `slices` slices, the running one included.

        Args:
            now_us: The time of the running slice, in microseconds.
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

    def _named(self, event: str) -> str:
        """Return the name under which a new event is counted."""
        if len(self._names) == self._size or len(event) > MAX_NAME_LENGTH:
            return OVERFLOW
        self._names.add(event)
        return event
