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

import asyncio
import os
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from struct import Struct
from typing import Any, Final
from weakref import WeakSet

from ...core.charge import RENEWALS, HeldPlace
from ...core.errors import StoreError
from ...core.permits import PERMITS
from ...core.store import Event
from ..held_weakly import HeldWeakly
from .layout import Databases

WORKER_BYTES: Final = 8
ROW_VERSION: Final = 1
LOOK_AT: Final = 256
"""How many rows to look at in one renewal."""
AGAIN: Final = 4
"""After a renewal that failed or has to wait, the next comes so many times as soon."""

_VERSION: Final = bytes((ROW_VERSION,))
_HOLDER: Final = Struct(f"={WORKER_BYTES}sI")
_LEASE: Final = Struct("=Bq")


class Permit(HeldPlace):
    """The permit of a request; a decision keeps it among its charges.

    Args:
        row: The row of its key.
        amount: How many permits there are.
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


class OwnPermits:
    """The permits of this process.

    Args:
        lease_us: How long the lease lasts.

    Attributes:
        ends_us: When the lease ends; 0 if there has been none.
        lease_us: How long it lasts when it is renewed.
        looked_at: The row at which renewals go on looking for permits of the dead.
        rows: The permits by row, those whose decisions are still there. A row stays until it is written empty.
        worker: The name of this process, made anew after `fork`.
    """

    def __init__(self, lease_us: int) -> None:
        self.lease_us = lease_us
        self.rows: dict[bytes, HeldWeakly[Permit]] = {}
        self.worker = b""
        self.ends_us = 0
        self.looked_at = b""
        self._process = 0

    def know_process(self) -> None:
        """Begin anew in a child of `fork`: the permits are its parent's."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.rows, self.worker, self.ends_us = {}, b"", 0

    def all(self) -> list[Permit]:
        """Return the permits whose decisions are still there, with those that were lost."""
        return [permit for permits in self.rows.copy().values() for permit in permits]

    def count(self) -> int:
        """Return how many permits this process holds, without those that were lost."""
        if self._process != os.getpid():
            return 0
        return sum(permit.units for permit in self.all() if permit.worker == self.worker and not permit.ended)

    def holds_any(self) -> bool:
        """Tell whether the lease has to be renewed."""
        return self._process == os.getpid() and bool(self.rows)


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
        permit = Permit(row, amount, units, self._own.worker)
        known = self._own.rows.setdefault(row, HeldWeakly())
        known.add(permit)
        self._undo.append(partial(known.discard, permit))
        return permit

    def leave(self, permit: Permit) -> bool:
        """Hand a permit back; False if it was handed back before, or was lost."""
        self.ensure_lease()
        known = self._own.rows.get(permit.row)
        if known is None or permit not in known:
            return False
        known.discard(permit)
        self._undo.append(partial(known.add, permit))
        if permit.worker != self._own.worker:
            return False
        self._find(permit.row).own -= permit.units
        return True

    def ensure_lease(self) -> bool:
        """Make sure that this process has a lease before it takes or leaves permits; renew one that has grown short.

        Returns:
            Whether the lease was over, and permits that ran out were dealt with.
        """
        own = self._own
        own.know_process()
        until_us = self._end_us(own.worker) if own.worker else 0
        if until_us > self._now_us:
            if until_us - self._now_us < own.lease_us // 2:
                self._renew()
            return False
        self._undo.append(partial(setattr, own, "worker", own.worker))
        self._over, own.worker = own.worker, os.urandom(WORKER_BYTES)
        self._rows.clear()
        self._renew()
        if own.rows:
            self._put_back()
        return True

    def renew(self) -> None:
        """Renew the lease of this process, correct rows that say more than it holds, and look for those of the dead."""
        was_over = self.ensure_lease()
        self._renew()
        own = self._own
        for row, permits in list(own.rows.items()):
            for permit in permits:
                if permit.ended:
                    permits.discard(permit)
            self._find(row).own = sum(permit.units for permit in permits if permit.worker == own.worker)
        if not was_over and any(permit.worker != own.worker for permit in own.all()):
            self._put_back()
        self._bury()

    def save(self) -> None:
        """Write what has changed."""
        own = self._own
        if self._lease_us:
            self._undo.append(partial(setattr, own, "ends_us", own.ends_us))
            own.ends_us, self._lease_us = self._lease_us, 0
            self._txn.put(own.worker, _LEASE.pack(ROW_VERSION, own.ends_us), db=self._dbs.workers)
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
            known = own.rows.get(row)
            if known is not None and not found.own and not known:
                self._undo.append(partial(own.rows.__setitem__, row, known))
                del own.rows[row]

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

    def _put_back(self) -> None:
        """Take the permits of a lease that is over again, where there is room; tell how many there were."""
        own, back, lost = self._own, 0, 0
        for permit in own.all():
            if permit.worker == own.worker:
                continue
            found, is_new = self._find(permit.row), permit.worker == self._over
            if found.taken + permit.units <= permit.amount:
                self._undo.append(partial(setattr, permit, "worker", permit.worker))
                permit.worker = own.worker
                found.own += permit.units
                back += 1
            else:
                lost += is_new
        if back or lost:
            message = (
                f"lmdb: {back + lost} places of requests under way had run out, because they were not renewed in time; "
                f"{back} were put back, and others had taken {lost}"
            )
            self._events.append(Event("places_lost", message, {"lost": lost, "back": back}))

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


class LeaseRenewer:
    """Renews the lease, every third of its length, from each event loop that has taken a permit.

    Where no event loop of asyncio runs, each question about permits renews a lease that has less than half its length
    left.

    Args:
        own: The permits of this process.
        renew: Renews the lease; returns an awaitable if that has to wait.
    """

    def __init__(self, own: OwnPermits, renew: Callable[[], Any]) -> None:
        self._own = own
        self._renew = renew
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._usual_s = own.lease_us / RENEWALS / 1_000_000
        self._is_open = True

    def start(self) -> None:
        """Renew from the running event loop as long as there are permits."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop not in self._loops:
            self._loops.add(loop)
            loop.call_later(self._usual_s, self._next, loop)

    def close(self) -> None:
        """Renew no more."""
        self._is_open = False

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_open or not self._own.holds_any():
            self._loops.discard(loop)
            return
        pause_s = self._usual_s
        try:
            answer = self._renew()
        except StoreError:
            pause_s /= AGAIN
        else:
            if isawaitable(answer):
                # The next renewal will tell of an error, if it lasts.
                asyncio.ensure_future(answer).add_done_callback(lambda done: done.cancelled() or done.exception())
                pause_s /= AGAIN
        loop.call_later(pause_s, self._next, loop)
