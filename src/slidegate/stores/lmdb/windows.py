"""The windows of a transaction, as rows of an LMDB environment.

A window's row is found by its key and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    life, then the bytes of the window
    cells     number of the cell, digest                   the same, for keys that share a cell
    strikes   key 0xff digest(policy, window, resolution)  the same, for strikes
    ends      when to check the row again, row             the name of its database, such as `windows`

So all windows of a client are adjacent, usually on one page, and `WindowRows.reset` finds them.

The life is the time after which a row without a hit can be deleted. The row of a quota has its end in its bytes; it
has in this place the Unix time of its last line in the journal, as a negative number, see `quota_lines`.

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
from .journal import Note
from .layout import DUE, Databases, recheck_at, row_of, rows_with, sweep
from .permits import PERMITS
from .quota_lines import HEAD, HEAD_BYTES, QuotaLines, digest_of, quota_fields
from .room import NO_CELLS

WINDOWS: Final = b"windows"
CELLS: Final = b"cells"
STRIKES: Final = b"strikes"
STATS: Final = b"stats"

_CELL: Final = Struct(">H")

Named: TypeAlias = tuple[str, Quota] | None
"""The rule and the quota of a window that has lines in the journal."""


class BoundLimit(NamedTuple):
    """A limit of a bucket.

    Attributes:
        digest: The digest in the names of its rows.
        head: The head of their values.
        limit: The limit.
        named: Its rule, if it is a quota.
        counter: Counts its units.
    """

    digest: bytes
    head: bytes
    limit: AnyLimit
    named: Named
    counter: Counter


Bound: TypeAlias = tuple[BoundLimit, ...]
"""The limits of a bucket."""
Windows: TypeAlias = dict[bytes, bytes]
_Loaded: TypeAlias = tuple[Windows, bytes, bytes, bytes, bool, Named]
"""The mapping of a window, its row, the head of its value, the window as stored, whether the row is new, its rule."""


class WindowRows:
    """The windows in one transaction. Nothing is written before `save`, so read transactions can simulate changes.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        fullness: How full the file is, see `room`.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds, for quotas.
        max_keys: The most windows.
        note: Called with each change that survives a restart of the machine.

    Attributes:
        fullness: How full the file is, see `room`.
        own: The windows of keys that were read or created, by row.
        shared: The windows in shared cells that were read or created, by row.
        shared_until_us: When the units of hits in shared cells leave, in microseconds; 0 without such hits.
    """

    __slots__ = (
        *("_dbs", "_key_count", "_loaded", "_max_keys", "_note", "_now_us", "_txn", "_unix_us"),
        *("fullness", "own", "shared", "shared_until_us"),
    )

    def __init__(
        self, txn: Any, dbs: Databases, fullness: int, now_us: int, unix_us: Clock, max_keys: int, note: Note
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self.fullness = fullness
        self._note = note
        self._now_us = now_us
        self._unix_us = unix_us
        self._max_keys = max_keys
        self._key_count = -1
        self._loaded: list[_Loaded] = []
        self.own: Windows = {}
        self.shared: Windows = {}
        self.shared_until_us = 0

    def find(self, key: str, bound: BoundLimit, create: bool) -> tuple[Windows, bytes]:
        """Return the location of a key's window: its own, else a new one if there is room, else its cell.

        A new window is a copy of the key's cell, because its units there are mixed with those of other keys.

        Args:
            key: The key.
            bound: The limit.
            create: Whether to create a missing window.
        """
        digest, head, limit, named, _ = bound
        row = row_of(key, digest)
        if row in self.own:
            return self.own, row
        stored = self._txn.get(row)  # the default database of `txn` is `windows`
        if stored is not None:
            self._load(self.own, row, head if named is None else stored[:HEAD_BYTES], stored[HEAD_BYTES:], False, named)
            return self.own, row
        number = int.from_bytes(blake2b(row, key=self._dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        cell = _CELL.pack(number) + digest
        if cell not in self.shared:
            stored = self._txn.get(cell, None, self._dbs.cells)
            if stored is not None:
                self._load(self.shared, cell, head, stored[HEAD_BYTES:], False, None)
        if create and self._takes_room():
            self._load(self.own, row, head, b"", True, named)
            self.own[row] = self.shared.get(cell, self.own[row])
            return self.own, row
        if cell not in self.shared:
            if create and self.fullness >= NO_CELLS:
                raise lmdb.MapFullError("it has no room for another shared cell")
            self._load(self.shared, cell, head, b"", True, None)
        if create:
            self.shared_until_us = self._now_us + limit.check_us
        return self.shared, cell

    def changed(self) -> list[_Loaded]:
        """Return the windows that differ from their stored values."""
        return [loaded for loaded in self._loaded if loaded[0][loaded[1]] != loaded[3]]

    def save(self) -> None:
        """Write the windows that have changed."""
        lines: QuotaLines | None = None
        for windows, row, head, before, is_new, named in self.changed():
            if named is not None:
                lines = lines or QuotaLines(self._txn, self._dbs, self._unix_us(), self._note)
                head = lines.head(row, head, before, windows[row], *named)
            stored, is_shared = head + windows[row], windows is self.shared
            self._txn.put(row, stored, db=self._dbs.cells if is_shared else self._dbs.windows)
            if is_new:
                due_us = expires_us(stored, self._now_us, self._unix_us)
                recheck_at(self._txn, self._dbs.ends, due_us, row, CELLS if is_shared else WINDOWS)
        if lines is not None:
            lines.save()

    def reset(self, key: str) -> bool:
        """Forget the units in a key's own windows; return whether there were any."""
        self.save_and_clear()
        had_units = False
        for row, stored in rows_with(self._txn, self._dbs.windows, row_of(key)):
            if len(stored) > HEAD_BYTES:
                had_units |= expires_us(stored, self._now_us, self._unix_us) > self._now_us
                self._txn.put(row, stored[:HEAD_BYTES])
                if HEAD.unpack_from(stored)[0] <= 0:
                    self._note("quota", quota_fields(row, b""))
        return had_units

    def reset_all(self) -> bool:
        """Delete the windows of all keys and all shared cells; return whether there were units in them."""
        self.save_and_clear()
        had_units, databases = False, (self._dbs.windows, self._dbs.cells)
        if any(self._txn.stat(database)["entries"] for database in databases):
            self._note("reset_all", {})
        for database in databases:
            with self._txn.cursor(database) as cursor:
                rows = cursor.iternext(keys=False)
                had_units |= any(expires_us(row, self._now_us, self._unix_us) > self._now_us for row in rows)
            self._txn.drop(database, delete=False)
        return had_units

    def strike(self, bucket: Bucket, key: str, weight: int) -> int | None:
        """See `StrikeWindows`."""
        (limit,) = bucket.limits
        assert isinstance(limit, Limit), "strikes are counted by one limit"
        counter = limit.counter
        row = row_of(key, digest_of(bucket.name, *limit.same_window))
        stored = self._txn.get(row, None, self._dbs.strikes)
        if stored is None and not self._takes_room():
            return None
        window, _ = counter.charge((stored or b"")[HEAD_BYTES:], self._now_us, weight)
        self._txn.put(row, HEAD.pack(counter.terms[2]) + window, db=self._dbs.strikes)
        if stored is None:
            recheck_at(self._txn, self._dbs.ends, self._now_us + limit.check_us, row, STRIKES)
        return counter.state(window, self._now_us)[0]

    def remove_strikes(self, key: str, bucket: Bucket | None = None) -> bool:
        """See `StrikeWindows`."""
        digest = b"" if bucket is None else digest_of(bucket.name, *bucket.limits[0].same_window)
        rows = rows_with(self._txn, self._dbs.strikes, row_of(key, digest))
        for row, _ in rows:
            self._txn.delete(row, b"", self._dbs.strikes)
        self._key_count = -1
        return any(expires_us(stored, self._now_us, self._unix_us) > self._now_us for _, stored in rows)

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
        due_us = expires_us(stored, self._now_us, self._unix_us)
        if row in self.own:  # else a refused key could find others' units in its cell, and wait longer than promised
            due_us = max(due_us, self._now_us + HEAD.unpack_from(stored)[0])
        return due_us

    def _load(self, windows: Windows, row: bytes, head: bytes, window: bytes, is_new: bool, named: Named) -> None:
        """Add a window that was read from its row."""
        windows[row] = window
        self._loaded.append((windows, row, head, window, is_new, named))

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
        named = (bucket.name, limit) if isinstance(limit, Quota) else None
        bound.append(BoundLimit(digest, HEAD.pack(limit.life_us), limit, named, limit.counter_by(unix_us)))
    return remember(memo, bucket, tuple(bound))


def expires_us(stored: bytes, now_us: int, unix_us: Clock) -> int:
    """Return when a row expires if nothing is added to it, in microseconds.

    Args:
        stored: Its value.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds, by which periods end; its clock may have been set since the write.
    """
    (life_us,) = HEAD.unpack_from(stored)
    window = stored[HEAD_BYTES:]
    if not window:
        return 0
    if life_us <= 0:  # the row of a quota
        return now_us + ring.expires_us(window, KEPT_US) - unix_us()
    return ring.expires_us(window, life_us)
