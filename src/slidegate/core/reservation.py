"""Reservations: what each check of a decision has charged, until it is refunded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .buckets import Check
from .ring import WindowState


class Reservation:
    """What one check of a decision has charged: units of its windows, or permits. It can be refunded once.

    Args:
        index: The index of the check in its question.
        first: The index of its first limit among those of all checks.
        marks: The mark of the units in the window of each limit, see `Ring.remove`.
        units: How many units of each limit can still be refunded.

    Attributes:
        holder: What renews its permits, in a store whose workers have several.
        permits: Counts its permits there until they are split off, or the reservation is garbage-collected.
        store: The store that charged it, if it is not the limiter's own.
        ended: Whether it was refunded or settled; the remaining units stay charged.
    """

    __slots__ = ("check", "ended", "first", "holder", "index", "marks", "permits", "store", "units")

    def __init__(self, index: int, first: int, check: Check, marks: Sequence[int], units: Sequence[int]) -> None:
        self.index = index
        self.first = first
        self.check = check
        self.marks = marks
        self.units = units
        self.holder: Any = None
        self.permits: Any = None
        self.store: object = None
        self.ended = False

    def split_off(self, units: int | None = None) -> Reservation | None:
        """Split off units in order to refund them; None if there is nothing to refund.

        Args:
            units: The most units of each limit; by default all of them.
        """
        if self.ended:
            return None
        if units is None:
            # All of them, so that nothing is left for another refund.
            self.ended = True
            refunded = self.units
        else:
            refunded = [min(units, charged) for charged in self.units]
        if not any(refunded):
            return None
        self.units = [charged - share for charged, share in zip(self.units, refunded, strict=True)]
        if self.permits is not None:
            self.permits.release(refunded[0])  # a concurrency limit is alone in its bucket
        part = Reservation(self.index, self.first, self.check, self.marks, refunded)
        part.holder = self.holder
        part.store = self.store
        return part


def reserved(checks: Sequence[Check], readings: Sequence[WindowState], units: Sequence[int] = ()) -> list[Reservation]:
    """Return the reservations of a question, one for each check.

    Args:
        readings: The states of the windows after the charge, with the marks of the charged units.
        units: How many units of each limit were charged; by default the cost of each check.
    """
    reservations: list[Reservation] = []
    first = 0
    for index, check in enumerate(checks):
        bucket, _, cost = check
        last = first + len(bucket.limits)
        marks = [mark for _, _, mark, _ in readings[first:last]]
        charged = units[first:last] or [cost] * len(marks)
        reservations.append(Reservation(index, first, check, marks, charged))
        first = last
    return reservations
