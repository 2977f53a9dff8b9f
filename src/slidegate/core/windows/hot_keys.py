"""Which keys are hot: heavy hitters of a sliding window, in memory that does not grow with the number of keys.

Time is cut into k slices of ``s = ceil(W / k)``, and the newest and the k before it are held, because a window of
length W touches at most k + 1 aligned slices. Each slice has a summary of Misra and Gries ("Finding repeated
elements", Science of Computer Programming 2, 1982): a count for each of at most c keys. When one key too many comes,
all c + 1 counts go down by one, and those at 0 are let go: of any key the slice has now missed at most one hit more.
Where several hits are counted at once, all go down by the lowest count; each step of it pays for c + 1 hits as before.
So a slice with n hits misses at most ``n / (c + 1)`` of a key, and a hit costs O(1) on average, because c + 1 hits
pay for each walk over c + 1 counts. Summaries of several slices are merged by adding counts and errors (Agarwal,
Cormode, Huang, Phillips, Wei, Yi: "Mergeable Summaries", PODS 2012, section 3).

With H hits in the k + 1 slices, n of them of one key, and the counts of that key adding up to m::

        m <= n <= m + e                 e = the errors of the slices, added up; e <= H / (c + 1)

A key becomes hot at a hit where ``m + min(e, T // 2) > T``, T being the threshold, and cools where a slice begins
without it. Hence:

* **none is missed**: the hit that is more than the T-th of a key in a window of length W finds it hot, as long as
  ``e <= T // 2``, for which ``H <= (c + 1) * (T // 2)`` is enough. In a busier window that is certain only of a hit
  that is more than the ``T + e - T // 2``-th.
* **none is made up**: a hot key has had more than ``T - min(e, T // 2)`` hits in the k + 1 slices, the last W + s.
* with at most c keys in each slice e is 0, and the count over the k + 1 slices is exact.

A window in which nobody can be told apart therefore reports too few, never half the world.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from heapq import nsmallest
from threading import Lock
from typing import Final

from ..errors import Whole
from ..limits import check_whole, parse_duration_us

# Now and then one hit walks over as many counts: about a millisecond, which an event loop can bear.
MAX_CAPACITY: Final = 10_000

_BEFORE_ALL: Final = -(2**63)


class HotKeys:
    """Finds the keys with more than `threshold` hits in a window; the module's head states the error, for all threads.

    There is no timer: hits leave where slices start, and a key has cooled at the first hit of any key in a new slice
    that finds it below the threshold.

    Memory is bounded by ``(slices + 1) * capacity`` counts, and as many hot keys, however many keys there are.

    Args:
        capacity: c, how many keys are counted in each slice, 1 to 10,000.
        threshold: T, 1 or more: a key with more hits than this is hot.
        window: ``"5s"``, a `timedelta` or seconds.
        slices: k, how many slices make up the window, 1 to 3600.

    Attributes:
        dropped: Hits that came when their slice had been forgotten already.

    Raises:
        ConfigurationError: An argument is outside its range.
    """

    __slots__ = ("_hot", "_lock", "_newest", "_ring", "capacity", "dropped", "slice_us", "threshold")

    def __init__(
        self,
        capacity: Whole,
        threshold: Whole,
        window: str | float | timedelta,
        *,
        slices: Whole = 5,
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
        """Count one hit of a key, or several, in the slice of `now_us`, or nowhere if that has been forgotten.

        Returns:
            True once for a key that becomes hot, at the hit that makes it so; and again when it has cooled meanwhile.
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
        """Return the keys that are hot at `now_us`, with the hits that they have had at least. Changes nothing."""
        with self._lock:
            live = self._live(now_us // self.slice_us)
            room = self._room(live)
            hits_by_key = {key: _hits(live, key) for key in self._hot}
            return {key: hits for key, hits in hits_by_key.items() if hits > room}

    def top(self, now_us: int, count: int) -> list[tuple[str, int]]:
        """Return the keys that are counted highest at `now_us`, with the hits that they have had at least.

        Args:
            now_us: The moment.
            count: How many keys to return, 1 or more. Those with the most hits come first, and keys of one number in
                their order as text.
        """
        counted: Counter[str] = Counter()
        with self._lock:
            for summary in self._live(now_us // self.slice_us):
                counted.update(summary.counts)
        return nsmallest(count, counted.items(), key=lambda entry: (-entry[1], entry[0]))

    def error(self, now_us: int) -> int:
        """Return e at `now_us`: of no key have more hits than this gone uncounted in the k + 1 slices."""
        with self._lock:
            return sum(summary.missed for summary in self._live(now_us // self.slice_us))

    def _open(self, number: int) -> None:
        """Begin a slice: those passed over are empty, and keys that have cooled are noticed."""
        held = len(self._ring)
        for passed in range(max(self._newest, number - held) + 1, number + 1):
            self._ring[passed % held] = _Summary()
        self._newest = number
        self._let_cool()

    def _live(self, number: int) -> list[_Summary]:
        """Return the summaries, of those in the ring, of the k + 1 slices that end with `number`."""
        held = len(self._ring)
        first, last = max(number, self._newest) - held + 1, min(number, self._newest)
        return [self._ring[live % held] for live in range(first, last + 1)]

    def _room(self, live: list[_Summary]) -> int:
        """Return the number that a key's counts have to exceed."""
        return self.threshold - min(sum(summary.missed for summary in live), self.threshold // 2)

    def _becomes_hot(self, key: str) -> bool:
        hits = missed = 0
        for summary in self._ring:
            hits += summary.counts.get(key, 0)
            missed += summary.missed
        if hits <= self.threshold - min(missed, self.threshold // 2):
            return False
        if len(self._hot) >= len(self._ring) * self.capacity:
            self._let_cool()  # only keys that are counted somewhere stay hot, so this makes room
        self._hot.add(key)
        return True

    def _let_cool(self) -> None:
        room = self._room(self._ring)
        self._hot = {key for key in self._hot if _hits(self._ring, key) > room}


class _Summary:
    """The counts of one slice, and how many hits of any key they may have missed."""

    __slots__ = ("counts", "missed")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.missed = 0

    def shrink(self) -> None:
        """Take the lowest count off every count, which is one unless several hits are counted at once."""
        least = min(self.counts.values())
        self.counts = {key: count - least for key, count in self.counts.items() if count > least}
        self.missed += least


def _hits(summaries: list[_Summary], key: str) -> int:
    return sum(summary.counts.get(key, 0) for summary in summaries)
