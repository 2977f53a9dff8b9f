"""By what a store finds what a decision charged, and the permits among that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self


class Charge(list[Any]):
    """What a decision charged, limit by limit: the state of the window, or (mark, units) by which the store finds it.

    Copies of a decision share it, however deep, so that it is handed back once. A pickled one is empty: the decision
    comes back as something to read.
    """

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return self.__class__, ()


class Permit:
    """A permit of a concurrency limit that a request of this process holds; its decision keeps it among its charges.

    Args:
        row: By what the store finds the permits of the same key and rule.
        amount: How many permits there are.
        units: How many of them it is.
        member: Its name among them, where the store gives names.

    Attributes:
        ended: Whether the request has ended. Then the permit is renewed no more, whether or not the store hears of it.
        lost: Whether it has run out, and others have taken all permits since.
    """

    __slots__ = ("__weakref__", "amount", "ended", "lost", "member", "row", "units")

    def __init__(self, row: bytes, amount: int, units: int = 1, member: bytes = b"") -> None:
        self.row = row
        self.amount = amount
        self.units = units
        self.member = member
        self.ended = self.lost = False


def end_permits(charge: Iterable[object]) -> None:
    """Record that a request has ended, with each permit among its charges."""
    for note in charge:
        if isinstance(note, Permit):
            note.ended = True
