"""What a decision has charged, check by check, until it is handed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decision import Check
    from .store import Store


class Permit:
    """A permit of a concurrency limit that a request of this process holds; a `Reservation` keeps it.

    Args:
        row: By what the store finds the permits of the same key and rule.
        amount: How many permits there are.
        units: How many of them it is.
        member: Its name among them, where the store gives names.

    Attributes:
        ended: Whether the request has ended. Then the permit is renewed no more, whether or not the store hears of it.
        lost: Whether it has run out because its worker was stopped for too long.
    """

    __slots__ = ("__weakref__", "amount", "ended", "lost", "member", "row", "units")

    def __init__(self, row: bytes, amount: int, units: int = 1, member: bytes = b"") -> None:
        self.row = row
        self.amount = amount
        self.units = units
        self.member = member
        self.ended = self.lost = False


class Reservation:
    """What one check of a decision has charged: units of its windows, or a permit. It is handed back once.

    Args:
        index: The number of the check in its question.
        check: The check.
        decided_us: The moment of the decision, by the clock of the store that charged it.
        marks: By what each limit finds the units in its window, see `Ring.mark`.
        units: How many units of each limit are left to hand back.

    Attributes:
        permit: The permit, where the store knows permits by name.
        store: The store that charged it, where that is not the limiter's own.
        ended: Whether it was handed back, or settled: what is left stays charged.
    """

    __slots__ = ("check", "decided_us", "ended", "index", "marks", "permit", "store", "units")

    def __init__(self, index: int, check: Check, decided_us: int, marks: Sequence[int], units: Sequence[int]) -> None:
        self.index = index
        self.check = check
        self.decided_us = decided_us
        self.marks = marks
        self.units = units
        self.permit: Permit | None = None
        self.store: Store | None = None
        self.ended = False

    def take(self, units: int | None = None) -> Reservation | None:
        """Split units off, to hand them back; None if there is nothing to hand back.

        Args:
            units: How many of each limit at most; by default all of them.
        """
        left = self.units
        if self.ended:
            return None
        self.ended = units is None
        taken = left if units is None else [min(units, own) for own in left]
        if not any(taken):
            return None
        self.units = [own - gone for own, gone in zip(left, taken, strict=True)]
        part = Reservation(self.index, self.check, self.decided_us, self.marks, taken)
        part.permit, part.store = self.permit, self.store
        return part


def reserved(checks: Sequence[Check], decided_us: int, marks: Sequence[int], units: Sequence[int]) -> list[Reservation]:
    """Return what a question has charged, check by check.

    Args:
        checks: The question.
        decided_us: The moment of the decision.
        marks: By what each limit finds the units in its window, for each limit of each check in turn.
        units: How many units that are, in the same order.
    """
    reservations, first = [], 0
    for index, check in enumerate(checks):
        last = first + len(check[0].limits)
        reservations.append(Reservation(index, check, decided_us, marks[first:last], units[first:last]))
        first = last
    return reservations


def end_permits(reservations: Sequence[Reservation]) -> None:
    """Record that a request has ended, with each permit that it holds."""
    for reservation in reservations:
        if reservation.permit is not None:
            reservation.permit.ended = True
