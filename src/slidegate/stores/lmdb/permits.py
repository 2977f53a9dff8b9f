"""The permits of concurrency limits in LMDB, and the lease under which a process holds them.

    permits   key 0xff digest(rule) worker     how many permits the worker holds, and until when

All permits of a worker expire at the same time of the host's clock. The worker renews them three times per lease, by
writing the new expiry and their current number into each of its rows, in one transaction::

    renewed  ^     ^     ^           then the worker is killed
    lease                |------- 10 s -------|
    permits  taken ---------------------------| free

An expired row does not count, and is deleted when it is due, see `ends` in `windows`. A worker that was stopped for
longer than a lease has lost its permits, because others may have taken them; an event reports this.
"""

from __future__ import annotations

from collections import Counter
from struct import Struct
from typing import Any, Final

import lmdb

from ...core.concurrency import PERMITS as UNITS
from ...core.concurrency import taken
from ...core.reservation import Permit
from ..leases import HeldPermits
from .layout import Databases, due_row, recheck_at, rows_with

PERMITS: Final = b"permits"

_HELD: Final = Struct("=Iq")


class OwnPermits(HeldPermits):
    """The permits of this process.

    Attributes:
        until_us: When they expire; all their rows contain this time.
    """

    until_us = 0


class PermitRows:
    """The permits in one transaction. Nothing is written before `save`, except by a renewal.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        has_room: Whether the file has room for further rows.
        now_us: The store's time, in microseconds.
        own: The permits of this process.

    Attributes:
        taken: The windows of permits for the core, by the row prefix of key and rule.
        lost: The permits of this process that this transaction found expired.
    """

    def __init__(self, txn: Any, dbs: Databases, has_room: bool, now_us: int, own: OwnPermits) -> None:
        self._txn = txn
        self._dbs = dbs
        self._has_room = has_room
        self._now_us = now_us
        self._own = own
        self._stored: dict[bytes, int] = {}  # how many are taken according to the rows
        self._held: list[Permit] = []
        self._ended: list[Permit] = []
        self._until_us = own.until_us
        self.taken: dict[bytes, bytes] = {}
        self.lost: list[Permit] = []

    def ensure_lease(self) -> None:
        """Renew the permits of this process if they expire within half a lease; called before any is taken or ended."""
        if self._own.until_us - self._now_us < self._own.lease_us // 2:
            self.renew()

    def find(self, row: bytes) -> tuple[dict[bytes, bytes], bytes]:
        """Return the location of the window that counts the permits of a key and rule."""
        if row not in self.taken:
            self._stored[row] = sum(self._units(stored) for _, stored in rows_with(self._txn, self._dbs.permits, row))
            self.taken[row] = UNITS.pack(self._stored[row])
        return self.taken, row

    def hold(self, row: bytes, amount: int, units: int) -> Permit:
        """Return a new permit of this process, which the core has already counted."""
        permit = Permit(row, amount, units)
        self._own.add(permit)
        self._held.append(permit)
        return permit

    def end(self, permit: Permit) -> bool:
        """Release a permit; return False if it was released before, or was lost."""
        if permit not in self._own:
            return False
        self._own.discard(permit)
        self._ended.append(permit)
        return not permit.lost

    def renew(self) -> None:
        """Extend the permits of requests in progress to a full lease from now; expired ones are lost."""
        self.save()
        under_way = [permit for permit in self._own.under_way() if not permit.lost]
        if self._own.until_us <= self._now_us:
            for permit in under_way:
                permit.lost = True
            self.lost, under_way = under_way, []
        self._own.until_us = self._now_us + self._own.lease_us
        units = Counter[bytes]()
        for permit in under_way:
            units[permit.row] += permit.units
        for row, held in units.items():
            self._put(row, held)

    def save(self) -> None:
        """Write the rows that have changed."""
        for row, before in self._stored.items():
            change = taken(self.taken[row]) - before
            if change:
                held = self._txn.get(row + self._own.worker, None, self._dbs.permits)
                self._put(row, change + (0 if held is None else self._units(held)))
                self._stored[row] = before + change

    def roll_back(self) -> None:
        """Restore the permits of this process as they were before this transaction, which was not committed."""
        for permit in self._held:
            self._own.discard(permit)
        for permit in self._ended:
            self._own.add(permit)
        for permit in self.lost:
            permit.lost = False
        self._own.until_us = self._until_us

    def _units(self, stored: bytes) -> int:
        """Return the number of permits in a row, 0 if it has expired."""
        units, until_us = _HELD.unpack(stored)
        return int(units) if until_us > self._now_us else 0

    def _put(self, row: bytes, units: int) -> None:
        """Write how many permits of a key and rule this process holds."""
        name, until_us = row + self._own.worker, self._own.until_us
        if units <= 0:
            self._txn.delete(name, b"", self._dbs.permits)
            self._txn.delete(due_row(until_us, name), b"", self._dbs.ends)
            return
        if self._txn.get(name, None, self._dbs.permits) is None:
            if not self._has_room:
                raise lmdb.MapFullError("it has no room for permits of another key")
            recheck_at(self._txn, self._dbs.ends, until_us, name, PERMITS)
        self._txn.put(name, _HELD.pack(units, until_us), db=self._dbs.permits)


def ends_us(stored: bytes) -> int:
    """Return when the permits of a row expire if they are not renewed."""
    return int(_HELD.unpack(stored)[1])
