"""Places in the future: a request that may wait is charged for the moment when it fits.

Bookings live beside the ring, because a ring only knows what has been spent: units in a list, by the moment from which
they count (with counters, the start of the slice). When that moment has come they move into the ring, as if they had
been spent then. Until then they overwrite nothing, and everybody makes room for them. With N = 5, five spent and one
booked for the moment m at which the first of them leaves::

        now           m                          room
        |-------------|---------------------
        5 spent       4 of them, 1 booked        nothing at now, nothing at m

An arrival at t has room if it fits at t, and beside the bookings of every later moment at which it still counts. So a
moment that has room may be followed by one that has not, and the wait is the first moment with room at or after a given
one. That makes promise 1 hold with waiting requests, which count from the moment booked for them.

A `BookedWindow` takes the place of its ring in a store as long as it has bookings, so that a key without pays nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from copy import copy
from typing import NamedTuple, TypeAlias

from ..limits import Limit
from .periods import PeriodCount
from .places import Places
from .rings import Ring, convert
from .theory import NEVER, Reading, Refusal


class Note(NamedTuple):
    """A charge that was not simply spent at the time of its decision, with all that a refund needs to know."""

    window: Entry
    spent_us: int
    """The moment from which the units count; it may be in the future."""
    units: int
    waits: bool = False
    """Whether one of the places of this window was taken."""


class BookedWindow:
    """A ring, and the bookings beside it.

    Args:
        ring: The units that were spent.
        limit: The ring's limit; its amount does not matter.
        now_us: The time.
    """

    __slots__ = ("_booked", "_seen_us", "_waiting", "limit", "refusal", "ring")

    def __init__(self, ring: Ring, limit: Limit, now_us: int) -> None:
        self.ring = ring
        self.limit = limit
        self.refusal: Refusal | None = None  # never remembered: a booking may come due at any moment
        self._seen_us = now_us
        self._booked: list[tuple[int, int]] = []  # (moment, units), moments all different, the next one first
        self._waiting: list[int] = []  # the moments for which requests wait in this window

    def __getnewargs__(self) -> tuple[Ring, Limit, int]:
        return self.ring, self.limit, self._seen_us

    def __copy__(self) -> BookedWindow:
        twin = BookedWindow(copy(self.ring), self.limit, self._seen_us)
        twin._booked, twin._waiting = self._booked.copy(), self._waiting.copy()
        return twin

    @property
    def spent(self) -> int:
        """The units in the window and booked, as of the last look."""
        return self.ring.spent + sum(units for _, units in self._booked)

    @property
    def newest_us(self) -> int:
        """The newest unit's time or slice end, booked ones included."""
        if not self._booked:
            return self.ring.newest_us
        return self.limit.leaves_us(self._booked[-1][0]) - self.limit.span_us

    @property
    def leaves_us(self) -> int:
        """The moment when the oldest units leave."""
        if self.ring.spent or not self._booked:
            return self.ring.leaves_us
        return self.limit.leaves_us(self._booked[0][0])

    def settle(self, now_us: int) -> bool:
        """Move the bookings that are due into the ring; return whether any are still to come."""
        if now_us < self._seen_us:
            self._step_back(now_us)
        self._seen_us = now_us
        booked = self._booked
        while booked and booked[0][0] <= now_us:
            self._move(booked.pop(0), self.ring)
        del self._waiting[: bisect_left(self._waiting, now_us + 1)]
        self.ring.wait_us(now_us, self.ring.spent)  # drops expired units
        return bool(booked or self._waiting)

    def waiting(self) -> int:
        """Return how many requests wait for room in this window, as of the last look."""
        return len(self._waiting)

    def room_us(self, from_us: int, amount: int, cost: int, ahead: int = 0) -> int:
        """Return the first moment, not before `from_us`, that has room for `cost`; `NEVER` if none ever has.

        Call `settle` first.

        Args:
            from_us: Now, or later.
            amount: The units that the window may hold.
            cost: Units.
            ahead: Units that the same demand spends beside them.
        """
        room = amount - ahead - (cost or 1)
        if room < 0:
            return NEVER
        ring, found_us, at_us = copy(self.ring), NEVER, from_us
        for moment_us, units in self._booked:
            if found_us == NEVER and at_us < moment_us:
                fits_us = at_us + ring.wait_us(at_us, room)
                found_us = fits_us if fits_us < moment_us else NEVER
            self._move((moment_us, units), ring)
            at_us = max(at_us, moment_us)
            if found_us != NEVER and cost and moment_us < self.limit.leaves_us(found_us):
                # Still there when these come: is there room for both?
                found_us = found_us if ring.spent + ahead + cost <= amount else NEVER
        return found_us if found_us != NEVER else at_us + ring.wait_us(at_us, room)

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """See `Window.spend`."""
        self.settle(now_us)
        room_us = self.room_us(now_us, amount, cost)
        if room_us == now_us:
            self.ring.add(now_us, cost)
        return self.reading(NEVER if room_us == NEVER else room_us - now_us)

    def reading(self, wait_us: int) -> Reading:
        """Return the state of the window, with a wait."""
        return self.spent, self.leaves_us, self.newest_us, wait_us

    def charge(self, now_us: int, units: int, resolution: int) -> int:
        """See `Window.charge`."""
        self.settle(now_us)
        return self.ring.charge(now_us, units, resolution)

    def book(self, now_us: int, moment_us: int, units: int, waits: bool) -> Note:
        """Book `units` for a moment; `waits` if this window has no room before. Call `settle` first."""
        if waits:
            insort(self._waiting, moment_us)
        counts_us = self.limit.counts_from_us(moment_us)
        if counts_us <= now_us:
            self._move((now_us, units), self.ring)
        elif units:
            self._change(counts_us, units)
        return Note(self, moment_us, units, waits)

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """See `Window.remove`; units that are still to come are found by their moment as well."""
        self.settle(now_us)
        counts_us = self.limit.counts_from_us(spent_us)
        if counts_us <= now_us:
            return self.ring.remove(now_us, spent_us, units)
        there = dict(self._booked).get(counts_us, 0)
        if not 0 < units <= there:
            return False
        self._change(counts_us, -units)
        return True

    def lies_ahead(self, now_us: int) -> bool:
        """See `Window.lies_ahead`; bookings and waiting requests move as far as the clock has stepped."""
        if now_us < self._seen_us and (self._booked or self._waiting):
            return True
        return self.ring.lies_ahead(now_us)

    def leave(self, moment_us: int) -> bool:
        """Give back the place of a request that waits for a moment; False if the moment has come."""
        if moment_us not in self._waiting:
            return False
        self._waiting.remove(moment_us)
        return True

    def converted(self, limit: Limit, now_us: int) -> BookedWindow:
        """Return the same bookings beside the ring that `limit` needs; see `rings.convert`."""
        self.settle(now_us)
        twin = BookedWindow(convert(self.ring, limit, now_us), limit, now_us)
        twin._waiting = self._waiting.copy()
        for moment_us, units in self._booked:
            twin.book(now_us, moment_us, units, waits=False)
        return twin

    def _move(self, booked: tuple[int, int], ring: Ring) -> None:
        """Spend booked units. Unlike a debt they push nothing out, because the others were let through as well."""
        moment_us, units = booked
        if self.limit.exact:
            units = min(units, self.limit.resolution)  # it was booked as counts, if it is more
        ring.charge(moment_us, units, ring.spent + units)

    def _change(self, counts_us: int, units: int) -> None:
        """Book more or fewer units for a moment."""
        known = dict(self._booked)
        known[counts_us] = known.get(counts_us, 0) + units
        self._booked = sorted((moment_us, there) for moment_us, there in known.items() if there)

    def _step_back(self, now_us: int) -> None:
        """Keep every wait as long as it was at the last look."""
        step_us = self._seen_us - now_us
        booked, self._booked = self._booked, []
        for moment_us, units in booked:
            self._change(self.limit.counts_from_us(moment_us - step_us), units)
        self._waiting = [moment_us - step_us for moment_us in self._waiting]


Entry: TypeAlias = Ring | BookedWindow | PeriodCount | Places
"""The count of one key under one limit, as a store holds it."""
