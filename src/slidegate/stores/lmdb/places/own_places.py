"""The places that requests of this process hold in LMDB, and the lease under which it holds them.

A worker has a name, and one lease on all of its places, until a moment of the host's clock. It renews the lease every
third of its length, for all of its requests together::

    renewed  ^     ^     ^           then the worker is killed
    lease                |------- 10 s -------|
    places   taken ---------------------------| free

A worker that finds its lease over was stopped, and others may have taken its places. It goes on under another name and
puts places back under it where there is room. A place that is handed back under the old name changes nothing.
"""

from __future__ import annotations

import os
from typing import Final

from ....core.charge import HeldPlace
from ...held_weakly import HeldWeakly

WORKER_BYTES: Final = 8


class Place(HeldPlace):
    """A place that a request holds; a decision keeps it among its charges.

    Args:
        row: The row of its key.
        amount: How many places there are.
        units: How many of them it is; a request asks for one.
        worker: The name under which it was taken.
    """

    __slots__ = ("amount", "row", "units", "worker")

    def __init__(self, row: bytes, amount: int, units: int, worker: bytes) -> None:
        super().__init__()
        self.row = row
        self.amount = amount
        self.units = units
        self.worker = worker


class RowPlaces:
    """The places of this process in one row.

    Attributes:
        places: Those whose decisions are still there: a place that nobody can hand back any more drops out.
        written: How many the row says that this process holds.
    """

    __slots__ = ("places", "written")

    def __init__(self) -> None:
        self.places: HeldWeakly[Place] = HeldWeakly()
        self.written = 0


class OwnPlaces:
    """The places of this process.

    Args:
        lease_us: How long the lease lasts.

    Attributes:
        ends_us: When the lease ends; 0 if there has been none.
        lease_us: How long it lasts when it is renewed.
        looked_at: The row at which renewals go on looking for places of the dead.
        rows: The places by row.
        worker: The name of this process, made anew after `fork`.
    """

    def __init__(self, lease_us: int) -> None:
        self.lease_us = lease_us
        self.rows: dict[bytes, RowPlaces] = {}
        self.worker = b""
        self.ends_us = 0
        self.looked_at = b""
        self._process = 0

    def know_process(self) -> None:
        """Begin anew in a child of `fork`: the places are its parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.rows, self.worker, self.ends_us = {}, b"", 0

    def all(self) -> list[Place]:
        """Return the places whose decisions are still there, with those that were lost."""
        return [place for row in self.rows.copy().values() for place in row.places]

    def count(self) -> int:
        """Return how many places this process holds, without those that were lost."""
        if self._process != os.getpid():
            return 0
        return sum(place.units for place in self.all() if place.worker == self.worker and not place.ended)

    def holds_any(self) -> bool:
        """Tell whether the lease has to be renewed."""
        return self._process == os.getpid() and any(row.written or row.places for row in self.rows.copy().values())

    def of(self, row: bytes) -> RowPlaces:
        """Return the places in a row."""
        found = self.rows.get(row)
        if found is None:
            found = self.rows[row] = RowPlaces()
        return found
