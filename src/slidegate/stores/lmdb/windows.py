"""The windows in one transaction, as rows of an LMDB environment.

A window's row is found by its key, a byte that no text contains, and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    version, life, then the window as the core makes it
    cells     number of the cell, digest                   the same, for keys that share a cell
    ends      when to look again, row                      what the row is of: a window, a cell, permits, a ban, strikes

So all windows of a client lie side by side, mostly on one page, and `Transaction.reset` finds them.

A row of another version is no window: nobody reads it, and the next hit of its key overwrites it. The life
is how long a unit counts at most, and 0 for the count of a quota: for those who do not know the limit of a row.

`ends` is the index by time. A row gets an entry there when it is first written, and hits do not move the entry. When
its time comes, the row is looked at; if it is still in use, the entry is written again for its new expiry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import lmdb

from ...core import ring
from ...core.decide import WindowRef
from ...core.decision import Check, LimitSet
from ...core.limits import AnyLimit, Limit
from ...core.memo import remember
from ...core.quotas import KEPT_US, Quota, end_us
from ...core.store import Clock, Event
from ..shared import SHARED_CELLS
from . import ban_rows
from .environment import NO_ROWS
from .layout import BAN, CELL, DUE, LIFTED, PERMITS, RESET, STRIKES, WINDOW, due_row
from .permits import PermitRows

if TYPE_CHECKING:
    from .transaction import Transactions

ROW_VERSION: Final = 3
"""A change of it raises `layout.SCHEMA_VERSION` too."""
HEAD: Final = Struct("=Bq")
HEAD_BYTES: Final = HEAD.size

_CELL: Final = Struct(">H")
_MOMENT: Final = Struct("=q")
_BETWEEN: Final = b"\xff"
_ANY_LIMIT: Final = Limit(2, "400 days", resolution=1)
_ANY_QUOTA: Final = Quota("1/day")
"""To reset windows of unknown limits: from this ring nothing leaves, and nothing is ahead of now."""

Bound: TypeAlias = tuple[tuple[bytes, bytes, AnyLimit], ...]
"""The limits of a bucket: the digest that, with a key, names a window; what its row begins with; and the limit."""
_Loaded: TypeAlias = tuple[dict[bytes, bytes], bytes, bytes, bytes, bool]
"""Where a window is, its row, the head of its value, the window as it was read, and whether the row is new."""


class Transaction:
    """One transaction. Nothing is written before `save`, so one that only reads may try anything out.

    Args:
        process: What this process keeps from one transaction to the next.
        txn: LMDB's transaction.
        now_us: The store's time.

    Attributes:
        places: Where the windows of the last question lie.
        cells: The windows in shared cells that were read or made, by row.
        dbs: The databases.
        events: Events to tell once the transaction is committed.
        evictions: How many empty windows were deleted.
        fullness: How full the file is, see `Environment`.
        is_swept: Whether no other window's time has come.
        permits: The permits of concurrency limits in the rows, once they have been asked for.
        now_us: The store's time.
        shared_hits: How many hits were counted in shared cells.
        shared_until_us: When those units leave.
        txn: LMDB's transaction.
        undo: Functions to call if the transaction is not committed.
        windows: The windows of keys that were read or made, by row.
    """

    def __init__(self, process: Transactions, txn: Any, now_us: int) -> None:
        self.txn = txn
        self.dbs = process.env.dbs
        self.fullness = process.env.fullness
        self.now_us = now_us
        self.windows: dict[bytes, bytes] = {}
        self.cells: dict[bytes, bytes] = {}
        self.places: Sequence[WindowRef] = ()
        self.permits: PermitRows | None = None
        self.events: list[Event] = []
        self.undo: list[Callable[[], None]] = []
        self.evictions = self.shared_hits = self.shared_until_us = 0
        self.is_swept = False
        self._loaded: list[_Loaded] = []
        self._process = process
        self._key_count = -1

    def find(self, checks: Sequence[Check], *, makes: bool = True, takes: bool = False) -> list[WindowRef]:
        """Return where the windows of a question lie.

        Args:
            checks: The question.
            makes: Whether keys get new windows.
            takes: Whether it is charged: units, and permits, for which this process needs a lease.
        """
        if takes:
            self._process.latest_us = max(self._process.latest_us, self.now_us)
        places: list[WindowRef] = []
        for bucket, key, cost in checks:
            for digest, head, limit in self._process.bound.get(bucket) or _bind(bucket, self._process.bound):
                if bucket.held:
                    windows, row = self.permit_rows().window(_row_of(key, digest), takes)
                else:
                    windows, row = self._window(key, digest, head, limit, makes)
                places.append((limit.counter, cost, windows, row))
        self.places = places
        return places

    def permit_rows(self) -> PermitRows:
        """Return the rows of permits in this transaction."""
        if self.permits is None:
            self.permits = PermitRows(self, self._process.permits)
        return self.permits

    def _window(
        self, key: str, digest: bytes, head: bytes, limit: AnyLimit, makes: bool
    ) -> tuple[dict[bytes, bytes], bytes]:
        """Return where `key` is counted: in its own window, else in a new one if there is room, else in its cell.

        Its first window is a copy of its cell, where its units may be. They cannot be told from those of others.
        """
        row = _row_of(key, digest)
        if row in self.windows:
            return self.windows, row
        stored = self.txn.get(row)  # `txn` reads `windows` unless told otherwise
        if stored is not None and stored[0] == ROW_VERSION:
            self._load(self.windows, row, head, limit, stored[HEAD_BYTES:])
            return self.windows, row
        number = int.from_bytes(blake2b(row, key=self.dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        cell = _CELL.pack(number) + digest
        if cell not in self.cells:
            stored = self.txn.get(cell, None, self.dbs.cells)
            if stored is not None and stored[0] == ROW_VERSION:
                self._load(self.cells, cell, head, limit, stored[HEAD_BYTES:])
        if makes and self._takes_room():
            self._load(self.windows, row, head, limit, b"", is_new=True)
            self.windows[row] = self.cells.get(cell, self.windows[row])
            return self.windows, row
        if cell not in self.cells:
            if makes and self.fullness >= NO_ROWS:
                raise lmdb.MapFullError("it has no room for another shared cell; raise max_map_size")
            self._load(self.cells, cell, head, limit, b"", is_new=True)
        if makes:
            self.shared_hits += 1
            self.shared_until_us = limit.leaves_us(self.now_us)
        return self.cells, cell

    def changed(self) -> list[_Loaded]:
        """Return the windows that are not as they were read."""
        return [loaded for loaded in self._loaded if loaded[0][loaded[1]] != loaded[3]]

    def save(self) -> None:
        """Write what has changed."""
        for windows, row, head, _, is_new in self.changed():
            window, shared = windows[row], windows is self.cells
            self.txn.put(row, head + window, db=self.dbs.cells if shared else self.dbs.windows)
            if is_new:
                due_us = _expires_us(head + window, self.now_us, self._process.unix_us)
                self._look_later(CELL if shared else WINDOW, row, due_us)
        if self.permits is not None:
            self.permits.save()

    def reset(self, key: str) -> bool:
        """Forget what a key has spent in windows of its own; return whether that was anything.

        The windows stay for their life, and remember that nothing of before can be handed back.
        """
        self._begin_anew()
        first = _first_row_of(key)
        had_units = False
        with self.txn.cursor(self.dbs.windows) as cursor:
            there = cursor.set_range(first)
            while there and (row := cursor.key()).startswith(first):
                stored = cursor.value()
                version, life_us = HEAD.unpack_from(stored)
                window, limit = stored[HEAD_BYTES:], _ANY_LIMIT if life_us else _ANY_QUOTA
                if version == ROW_VERSION and window:
                    lasts = _expires_us(stored, self.now_us, self._process.unix_us) > self.now_us
                    had_units |= lasts and limit.counter.state(window)[0] > 0
                    empty = limit.counter.reset(window, self.now_us, self._process.latest_us)
                    cursor.put(row, stored[:HEAD_BYTES] + empty)
                there = cursor.next()
        return had_units

    def reset_all(self) -> bool:
        """Forget the windows of all keys and what is in cells; return whether there were any."""
        self._begin_anew()
        databases = self.dbs.windows, self.dbs.cells
        had_windows = any(self.txn.stat(database)["entries"] for database in databases)
        for database in databases:
            self.txn.drop(database, delete=False)
        if had_windows:
            # Where the clock has stepped back, charges lie ahead of now.
            self.txn.put(RESET, _MOMENT.pack(max(self._process.latest_us, self.now_us)), db=self.dbs.meta)
        return had_windows

    def reset_us(self) -> int:
        """Return when everything was reset, -1 for never: nothing that was charged up to then is handed back."""
        moment = self.txn.get(RESET, None, self.dbs.meta)
        return -1 if moment is None else int(_MOMENT.unpack(moment)[0])

    def sweep(self, most: int) -> None:
        """Look at no more than `most` windows whose time has come, and delete the empty ones."""
        with self.txn.cursor(self.dbs.ends) as ends:
            for _ in range(most):
                if not ends.first() or DUE.unpack_from(ends.key())[0] > self.now_us:
                    self.is_swept = True
                    return
                row, kind = ends.key()[DUE.size :], ends.value()
                ends.delete()
                self._look_at(row, kind)

    def _load(
        self,
        windows: dict[bytes, bytes],
        row: bytes,
        head: bytes,
        limit: AnyLimit,
        window: bytes,
        is_new: bool = False,
    ) -> None:
        """Take a window in as it was read, that of a quota in the period of now."""
        before = window
        if isinstance(limit, Quota):
            window = limit.enter(before, self.now_us, self._process.unix_us())
            if is_new or limit.mark(window) == limit.mark(before):
                before = window  # a later moment of a period is nothing to write
        windows[row] = window
        self._loaded.append((windows, row, head, before, is_new))

    def _begin_anew(self) -> None:
        """Write what has changed, and know no window any more."""
        self.save()
        self._loaded.clear()
        self.windows.clear()
        self.cells.clear()
        self._key_count = -1

    def _takes_room(self) -> bool:
        """Take room for a window, and return whether there is any."""
        if self._key_count < 0:
            self._key_count = self.txn.stat(self.dbs.windows)["entries"]
        if self.fullness or self._key_count >= self._process.max_keys:
            return False
        self._key_count += 1
        return True

    def _look_later(self, kind: bytes, row: bytes, due_us: int) -> None:
        self.txn.put(due_row(due_us, row), kind, db=self.dbs.ends)

    def _look_at(self, row: bytes, kind: bytes) -> None:
        """Delete a row that holds nothing any more, and was not asked for just now."""
        dbs = self.dbs
        database = {
            WINDOW: dbs.windows,
            CELL: dbs.cells,
            PERMITS: dbs.permits,
            BAN: dbs.bans,
            STRIKES: dbs.strikes,
            LIFTED: dbs.meta,
        }[kind]
        stored = self.txn.get(row, None, database)
        if stored is None:
            return
        due_us: int | None = 0
        if kind == PERMITS:
            due_us = self.permit_rows().ends_us(row)
        elif kind not in (WINDOW, CELL):
            due_us = ban_rows.due_us(kind, stored)
        elif stored[0] == ROW_VERSION:
            due_us = _expires_us(stored, self.now_us, self._process.unix_us)
            if row in self.windows:  # a key that was told to wait would else find what others spent in its cell
                due_us = max(due_us, self.now_us + HEAD.unpack_from(stored)[1])
        if due_us is None:
            return
        if due_us > self.now_us:
            self._look_later(kind, row, due_us)
            return
        self.txn.delete(row, b"", database)
        self.evictions += kind == WINDOW


def _row_of(key: str, digest: bytes) -> bytes:
    """Return the row of a key's own window."""
    return key.encode() + _BETWEEN + digest


def _bind(bucket: LimitSet, memo: dict[LimitSet, Bound]) -> Bound:
    """Work out the limits of a bucket, and put them into a memo."""
    bound = []
    for limit in bucket.limits:
        name = "\n".join((bucket.rule, *map(str, limit.same_window)))  # whatever the amount
        digest = blake2b(name.encode(), digest_size=8).digest()
        bound.append((digest, HEAD.pack(ROW_VERSION, limit.life_us), limit))
    return remember(memo, bucket, tuple(bound))


def _first_row_of(key: str) -> bytes:
    """Return the beginning of the rows of all windows of a key, which no other key's row begins with."""
    return key.encode() + _BETWEEN


def _expires_us(stored: bytes, now_us: int, unix_us: Clock) -> int:
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
