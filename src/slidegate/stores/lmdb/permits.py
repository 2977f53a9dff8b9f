"""The permits of concurrency limits that requests hold in LMDB, and the lease under which a process holds them.

    permits   key 0xff digest(rule) worker     how many permits the worker holds, and until when

All permits of a worker last until one moment of the host's clock. It renews them every third of a lease, by writing
that moment and their true number into each of its rows, in one transaction::

    renewed  ^     ^     ^           then the worker is killed
    lease                |------- 10 s -------|
    permits  taken ---------------------------| free

A row that was not renewed counts for nobody, and is deleted when its time comes, see `ends` in `windows`. A worker that
was stopped for longer than a lease has lost its permits: others may have taken them. An event says so.
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
from .environment import NO_ROWS, Environment
from .layout import due_row, look_later, rows_with

PERMITS: Final = b"permits"

_HELD: Final = Struct("=Iq")


class OwnPermits(HeldPermits):
    """The permits of this process.

    Attributes:
        until_us: The moment until which they last, which the rows of all of them say.
    """

    until_us = 0

    def enter_process(self) -> bool:
        """See `HeldPermits`."""
        is_new = super().enter_process()
        if is_new:
            self.until_us = 0
        return is_new


class PermitRows:
    """The permits in one transaction. Nothing is written before `save`, unless they have to be renewed.

    Args:
        txn: LMDB's transaction.
        env: The environment.
        now_us: The store's time.
        own: The permits of this process.

    Attributes:
        taken: How many permits are taken, for the core, by key and rule.
        lost: The permits of this process that were found to be lost.
    """

    def __init__(self, txn: Any, env: Environment, now_us: int, own: OwnPermits) -> None:
        self._txn = txn
        self._dbs = env.dbs
        self._has_room = env.fullness < NO_ROWS
        self._now_us = now_us
        self._own = own
        self._stored: dict[bytes, int] = {}  # how many are taken, as the rows say
        self._held: list[Permit] = []
        self._ended: list[Permit] = []
        self._until_us = own.until_us
        self.taken: dict[bytes, bytes] = {}
        self.lost: list[Permit] = []

    def ensure_lease(self) -> None:
        """Renew the permits of this process if they do not last for half of a lease, before any is taken or ended."""
        self._own.enter_process()
        if self._own.until_us - self._now_us < self._own.lease_us // 2:
            self.renew()

    def find(self, row: bytes) -> tuple[dict[bytes, bytes], bytes]:
        """Return where the core finds how many permits of a key and rule are taken."""
        if row not in self.taken:
            self._stored[row] = sum(self._units(stored) for _, stored in rows_with(self._txn, self._dbs.permits, row))
            self.taken[row] = UNITS.pack(self._stored[row])
        return self.taken, row

    def hold(self, row: bytes, amount: int, units: int) -> Permit:
        """Return a permit that this process holds from now on; the core has counted it."""
        permit = Permit(row, amount, units)
        self._own.add(permit)
        self._held.append(permit)
        return permit

    def end(self, permit: Permit) -> bool:
        """Hold a permit no more; False if it was handed back before, or was lost."""
        if permit not in self._own:
            return False
        self._own.discard(permit)
        self._ended.append(permit)
        return not permit.lost

    def renew(self) -> None:
        """Let the permits of requests under way last for a lease from now, those excepted that ran out before."""
        self._own.enter_process()
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
        """Write what has changed.

        Raises:
            lmdb.MapFullError: The file has no room for another row.
        """
        for row, before in self._stored.items():
            change = taken(self.taken[row]) - before
            if change:
                held = self._txn.get(row + self._own.worker, None, self._dbs.permits)
                self._put(row, change + (0 if held is None else self._units(held)))
                self._stored[row] = before + change

    def roll_back(self) -> None:
        """Let the permits of this process be as they were before this transaction, because it is not committed."""
        for permit in self._held:
            self._own.discard(permit)
        for permit in self._ended:
            self._own.add(permit)
        for permit in self.lost:
            permit.lost = False
        self._own.until_us = self._until_us

    def _units(self, stored: bytes) -> int:
        """Return the number of permits in a row, 0 if its lease has ended."""
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
                raise lmdb.MapFullError("it has no room for permits of another key; raise max_map_size")
            look_later(self._txn, self._dbs.ends, until_us, name, PERMITS)
        self._txn.put(name, _HELD.pack(units, until_us), db=self._dbs.permits)


def ends_us(stored: bytes) -> int:
    """Return when the permits of a row run out, if they are not renewed."""
    return int(_HELD.unpack(stored)[1])
