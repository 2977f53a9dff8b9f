"""The windows of a transaction, as rows of an LMDB environment.

A window's row is found by its key and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    version, life, then the bytes of the window
    cells     number of the cell, digest                   the same, for keys that share a cell
    ends      when to check the row again, row             the database of the row: `windows`, `cells` or `permits`

So all windows of a client are adjacent, usually on one page, and `WindowRows.reset` finds them.

A row of another version is ignored, and the next hit of its key overwrites it. The life is the longest time that a unit
counts, and 0 for the count of a quota; it tells code that does not know the limit when the row expires.

`ends` is an index by time. A row gets an entry when it is first written, and hits do not move the entry. When the entry
is due, the row is checked; if it is still in use, the entry is written again for its new expiry.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any, Final, TypeAlias

import lmdb

from ...core import ring
from ...core.decision import Bucket
from ...core.limits import AnyLimit
from ...core.memo import remember
from ...core.quotas import KEPT_US
from ...core.store import Clock
from ..shared import SHARED_CELLS
from . import permits
from .environment import NO_ROWS, Environment
from .layout import look_later, row_of, rows_with, sweep

ROW_VERSION: Final = 5
"""If it changes, `layout.SCHEMA_VERSION` has to change, too."""
HEAD: Final = Struct("=Bq")
HEAD_BYTES: Final = HEAD.size
WINDOWS: Final = b"windows"
CELLS: Final = b"cells"

_CELL: Final = Struct(">H")

Bound: TypeAlias = tuple[tuple[bytes, bytes, AnyLimit], ...]
"""For each limit of a bucket: the digest in the names of its rows, the head of their values, and the limit."""
Windows: TypeAlias = dict[bytes, bytes]
_Loaded: TypeAlias = tuple[Windows, bytes, bytes, bytes, bool]
"""The mapping of a window, its row, the head of its value, the window as stored, and whether the row is new."""


class WindowRows:
    """The windows in one transaction. Nothing is written before `save`, so read transactions can simulate changes.

    Args:
        txn: LMDB's transaction.
        env: The environment.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds, for quotas.
        max_keys: The most windows.

    Attributes:
        own: The windows of keys that were read or created, by row.
        shared: The windows in shared cells that were read or created, by row.
        shared_hits: How many hits were counted in shared cells.
        shared_until_us: When the units of these hits leave, in microseconds.
    """

    __slots__ = (
        *("_dbs", "_fullness", "_key_count", "_loaded", "_max_keys", "_now_us", "_txn", "_unix_us"),
        *("own", "shared", "shared_hits", "shared_until_us"),
    )

    def __init__(self, txn: Any, env: Environment, now_us: int, unix_us: Clock, max_keys: int) -> None:
        self._txn = txn
        self._dbs = env.dbs
        self._fullness = env.fullness
        self._now_us = now_us
        self._unix_us = unix_us
        self._max_keys = max_keys
        self._key_count = -1
        self._loaded: list[_Loaded] = []
        self.own: Windows = {}
        self.shared: Windows = {}
        self.shared_hits = self.shared_until_us = 0

    def find(self, key: str, bound: tuple[bytes, bytes, AnyLimit], makes: bool) -> tuple[Windows, bytes]:
        """Return the location of a key's window: its own, else a new one if there is room, else its cell.

        A new window is a copy of the key's cell, because its units there are mixed with those of other keys.

        Args:
            key: The key.
            bound: The limit.
            makes: Whether to create a missing window.
        """
        digest, head, limit = bound
        row = row_of(key, digest)
        if row in self.own:
            return self.own, row
        stored = self._txn.get(row)  # the default database of `txn` is `windows`
        if stored is not None and stored[0] == ROW_VERSION:
            self._load(self.own, row, head, stored[HEAD_BYTES:])
            return self.own, row
        number = int.from_bytes(blake2b(row, key=self._dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        cell = _CELL.pack(number) + digest
        if cell not in self.shared:
            stored = self._txn.get(cell, None, self._dbs.cells)
            if stored is not None and stored[0] == ROW_VERSION:
                self._load(self.shared, cell, head, stored[HEAD_BYTES:])
        if makes and self._takes_room():
            self._load(self.own, row, head, b"", is_new=True)
            self.own[row] = self.shared.get(cell, self.own[row])
            return self.own, row
        if cell not in self.shared:
            if makes and self._fullness >= NO_ROWS:
                raise lmdb.MapFullError("it has no room for another shared cell; raise max_map_size")
            self._load(self.shared, cell, head, b"", is_new=True)
        if makes:
            self.shared_hits += 1
            self.shared_until_us = limit.leaves_us(self._now_us)
        return self.shared, cell

    def changed(self) -> list[_Loaded]:
        """Return the windows that differ from their stored values."""
        return [loaded for loaded in self._loaded if loaded[0][loaded[1]] != loaded[3]]

    def save(self) -> None:
        """Write the windows that have changed."""
        for windows, row, head, _, is_new in self.changed():
            stored, is_shared = head + windows[row], windows is self.shared
            self._txn.put(row, stored, db=self._dbs.cells if is_shared else self._dbs.windows)
            if is_new:
                due_us = expires_us(stored, self._now_us, self._unix_us)
                look_later(self._txn, self._dbs.ends, due_us, row, CELLS if is_shared else WINDOWS)

    def reset(self, key: str) -> bool:
        """Forget the units in a key's own windows; return whether there were any."""
        self._save_and_clear()
        had_units = False
        for row, stored in rows_with(self._txn, self._dbs.windows, row_of(key)):
            if stored[0] == ROW_VERSION and len(stored) > HEAD_BYTES:
                had_units |= expires_us(stored, self._now_us, self._unix_us) > self._now_us
                self._txn.put(row, stored[:HEAD_BYTES])
        return had_units

    def reset_all(self) -> bool:
        """Delete the windows of all keys and all shared cells; return whether there were any."""
        self._save_and_clear()
        databases = self._dbs.windows, self._dbs.cells
        had_windows = any(self._txn.stat(database)["entries"] for database in databases)
        for database in databases:
            self._txn.drop(database, delete=False)
        return had_windows

    def sweep(self, max_count: int) -> tuple[int, bool]:
        """Check rows that are due, and delete those that have expired.

        Args:
            max_count: The most rows to check.

        Returns:
            How many windows were deleted, without cells; and whether no other row is due.
        """
        deleted, more = sweep(self._txn, self._dbs, self._dbs.ends, self._now_us, max_count, self._due_us)
        return deleted.count(WINDOWS), not more

    def _due_us(self, kind: bytes, row: bytes, stored: bytes) -> int:
        """Return when a row may have expired."""
        if kind == permits.PERMITS:
            return permits.ends_us(stored)
        if stored[0] != ROW_VERSION:
            return 0
        due_us = expires_us(stored, self._now_us, self._unix_us)
        if row in self.own:  # else a refused key could find others' units in its cell, and wait longer than promised
            due_us = max(due_us, self._now_us + HEAD.unpack_from(stored)[1])
        return due_us

    def _load(self, windows: Windows, row: bytes, head: bytes, window: bytes, is_new: bool = False) -> None:
        """Add a window that was read from its row."""
        windows[row] = window
        self._loaded.append((windows, row, head, window, is_new))

    def _save_and_clear(self) -> None:
        """Write all changes, and discard the loaded windows."""
        self.save()
        self._loaded.clear()
        self.own.clear()
        self.shared.clear()
        self._key_count = -1

    def _takes_room(self) -> bool:
        """Reserve room for a window; return whether there is any."""
        if self._key_count < 0:
            self._key_count = self._txn.stat(self._dbs.windows)["entries"]
        if self._fullness or self._key_count >= self._max_keys:
            return False
        self._key_count += 1
        return True


def bind(bucket: Bucket, memo: dict[Bucket, Bound]) -> Bound:
    """Compute the `Bound` of a bucket, and store it in a memo."""
    bound = []
    for limit in bucket.limits:
        name = "\n".join((bucket.name, *map(str, limit.same_window)))  # the same for every amount
        digest = blake2b(name.encode(), digest_size=8).digest()
        bound.append((digest, HEAD.pack(ROW_VERSION, limit.life_us), limit))
    return remember(memo, bucket, tuple(bound))


def expires_us(stored: bytes, now_us: int, unix_us: Clock) -> int:
    """Return when a row expires if nothing is added to it, in microseconds.

    Args:
        stored: Its value.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds, by which periods end; its clock may have been set since the write.
    """
    _, life_us = HEAD.unpack_from(stored)
    window = stored[HEAD_BYTES:]
    if not window:
        return 0
    if not life_us:
        return now_us + ring.expires_us(window, KEPT_US) - unix_us()
    return ring.expires_us(window, life_us)
