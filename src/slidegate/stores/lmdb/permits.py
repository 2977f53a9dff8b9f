"""The permits of concurrency limits that requests hold in LMDB, and the lease under which a process holds them.

    permits   key 0xff digest(rule)     version, then for each worker that holds permits its name, how many, until when

All permits of a worker last until one moment of the host's clock. It renews them every third of a lease, by writing
that moment and their true number into each row in which it holds any::

    renewed  ^     ^     ^           then the worker is killed
    lease                |------- 10 s -------|
    permits  taken ---------------------------| free

What a row says of a worker after that moment counts for nobody, and leaves the row when it is written next; a row in
which nobody holds any is deleted, and one that nobody asks for is found by its entry in `ends`. What it says of this
worker counts only if it is as of the last renewal: nothing was under way there at that time, or the worker was stopped
for so long that others may have taken its permits. Then they are lost.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Final

import lmdb

from ...core.concurrency import PERMITS
from ...core.reservation import Permit
from ..leases import WORKER_BYTES, HeldPermits, permits_lost
from .environment import NO_ROWS
from .layout import PERMITS as PERMIT_ROW
from .layout import due_row

if TYPE_CHECKING:
    from .windows import Transaction

ROW_VERSION: Final = 2

_VERSION: Final = bytes((ROW_VERSION,))
_HOLDER: Final = Struct(f"={WORKER_BYTES}sIq")


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


class _Row:
    """A row in a transaction: the permits of others, how many this process holds, and the row as it was read."""

    __slots__ = ("others", "own", "stored")

    def __init__(self, others: list[tuple[bytes, int, int]], own: int, stored: bytes) -> None:
        self.others = others
        self.own = own
        self.stored = stored

    @property
    def taken(self) -> int:
        return self.own + sum(units for _, units, _ in self.others)


class PermitRows:
    """The permits in one transaction. Nothing is written before `save`.

    Args:
        transaction: The transaction.
        own: The permits of this process.
    """

    def __init__(self, transaction: Transaction, own: OwnPermits) -> None:
        self._txn = transaction.txn
        self._dbs = transaction.dbs
        self._now_us = transaction.now_us
        self._undo = transaction.undo
        self._events = transaction.events
        self._has_room = transaction.fullness < NO_ROWS
        self._own = own
        self._rows: dict[bytes, _Row] = {}
        self._windows: dict[bytes, bytes] = {}  # for the core

    def window(self, row: bytes, takes: bool) -> tuple[dict[bytes, bytes], bytes]:
        """Return where the core finds how many permits of a row are taken, for one question."""
        if takes:
            self.ensure_lease()
            taken = self._find(row).taken
        else:
            taken = sum(units for _, units, _ in self._holders(self._read(row)))
        self._windows[row] = PERMITS.pack(taken)
        return self._windows, row

    def take(self, row: bytes, amount: int, units: int) -> Permit:
        """Take permits for which the core has found room, after `ensure_lease`.

        Raises:
            lmdb.MapFullError: The file has no room for another row.
        """
        entry = self._find(row)
        if not (entry.stored or self._has_room):
            raise lmdb.MapFullError("it has no room for permits of another key; raise max_map_size")
        entry.own += units
        permit = Permit(row, amount, units)
        self._own.add(permit)
        self._undo.append(partial(self._own.discard, permit))
        return permit

    def leave(self, permit: Permit) -> bool:
        """Hand a permit back; False if it was handed back before, or was lost."""
        self.ensure_lease()
        own = self._own
        if permit not in own:
            return False
        own.discard(permit)
        self._undo.append(partial(own.add, permit))
        if permit.lost:
            return False
        self._find(permit.row).own -= permit.units
        return True

    def ensure_lease(self) -> None:
        """Renew the permits of this process if they do not last for half of a lease, before any is taken or left."""
        own = self._own
        own.enter_process()
        if own.until_us - self._now_us < own.lease_us // 2:
            self.renew()

    def renew(self) -> None:
        """Let the permits of requests under way last for a lease from now; those that have run out are lost."""
        own = self._own
        own.enter_process()
        was_over = own.until_us <= self._now_us
        self._undo.append(partial(setattr, own, "until_us", own.until_us))
        own.until_us = self._now_us + own.lease_us
        held, missing = dict.fromkeys(self._rows, 0), list[Permit]()
        for permit in own.under_way():
            renewed = not (permit.lost or was_over)
            held[permit.row] = held.get(permit.row, 0) + renewed * permit.units
            if not renewed:
                missing.append(permit)
        for row, units in held.items():
            self._find(row).own = units
        if missing:
            self._lose(missing)

    def save(self) -> None:
        """Write what has changed."""
        own = self._own
        for row, entry in self._rows.items():
            holders = [*entry.others, (own.worker, entry.own, own.until_us)] if entry.own else entry.others
            packed = _VERSION + b"".join(_HOLDER.pack(*holder) for holder in holders) if holders else b""
            if packed and packed != entry.stored:
                self._txn.put(row, packed, db=self._dbs.permits)
                if not entry.stored:
                    self._txn.put(due_row(own.until_us, row), PERMIT_ROW, db=self._dbs.ends)
            elif entry.stored and not packed:
                self._txn.delete(row, b"", self._dbs.permits)
                self._txn.delete(due_row(own.until_us, row), b"", self._dbs.ends)
            entry.stored = packed

    def ends_us(self, row: bytes) -> int:
        """Return when the permits of a row run out that are not renewed; 0 if there are none."""
        return max((until_us for _, _, until_us in self._holders(self._read(row))), default=0)

    def _read(self, row: bytes) -> bytes:
        return self._txn.get(row, None, self._dbs.permits) or b""

    def _holders(self, stored: bytes) -> list[tuple[bytes, int, int]]:
        """Return who holds permits now, how many, and until when."""
        if stored[:1] != _VERSION:
            return []
        return [holder for holder in _HOLDER.iter_unpack(stored[1:]) if holder[2] > self._now_us]

    def _find(self, row: bytes) -> _Row:
        entry = self._rows.get(row)
        if entry is None:
            stored, own = self._read(row), self._own
            holders = self._holders(stored)
            others = [holder for holder in holders if holder[0] != own.worker]
            held = sum(units for worker, units, until_us in holders if (worker, until_us) == (own.worker, own.until_us))
            entry = self._rows[row] = _Row(others, held, stored)
        return entry

    def _lose(self, permits: list[Permit]) -> None:
        """Record that permits have run out, and tell how many there are of which that was not known."""
        lost = [permit for permit in permits if not permit.lost]
        for permit in lost:
            permit.lost = True
            self._undo.append(partial(setattr, permit, "lost", False))
        if lost:
            self._events.append(permits_lost("lmdb", len(lost)))
