"""Hot keys: the heavy hitters of a sliding window, in memory that does not grow with the number of keys.

A window W is divided into k slices of ``s = ceil(W / k)``. The newest slice and the k before it are kept, because a
window of length W touches at most k + 1 aligned slices. Each slice has a summary of Misra and Gries ("Finding repeated
elements", Science of Computer Programming 2, 1982): a count for each of at most c keys. When key c + 1 arrives, all
c + 1 counts are decreased by one, and those at 0 are removed; the slice then misses at most one more hit of any key. If
several hits are counted at the same time, all counts are decreased by the lowest one; each unit of it accounts for
c + 1 hits. So a slice with n hits misses at most ``n / (c + 1)`` of a key, and a hit costs O(1) amortized, because each
pass over c + 1 counts is paid for by c + 1 hits. Summaries of several slices are merged by adding counts and errors
(Agarwal, Cormode, Huang, Phillips, Wei, Yi: "Mergeable Summaries", PODS 2012, section 3).

With H hits in the k + 1 slices, n of them of one key, and the counts of that key adding up to m::

        m <= n <= m + e                 e = the sum of the slices' errors; e <= H / (c + 1)

A key becomes hot at a hit where ``m + min(e, T // 2) > T``, T being the threshold, and cools when a slice begins in
which this no longer holds. Hence:

* **no false negatives**: a key is hot after more than T hits in a window of length W, as long as ``e <= T // 2``, for
  which ``H <= (c + 1) * (T // 2)`` is sufficient. In a busier window this is guaranteed only after more than
  ``T + e - T // 2`` hits.
* **bounded false positives**: a hot key has had more than ``T - min(e, T // 2)`` hits in the k + 1 slices, the last
  W + s. With at most c keys in each slice, e is 0 and the count over the k + 1 slices is exact.

So a window with too many keys to distinguish reports too few hot keys, never too many.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from heapq import nsmallest
from threading import Lock
from typing import Final

from ..core.arguments import check_whole
from ..core.durations import parse_duration_us

# Occasionally one hit visits this many counts, which blocks an event loop for about a millisecond.
MAX_CAPACITY: Final = 10_000

_BEFORE_ALL: Final = -(2**63)


class HotKeys:
    """Finds the keys with more than `threshold` hits in a window. Thread-safe; the module docstring states the error.

    There is no timer: hits leave when a new slice starts, and a key below the threshold cools at the first hit of any
    key in a new slice.

    Memory is bounded by ``(slices + 1) * capacity`` counts, and as many hot keys, however many keys there are.

    Args:
        capacity: c, the number of keys that are counted in each slice, 1 to 10,000.
        threshold: T, 1 or more: a key with more hits than this is hot.
        window: ``"5s"`` or a `timedelta`.
        slices: k, the number of slices in the window, 1 to 3600.

    Attributes:
        dropped: Hits that arrived after their slice had left the ring.

    Raises:
        ConfigurationError: An argument is outside its range.
    """

    __slots__ = ("_hot", "_lock", "_newest", "_ring", "capacity", "dropped", "slice_us", "threshold")

    def __init__(
        self,
        capacity: int,
        threshold: int,
        window: str | timedelta,
        *,
        slices: int = 5,
    ) -> None:
        example = 'for example HotKeys(1_000, 100, "5s")'
        self.capacity = check_whole(capacity, 1, MAX_CAPACITY, "capacity", example)
        self.threshold = check_whole(threshold, 1, 2**31 - 1, "threshold", example)
        count = check_whole(slices, 1, 3_600, "slices", "for example 5")
        self.slice_us = -(-parse_duration_us(window, "window") // count)
        self.dropped = 0
        self._ring = [_Summary() for _ in range(count + 1)]
        self._newest = _BEFORE_ALL
        self._hot: set[str] = set()
        self._lock = Lock()

    def hit(self, key: str, now_us: int, hits: int = 1) -> bool:
        """Count one hit of a key, or several, in the slice of `now_us`; drop them if it has left the ring.

        Returns:
            True if this hit makes the key hot; again only after the key has cooled in the meantime.
        """
        number = now_us // self.slice_us
        with self._lock:
            if number > self._newest:
                self._open(number)
            elif number <= self._newest - len(self._ring):
                self.dropped += hits
                return False
            summary = self._ring[number % len(self._ring)]
            counts = summary.counts
            counts[key] = counts.get(key, 0) + hits
            if len(counts) > self.capacity:
                summary.shrink()
            return key not in self._hot and self._becomes_hot(key)

    def hot(self, now_us: int) -> dict[str, int]:
        """Return the keys that are hot at `now_us`, with their least number of hits, without changing anything."""
        with self._lock:
            live = self._live(now_us // self.slice_us)
            room = self._room(live)
            hits_by_key = {key: _hits(live, key) for key in self._hot}
        return {key: hits for key, hits in hits_by_key.items() if hits > room}

    def top(self, now_us: int, count: int) -> list[tuple[str, int]]:
        """Return the keys with the highest counts at `now_us`, with their least number of hits.

        Args:
            now_us: The time, in microseconds.
            count: How many keys to return, 1 or more. They are sorted by hits, the most first, then by key.
        """
        totals: Counter[str] = Counter()
        with self._lock:
            for summary in self._live(now_us // self.slice_us):
                totals.update(summary.counts)
        return nsmallest(count, totals.items(), key=lambda entry: (-entry[1], entry[0]))

    def error(self, now_us: int) -> int:
        """Return e at `now_us`: the most hits of any key that were not counted in the k + 1 slices."""
        with self._lock:
            return sum(summary.missed for summary in self._live(now_us // self.slice_us))

    def _open(self, number: int) -> None:
        """Begin a slice, clear those that were skipped, and remove hot keys that have cooled."""
        size = len(self._ring)
        oldest_to_clear = max(self._newest, number - size) + 1
        for cleared in range(oldest_to_clear, number + 1):
            self._ring[cleared % size] = _Summary()
        self._newest = number
        self._let_cool()

    def _live(self, number: int) -> list[_Summary]:
        """Return the summaries of the k + 1 slices that end with `number`, as far as they are in the ring."""
        size = len(self._ring)
        first = max(number, self._newest) - size + 1
        last = min(number, self._newest)
        return [self._ring[live % size] for live in range(first, last + 1)]

    def _room(self, live: list[_Summary]) -> int:
        """Return the number that the counts of a hot key have to exceed: T - min(e, T // 2)."""
        missed = sum(summary.missed for summary in live)
        return self.threshold - min(missed, self.threshold // 2)

    def _becomes_hot(self, key: str) -> bool:
        """Note a key as hot if its counts are high enough; return whether they are."""
        if _hits(self._ring, key) <= self._room(self._ring):
            return False
        if len(self._hot) >= len(self._ring) * self.capacity:
            # Only keys with a count stay hot, so this makes room.
            self._let_cool()
        self._hot.add(key)
        return True

    def _let_cool(self) -> None:
        """Remove the hot keys whose counts are too low by now."""
        room = self._room(self._ring)
        self._hot = {key for key in self._hot if _hits(self._ring, key) > room}


class _Summary:
    """The counts of one slice, and the most hits of any key that they may have missed."""

    __slots__ = ("counts", "missed")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.missed = 0

    def shrink(self) -> None:
        """Subtract the lowest count from every count; it is 1 unless several hits are counted at the same time."""
        least = min(self.counts.values())
        self.counts = {key: count - least for key, count in self.counts.items() if count > least}
        self.missed += least


def _hits(summaries: list[_Summary], key: str) -> int:
    """Return the counts of a key, added up over some slices."""
    return sum(summary.counts.get(key, 0) for summary in summaries)
