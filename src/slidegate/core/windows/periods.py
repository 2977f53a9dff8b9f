"""The count of a quota: how many units were spent in one period of the calendar.

A period is known by its end, a moment of Unix time, because that is all that matters of it: when the count starts anew.
A count begins another period only where that ends later, so a clock that is set back goes on counting in the newer one,
whose units and whose end stay.

`enter` comes before every other question: it brings the period of the moment, and how far the time of the store is
ahead of Unix time. From then on the count answers in the time of the store, as a ring does.
"""

from __future__ import annotations

from typing import Final

from .theory import NEVER, Reading, Refusal, refuse_negative

MOST_UNITS: Final = 2**52
"""No debt grows beyond it; stores write such numbers without loss."""


class PeriodCount:
    """The units of one period; empty until it has entered one.

    Attributes:
        end_us: When the period ends, in microseconds of Unix time.
        ahead_us: The time of the store, less Unix time, as of the last look.
        spent: Units.
    """

    __slots__ = ("ahead_us", "end_us", "refusal", "spent")

    def __init__(self) -> None:
        self.end_us = 0
        self.ahead_us = 0
        self.spent = 0
        self.refusal: Refusal | None = None  # never remembered: a period may end with the next look at the clock

    def __copy__(self) -> PeriodCount:
        twin = PeriodCount()
        twin.end_us, twin.ahead_us, twin.spent = self.end_us, self.ahead_us, self.spent
        return twin

    @property
    def newest_us(self) -> int:
        """When the period ends, in the time of the store: a unit counts until then, whenever it was spent."""
        return self.end_us + self.ahead_us

    @property
    def leaves_us(self) -> int:
        """When everything that was spent leaves."""
        return self.end_us + self.ahead_us

    def enter(self, end_us: int, ahead_us: int) -> None:
        """Begin the period that ends at `end_us`, unless it is this one or an earlier one."""
        if end_us > self.end_us:
            self.end_us = end_us
            self.spent = 0
        self.ahead_us = ahead_us

    def wait_us(self, now_us: int, room: int) -> int:
        """See `Window.wait_us`."""
        if self.spent <= room:
            return 0
        return NEVER if room < 0 else self.leaves_us - now_us

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """See `Window.spend`."""
        wait_us = self.wait_us(now_us, amount - (cost or 1))
        if wait_us == 0:
            self.add(now_us, cost)
        return self.spent, self.leaves_us, self.newest_us, wait_us

    def add(self, now_us: int, units: int = 1) -> None:
        """See `Window.add`."""
        refuse_negative(units)
        self.spent = min(self.spent + units, MOST_UNITS)

    def charge(self, now_us: int, units: int, resolution: int) -> int:
        """See `Window.charge`; the debt lasts until the period ends."""
        before = self.spent
        self.add(now_us, units)
        return self.spent - before

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """See `Window.remove`; a charge is named by the end of its period, in Unix time."""
        if spent_us != self.end_us or not 0 < units <= self.spent:
            return False
        self.spent -= units
        return True

    def lies_ahead(self, now_us: int) -> bool:
        """Say no: units do not move with the clock of the store."""
        return False

    def total(self, now_us: int) -> int:
        """See `Window.total`."""
        return self.spent if now_us < self.leaves_us else 0
