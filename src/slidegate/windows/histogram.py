"""A histogram of times with fixed buckets, whose quantiles have a relative error of 5 %.

The buckets are those of DDSketch: each bound is ``g = (1 + a) / (1 - a)`` times the previous one, so the value ``2 *
low * high / (low + high)`` has a relative error of at most a for every time in the bucket (Masson, Rim, Lee:
"DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", VLDB 2019, section 2.1; arXiv
1908.10693). Here a = 0.05, from 10 us to 100 s; shorter times are reported as 5 us, longer ones as 100 s. Histograms
are merged by adding their counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

RELATIVE_ERROR: Final = 0.05
SHORTEST_US: Final = 10
LONGEST_US: Final = 100_000_000

_GROWTH: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_STEPS: Final = math.ceil(math.log(LONGEST_US / SHORTEST_US, _GROWTH))
# Times are whole microseconds, so the floor of a bound divides them like the bound itself.
BOUNDS_US: Final = (*(math.floor(SHORTEST_US * _GROWTH**step) for step in range(_STEPS)), LONGEST_US)
BUCKETS: Final = len(BOUNDS_US) + 1
_bucket_of: Final = partial(bisect_left, BOUNDS_US)


@dataclass(slots=True)
class ResponseTimes:
    """The times of one slice or of several.

    Args:
        sum_us: Their sum, in microseconds.
        min_us: The shortest, in microseconds; None if there is none.
        buckets: The counts of the non-empty buckets, by index.
    """

    sum_us: int = 0
    min_us: int | None = None
    buckets: Counter[int] = field(default_factory=Counter, repr=False)

    @property
    def count(self) -> int:
        """The number of recorded times."""
        return sum(self.buckets.values())

    def average(self) -> float | None:
        """Return the mean in microseconds, None if there is none."""
        if not self.buckets:
            return None
        return self.sum_us / self.count

    def quantile(self, share: float) -> float | None:
        """Return the time in microseconds that `share` (0 to 1) of them do not exceed (nearest rank).

        The result is within 5 % between 10 us and 100 s, 5 us below, 100 s above, and None if nothing was recorded.

        Raises:
            ValueError: `share` is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"quantile: expected a share from 0 to 1, for example 0.95, not {share!r}")
        # 0.55 * 100 is a little more than 55 in floating point; the rank is 55.
        rank = max(math.ceil(round(share * self.count, 6)), 1)
        reached = 0
        for bucket, times in sorted(self.buckets.items()):
            reached += times
            if reached >= rank:
                return _reads_as_us(bucket)
        return None

    def count_all(self, times_us: Sequence[int]) -> None:
        """Count some times, at least one."""
        shortest_us = min(times_us)
        if self.min_us is None or shortest_us < self.min_us:
            self.min_us = shortest_us
        self.sum_us += sum(times_us)
        self.buckets.update(map(_bucket_of, times_us))

    def add(self, other: ResponseTimes) -> None:
        """Add all times of another histogram."""
        if other.min_us is None:
            return
        if self.min_us is None or other.min_us < self.min_us:
            self.min_us = other.min_us
        self.sum_us += other.sum_us
        self.buckets.update(other.buckets)


def _reads_as_us(bucket: int) -> float:
    """Return the time that stands for all times in a bucket."""
    if bucket == 0:
        return SHORTEST_US / 2
    if bucket == BUCKETS - 1:
        return float(LONGEST_US)
    low_us, high_us = BOUNDS_US[bucket - 1] + 1, BOUNDS_US[bucket]
    return 2 * low_us * high_us / (low_us + high_us)
