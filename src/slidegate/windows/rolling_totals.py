"""Totals of amounts over several windows, computed from one ring of prefix sums.

For each slice, the ring stores the sum of all amounts that were added before the slice started::

        slice     q-m        q-m+1              q        q+1
                  |----------|-- . . . . . . . .|--------|       q is the running slice
        prefix    P(q-m)     P(q-m+1)           P(q)     T       T: the sum of all amounts

        completed(m) = P(q) - P(q-m)            the m full slices before the running one
        running(m)   = T    - P(q-m+1)          the running slice and the m - 1 before it

A new amount is added to T, and an expired one is part of the prefix that is subtracted. So an addition changes one
number, whatever the number and length of the windows, and reading a window is one subtraction. Because amounts are
integers of any size, there is no rounding error.

Opening a slice writes one prefix for every slice since the last one, at most the whole ring. A late amount for an
earlier slice in the ring is added to the later prefixes: only one, for a thread that was delayed at the end of a slice.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import Final

from ..core.arguments import check_whole
from ..core.errors import ConfigurationError, quoted

MAX_SLICES: Final = 1_000_000

_BEFORE_ALL: Final = -(2**63)


class RollingTotals:
    """Sums of amounts, for example of incoming and outgoing money, over several windows. Thread-safe.

    It stores one integer for each slice of the longest window, at most 40 bytes while sums are below 2**60.

    Args:
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.
        windows_us: Lengths of the windows, in microseconds; each a whole number of slices, at most 1,000,000.

    Attributes:
        dropped: Amounts that arrived after their slice had left the ring.

    Raises:
        ConfigurationError: There is no window, one is given twice, or is not a whole number of slices.
    """

    __slots__ = ("_lock", "_newest", "_prefixes", "_slice_count", "_total", "_windows", "dropped", "slice_us")

    def __init__(self, slice_us: int, windows_us: Iterable[int]) -> None:
        example = "for example RollingTotals(60_000_000, [300_000_000, 3_600_000_000])"
        self.slice_us = check_whole(slice_us, 1, 2**62, "slice_us", example)
        self.dropped = 0
        self._windows: dict[int, int] = {}
        if not isinstance(windows_us, Iterable):
            raise ConfigurationError(f"windows_us: expected several lengths, {example}, not {quoted(windows_us)}")
        for length in windows_us:
            window_us = check_whole(length, 1, MAX_SLICES * self.slice_us, "windows_us", example)
            if window_us % self.slice_us:
                raise ConfigurationError(
                    f"windows_us: a window of {window_us} us is not a whole number of slices of {self.slice_us} us; "
                    f"use a multiple, for example {(window_us // self.slice_us + 1) * self.slice_us}"
                )
            if window_us in self._windows:
                raise ConfigurationError(f"windows_us: {window_us} is given twice; write each window once")
            self._windows[window_us] = window_us // self.slice_us
        if not self._windows:
            raise ConfigurationError(f"windows_us: expected at least one window, {example}")
        self._lock = Lock()
        # The running slice, and the completed ones of the longest window.
        self._slice_count = max(self._windows.values()) + 1
        self._prefixes = [0] * self._slice_count
        self._newest = _BEFORE_ALL
        self._total = 0

    @property
    def windows_us(self) -> tuple[int, ...]:
        """The lengths of the windows in microseconds, in the order in which they were given."""
        return tuple(self._windows)

    def add(self, now_us: int, amount: int) -> None:
        """Add an amount to the slice of `now_us`; drop it if the slice has left the ring.

        Args:
            now_us: The time of the amount, in microseconds.
            amount: A whole number of any sign and size, for example cents.

        Raises:
            ValueError: The amount is not a whole number; sums of floats would accumulate rounding errors.
        """
        if type(amount) is not int:
            raise ValueError(f"amount: expected a whole number, for example 1999 cents, not {quoted(amount)}")
        number = now_us // self.slice_us
        with self._lock:
            if number <= self._newest - self._slice_count:
                self.dropped += 1
                return
            if number > self._newest:
                self._open(number)
            # The slices after that of a late amount began without it.
            for later in range(number + 1, self._newest + 1):
                self._prefixes[later % self._slice_count] += amount
            self._total += amount

    def completed(self, now_us: int) -> dict[int, int]:
        """Return the total of the completed slices of each window, by its length in microseconds."""
        return self._totals(now_us // self.slice_us)

    def running(self, now_us: int) -> dict[int, int]:
        """Return the total of each window up to and including the running slice, by its length in microseconds."""
        return self._totals(now_us // self.slice_us + 1)

    def _totals(self, end: int) -> dict[int, int]:
        """Return the totals of the windows that end before the slice `end`."""
        with self._lock:
            until = self._prefix(end)
            return {window_us: until - self._prefix(end - slices) for window_us, slices in self._windows.items()}

    def _prefix(self, number: int) -> int:
        """Return the sum of the amounts before a slice, or before the oldest slice in the ring if that is later."""
        if number > self._newest:
            return self._total
        oldest = self._newest - self._slice_count + 1
        return self._prefixes[max(number, oldest) % self._slice_count]

    def _open(self, number: int) -> None:
        """Make a slice the newest one; its prefix, and that of every skipped slice, is the total."""
        first = max(self._newest, number - self._slice_count) + 1
        for opened in range(first, number + 1):
            self._prefixes[opened % self._slice_count] = self._total
        self._newest = number
