"""The permits of concurrency limits in LMDB::

    permits   key 0xff digest(rule)     the entries of all processes, see `core.concurrency`

A row has an entry in the index `ends` for when its last permits end. Each transaction that changes a row writes the
true count of this process, see `leases`: what it charges counts at once, and no more if it fails, because its decisions
are gone then.
"""

from __future__ import annotations

from typing import Any, Final

import lmdb

from ...core.concurrency import Concurrency, PermitCounter, apart, ends_us, entry
from ...core.limits import AnyLimit
from ..leases import RENEWALS, HeldPermits
from .layout import Databases, due_row, recheck_at

PERMITS: Final = b"permits"


class PermitRows:
    """The permits in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time, in microseconds.
        held: The permits of this process, all of which are renewed when they are due.
        has_room: Whether the file has room for further rows.
    """

    def __init__(self, txn: Any, dbs: Databases, now_us: int, held: HeldPermits, *, has_room: bool) -> None:
        self._txn = txn
        self._dbs = dbs
        self._now_us = now_us
        self._held = held
        self._has_room = has_room
        self._until_us = now_us + held.lease_us
        self._stored: dict[bytes, bytes] = {}
        self._rows: dict[bytes, bytes] = {}
        self._due_us = held.due_us
        if now_us >= held.due_us:
            self.renew_all()

    def find(self, row: bytes, limit: AnyLimit) -> tuple[PermitCounter, dict[bytes, bytes]]:
        """Return the counter of this process for a limit, and the mapping that contains the row of a key."""
        if self._apart(row)[2] != self._held.units(row):
            self.renew(row)
        assert isinstance(limit, Concurrency), "only concurrency limits have permits"
        return PermitCounter(limit, self._held.worker, self._until_us), self._rows

    def renew(self, row: bytes) -> None:
        """Write how many permits of a row this process has."""
        self._rows[row] = self._apart(row)[0] + entry(self._held.worker, self._until_us, self._held.units(row))

    def renew_all(self) -> None:
        """Renew all permits of this process to a full lease from now."""
        for row in self._held.rows():
            self.renew(row)
        self._due_us = self._now_us + self._held.lease_us // RENEWALS

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
        self._held.due_us = self._due_us

    def _apart(self, row: bytes) -> tuple[bytes, int, int]:
        """Read a row, and return what `apart` does."""
        if row not in self._rows:
            self._stored[row] = self._rows[row] = self._txn.get(row, b"", self._dbs.permits)
        return apart(self._rows[row], self._held.worker, self._now_us)
