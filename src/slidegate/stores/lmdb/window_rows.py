"""The windows of an LMDB environment, as one transaction sees them.

A window's row is found by its key, a byte that no text contains, and a digest of what else it is counted by::

    windows   key 0xff digest(rule, window, resolution)    version, serial, origin, expiry, window (`core.packed`)
    cells     number of the cell, digest                   the same, for keys that share a cell
    cells     0xff, row of a window                        the same without a window, for a key that waits in its cell
    ends      when to look again, row                      nothing for a window, a byte for a cell

So all windows of a client lie side by side, mostly on one page, and `forget` finds them.

A window that is made anew, after a reset or because it was let go of, has another *serial*: what was charged to the old
one cannot be handed back to it. So has a window whose units were moved, because the clock stepped back or because it
was converted: a charge from before has not kept the moment by which it would be found. Its *origin* is the serial of
the cell that it began as a copy of, or 0: what was charged there before is handed back in both.

`ends` is the index by time. A window gets an entry there when it is first written, and hits do not move it: when its
time comes, the window is looked at, and if it is still in use the entry is written again for its new expiry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count
from random import getrandbits
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...core.limits import Limit
from ...core.memo import remember
from ...core.protocols import Event
from ...core.windows.codec import Kept, expires_us, keeps_times, pack_window, unpack_window
from ...core.windows.rings import new_window
from ..memory.tables import SHARED_CELLS, copy_of_cell

if TYPE_CHECKING:
    from .files.layout import Databases

ROW_VERSION: Final = 2
SWEEP_STEP: Final = 16
SWEEP_PAUSE_US: Final = 100_000

_HEAD: Final = Struct("=BIIq")
HEAD_BYTES: Final = _HEAD.size
_DUE: Final = Struct(">q")
_CELL: Final = Struct(">H")
_BETWEEN: Final = b"\xff"
_WAITS: Final = b"\xff"  # more than the first byte of any number of a cell
_serials = count(getrandbits(31))


class Slot:
    """A window in a transaction, and where it belongs.

    Attributes:
        window: The window.
        limit: A limit that needs its kind of ring.
        row: The key of its row.
        shared: Whether that is a cell.
        serial: Tells windows apart that follow each other in one row.
        origin: The serial of the cell that it began as a copy of, or 0.
        packed: The row as it was read; empty for a new one.
    """

    __slots__ = ("limit", "origin", "packed", "row", "serial", "shared", "window")

    def __init__(
        self, window: Kept, limit: Limit, row: bytes, shared: bool, serial: int, origin: int, packed: bytes
    ) -> None:
        self.window = window
        self.limit = limit
        self.row = row
        self.shared = shared
        self.serial = serial
        self.origin = origin
        self.packed = packed


class Charged(NamedTuple):
    """What one window was charged, where that is not simply the cost at the time of the decision."""

    slot: Slot
    spent_us: int
    units: int
    waits: bool = False


class Upkeep:
    """What the transactions of one process know of each other.

    Attributes:
        hot: Windows as they were last written, by row: where the row is still the same it need not be read again.
    """

    __slots__ = ("evictions", "hot", "latest_us", "next_shared_event_us", "shared_hits", "sweep_due_us")

    def __init__(self) -> None:
        self.hot: dict[bytes, Slot] = {}
        self.evictions = 0
        self.latest_us = 0
        self.shared_hits = 0
        self.sweep_due_us = 0
        self.next_shared_event_us = 0


class Session:
    """One transaction. Nothing is written before `save`: one over a reading transaction only imagines.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time.
        max_keys: How many windows to hold.
        upkeep: What is known from earlier ones.
    """

    __slots__ = (
        "_held",
        "_max_keys",
        "_waiters",
        "asked",
        "banned",
        "dbs",
        "events",
        "loaded",
        "now_us",
        "txn",
        "undo",
        "upkeep",
    )

    def __init__(self, txn: Any, dbs: Databases, now_us: int, max_keys: int, upkeep: Upkeep) -> None:
        self.txn = txn
        self.dbs = dbs
        self.now_us = now_us
        self.upkeep = upkeep
        self.loaded: dict[bytes, Slot] = {}
        self.asked: Sequence[Slot] = ()  # those of the last demand
        self.events: list[Event] = []
        self.banned = True  # whether anybody may be, as far as is known
        self.undo: list[Callable[[], None]] = []  # called if nothing is written after all
        self._max_keys = max_keys
        self._held = -1
        if now_us < upkeep.latest_us:
            upkeep.hot.clear()  # a clock that has stepped back makes other windows of some of them
        upkeep.latest_us = now_us
        self._waiters: dict[bytes, int] = {}  # rows of keys that wait in their cells, and until when

    def slot(self, key: str, digest: bytes, limit: Limit) -> Slot:
        """Return the window that counts `key`: its own, else a first one where there is room, else its cell."""
        row = row_of(key, digest)
        if row not in self.loaded:
            hot = self.upkeep.hot.get(row)
            # Most hits end here: nobody else has changed it. A transaction looks at `windows` where nothing is said.
            if hot is not None and hot.packed == self.txn.get(row) and hot.limit.exact is limit.exact:
                self.loaded[row] = hot
                return hot
        return self.find(row, limit, shared=False) or self._new(row, digest, limit)

    def find(self, row: bytes, limit: Limit, *, shared: bool) -> Slot | None:
        """Return the window of a row, as the kind that `limit` needs; None if there is none."""
        slot = self.loaded.get(row)
        if slot is None:
            packed = self.txn.get(row, None, self.dbs.cells if shared else self.dbs.windows)
            if packed is None or packed[0] != ROW_VERSION:
                return None
            window = unpack_window(packed, limit, self.now_us, HEAD_BYTES)
            _, serial, origin, _ = _HEAD.unpack_from(packed)
            if window.lies_ahead(self.now_us) or keeps_times(packed, HEAD_BYTES) is not limit.exact:
                serial, origin = _new_serial(), 0
            slot = self.loaded[row] = Slot(window, limit, row, shared, serial, origin, packed)
        elif slot.limit.exact is not limit.exact:
            slot.window = unpack_window(pack_window(slot.window), limit, self.now_us)
            slot.limit = limit
        return slot

    def find_same_kind(self, row: bytes, limit: Limit, *, shared: bool) -> Slot | None:
        """Return the window of a row if it is of the kind that `limit` needs.

        One of the other kind was converted since that limit was last asked, for an amount that holds now. To convert it
        back would change the waits that were announced.
        """
        slot = self.loaded.get(row)
        if slot is None:
            packed = self.txn.get(row, None, self.dbs.cells if shared else self.dbs.windows)
            if packed is None or packed[0] != ROW_VERSION or keeps_times(packed, HEAD_BYTES) is not limit.exact:
                return None
            return self.find(row, limit, shared=shared)
        return slot if slot.limit.exact is limit.exact else None

    def save(self) -> None:
        """Write what has changed, and let go of a few windows that are empty."""
        for slot in self.loaded.values():
            packed = pack_window(slot.window)
            if slot.packed:
                if packed != slot.packed[HEAD_BYTES:]:
                    self._put(slot, packed)
            elif slot.window.spent:
                self._put(slot, packed)
                (_, _, _, due_us) = _HEAD.unpack_from(slot.packed)
                self.txn.put(_DUE.pack(due_us) + slot.row, b"c" if slot.shared else b"", db=self.dbs.ends)
        for row, until_us in self._waiters.items():
            if self._waits_until_us(row) < 0:
                self.txn.put(_DUE.pack(until_us) + _WAITS + row, b"c", db=self.dbs.ends)
            self.txn.put(_WAITS + row, _HEAD.pack(ROW_VERSION, 0, 0, until_us), db=self.dbs.cells)
        self._waiters.clear()
        if self.now_us >= self.upkeep.sweep_due_us:
            self.sweep(SWEEP_STEP)

    def wait_in_cell(self, key: str, digest: bytes, until_us: int) -> None:
        """Remember that a key has booked something in its cell."""
        row = row_of(key, digest)
        self._waiters[row] = max(until_us, self._waiters.get(row, until_us), self._waits_until_us(row))

    def forget(self, key: str) -> bool:
        """Forget the windows of a key; tell whether there were any."""
        self.save()
        self.loaded.clear()
        self._held = -1
        first = _text(key) + _BETWEEN
        found = False
        with self.txn.cursor(self.dbs.windows) as cursor:
            cursor.set_range(first)
            while cursor.key().startswith(first):
                found = cursor.delete()  # stands on the next row then, or on nothing
        return found

    def sweep(self, most: int) -> int:
        """Look at windows whose time has come, at most so many, and return how many of them were let go of."""
        gone = 0
        with self.txn.cursor(self.dbs.ends) as ends:
            for _ in range(most):
                if not ends.first() or _DUE.unpack_from(ends.key())[0] > self.now_us:
                    self.upkeep.sweep_due_us = self.now_us + SWEEP_PAUSE_US
                    break
                row, cell = ends.key()[_DUE.size :], ends.value()
                ends.delete()
                gone += self._look_at(row, cell)
        self.upkeep.evictions += gone
        return gone

    def _look_at(self, row: bytes, cell: bytes) -> bool:
        """Let go of a window that is empty; tell whether it was one of a key."""
        dbi = self.dbs.cells if cell else self.dbs.windows
        packed = self.txn.get(row, None, dbi)
        if packed is None:
            return False  # it was reset
        due_us = _HEAD.unpack_from(packed)[3] if packed[0] == ROW_VERSION else self.now_us
        if due_us > self.now_us:
            self.txn.put(_DUE.pack(due_us) + row, cell, db=self.dbs.ends)
            return False
        self.txn.delete(row, b"", dbi)
        return not cell

    def _put(self, slot: Slot, packed: bytes) -> None:
        expiry_us = expires_us(slot.window, slot.limit)
        slot.packed = _HEAD.pack(ROW_VERSION, slot.serial, slot.origin, expiry_us) + packed
        if slot.shared:
            self.txn.put(slot.row, slot.packed, db=self.dbs.cells)
            return
        self.txn.put(slot.row, slot.packed)
        if slot is not self.upkeep.hot.get(slot.row):
            remember(self.upkeep.hot, slot.row, slot)

    def _new(self, row: bytes, digest: bytes, limit: Limit) -> Slot:
        """Return the first window of a row's own where there is room for it, else its cell."""
        number = int.from_bytes(blake2b(row, key=self.dbs.secret, digest_size=2).digest(), "big") % SHARED_CELLS
        place = _CELL.pack(number) + digest
        cell = self.find(place, limit, shared=True)
        if self._held < 0:
            self._held = self.txn.stat(self.dbs.windows)["entries"]
        if self._held < self._max_keys:
            if cell is None or not _holds(cell, self.now_us):
                self._held += 1
                return self._make(row, new_window(limit), limit, shared=False)
            if max(self._waiters.get(row, -1), self._waits_until_us(row)) <= self.now_us:
                self._held += 1
                own = copy_of_cell(cell.window, self.now_us)
                return self._make(row, own, limit, shared=False, origin=cell.serial)
        self.upkeep.shared_hits += 1
        if self.now_us >= self.upkeep.next_shared_event_us:
            self.upkeep.next_shared_event_us = self.now_us + limit.window_us
            message = f"all {self._max_keys} keys are in use, so others are counted in shared cells; raise max_keys"
            self.events.append(Event("keys_shared", message, {"max_keys": self._max_keys}))
        return cell or self._make(place, new_window(limit), limit, shared=True)

    def _make(self, row: bytes, window: Kept, limit: Limit, *, shared: bool, origin: int = 0) -> Slot:
        slot = self.loaded[row] = Slot(window, limit, row, shared, _new_serial(), origin, b"")
        return slot

    def _waits_until_us(self, row: bytes) -> int:
        """Return until when the key of a row waits in its cell; -1 if it does not."""
        packed = self.txn.get(_WAITS + row, None, self.dbs.cells)
        return -1 if packed is None or packed[0] != ROW_VERSION else int(_HEAD.unpack_from(packed)[3])


def row_of(key: str, digest: bytes) -> bytes:
    """Return the row of the window of a key's own."""
    return _text(key) + _BETWEEN + digest


def _new_serial() -> int:
    return next(_serials) & 0xFFFFFFFF or 1  # an origin of 0 is none


def _text(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        return key.encode("utf-8", "surrogatepass")


def _holds(slot: Slot, now_us: int) -> bool:
    """Tell whether anything spent in a window is still in it."""
    return slot.window.spent > 0 and now_us < slot.window.newest_us + slot.limit.span_us
