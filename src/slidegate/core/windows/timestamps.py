"""The exact ring: the time of every unit. The theory of both rings is in `theory`."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct, pack, unpack
from typing import Final

from ..errors import Whole
from ..limits import MAX_RESOLUTION
from .theory import NEVER, Reading, Refusal, check_positive, refuse_negative

_TIME: Final = Struct("=q")
_TIME_BYTES: Final = 8


class TimestampWindow:
    """The times of the units spent in the last `window_us` microseconds.

    One entry per unit, at most 3600: the bound of a limit that uses this ring never needs older ones.

    Args:
        window_us: Length of the window, in microseconds.
    """

    __slots__ = ("_older", "_surplus", "leaves_us", "newest_us", "refusal", "spent", "window_us")

    def __init__(self, window_us: Whole) -> None:
        self.window_us = check_positive(window_us, "window_us")
        self.spent = 0
        self.newest_us = 0
        self.leaves_us = 0
        self._older = b""  # all times but the newest, oldest first
        self.refusal: Refusal | None = None
        self._surplus: tuple[int, int] | None = None  # (units, newest time) dropped when an amount was lowered

    def __getnewargs__(self) -> tuple[int, ...]:
        return (self.window_us,)

    def __copy__(self) -> TimestampWindow:
        twin = TimestampWindow(self.window_us)
        twin.spent, twin.newest_us, twin.leaves_us = self.spent, self.newest_us, self.leaves_us
        twin._older, twin._surplus, twin.refusal = self._older, self._surplus, self.refusal
        return twin

    def wait_us(self, now_us: int, room: int) -> int:
        """See `Window.wait_us`."""
        if now_us >= self.leaves_us and self.spent:
            self._expire(now_us)
        if now_us < self.newest_us and self.spent:
            self._step_back(now_us)
        excess = self.spent - room
        if excess <= 0:
            return 0
        if room < 0:
            return NEVER
        if excess == 1:
            return self.leaves_us - now_us
        return self._times()[excess - 1] + self.window_us - now_us

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """See `Window.spend`."""
        spent = self.spent
        if cost == 1 and self.newest_us <= now_us < self.leaves_us and 0 < spent <= amount <= MAX_RESOLUTION:
            # One more unit in a window that nothing has left: most hits end here.
            leaves_us, newest_us = self.leaves_us, self.newest_us
            if spent == amount:
                self.refusal = spent - 1, leaves_us, spent, leaves_us, newest_us
                return spent, leaves_us, newest_us, leaves_us - now_us
            self._older += _TIME.pack(newest_us)
            self.newest_us = now_us
            self.refusal = None
            self.spent = spent = spent + 1
            return spent, leaves_us, now_us, 0
        wait_us = self.wait_us(now_us, amount - (cost or 1))
        if wait_us == 0:
            self.add(now_us, cost)
        return self.spent, self.leaves_us, self.newest_us, wait_us

    def add(self, now_us: int, units: int = 1) -> None:
        """See `Window.add`."""
        if units <= 0:
            refuse_negative(units)
            return
        if self.spent:
            if now_us >= self.leaves_us:
                self._expire(now_us)
            if now_us < self.newest_us:
                self._step_back(now_us)
        kept = min(units, MAX_RESOLUTION)
        if self.spent:
            self._older += pack("=q", self.newest_us) + pack("=q", now_us) * (kept - 1)
        else:
            self._older = pack("=q", now_us) * (kept - 1)
            self.leaves_us = now_us + self.window_us
        self.newest_us = now_us
        self.spent += kept
        self.refusal = None
        if self.spent > MAX_RESOLUTION:
            self._load(self._times())

    def charge(self, now_us: int, units: int, resolution: int) -> int:
        """See `Window.charge`."""
        kept = min(units, resolution)
        self.wait_us(now_us, self.spent)  # drops expired units
        pushed_out = min(max(self.spent + kept - resolution, 0), kept)
        self._drop(pushed_out)
        self.add(now_us, kept)
        return kept - pushed_out

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """See `Window.remove`."""
        if spent_us == self.newest_us <= now_us < self.leaves_us and 0 < units <= self.spent:
            others = pack("=q", spent_us) * (units - 1)
            if self._older.endswith(others):
                # The last charge is the one that is handed back most often: nothing has to be unpacked.
                kept = self._older[: len(self._older) - len(others)]
                self.spent -= units
                self.refusal = None
                self._older = kept[:-_TIME_BYTES]
                self.newest_us = int(unpack("=q", kept[-_TIME_BYTES:])[0]) if kept else 0
                return True
        self.wait_us(now_us, self.spent)  # drops expired units
        times = self._times()
        if units <= 0 or times.count(spent_us) < units:
            return False
        first = times.index(spent_us)
        self._load(times[:first] + times[first + units :])
        return True

    def lies_ahead(self, now_us: int) -> bool:
        """See `Window.lies_ahead`."""
        return self.spent > 0 and now_us < self.newest_us

    def total(self, now_us: int) -> int:
        """See `Window.total`."""
        return self.spent - bisect_right(self._times(), now_us - self.window_us)

    def _times(self) -> tuple[int, ...]:
        if not self.spent:
            return ()
        return (*unpack(f"={self.spent - 1}q", self._older), self.newest_us)

    def _load(self, times: tuple[int, ...]) -> None:
        times = times[-MAX_RESOLUTION:]
        self.spent = len(times)
        self.refusal = None
        self._older = pack(f"={len(times) - 1}q", *times[:-1]) if times else b""
        self.newest_us = times[-1] if times else 0
        self.leaves_us = times[0] + self.window_us if times else 0

    def _expire(self, now_us: int) -> None:
        self._drop(bisect_right(self._times(), now_us - self.window_us))

    def _drop(self, gone: int) -> None:
        """Drop the oldest units."""
        self.refusal = None
        self.spent -= gone
        self._older = self._older[gone * _TIME_BYTES :]
        if self.spent > 1:
            self.leaves_us = int(unpack("=q", self._older[:_TIME_BYTES])[0]) + self.window_us
        elif self.spent:
            self.leaves_us = self.newest_us + self.window_us

    def _step_back(self, now_us: int) -> None:
        self._load(tuple(min(time_us, now_us) for time_us in self._times()))
        if self._surplus is not None:
            units, newest_us = self._surplus
            self._surplus = units, min(newest_us, now_us)
