"""The windows and permits of a transaction, as rows of an LMDB environment.

A window's row is found by its key and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    life, then the bytes of the window
    cells     number of the cell, digest                   the same, for keys that share a cell
    strikes   key 0xff digest(policy, window, resolution)  the same, for strikes
    permits   key 0xff digest(rule)                        0, then the entries of all processes, see `core.counters`
    ends      when to check the row again, row             the name of its database, such as `windows`

So all windows of a client are adjacent, usually on one page, and `WindowRows.reset` finds them.

The life is the time after which a row without a hit can be deleted. The row of a quota has its end in its bytes, and 0
in this place. It survives a restart of the machine, see `kept`.

`ends` is an index by time. A row gets an entry when it is first written, and hits do not move the entry. When the entry
is due, the row is checked; if it is still in use, the entry is written again for its new expiry.

Each transaction that changes a row of permits writes the true count of this process, see `leases`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import lmdb

from ...core import ring
from ...core.buckets import Bucket
from ...core.counters import Counter, PermitCounter, apart, ends_us
from ...core.limits import AnyLimit, Limit
from ...core.memo import remember
from ...core.quotas import KEPT_US
from ...core.store import Clock
from ..leases import HeldPermits
from ..shared import cell_of, digest_of
from .counts import Room
from .rows import ALL_WINDOWS, HEAD, NO_LIFE, WINDOWS, TransactionRows, due_us, row_of

CELLS: Final = "cells"
STRIKES: Final = "strikes"
PERMITS: Final = "permits"
WORKER_ROWS: Final = "worker_rows"
RENEWED_AT_ONCE: Final = 64
"""The most rows of permits that are renewed in one transaction, which others wait for."""

HEAD_BYTES: Final = HEAD.size


class BoundLimit(NamedTuple):
    """A limit of a bucket.

    Attributes:
        digest: The digest in the names of its rows.
        head: The head of their values.
        counter: Counts its units.
    """

    digest: bytes
    head: bytes
    counter: Counter


class BoundLimits(dict[Bucket, tuple[BoundLimit, ...]]):
    """The limits of each bucket, made when they are first asked for.

    Args:
        unix_us: The clock of quotas.
    """

    def __init__(self, unix_us: Clock) -> None:
        self._unix_us = unix_us

    def __missing__(self, bucket: Bucket) -> tuple[BoundLimit, ...]:
        bound = []
        for limit in bucket.limits:
            digest = digest_of(bucket.name, *limit.same_window)  # the same for every amount
            bound.append(BoundLimit(digest, HEAD.pack(limit.life_us), limit.counter_by(self._unix_us)))
        return remember(self, bucket, tuple(bound))


Windows: TypeAlias = dict[bytes, bytes]
_Loaded: TypeAlias = tuple[str, Windows, bytes, bytes, bytes]
"""The database of a window, its mapping, its row, its stored value (empty if it is new), and the head of a new one."""


class WindowRows:
    """The windows, those of strikes as `StrikeWindows`, and permits in one transaction; `save` writes them.

    Args:
        rows: The rows of the transaction.
        room: What there is no room for in the file.
        max_keys: The most windows.
        held: The permits of this process.

    Attributes:
        own: The windows of keys that were read or created, by row.
        shared: The windows in shared cells that were read or created, by row.
        permits: The permits of keys that were read or created, by row.
        shares: Whether some keys are counted in shared cells.
    """

    def __init__(self, rows: TransactionRows, room: Room, max_keys: int, held: HeldPermits) -> None:
        self._rows = rows
        self._txn, self._dbs, self._now_us = rows.txn, rows.dbs, rows.now_us
        self._max_keys = max_keys
        self._held = held
        self._room = room
        self._key_count = -1  # not counted yet
        self._loaded: list[_Loaded] = []
        self.own: Windows = {}
        self.shared: Windows = {}
        self.permits: Windows = {}
        self.shares = False

    def find(self, key: str, bound: BoundLimit, *, create: bool) -> tuple[Windows, bytes]:
        """Return the location of a key's window: its own, else a new one if there is room, else its cell.

        A new window is a copy of the key's cell, because its units there are mixed with those of other keys.

        Args:
            create: Whether to create a missing window.
        """
        row = row_of(key, bound.digest)
        if row in self.own:
            return self.own, row
        stored = self._txn.get(row, b"")  # the default database of `txn` is `windows`
        if stored:
            self._load(WINDOWS, self.own, row, stored, bound.head)
            return self.own, row
        cell = cell_of(row, self._dbs.cell_key).to_bytes(2, "big") + bound.digest
        if cell not in self.shared:
            self._load(CELLS, self.shared, cell, self._txn.get(cell, b"", self._dbs.cells), bound.head)
        if not create:
            return self.shared, cell
        if self._takes_room():
            self._load(WINDOWS, self.own, row, b"", bound.head)
            self.own[row] = self.shared[cell]
            return self.own, row
        if self._room >= Room.NO_CELLS and not self.shared[cell]:
            raise lmdb.MapFullError("it has no room for another shared cell")
        self.shares = True
        return self.shared, cell

    def find_permits(self, row: bytes, limit: AnyLimit) -> tuple[PermitCounter, Windows]:
        """Return the counter of this process for a concurrency limit, and the mapping that contains the row of a key.

        What it charges counts at once, and no more if the transaction fails, because its decisions are gone then.
        """
        for due in self._held.due_rows(self._now_us, RENEWED_AT_ONCE):  # where no event loop renews them
            self.renew(due)
        _, _, written = apart(self._permits(row), self._held.worker, self._now_us)
        if written != self._held.units(row):
            self.renew(row)
        return PermitCounter(limit, self._held.worker, self._now_us + self._held.lease_us), self.permits

    def renew(self, row: bytes) -> None:
        """Write how many permits of a row this process has, for a full lease from now."""
        self.permits[row] = self._held.renewed(row, self._permits(row), self._now_us)

    def _permits(self, row: bytes) -> bytes:
        """Return the permits of a key."""
        if row not in self.permits:
            self._load(PERMITS, self.permits, row, self._txn.get(row, b"", self._dbs.permits), NO_LIFE)
        return self.permits[row]

    def save(self) -> None:
        """Write the windows and permits that have changed."""
        for kind, windows, row, stored, head in self._loaded:
            window = windows[row]
            if window == stored[HEAD_BYTES:]:
                continue
            database = getattr(self._dbs, kind)
            if head == NO_LIFE:  # permits, or a quota
                if kind == WINDOWS:
                    self._rows.note(WINDOWS, row)
                elif kind == PERMITS and not window:
                    self._txn.delete(row, b"", database)
                    continue
                elif kind == PERMITS and not stored and self._room >= Room.NO_CELLS:
                    raise lmdb.MapFullError("it has no room for permits of another key")
            self._txn.put(row, head + window, db=database)
            if not stored:
                self._rows.recheck_at(self._dbs.ends, self._expires_us(kind, head + window), row, kind)

    def reset(self, key: str, names: tuple[bytes, ...] = ()) -> bool:
        """Forget the units in a key's own windows; return whether there were any.

        Args:
            names: The `name_digest` of each bucket; by default all.
        """
        self.save_and_clear()
        had_units = False
        first = row_of(key)
        for row, stored in self._rows.starting_with(first, self._dbs.windows):
            if len(stored) > HEAD_BYTES and row.startswith(names or b"", len(first)):
                had_units |= self._expires_us(WINDOWS, stored) > self._now_us
                self._txn.put(row, stored[:HEAD_BYTES])
                if stored.startswith(NO_LIFE):
                    self._rows.note(WINDOWS, row)
        return had_units

    def reset_all(self) -> bool:
        """Delete the windows of all keys and all shared cells; return whether there were units in them."""
        self.save_and_clear()
        had_units = False
        self._rows.noted.append(ALL_WINDOWS)
        for database in (self._dbs.windows, self._dbs.cells):
            with self._txn.cursor(database) as cursor:
                rows = cursor.iternext(keys=False)
                had_units |= any(self._expires_us(WINDOWS, row) > self._now_us for row in rows)
            self._txn.drop(database, delete=False)
        return had_units

    def strike(self, bucket: Bucket, key: str, weight: int) -> int | None:
        (limit,) = bucket.limits
        assert isinstance(limit, Limit), "strikes are counted by one limit"
        row, counter = row_of(key, digest_of(bucket.name, *limit.same_window)), limit.counter
        stored = self._txn.get(row, b"", self._dbs.strikes)
        if not stored and not self._takes_room():
            return None
        window, _ = counter.charge(stored[HEAD_BYTES:], self._now_us, weight)
        self._txn.put(row, HEAD.pack(limit.life_us) + window, db=self._dbs.strikes)
        if not stored:
            self._rows.recheck_at(self._dbs.ends, self._now_us + limit.check_us, row, STRIKES)
        return counter.spend(window, self._now_us, 0)[1][0]

    def remove_strikes(self, key: str, bucket: Bucket | None = None) -> bool:
        digest = b""
        if bucket is not None:
            digest = digest_of(bucket.name, *bucket.limits[0].same_window)
        rows = self._rows.starting_with(row_of(key, digest), self._dbs.strikes)
        for row, _ in rows:
            self._txn.delete(row, b"", self._dbs.strikes)
        self._key_count = -1
        return any(self._expires_us(STRIKES, stored) > self._now_us for _, stored in rows)

    def count(self) -> int:
        """Return how many windows there are, without cells."""
        windows, strikes = self._txn.stat(self._dbs.windows), self._txn.stat(self._dbs.strikes)
        return int(windows["entries"] + strikes["entries"])

    def sweep(self, max_count: int) -> bool:
        """Check at most `max_count` rows that are due, and delete those that have expired; return whether more are."""
        return self._rows.check_due(self._dbs.ends, self._now_us, max_count, self._due_us)

    def _due_us(self, kind: str, row: bytes, stored: bytes) -> int:
        """Return when a row may have expired."""
        if kind == WORKER_ROWS:
            return due_us(stored)
        expires_us = self._expires_us(kind, stored)
        if row in self.own:  # else a refused key could find others' units in its cell, and wait longer than promised
            expires_us = max(expires_us, self._now_us + HEAD.unpack_from(stored)[0])
        return expires_us

    def _expires_us(self, kind: str, stored: bytes) -> int:
        """Return when a row expires if nothing is added to it, in microseconds, given its value."""
        life_us, window = HEAD.unpack_from(stored)[0], stored[HEAD_BYTES:]
        if kind == PERMITS:
            return ends_us(window)
        if life_us > 0:
            return ring.expires_us(window, life_us)
        # A quota ends by Unix time, whose clock may have been set since the write.
        return self._now_us + ring.expires_us(window, KEPT_US) - self._rows.unix_us()

    def _load(self, kind: str, windows: Windows, row: bytes, stored: bytes, head: bytes) -> None:
        """Add a window, given the value of its row."""
        windows[row] = stored[HEAD_BYTES:]
        self._loaded.append((kind, windows, row, stored, head))

    def save_and_clear(self) -> None:
        """Write all changes, and discard the loaded windows."""
        self.save()
        self._key_count = -1
        self._loaded.clear()
        for windows in (self.own, self.shared, self.permits):
            windows.clear()

    def _takes_room(self) -> bool:
        """Reserve room for a window; return whether there is any."""
        if self._key_count < 0:
            self._key_count = self.count()
        if self._room is not Room.PLENTY or self._key_count >= self._max_keys:
            return False
        self._key_count += 1
        return True
