"""The windows of a transaction, as rows of an LMDB environment.

A window's row is found by its key and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    life, then the bytes of the window
    cells     number of the cell, digest                   the same, for keys that share a cell
    strikes   key 0xff digest(policy, window, resolution)  the same, for strikes
    ends      when to check the row again, row             the name of its database, such as `windows`

So all windows of a client are adjacent, usually on one page, and `WindowRows.reset` finds them.

The life is the time after which a row without a hit can be deleted. The row of a quota has its end in its bytes; it
has in this place the Unix time of its last line in the journal, as a negative number, see `kept_rows`.

`ends` is an index by time. A row gets an entry when it is first written, and hits do not move the entry. When the entry
is due, the row is checked; if it is still in use, the entry is written again for its new expiry.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from ...core import concurrency, ring
from ...core.decide import Counter
from ...core.decision import Bucket
from ...core.limits import AnyLimit, Limit
from ...core.memo import remember
from ...core.quotas import KEPT_US, Quota
from ...core.store import Clock
from ..shared import SHARED_CELLS
from .counts import NO_CELLS
from .journal import Noted
from .kept_rows import HEAD, HEAD_BYTES, digest_of, is_line_due, quota_fields
from .layout import DUE, Databases, recheck_at, row_of, rows_with, sweep
from .permits import PERMITS

WINDOWS: Final = b"windows"
CELLS: Final = b"cells"
STRIKES: Final = b"strikes"
STATS: Final = b"stats"

_CELL: Final = Struct(">H")


class BoundLimit(NamedTuple):
    """A limit of a bucket.

    Attributes:
        digest: The digest in the names of its rows.
        head: The head of their values; a quota has others for windows of their own.
        rule: The name of the bucket.
        limit: The limit.
        counter: Counts its units.
    """

    digest: bytes
    head: bytes
    rule: str
    limit: AnyLimit
    counter: Counter


Bound: TypeAlias = tuple[BoundLimit, ...]
"""The limits of a bucket."""
Windows: TypeAlias = dict[bytes, bytes]
_Loaded: TypeAlias = tuple[Windows, bytes, bytes, BoundLimit]
"""The mapping of a window, its row, its stored value (empty if it is new), and its limit."""


class WindowRows:
    """The windows in one transaction. Nothing is written before `save`, so read transactions can simulate changes.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        fullness: How full the file is, see `counts`.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds, for quotas.
        max_keys: The most windows.
        noted: Receives the changes that survive a restart of the machine.

    Attributes:
        fullness: How full the file is, see `counts`.
        own: The windows of keys that were read or created, by row.
        shared: The windows in shared cells that were read or created, by row.
        shares: Whether some keys are counted in shared cells.
    """

    __slots__ = (
        *("_dbs", "_key_count", "_loaded", "_max_keys", "_noted", "_now_us", "_txn", "_unix_us"),
        *("fullness", "own", "shared", "shares"),
    )

    def __init__(
        self, txn: Any, dbs: Databases, fullness: int, now_us: int, unix_us: Clock, max_keys: int, noted: Noted
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self.fullness = fullness
        self._noted = noted
        self._now_us = now_us
        self._unix_us = unix_us
        self._max_keys = max_keys
        self._key_count = -1
        self._loaded: list[_Loaded] = []
        self.own: Windows = {}
        self.shared: Windows = {}
        self.shares = False

    def find(self, key: str, bound: BoundLimit, create: bool) -> tuple[Windows, bytes]:
        """Return the location of a key's window: its own, else a new one if there is room, else its cell.

        A new window is a copy of the key's cell, because its units there are mixed with those of other keys.

        Args:
            key: The key.
            bound: The limit.
            create: Whether to create a missing window.
        """
        row = row_of(key, bound.digest)
        if row in self.own:
            return self.own, row
        stored = self._txn.get(row, b"")  # the default database of `txn` is `windows`
        if stored:
            return self._load(self.own, row, stored, bound)
        number = int.from_bytes(blake2b(row, key=self._dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        cell = _CELL.pack(number) + bound.digest
        stored = b"" if cell in self.shared else self._txn.get(cell, b"", self._dbs.cells)
        if stored:
            self._load(self.shared, cell, stored, bound)
        if create and self._takes_room():
            self._load(self.own, row, b"", bound)
            self.own[row] = self.shared.get(cell, b"")
            return self.own, row
        if cell not in self.shared:
            if create and self.fullness >= NO_CELLS:
                raise lmdb.MapFullError("it has no room for another shared cell")
            self._load(self.shared, cell, b"", bound)
        self.shares |= create
        return self.shared, cell

    def save(self) -> None:
        """Write the windows that have changed."""
        for windows, row, before, (_, head, rule, limit, _) in self._loaded:
            window, is_shared = windows[row], windows is self.shared
            if window == before[HEAD_BYTES:]:
                continue
            if isinstance(limit, Quota) and not is_shared:
                head, unix_us = before[:HEAD_BYTES] or head, self._unix_us()
                if is_line_due(self._txn, self._dbs, unix_us, before, window, limit.amount):
                    head = HEAD.pack(-unix_us)
                    # Rule and period are for versions that name rows in another way.
                    self._noted.append(("quota", {**quota_fields(row), "rule": rule, "period": limit.same_window[1]}))
            self._txn.put(row, head + window, db=self._dbs.cells if is_shared else self._dbs.windows)
            if not before:
                due_us = self._expires_us(head + window)
                recheck_at(self._txn, self._dbs.ends, due_us, row, CELLS if is_shared else WINDOWS)

    def reset(self, key: str) -> bool:
        """Forget the units in a key's own windows; return whether there were any."""
        self.save_and_clear()
        had_units = False
        for row, stored in rows_with(self._txn, self._dbs.windows, row_of(key)):
            if len(stored) > HEAD_BYTES:
                had_units |= self._expires_us(stored) > self._now_us
                self._txn.put(row, stored[:HEAD_BYTES])
                if HEAD.unpack_from(stored)[0] <= 0:
                    self._noted.append(("quota", quota_fields(row)))
        return had_units

    def reset_all(self) -> bool:
        """Delete the windows of all keys and all shared cells; return whether there were units in them."""
        self.save_and_clear()
        had_units = False
        self._noted.append(("reset_all", {}))
        for database in (self._dbs.windows, self._dbs.cells):
            with self._txn.cursor(database) as cursor:
                rows = cursor.iternext(keys=False)
                had_units |= any(self._expires_us(row) > self._now_us for row in rows)
            self._txn.drop(database, delete=False)
        return had_units

    def strike(self, bucket: Bucket, key: str, weight: int) -> int | None:
        """See `StrikeWindows`."""
        (limit,) = bucket.limits
        assert isinstance(limit, Limit), "strikes are counted by one limit"
        row, counter = row_of(key, digest_of(bucket.name, *limit.same_window)), limit.counter
        stored = self._txn.get(row, b"", self._dbs.strikes)
        if not stored and not self._takes_room():
            return None
        window, _ = counter.charge(stored[HEAD_BYTES:], self._now_us, weight)
        self._txn.put(row, HEAD.pack(counter.terms[2]) + window, db=self._dbs.strikes)
        if not stored:
            recheck_at(self._txn, self._dbs.ends, self._now_us + limit.check_us, row, STRIKES)
        return counter.state(window, self._now_us)[0]

    def remove_strikes(self, key: str, bucket: Bucket | None = None) -> bool:
        """See `StrikeWindows`."""
        digest = b"" if bucket is None else digest_of(bucket.name, *bucket.limits[0].same_window)
        rows = rows_with(self._txn, self._dbs.strikes, row_of(key, digest))
        for row, _ in rows:
            self._txn.delete(row, b"", self._dbs.strikes)
        self._key_count = -1
        return any(self._expires_us(stored) > self._now_us for _, stored in rows)

    def count(self) -> int:
        """Return how many windows there are, without cells."""
        return sum(self._txn.stat(database)["entries"] for database in (self._dbs.windows, self._dbs.strikes))

    def sweep(self, max_count: int) -> bool:
        """Check at most `max_count` rows that are due, and delete those that have expired; return whether more are."""
        return sweep(self._txn, self._dbs, self._dbs.ends, self._now_us, max_count, self._due_us)

    def _due_us(self, kind: bytes, row: bytes, stored: bytes) -> int:
        """Return when a row may have expired."""
        if kind == PERMITS:
            return concurrency.ends_us(stored)
        if kind == STATS:
            return int(DUE.unpack_from(stored)[0])
        due_us = self._expires_us(stored)
        if row in self.own:  # else a refused key could find others' units in its cell, and wait longer than promised
            due_us = max(due_us, self._now_us + HEAD.unpack_from(stored)[0])
        return due_us

    def _expires_us(self, stored: bytes) -> int:
        """Return when a row expires if nothing is added to it, in microseconds, given its value."""
        life_us, window = HEAD.unpack_from(stored)[0], stored[HEAD_BYTES:]
        if life_us > 0:
            return ring.expires_us(window, life_us)
        # A quota ends by Unix time, whose clock may have been set since the write.
        return self._now_us + ring.expires_us(window, KEPT_US) - self._unix_us()

    def _load(self, windows: Windows, row: bytes, stored: bytes, bound: BoundLimit) -> tuple[Windows, bytes]:
        """Add a window, given the value of its row; return its location."""
        windows[row] = stored[HEAD_BYTES:]
        self._loaded.append((windows, row, stored, bound))
        return windows, row

    def save_and_clear(self) -> None:
        """Write all changes, and discard the loaded windows."""
        self.save()
        self._loaded.clear()
        self.own.clear()
        self.shared.clear()
        self._key_count = -1

    def _takes_room(self) -> bool:
        """Reserve room for a window; return whether there is any."""
        if self._key_count < 0:
            self._key_count = self.count()
        if self.fullness or self._key_count >= self._max_keys:
            return False
        self._key_count += 1
        return True


def bind(bucket: Bucket, memo: dict[Bucket, Bound], unix_us: Clock) -> Bound:
    """Compute the `Bound` of a bucket in a store with a Unix time, and store it in a memo."""
    bound = []
    for limit in bucket.limits:
        digest = digest_of(bucket.name, *limit.same_window)  # the same for every amount
        head, counter = HEAD.pack(limit.life_us), limit.counter_by(unix_us)
        bound.append(BoundLimit(digest, head, bucket.name, limit, counter))
    return remember(memo, bucket, tuple(bound))
