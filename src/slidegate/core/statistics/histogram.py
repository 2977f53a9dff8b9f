"""A fixed histogram of times whose quantiles have a relative error of 5 %.

The buckets of DDSketch: bucket i holds times in ``(base * g^(i-1), base * g^i]`` with ``g = (1 + a) / (1 - a)``,
and reads as ``2 * base * g^i / (g + 1)``, which is nowhere in the bucket further than a share a of the true value
away (Masson, Rim, Lee: "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", VLDB
2019, section 2.1; arXiv 1908.10693). Here a = 0.05, from 10 us to 100 s: 164 counts, never more, and two histograms
are merged by adding them up. A shorter time reads as 5 us, a longer one as 100 s.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

RELATIVE_ERROR: Final = 0.05
SHORTEST_US: Final = 10
LONGEST_US: Final = 100_000_000

_GROWTH: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_STEPS: Final = math.ceil(math.log(LONGEST_US / SHORTEST_US, _GROWTH))
# Times are whole microseconds, so the floor of a bound parts them as the bound itself does.
BOUNDS_US: Final = (*(math.floor(SHORTEST_US * _GROWTH**step) for step in range(_STEPS)), LONGEST_US)
BUCKETS: Final = len(BOUNDS_US) + 1


def bucket(time_us: int) -> int:
    """Return the place, 0 to `BUCKETS` - 1, where a time of 0 microseconds or more is counted."""
    return bisect_left(BOUNDS_US, time_us)


def quantile_us(counts: Sequence[int], share: float) -> float | None:
    """Return the time that `share` of the counted times do not exceed (nearest rank), in microseconds.

    Args:
        counts: `BUCKETS` counts.
        share: 0 to 1, for example 0.95.

    Returns:
        Between 10 us and 100 s within 5 % of the exact answer; None where nothing was counted.

    Raises:
        ValueError: `share` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"quantile: expected a share from 0 to 1, for example 0.95, not {share!r}")
    # 0.55 * 100 is a little more than 55 in floating point; the rank is 55.
    rank = max(math.ceil(round(share * sum(counts), 6)), 1)
    reached = 0
    for place, count in enumerate(counts):
        reached += count
        if reached >= rank:
            return _reads_as_us(place)
    return None


def _reads_as_us(place: int) -> float:
    if place == 0:
        return SHORTEST_US / 2
    if place == BUCKETS - 1:
        return float(LONGEST_US)
    return 2 * SHORTEST_US * _GROWTH**place / (_GROWTH + 1)
