"""One transaction over the windows of an LMDB environment; `window_rows` says what its rows look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any, Final

from ...core.limits import AnyLimit
from ...core.memo import remember
from ...core.protocols import Clock, Event
from ...core.quotas import KEPT_US
from ...core.windows.codec import end_us, expires_us, keeps_times, pack_window, unpack_window
from ...core.windows.rings import Resting, new_count
from ..memory.tables import SHARED_CELLS
from .files.layout import Databases
from .places.own_places import OwnPlaces
from .places.place_rows import PlacesInFile
from .window_rows import CELL, DUE, HEAD, HEAD_BYTES, ROW_VERSION, Slot, first_row_of, new_serial, row_of

SWEEP_STEP: Final = 16
SWEEP_PAUSE_US: Final = 100_000


class Upkeep:
    """What the transactions of one process remember for each other.

    Attributes:
        alone_since: The first turn since which nobody else has written to the file, and nothing was deleted from it.
        hot: Windows as they were last written, by row: while the row is the same, it need not be decoded again, and
            since `alone_since` not even read.
        evictions: How many empty windows were deleted.
        latest_us: The time of the last transaction.
        next_shared_event_us: When `keys_shared` may be told again.
        shared_hits: How many hits were counted in shared cells.
        sweep_due_us: When to look for empty windows again.
        turn: The number of sessions of this process so far.
    """

    __slots__ = (
        "alone_since",
        "evictions",
        "hot",
        "latest_us",
        "next_shared_event_us",
        "shared_hits",
        "sweep_due_us",
        "turn",
    )

    def __init__(self) -> None:
        self.alone_since = 0
        self.hot: dict[bytes, Slot] = {}
        self.evictions = 0
        self.latest_us = 0
        self.shared_hits = 0
        self.sweep_due_us = 0
        self.next_shared_event_us = 0
        self.turn = 0


class Session:
    """One transaction. Nothing is written before `save`, so a session over a reading transaction may try anything out.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time.
        max_keys: How many windows to hold.
        unix_us: Returns Unix time in microseconds, which quotas go by.
        upkeep: What earlier transactions of this process have remembered.

    Attributes:
        asked: The windows of the last demand.
        banned: Whether anybody may be banned, as far as is known.
        events: Events to tell once the transaction is committed.
        loaded: The windows that were read or made, by row.
        places: The places of concurrency limits, once they have been asked for.
        turn: The number of this session among those of its `upkeep`.
        unix_us: Returns Unix time in microseconds.
        undo: Functions to call if the transaction is not committed.
        wrote: Whether a window was written.
    """

    __slots__ = (
        "_held",
        "_max_keys",
        "asked",
        "banned",
        "dbs",
        "events",
        "loaded",
        "now_us",
        "places",
        "turn",
        "txn",
        "undo",
        "unix_us",
        "upkeep",
        "wrote",
    )

    def __init__(self, txn: Any, dbs: Databases, now_us: int, max_keys: int, unix_us: Clock, upkeep: Upkeep) -> None:
        self.unix_us = unix_us
        self.txn = txn
        self.dbs = dbs
        self.now_us = now_us
        self.upkeep = upkeep
        self.loaded: dict[bytes, Slot] = {}
        self.asked: Sequence[Slot] = ()
        self.places: PlacesInFile | None = None
        self.events: list[Event] = []
        self.banned = True
        self.turn = upkeep.turn = upkeep.turn + 1
        self.wrote = False
        self.undo: list[Callable[[], None]] = []
        self._max_keys = max_keys
        self._held = -1
        if now_us < upkeep.latest_us:
            upkeep.hot.clear()  # after a step back of the clock, a row is read as another window
        upkeep.latest_us = now_us

    def slot(self, key: str, digest: bytes, limit: AnyLimit) -> Slot:
        """Return the window that counts `key`: its own, else a new one if there is room, else its cell."""
        row = row_of(key, digest)
        slot = self.loaded.get(row)
        if slot is None:
            slot = self.upkeep.hot.get(row)
            # Most hits end here: nobody else has changed the row. `txn` reads `windows` unless told otherwise.
            if (
                slot is not None
                and slot.limit.exact is limit.exact
                and (slot.seen_in >= self.upkeep.alone_since or slot.packed == self.txn.get(row))
            ):
                slot.seen_in = self.turn
                self.loaded[row] = slot
                return slot
        elif slot.limit.exact is limit.exact:
            return slot
        return self.find(row, limit, shared=False) or self._new(row, digest, limit)

    def find(self, row: bytes, limit: AnyLimit, *, shared: bool) -> Slot | None:
        """Return the window of a row, converted to the kind that `limit` needs; None if there is none."""
        slot = self.loaded.get(row)
        if slot is None:
            packed = self.txn.get(row, None, self.dbs.cells if shared else self.dbs.windows)
            if packed is None or packed[0] != ROW_VERSION:
                return None
            window = unpack_window(packed, limit, self.now_us, HEAD_BYTES)
            _, serial, origin, _ = HEAD.unpack_from(packed)
            if window.lies_ahead(self.now_us) or keeps_times(packed, HEAD_BYTES) is not limit.exact:
                serial, origin = new_serial(), 0
            slot = self.loaded[row] = Slot(window, limit, row, shared, serial, origin, packed)
        elif slot.limit.exact is not limit.exact:
            slot.window = unpack_window(pack_window(slot.window), limit, self.now_us)
            slot.limit = limit
        return slot

    def find_same_kind(self, row: bytes, limit: AnyLimit, *, shared: bool) -> Slot | None:
        """Return the window of a row if it is of the kind that `limit` needs.

        A window of the other kind was converted since that limit was last asked, for the amount that holds now. To
        convert it back would change the waits that were announced.
        """
        slot = self.loaded.get(row)
        if slot is None:
            packed = self.txn.get(row, None, self.dbs.cells if shared else self.dbs.windows)
            if packed is None or packed[0] != ROW_VERSION or keeps_times(packed, HEAD_BYTES) is not limit.exact:
                return None
            return self.find(row, limit, shared=shared)
        return slot if slot.limit.exact is limit.exact else None

    def save(self) -> None:
        """Write what has changed, and delete a few windows that are empty."""
        for slot in self.loaded.values():
            packed = pack_window(slot.window)
            if slot.packed:
                if packed != slot.packed[HEAD_BYTES:]:
                    self._put(slot, packed)
            elif slot.window.spent:
                self._put(slot, packed)
                (_, _, _, due_us) = HEAD.unpack_from(slot.packed)
                self.txn.put(DUE.pack(due_us) + slot.row, b"c" if slot.shared else b"", db=self.dbs.ends)
        if self.places is not None:
            self.wrote |= self.places.save()
        if self.now_us >= self.upkeep.sweep_due_us:
            self.sweep(SWEEP_STEP)

    def places_of(self, held: OwnPlaces) -> PlacesInFile:
        """Return the places in this transaction."""
        if self.places is None:
            self.places = PlacesInFile(self.txn, self.dbs, self.now_us, held, self.undo, self.events)
        return self.places

    def forget(self, key: str) -> bool:
        """Delete the windows of a key, and return whether there were any."""
        self.save()
        self.loaded.clear()
        self._held = -1
        first = first_row_of(key)
        found = False
        with self.txn.cursor(self.dbs.windows) as cursor:
            cursor.set_range(first)
            while cursor.key().startswith(first):
                found = cursor.delete()  # moves the cursor to the next row, if there is one
        self.upkeep.alone_since = self.turn + 1
        return found

    def forget_all(self) -> bool:
        """Delete the windows of all keys and what is in cells, and return whether there were any."""
        self.save()
        self.loaded.clear()
        self._held = -1
        databases = self.dbs.windows, self.dbs.cells, self.dbs.ends
        found = any(self.txn.stat(database)["entries"] for database in databases[:2])
        for database in databases:
            self.txn.drop(database, delete=False)
        self.upkeep.hot.clear()
        self.upkeep.alone_since = self.turn + 1
        self.wrote |= found
        return found

    def sweep(self, most: int) -> int:
        """Look at no more than `most` windows whose time has come; delete the empty ones, and return their number."""
        gone = 0
        with self.txn.cursor(self.dbs.ends) as ends:
            for _ in range(most):
                if not ends.first() or DUE.unpack_from(ends.key())[0] > self.now_us:
                    self.upkeep.sweep_due_us = self.now_us + SWEEP_PAUSE_US
                    break
                row, cell = ends.key()[DUE.size :], ends.value()
                ends.delete()
                gone += self._look_at(row, cell)
        self.upkeep.evictions += gone
        return gone

    def _look_at(self, row: bytes, cell: bytes) -> bool:
        """Delete a window if it is empty, and return whether that was a key's own window."""
        dbi = self.dbs.cells if cell else self.dbs.windows
        packed = self.txn.get(row, None, dbi)
        if packed is None:
            return False  # it was reset
        due_us = HEAD.unpack_from(packed)[3] if packed[0] == ROW_VERSION else self.now_us
        if packed[0] == ROW_VERSION and (period_end_us := end_us(packed, HEAD_BYTES)):
            # The clock of the system may have been set since: a period ends by that one.
            due_us = self.now_us + period_end_us + KEPT_US - self.unix_us()
        if due_us > self.now_us:
            self.txn.put(DUE.pack(due_us) + row, cell, db=self.dbs.ends)
            return False
        self.txn.delete(row, b"", dbi)
        self.upkeep.alone_since = self.turn + 1
        return not cell

    def _put(self, slot: Slot, packed: bytes) -> None:
        expiry_us = expires_us(slot.window, slot.limit)
        slot.packed = HEAD.pack(ROW_VERSION, slot.serial, slot.origin, expiry_us) + packed
        self.wrote = True
        if slot.shared:
            self.txn.put(slot.row, slot.packed, db=self.dbs.cells)
            return
        self.txn.put(slot.row, slot.packed)
        if slot.seen_in != self.turn:  # it is not a hot one
            slot.seen_in = self.turn
            remember(self.upkeep.hot, slot.row, slot)

    def _new(self, row: bytes, digest: bytes, limit: AnyLimit) -> Slot:
        """Make the own window of a row if there is room for it, else return its cell."""
        number = int.from_bytes(blake2b(row, key=self.dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        place = CELL.pack(number) + digest
        cell = self.find(place, limit, shared=True)
        if self._held < 0:
            self._held = self.txn.stat(self.dbs.windows)["entries"]
        if self._held < self._max_keys:
            self._held += 1
            if cell is None or not cell.holds_anything(self.now_us):
                return self._make(row, new_count(limit), limit, shared=False)
            return self._make(row, copy(cell.window), limit, shared=False, origin=cell.serial)
        self.upkeep.shared_hits += 1
        if self.now_us >= self.upkeep.next_shared_event_us:
            self.upkeep.next_shared_event_us = limit.leaves_us(self.now_us)
            message = f"all {self._max_keys} keys are in use, so others are counted in shared cells; raise max_keys"
            self.events.append(Event("keys_shared", message, {"max_keys": self._max_keys}))
        return cell or self._make(place, new_count(limit), limit, shared=True)

    def _make(self, row: bytes, window: Resting, limit: AnyLimit, *, shared: bool, origin: int = 0) -> Slot:
        slot = self.loaded[row] = Slot(window, limit, row, shared, new_serial(), origin, b"")
        return slot
