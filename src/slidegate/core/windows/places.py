"""The places of one key: a count that a demand asks as it asks a window.

A place is taken when a request is admitted, and free again when it is handed back. So there is no moment at which the
next one leaves: a demand that finds all of them taken gets the wait `OPEN`.
"""

from __future__ import annotations

from .theory import NEVER, OPEN, Reading, Refusal


class Places:
    """How many places of one key are taken. It has the interface of a window, see `theory.Window`.

    Args:
        spent: The places that are taken.

    Attributes:
        spent: The places that are taken.
        leaves_us: 0, because no moment is known at which one is free.
        newest_us: 0, for the same reason.
    """

    __slots__ = ("leaves_us", "newest_us", "refusal", "spent")

    def __init__(self, spent: int = 0) -> None:
        self.spent = spent
        self.leaves_us = 0
        self.newest_us = 0
        self.refusal: Refusal | None = None  # never remembered: a place may be free at any moment

    def __copy__(self) -> Places:
        return Places(self.spent)

    def wait_us(self, now_us: int, room: int) -> int:
        """Return 0 if at most `room` places are taken, else `OPEN`; `NEVER` for a room below 0."""
        return NEVER if room < 0 else 0 if self.spent <= room else OPEN

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """Take `cost` places if that leaves at most `amount` taken, and return the reading."""
        wait_us = self.wait_us(now_us, amount - (cost or 1))
        if wait_us == 0:
            self.spent += cost
        return self.spent, 0, 0, wait_us

    def charge(self, now_us: int, units: int, resolution: int) -> int:
        """Take places, whatever the limit, and return how many."""
        self.spent += units
        return units

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """Hand places back; False, and nothing changed, where fewer are taken."""
        if not 0 < units <= self.spent:
            return False
        self.spent -= units
        return True

    def lies_ahead(self, now_us: int) -> bool:
        """Tell that no step of a clock moves anything here."""
        return False
