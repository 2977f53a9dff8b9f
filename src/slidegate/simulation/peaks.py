"""The busiest moment of each client, counted as the ring of a limit counts.

A limit of at most 64 keeps the time of every unit, and touches a client that has more requests in any window. A limit
beyond counts slices, and touches a client that has more requests in the k + 1 slices that a window may lie in. A client
that no limit has touched yet has all its requests in the ring; so a limit touches it at all if, and only if, its peak
is larger.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Final

from ..core.limits import DEFAULT_RESOLUTION, MAX_AMOUNT, Limit

EXACT: Final = DEFAULT_RESOLUTION
"""The largest amount whose window is exact."""
WINDOWS: Final = ("1s", "10s", "1m", "1h")


class Peaks:
    """The peaks of one client under one rule. Its size is bounded by the number of windows.

    Args:
        limits: A limit for each window; only its window matters.

    Attributes:
        exact: For each window the most requests in any of its length, at most 65.
        counted: For each window the most requests in k + 1 slices; it is kept from the 65th request on, and 0 before.
    """

    __slots__ = ("_in_slices", "_limits", "_rings", "_times", "counted", "exact")

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self._limits = limits
        self._in_slices = _sliced(limits)
        self._times: list[int] = []  # of the last 64 requests
        self._rings: list[bytes] = []
        self.exact = [0] * len(limits)
        self.counted = [0] * len(limits)

    def add(self, now_us: int) -> None:
        """Count a request. Times never step back."""
        times, exact = self._times, self.exact
        for place, limit in enumerate(self._limits):
            if exact[place] <= len(times):
                recent = len(times) - bisect_right(times, now_us - limit.window_us) + 1
                if recent > exact[place]:
                    exact[place] = recent
        if self._rings:
            self._count(now_us)
        elif len(times) == EXACT:
            self._rings = [b""] * len(self._limits)
            for time_us in times:
                self._count(time_us)
            self._count(now_us)
        times.append(now_us)
        if len(times) > EXACT:
            del times[0]

    def _count(self, now_us: int) -> None:
        for place, limit in enumerate(self._in_slices):
            self._rings[place], (spent, _, _, _) = limit.spend(self._rings[place], now_us, 1)
            if spent > self.counted[place]:
                self.counted[place] = spent

    def touched(self, place: int, amount: int) -> bool:
        """Tell whether a limit of this amount would refuse a request of the client.

        Args:
            place: Which of the windows.
            amount: The amount of the limit.
        """
        return (self.exact if amount <= EXACT else self.counted)[place] > amount


@cache
def _sliced(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return limits of the same windows that refuse nobody, and count in slices."""
    return tuple(
        Limit(MAX_AMOUNT, timedelta(microseconds=limit.window_us), resolution=limit.resolution) for limit in limits
    )


def least(peaks: Iterable[Peaks], place: int) -> int:
    """Return the smallest amount of a limit that touches none of some clients; at least 1.

    Args:
        peaks: Their peaks.
        place: Which of the windows.
    """
    exact = counted = 1
    for peak in peaks:
        exact = max(exact, peak.exact[place])
        counted = max(counted, peak.counted[place])
    return exact if exact <= EXACT else counted
