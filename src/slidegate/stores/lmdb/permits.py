"""The permits of concurrency limits that requests hold in LMDB, and the lease under which a process holds them.

    places    key 0xff digest(rule)     version, then for each worker that holds permits its name and how many
    workers   name of a worker          version, end of its lease

A worker has a name, and one lease on all of its permits, until a moment of the host's clock. It renews the lease every
third of its length, for all of its requests together::

    renewed  ^     ^     ^           then the worker is killed
    lease                |------- 10 s -------|
    permits  taken ---------------------------| free

The permits of a worker whose lease is over are free, and leave the row when it is written next. A row without permits
is deleted at once; renewals go through the rows, a few at a time, to find those of dead workers that nobody asks for.

A worker that finds its lease over was stopped, and others may have taken its permits. It goes on under another name and
puts permits back under it where there is room. A permit that is handed back under the old name changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Any, Final

from ...core.charge import Permit
from ...core.concurrency import PERMITS
from ...core.store import Event
from ..leases import WORKER_BYTES, HeldPermits, places_lost
from .layout import Databases

ROW_VERSION: Final = 1
LOOK_AT: Final = 256
"""How many rows to look at in one renewal."""

_VERSION: Final = bytes((ROW_VERSION,))
_HOLDER: Final = Struct(f"={WORKER_BYTES}sI")
_LEASE: Final = Struct("=Bq")


class OwnPermits(HeldPermits):
    """The permits of this process.

    Attributes:
        looked_at: The row at which renewals go on looking for permits of the dead.
        rows: The rows that say that this process holds permits.
    """

    def __init__(self, lease_us: int) -> None:
        super().__init__(lease_us)
        self.looked_at = b""
        self.rows: set[bytes] = set()

    def enter_process(self) -> bool:
        """See `HeldPermits`."""
        is_new = super().enter_process()
        if is_new:
            self.rows = set()
        return is_new

    def holds_any(self) -> bool:
        """Tell whether the lease has to be renewed, or a row corrected."""
        return super().holds_any() or bool(self.rows and self.is_of_this_process)


class _Row:
    """A row in a transaction: how many permits each other worker and this one hold, and the row as it was read."""

    __slots__ = ("others", "own", "stored")

    def __init__(self, others: dict[bytes, int], own: int, stored: bytes) -> None:
        self.others = others
        self.own = own
        self.stored = stored

    @property
    def taken(self) -> int:
        return self.own + sum(self.others.values())


class PermitRows:
    """The permits in one transaction. Nothing is written before `save`.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time.
        own: The permits of this process.
        undo: Gets functions to call if the transaction is not committed.
        events: Gets events to tell once it is.
    """

    def __init__(
        self,
        txn: Any,
        dbs: Databases,
        now_us: int,
        own: OwnPermits,
        undo: list[Callable[[], None]],
        events: list[Event],
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self._now_us = now_us
        self._own = own
        self._undo = undo
        self._events = events
        self._rows: dict[bytes, _Row] = {}
        self._windows: dict[bytes, bytes] = {}  # for the core
        self._ends_us: dict[bytes, int] = {}  # of the leases of other workers
        self._lease_us = 0  # the end to write, if it changes
        self._over = b""  # the name that this process has given up

    def window(self, row: bytes, takes: bool) -> tuple[dict[bytes, bytes], bytes]:
        """Return where the core finds how many permits of a row are taken, for one question."""
        if takes:
            self.ensure_lease()
        self._windows[row] = PERMITS.pack(self._find(row).taken)
        return self._windows, row

    def take(self, row: bytes, amount: int, units: int) -> Permit:
        """Take permits for which the core has found room, after `ensure_lease`."""
        self._find(row).own += units
        permit = Permit(row, amount, units)
        self._own.permits.add(permit)
        self._undo.append(partial(self._own.permits.discard, permit))
        return permit

    def leave(self, permit: Permit) -> bool:
        """Hand a permit back; False if it was handed back before, or was lost."""
        self.ensure_lease()
        permits = self._own.permits
        if permit not in permits:
            return False
        permits.discard(permit)
        self._undo.append(partial(permits.add, permit))
        if permit.lost:
            return False
        self._find(permit.row).own -= permit.units
        return True

    def ensure_lease(self) -> bool:
        """Make sure that this process has a lease before it takes or leaves permits; renew one that has grown short.

        Returns:
            Whether the lease was over, and permits that ran out were dealt with.
        """
        own = self._own
        own.enter_process()
        until_us = self._end_us(own.worker)
        if until_us > self._now_us:
            if until_us - self._now_us < own.lease_us // 2:
                self._renew()
            return False
        self._undo.append(partial(setattr, own, "worker", own.worker))
        self._over, own.worker = own.worker, os.urandom(WORKER_BYTES)
        self._rows.clear()
        self._renew()
        if own.permits:
            self._put_back(own.under_way())
        return True

    def renew(self) -> None:
        """Renew the lease of this process, correct rows that say more than it holds, and look for those of the dead."""
        was_over = self.ensure_lease()
        self._renew()
        own, held, lost = self._own, dict.fromkeys(self._own.rows, 0), list[Permit]()
        for permit in own.under_way():
            if permit.lost:
                lost.append(permit)
            else:
                held[permit.row] = held.get(permit.row, 0) + permit.units
        for row, units in held.items():
            self._find(row).own = units
        if not was_over and lost:
            self._put_back(lost)
        self._bury()

    def save(self) -> None:
        """Write what has changed."""
        own = self._own
        if self._lease_us:
            self._txn.put(own.worker, _LEASE.pack(ROW_VERSION, self._lease_us), db=self._dbs.workers)
            self._lease_us = 0
        if self._over:
            self._txn.delete(self._over, b"", self._dbs.workers)
            self._over = b""
        for row, found in self._rows.items():
            holders = {**found.others, own.worker: found.own} if found.own else found.others
            packed = _VERSION + b"".join(_HOLDER.pack(*holder) for holder in holders.items()) if holders else b""
            if packed and packed != found.stored:
                self._txn.put(row, packed, db=self._dbs.places)
            elif found.stored and not packed:
                self._txn.delete(row, b"", self._dbs.places)
            found.stored = packed
            if found.own:
                own.rows.add(row)
            elif row in own.rows:
                own.rows.discard(row)
                self._undo.append(partial(own.rows.add, row))

    def _find(self, row: bytes) -> _Row:
        found = self._rows.get(row)
        if found is None:
            stored = self._txn.get(row, None, self._dbs.places) or b""
            others, own = {}, 0
            if stored[:1] == _VERSION:
                for worker, many in _HOLDER.iter_unpack(stored[1:]):
                    if worker == self._own.worker:
                        own = many
                    elif self._end_us(worker) > self._now_us:
                        others[worker] = many
            found = self._rows[row] = _Row(others, own, stored)
        return found

    def _renew(self) -> None:
        self._lease_us = self._ends_us[self._own.worker] = self._now_us + self._own.lease_us

    def _put_back(self, permits: Iterable[Permit]) -> None:
        """Take permits that ran out again, where there is room; tell how many there were."""
        lost = back = 0
        for permit in permits:
            found, was_lost = self._find(permit.row), permit.lost
            permit.lost = found.taken + permit.units > permit.amount
            self._undo.append(partial(setattr, permit, "lost", was_lost))
            if permit.lost:
                lost += not was_lost
            else:
                found.own += permit.units
                back += 1
        if back or lost:
            self._events.append(places_lost("lmdb", lost, back))

    def _bury(self) -> None:
        """Delete leases that are over, and permits of their workers in some rows; the next renewal goes on there."""
        with self._txn.cursor(self._dbs.workers) as workers:
            over = [bytes(name) for name, lease in workers if _LEASE.unpack(lease)[1] <= self._now_us]
        for name in over:
            if name != self._own.worker:
                self._txn.delete(name, b"", self._dbs.workers)
                self._ends_us[name] = 0
        with self._txn.cursor(self._dbs.places) as rows:
            names: list[bytes] = []
            there = rows.set_range(self._own.looked_at) or rows.first()
            while there and len(names) < LOOK_AT:
                names.append(bytes(rows.key()))
                there = rows.next()
            self._own.looked_at = names[-1] + b"\0" if there else b""
        for name in names:
            self._find(name)  # whose worker has died drops out of it, and `save` writes it

    def _end_us(self, worker: bytes) -> int:
        ends_us = self._ends_us.get(worker)
        if ends_us is None:
            lease = self._txn.get(worker, None, self._dbs.workers)
            known = lease is not None and lease[0] == ROW_VERSION
            ends_us = self._ends_us[worker] = _LEASE.unpack(lease)[1] if known else 0
        return ends_us
