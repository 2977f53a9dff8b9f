"""Counts per slice, with three readings: k + 1 slices, the last k, and the k completed ones."""

from __future__ import annotations

from ..core.arguments import check_whole
from ..core.errors import quoted
from ..core.limits import MAX_AMOUNT
from ..core.ring import MAX_UNITS, Ring, entries


class CounterWindow:
    """Counts of the running slice and the k completed ones before it: a ring without a limit.

    Args:
        slices: k, the number of slices that make up the window.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.

    Raises:
        ConfigurationError: An argument is not a whole number above 0.
    """

    __slots__ = ("_counter", "_slice_us", "_slices", "_window")

    def __init__(self, slices: int, slice_us: int) -> None:
        self._slices = check_whole(slices, 1, MAX_AMOUNT, "slices", "for example 10")
        self._slice_us = check_whole(slice_us, 1, 2**62, "slice_us", "for example 100_000")
        span_us = self._slices * self._slice_us + 1
        self._counter = Ring((MAX_UNITS, self._slice_us, span_us), self._slices)
        self._window = b""

    def add(self, now_us: int, units: int = 1) -> None:
        """Count units. If the clock has stepped back, counts in the future are moved into the slice of `now_us`.

        Args:
            now_us: The current time, in microseconds.
            units: 0 or more; 0 changes nothing.

        Raises:
            ValueError: `units` is negative, or the window would count more than 2**32 - 1.
        """
        if units < 0:
            raise ValueError(f"units: expected 0 or more, not {quoted(units)}")
        if not units:
            return
        window, counted = self._counter.charge(self._window, now_us, units)
        if counted < units:
            raise ValueError(f"units: a window counts at most {MAX_UNITS} units, so there is no room for {units} more")
        self._window = window

    def total(self, now_us: int) -> int:
        """Return the units in the k + 1 slices that end with that of `now_us`: the sum that a limit compares with N."""
        return sum(self._counts(now_us))

    def classic(self, now_us: int) -> int:
        """Return the units in the last k slices, the running one included, as most libraries count."""
        _, *counts = self._counts(now_us)
        return sum(counts)

    def completed(self, now_us: int) -> int:
        """Return the units in the k full slices before the running one."""
        *counts, _ = self._counts(now_us)
        return sum(counts)

    def slices(self, now_us: int | None = None) -> list[tuple[int, int]]:
        """Return (start in microseconds, count) of all k + 1 slices, oldest first.

        Args:
            now_us: The time of the running slice, in microseconds; by default that of the newest non-empty slice.
        """
        slice_us = self._slice_us
        # The moment of an entry is the last microsecond of its slice.
        counts = {moment_us - slice_us + 1: units for moment_us, units in entries(self._window)}
        running_us = max(counts, default=0)
        if now_us is not None:
            running_us = max(running_us, now_us - now_us % slice_us)
        oldest_us = running_us - self._slices * slice_us
        starts_us = range(oldest_us, running_us + 1, slice_us)
        return [(start_us, counts.get(start_us, 0)) for start_us in starts_us]

    def _counts(self, now_us: int) -> list[int]:
        """Return the counts of all k + 1 slices, oldest first."""
        return [count for _, count in self.slices(now_us)]
