"""One window of the reference: every charge in a plain list, every answer counted out afresh.

It knows by which moment a charge counts and when it leaves, and nothing else: no bytes, no running total, nothing
remembered between two questions. That makes it slow, and easy to believe.

* A charge counts by the last microsecond of its slice; where the amount is not above the resolution, by its own time.
  It joins the newest charge where that one's moment has not passed.
* It leaves ``W`` after its moment; where the amount is above the resolution, ``k`` slices after the end of its slice.

A window is looked after when a request names it, whether the request passes or not: expired units are struck off, then
units ahead of a clock that stepped back are moved to now. Where anything was moved, and where the key was reset,
nothing that was charged before is handed back. A window that has nothing left to remember is as good as new.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_UNITS = 2**32 - 1


class Answer(NamedTuple):
    """What one limit says: the numbers of a `LimitState`."""

    remaining: int
    retry_after_us: int | None
    more_after_us: int
    reset_after_us: int


class ModelWindow:
    """Every charge of one window: units by their moment.

    Args:
        window_us: Length of the window.
        resolution: How many numbers a ring of this window may hold.
    """

    def __init__(self, window_us: int, resolution: int) -> None:
        self.window_us = window_us
        self.resolution = resolution
        self.slice_us = -(-window_us // resolution)
        self.slices = -(-window_us // self.slice_us)
        self.exact = True
        self.charges: dict[int, int] = {}
        self.floor_us = -1

    def moment_us(self, time_us: int) -> int:
        """Return the moment by which a charge of a time counts."""
        return time_us if self.exact else (time_us // self.slice_us + 1) * self.slice_us - 1

    def leaves_us(self, moment_us: int) -> int:
        """Return when a charge no longer counts."""
        return moment_us + self.window_us if self.exact else moment_us + self.slices * self.slice_us + 1

    def touch(self, amount: int, now_us: int) -> None:
        """Bring the window to `now_us` and to the kind that `amount` needs."""
        self.exact = amount <= self.resolution
        self.charges = {at_us: units for at_us, units in self.charges.items() if self.leaves_us(at_us) > now_us}
        newest_us, latest_us = max(self.charges, default=-1), self.moment_us(now_us)
        if newest_us - now_us >= (1 if self.exact else self.slice_us):
            self.floor_us = max(self.floor_us, newest_us)
            ahead = [at_us for at_us in self.charges if at_us > latest_us]
            moved = sum(self.charges.pop(at_us) for at_us in ahead)
            self.charges[latest_us] = self.charges.get(latest_us, 0) + moved
        if not self.charges and now_us >= self.leaves_us(self.floor_us):
            self.floor_us = -1

    @property
    def holds_units(self) -> bool:
        """Whether there is a unit that had not left at the last look."""
        return bool(self.charges)

    def spent(self, at_us: int) -> int:
        """Return the units that count at a moment that is not in the past."""
        return sum(units for moment_us, units in self.charges.items() if at_us < self.leaves_us(moment_us))

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait until there is room; None if there never will be."""
        need = max(cost, 1)  # a cost of 0 passes only while something is left
        if need > amount:
            return None
        moments = [now_us, *sorted(map(self.leaves_us, self.charges))]
        return next(moment - now_us for moment in moments if self.spent(moment) + need <= amount)

    def charge(self, now_us: int, cost: int) -> tuple[int, int]:
        """Charge whatever the limit; return the moment and how many units may come back."""
        kept = min(cost, MAX_UNITS - self.spent(now_us))
        newest_us = max(self.charges, default=-1)
        moment_us = newest_us if newest_us >= now_us else self.moment_us(now_us)
        if kept:
            self.charges[moment_us] = self.charges.get(moment_us, 0) + kept
        if len(self.charges) > 2 * self.resolution + 1:
            oldest_us, second_us, *_ = sorted(self.charges)
            self.charges[second_us] += self.charges.pop(oldest_us)
        return moment_us, kept

    def hand_back(self, time_us: int, moment_us: int, units: int) -> bool:
        """Take out units of one moment, as long as they are all there; units of one moment are all alike."""
        there = self.charges.get(moment_us, 0)
        if time_us <= self.floor_us or not 0 < units <= there:
            return False
        self.charges[moment_us] = there - units
        self.charges = {at_us: left for at_us, left in self.charges.items() if left}
        return True

    def reset(self, now_us: int, latest_us: int = 0) -> None:
        """Forget every charge; none lies behind the latest moment that the store has seen, nor behind the newest."""
        if self.charges or self.floor_us >= 0:
            newest_us = max(self.charges, default=-1)
            self.charges, self.floor_us = {}, max(now_us, self.floor_us, min(latest_us, newest_us))

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the answer of the window now."""
        leaving = [self.leaves_us(moment_us) - now_us for moment_us in self.charges]
        remaining = max(amount - sum(self.charges.values()), 0)
        return Answer(remaining, wait_us, min(leaving, default=0), max(leaving, default=0))
