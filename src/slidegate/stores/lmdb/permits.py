"""The permits of concurrency limits in LMDB::

    permits   key 0xff digest(rule)     the entries of all processes, see `core.concurrency`

A row has an entry in the index `ends` for when its last permits end. Each transaction that changes a row writes the
true count of this process, see `leases`, so one that fails leaves nothing behind.
"""

from __future__ import annotations

from typing import Any, Final

import lmdb

from ...core.concurrency import Concurrency, PermitCounter, apart, ends_us, entry
from ...core.limits import AnyLimit
from ...core.reservation import Reservation
from ..leases import HeldPermits
from .layout import Databases, due_row, recheck_at

PERMITS: Final = b"permits"


class PermitRows:
    """The permits in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time, in microseconds.
        held: The permits of this process.
        has_room: Whether the file has room for further rows.
        writes: Whether the rows are written; if so, all of this process are renewed when they are due.
    """

    def __init__(
        self, txn: Any, dbs: Databases, now_us: int, held: HeldPermits, *, has_room: bool, writes: bool
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self._now_us = now_us
        self._held = held
        self._has_room = has_room
        self._writes = writes
        self._until_us = now_us + held.lease_us
        self._stored: dict[bytes, bytes] = {}
        self._rows: dict[bytes, bytes] = {}
        self._charges: list[tuple[bytes, Reservation]] = []  # of this transaction
        self._due_us = held.due_us
        if writes and now_us >= held.due_us:
            self.renew_all()

    def find(self, row: bytes, limit: AnyLimit) -> tuple[PermitCounter, dict[bytes, bytes]]:
        """Return the counter of this process for a limit, and the mapping that contains the row of a key."""
        _, _, own = self._apart(row)
        if self._writes and own != self._units(row):
            self.renew(row)
        assert isinstance(limit, Concurrency), "only concurrency limits have permits"
        return PermitCounter(limit, self._held.worker, self._until_us), self._rows

    def hold(self, row: bytes, charge: Reservation) -> None:
        """Count permits that the core has charged."""
        self._charges.append((row, charge))

    def renew(self, row: bytes) -> None:
        """Write how many permits of a row this process has."""
        others, _, _ = self._apart(row)
        self._rows[row] = others + entry(self._held.worker, self._until_us, self._units(row))

    def renew_all(self) -> None:
        """Renew all permits of this process to a full lease from now."""
        for row in self._held.rows():
            self.renew(row)
        self._due_us = self._now_us + self._held.lease_us // 2

    def save(self) -> None:
        """Write the rows that have changed."""
        for row, window in self._rows.items():
            stored = self._stored[row]
            if window == stored:
                continue
            if stored:
                self._txn.delete(due_row(ends_us(stored), row), b"", self._dbs.ends)
            elif not self._has_room:
                raise lmdb.MapFullError("it has no room for permits of another key")
            if window:
                recheck_at(self._txn, self._dbs.ends, ends_us(window), row, PERMITS)
                self._txn.put(row, window, db=self._dbs.permits)
            else:
                self._txn.delete(row, b"", self._dbs.permits)
            self._stored[row] = window

    def end(self) -> None:
        """Count what was charged from now on: the transaction is about to be committed."""
        for row, charge in self._charges:
            self._held.add(row, charge)
        self._charges.clear()
        self._held.due_us = self._due_us

    def _apart(self, row: bytes) -> tuple[bytes, int, int]:
        """Read a row, and return what `apart` does."""
        if row not in self._rows:
            self._stored[row] = self._rows[row] = self._txn.get(row, b"", self._dbs.permits)
        return apart(self._rows[row], self._held.worker, self._now_us)

    def _units(self, row: bytes) -> int:
        """Return how many permits of a row this process has, those of this transaction included."""
        charged = [units for at, charge in self._charges if at == row for units in charge.units]
        return self._held.units(row) + sum(charged)
