"""The windows of a transaction, as rows of an LMDB environment.

A window's row is found by its key and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    version, life, then the window as the core makes it
    cells     number of the cell, digest                   the same, for keys that share a cell
    ends      when to look at it again, row                what the row is of: `windows`, `cells` or `permits`

So all windows of a client lie side by side, mostly on one page, and `WindowRows.reset` finds them.

A row of another version is no window: nobody reads it, and the next hit of its key overwrites it. The life
is how long a unit counts at most, and 0 for the count of a quota: for those who do not know the limit of a row.

`ends` is the index by time. A row gets an entry there when it is first written, and hits do not move the entry. When
its time comes, the row is looked at; if it is still in use, the entry is written again for its new expiry.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any, Final, TypeAlias

import lmdb

from ...core import ring
from ...core.decision import LimitSet
from ...core.limits import AnyLimit, Limit
from ...core.memo import remember
from ...core.quotas import KEPT_US, Quota, end_us
from ...core.store import Clock
from ..shared import SHARED_CELLS
from . import permits
from .environment import NO_ROWS, Environment
from .layout import RESET, look_later, row_of, rows_with, sweep

ROW_VERSION: Final = 3
"""A change of it raises `layout.SCHEMA_VERSION` too."""
HEAD: Final = Struct("=Bq")
HEAD_BYTES: Final = HEAD.size
WINDOWS: Final = b"windows"
CELLS: Final = b"cells"

_CELL: Final = Struct(">H")
_MOMENT: Final = Struct("=q")
_ANY_LIMIT: Final = Limit(2, "400 days", resolution=1)
_ANY_QUOTA: Final = Quota("1/day")
"""To reset windows of unknown limits: from this ring nothing leaves, and nothing is ahead of now."""

Bound: TypeAlias = tuple[tuple[bytes, bytes, AnyLimit], ...]
"""The limits of a bucket: the digest that, with a key, names a window; what its row begins with; and the limit."""
Windows: TypeAlias = dict[bytes, bytes]
_Loaded: TypeAlias = tuple[Windows, bytes, bytes, bytes, bool]
"""Where a window is, its row, the head of its value, the window as it is stored, and whether the row is new."""


class WindowRows:
    """The windows in one transaction. Nothing is written before `save`, so one that only reads may try anything out.

    Args:
        txn: LMDB's transaction.
        env: The environment.
        now_us: The store's time.
        unix_us: Returns Unix time in microseconds, which quotas go by.
        max_keys: How many windows to hold.

    Attributes:
        own: The windows of keys that were read or made, by row.
        shared: The windows in shared cells that were read or made, by row.
        shared_hits: How many hits were counted in shared cells.
        shared_until_us: When those units leave.
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
        """Return where `key` is counted: in its own window, else in a new one if there is room, else in its cell.

        A new window is a copy of the key's cell, because its units there are mixed with those of other keys.

        Args:
            key: The key.
            bound: The limit.
            makes: Whether the key gets a new window.
        """
        digest, head, limit = bound
        row = row_of(key, digest)
        if row in self.own:
            return self.own, row
        stored = self._txn.get(row)  # `txn` reads `windows` unless told otherwise
        if stored is not None and stored[0] == ROW_VERSION:
            self._load(self.own, row, head, limit, stored[HEAD_BYTES:])
            return self.own, row
        number = int.from_bytes(blake2b(row, key=self._dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        cell = _CELL.pack(number) + digest
        if cell not in self.shared:
            stored = self._txn.get(cell, None, self._dbs.cells)
            if stored is not None and stored[0] == ROW_VERSION:
                self._load(self.shared, cell, head, limit, stored[HEAD_BYTES:])
        if makes and self._takes_room():
            self._load(self.own, row, head, limit, b"", is_new=True)
            self.own[row] = self.shared.get(cell, self.own[row])
            return self.own, row
        if cell not in self.shared:
            if makes and self._fullness >= NO_ROWS:
                raise lmdb.MapFullError("it has no room for another shared cell; raise max_map_size")
            self._load(self.shared, cell, head, limit, b"", is_new=True)
        if makes:
            self.shared_hits += 1
            self.shared_until_us = limit.leaves_us(self._now_us)
        return self.shared, cell

    def changed(self) -> list[_Loaded]:
        """Return the windows that are not as they are stored."""
        return [loaded for loaded in self._loaded if loaded[0][loaded[1]] != loaded[3]]

    def save(self) -> None:
        """Write what has changed."""
        for windows, row, head, _, is_new in self.changed():
            stored, is_shared = head + windows[row], windows is self.shared
            self._txn.put(row, stored, db=self._dbs.cells if is_shared else self._dbs.windows)
            if is_new:
                due_us = expires_us(stored, self._now_us, self._unix_us)
                look_later(self._txn, self._dbs.ends, due_us, row, CELLS if is_shared else WINDOWS)

    def reset(self, key: str, latest_us: int) -> bool:
        """Forget what a key has spent in windows of its own; return whether that was anything.

        The windows stay for their life, and remember that nothing of before can be handed back.
        """
        self._begin_anew()
        had_units = False
        for row, stored in rows_with(self._txn, self._dbs.windows, row_of(key)):
            version, life_us = HEAD.unpack_from(stored)
            window, limit = stored[HEAD_BYTES:], _ANY_LIMIT if life_us else _ANY_QUOTA
            if version == ROW_VERSION and window:
                lasts = expires_us(stored, self._now_us, self._unix_us) > self._now_us
                had_units |= lasts and limit.counter.state(window)[0] > 0
                empty = limit.counter.reset(window, self._now_us, latest_us)
                self._txn.put(row, stored[:HEAD_BYTES] + empty)
        return had_units

    def reset_all(self, latest_us: int) -> bool:
        """Forget the windows of all keys and what is in cells; return whether there were any."""
        self._begin_anew()
        databases = self._dbs.windows, self._dbs.cells
        had_windows = any(self._txn.stat(database)["entries"] for database in databases)
        for database in databases:
            self._txn.drop(database, delete=False)
        if had_windows:
            # Where the clock has stepped back, charges lie ahead of now.
            self._txn.put(RESET, _MOMENT.pack(max(latest_us, self._now_us)), db=self._dbs.meta)
        return had_windows

    def reset_us(self) -> int:
        """Return when everything was reset, -1 for never: nothing that was charged up to then is handed back."""
        moment = self._txn.get(RESET, None, self._dbs.meta)
        return -1 if moment is None else int(_MOMENT.unpack(moment)[0])

    def sweep(self, max_count: int) -> tuple[int, bool]:
        """Look at rows whose time has come, and delete those that hold nothing.

        Args:
            max_count: How many to look at.

        Returns:
            How many windows of keys were deleted; and whether no other row's time has come.
        """
        deleted, more = sweep(self._txn, self._dbs, self._dbs.ends, self._now_us, max_count, self._due_us)
        return deleted.count(WINDOWS), not more

    def _due_us(self, kind: bytes, row: bytes, stored: bytes) -> int:
        """Return when a row may hold nothing any more."""
        if kind == permits.PERMITS:
            return permits.ends_us(stored)
        if stored[0] != ROW_VERSION:
            return 0
        due_us = expires_us(stored, self._now_us, self._unix_us)
        if row in self.own:  # a key that was told to wait would else find what others spent in its cell
            due_us = max(due_us, self._now_us + HEAD.unpack_from(stored)[1])
        return due_us

    def _load(
        self, windows: Windows, row: bytes, head: bytes, limit: AnyLimit, window: bytes, is_new: bool = False
    ) -> None:
        """Take a window in as it was read, that of a quota in the period of now."""
        before = window
        if isinstance(limit, Quota):
            window = limit.enter(before, self._now_us, self._unix_us())
            if is_new or limit.mark(window) == limit.mark(before):
                before = window  # a later moment of a period is nothing to write
        windows[row] = window
        self._loaded.append((windows, row, head, before, is_new))

    def _begin_anew(self) -> None:
        """Write what has changed, and know no window any more."""
        self.save()
        self._loaded.clear()
        self.own.clear()
        self.shared.clear()
        self._key_count = -1

    def _takes_room(self) -> bool:
        """Take room for a window, and return whether there is any."""
        if self._key_count < 0:
            self._key_count = self._txn.stat(self._dbs.windows)["entries"]
        if self._fullness or self._key_count >= self._max_keys:
            return False
        self._key_count += 1
        return True


def bind(bucket: LimitSet, memo: dict[LimitSet, Bound]) -> Bound:
    """Work out the limits of a bucket, and put them into a memo."""
    bound = []
    for limit in bucket.limits:
        name = "\n".join((bucket.rule, *map(str, limit.same_window)))  # whatever the amount
        digest = blake2b(name.encode(), digest_size=8).digest()
        bound.append((digest, HEAD.pack(ROW_VERSION, limit.life_us), limit))
    return remember(memo, bucket, tuple(bound))


def expires_us(stored: bytes, now_us: int, unix_us: Clock) -> int:
    """Return when a row holds nothing any more, if nothing is added to it.

    Args:
        stored: Its value.
        now_us: The store's time.
        unix_us: Returns Unix time. That clock may have been set since, and a period ends by it.
    """
    _, life_us = HEAD.unpack_from(stored)
    window = stored[HEAD_BYTES:]
    if not window:
        return 0
    if not life_us:
        return now_us + end_us(window) + KEPT_US - unix_us()
    return ring.expires_us(window, life_us)
