"""One window of the reference: every charge in a plain list, every answer counted out afresh.

It knows when a charge starts to count and when it leaves, and nothing else: no ring, no running total, nothing
remembered between two questions. That makes it slow, and easy to believe.

* Kept as times (amount <= resolution), a charge of time t counts from t on and leaves at ``t + W``.
* Kept as counts, it counts with its slice, from ``t // s * s`` on, and leaves at ``(t // s + k + 1) * s``.

A window is looked after when a request names it, whether the request passes or not: expired units are struck off, then
units ahead of a clock that stepped back are moved to now. Where anything was moved, the window is another one to
refunds: a charge from before has not kept the moment by which it would be found.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_IN_A_SLICE = 2**32 - 1


class Answer(NamedTuple):
    """What one limit says: the numbers of a `LimitState`."""

    remaining: int
    retry_after_us: int | None
    more_after_us: int
    reset_after_us: int


class Charge:
    """`cost` units spent at `time_us`. Compared by identity."""

    __slots__ = ("cost", "time_us")

    def __init__(self, time_us: int, cost: int) -> None:
        self.time_us = time_us
        self.cost = cost

    def __repr__(self) -> str:
        return f"{self.cost} at {self.time_us}"


class ModelWindow:
    """Every charge of one window, oldest first.

    Args:
        window_us: Length of the window.
        resolution: How many numbers a ring of this window may hold.
    """

    def __init__(self, window_us: int, resolution: int) -> None:
        self.window_us = window_us
        self.resolution = resolution
        self.slice_us = -(-window_us // resolution)
        self.slices = -(-window_us // self.slice_us)
        self.exact: bool | None = None
        self.charges: list[Charge] = []
        self.carried = Charge(0, 0)
        self.steps = 0  # how often a clock that stepped back has moved anything

    def starts_us(self, time_us: int) -> int:
        """Return the moment from which a charge of a time counts."""
        return time_us if self.exact else time_us - time_us % self.slice_us

    def leaves_us(self, charge: Charge) -> int:
        """Return the moment at which a charge no longer counts."""
        if self.exact:
            return charge.time_us + self.window_us
        return (charge.time_us // self.slice_us + self.slices + 1) * self.slice_us

    def touch(self, amount: int, now_us: int) -> None:
        """Bring the window to `now_us` and to the kind that `amount` needs."""
        self._strike_off(now_us)
        exact = amount <= self.resolution
        if self.exact is not None and exact is not self.exact:
            self.exact = exact
            if exact:
                self._become_times(now_us)
            else:
                self._become_counts(now_us)
            self._strike_off(now_us)
        self.exact = exact
        self.steps += any(self.starts_us(charge.time_us) > now_us for charge in self.charges)
        for charge in self.charges:
            charge.time_us = min(charge.time_us, now_us)
        self._cap()

    def spent(self, at_us: int) -> int:
        """Return the units that count at a moment that is not in the past."""
        return sum(charge.cost for charge in self.charges if at_us < self.leaves_us(charge))

    def wait_us(self, amount: int, cost: int, now_us: int) -> int | None:
        """Return how long a cost has to wait until there is room; None if there never will be."""
        need = max(cost, 1)  # a cost of 0 passes only while something is left
        if need > amount:
            return None
        moments = [now_us, *sorted(self.leaves_us(charge) for charge in self.charges)]
        return next(moment - now_us for moment in moments if self.spent(moment) + need <= amount)

    def charge(self, now_us: int, cost: int) -> int:
        """Charge whatever the limit; return how many units may come back."""
        if self.exact:
            kept = min(cost, self.resolution)
            spent = sum(charge.cost for charge in self.charges)
            pushed_out = min(max(spent + kept - self.resolution, 0), kept)
            self._drop(pushed_out)
            self.put(now_us, kept)
            return kept - pushed_out
        start_us = self.starts_us(now_us)
        there = sum(charge.cost for charge in self.charges if self.starts_us(charge.time_us) == start_us)
        kept = min(cost, MOST_IN_A_SLICE - there)
        self.put(now_us, kept)
        return kept

    def put(self, time_us: int, units: int) -> None:
        """Add units of any time."""
        if units:
            self.charges.append(Charge(time_us, units))
            self.charges.sort(key=lambda charge: charge.time_us)

    def hand_back(self, time_us: int, units: int, now_us: int) -> bool:
        """Take out units of one moment, as long as they are all there; units of one moment are all alike."""
        self._strike_off(now_us)
        there = [c for c in self.charges if self.starts_us(c.time_us) == self.starts_us(time_us)]
        if not 0 < units <= sum(charge.cost for charge in there):
            return False
        self.charges = [charge for charge in self.charges if charge not in there]
        left = sum(charge.cost for charge in there) - units
        self.put(there[0].time_us, left)
        return True

    def answer(self, amount: int, wait_us: int | None, now_us: int) -> Answer:
        """Return the answer of the window now."""
        leaving = [self.leaves_us(charge) - now_us for charge in self.charges]
        remaining = max(amount - sum(charge.cost for charge in self.charges), 0)
        return Answer(remaining, wait_us, min(leaving, default=0), max(leaving, default=0))

    def _strike_off(self, now_us: int) -> None:
        self.charges = [charge for charge in self.charges if self.leaves_us(charge) > now_us]

    def _drop(self, units: int) -> None:
        """Drop the oldest units."""
        for charge in self.charges:
            gone = min(units, charge.cost)
            charge.cost -= gone
            units -= gone
        self.charges = [charge for charge in self.charges if charge.cost]

    def _cap(self) -> None:
        """Let no slice count more than it can."""
        room: dict[int, int] = {}
        for charge in () if self.exact else self.charges:
            start_us = self.starts_us(charge.time_us)
            charge.cost = min(charge.cost, room.get(start_us, MOST_IN_A_SLICE))
            room[start_us] = room.get(start_us, MOST_IN_A_SLICE) - charge.cost
        self._drop(0)

    def _become_times(self, now_us: int) -> None:
        """Counts become times at the end of their slice; units beyond the resolution are carried as one number.

        No amount that is kept as times is larger than the resolution, so the carried units bind none of them. They
        count again when the amount is raised to one that is kept as counts.
        """
        room = self.resolution
        kept: list[Charge] = []
        for charge in reversed(self.charges):
            end_us = (charge.time_us // self.slice_us + 1) * self.slice_us
            time_us = min(end_us - 1, now_us)
            here = min(charge.cost, room)
            room -= here
            if here < charge.cost:
                self.carried = Charge(max(self.carried.time_us, time_us), self.carried.cost + charge.cost - here)
            if here:
                charge.time_us, charge.cost = time_us, here
                kept.append(charge)
        self.charges = kept[::-1]

    def _become_counts(self, now_us: int) -> None:
        """Times become counts in their slice, the carried ones in the slice of the newest of them."""
        if self.carried.cost and self.carried.time_us > now_us - self.window_us:
            self.charges.insert(0, self.carried)
        self.carried = Charge(0, 0)
