"""One transaction over the windows of an LMDB environment; `window_rows` says what its rows look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, TypeAlias

from ...core.decide import Place
from ...core.limits import AnyLimit, Quota
from ...core.store import Clock, Event
from ..memory.shard import SHARED_CELLS, SHARED_PAUSE_US
from .files.layout import RESET, Databases
from .places.own_places import OwnPlaces
from .places.place_rows import PlacesInFile
from .window_rows import (
    ANY_LIMIT,
    ANY_QUOTA,
    CELL,
    DUE,
    HEAD,
    HEAD_BYTES,
    ROW_VERSION,
    expires_us,
    first_row_of,
    row_of,
)

SWEEP_STEP: Final = 16
SWEEP_PAUSE_US: Final = 100_000

_MOMENT: Final = Struct("=q")

Loaded: TypeAlias = tuple[dict[bytes, bytes], bytes, bytes, bytes, bool]
"""Where a window is, its row, the head of its value, the window as it was read, and whether the row is new."""


class Upkeep:
    """What the transactions of one process remember for each other.

    Attributes:
        evictions: How many empty windows were deleted.
        latest_us: The latest moment that a transaction has seen.
        next_shared_event_us: When `keys_shared` may be told again.
        shared_hits: How many hits were counted in shared cells.
        sweep_due_us: When to look for empty windows again.
    """

    __slots__ = ("evictions", "latest_us", "next_shared_event_us", "shared_hits", "sweep_due_us")

    def __init__(self) -> None:
        self.evictions = 0
        self.latest_us = 0
        self.shared_hits = 0
        self.sweep_due_us = 0
        self.next_shared_event_us = 0


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
        asked: Where the windows of the last demand lie.
        banned: Whether anybody may be banned, as far as is known.
        cells: The windows in shared cells that were read or made, by row.
        events: Events to tell once the transaction is committed.
        places: The places of concurrency limits, once they have been asked for.
        undo: Functions to call if the transaction is not committed.
        windows: The windows of keys that were read or made, by row.
    """

    __slots__ = (
        "_held",
        "_loaded",
        "_max_keys",
        "_unix_us",
        "asked",
        "banned",
        "cells",
        "dbs",
        "events",
        "now_us",
        "places",
        "txn",
        "undo",
        "upkeep",
        "windows",
    )

    def __init__(self, txn: Any, dbs: Databases, now_us: int, max_keys: int, unix_us: Clock, upkeep: Upkeep) -> None:
        self.txn = txn
        self.dbs = dbs
        self.now_us = now_us
        self.upkeep = upkeep
        self.windows: dict[bytes, bytes] = {}
        self.cells: dict[bytes, bytes] = {}
        self.asked: Sequence[Place] = ()
        self.places: PlacesInFile | None = None
        self.events: list[Event] = []
        self.banned = True
        self.undo: list[Callable[[], None]] = []
        self._loaded: list[Loaded] = []
        self._max_keys = max_keys
        self._unix_us = unix_us
        self._held = -1
        if now_us > upkeep.latest_us:
            upkeep.latest_us = now_us

    def place(
        self, key: str, digest: bytes, head: bytes, limit: AnyLimit, makes: bool = True
    ) -> tuple[dict[bytes, bytes], bytes]:
        """Return where `key` is counted: in its own window, else in a new one if there is room, else in its cell.

        Its first window is a copy of its cell, where its units may be. They cannot be told from those of others.

        Args:
            key: The key.
            digest: The digest of its rule and limit.
            head: What the value of its row begins with.
            limit: The limit.
            makes: Whether it is about to be charged. Else it gets no new window.
        """
        row = row_of(key, digest)
        if row in self.windows:
            return self.windows, row
        stored = self.txn.get(row)  # `txn` reads `windows` unless told otherwise
        if stored is not None and stored[0] == ROW_VERSION:
            self._load(self.windows, row, head, limit, stored[HEAD_BYTES:])
            return self.windows, row
        number = int.from_bytes(blake2b(row, key=self.dbs.cell_key, digest_size=2).digest(), "big") % SHARED_CELLS
        cell = CELL.pack(number) + digest
        if cell not in self.cells:
            stored = self.txn.get(cell, None, self.dbs.cells)
            if stored is not None and stored[0] == ROW_VERSION:
                self._load(self.cells, cell, head, limit, stored[HEAD_BYTES:])
        if makes and self._takes_room():
            self._load(self.windows, row, head, limit, b"", is_new=True)
            self.windows[row] = self.cells.get(cell, self.windows[row])
            return self.windows, row
        if cell not in self.cells:
            self._load(self.cells, cell, head, limit, b"", is_new=True)
        if makes:
            self._share(limit)
        return self.cells, cell

    def places_of(self, held: OwnPlaces) -> PlacesInFile:
        """Return the places in this transaction."""
        if self.places is None:
            self.places = PlacesInFile(self.txn, self.dbs, self.now_us, held, self.undo, self.events)
        return self.places

    def save(self) -> None:
        """Write what has changed, and delete a few windows that are empty."""
        self._write()
        if self.places is not None:
            self.places.save()
        if self.now_us >= self.upkeep.sweep_due_us:
            self.sweep(SWEEP_STEP)

    def reset(self, key: str) -> bool:
        """Forget what a key has spent in windows of its own; return whether that was anything.

        The windows stay for their life, and remember that nothing of before can be handed back.
        """
        self._begin_anew()
        first = first_row_of(key)
        found = False
        with self.txn.cursor(self.dbs.windows) as cursor:
            there = cursor.set_range(first)
            while there and (row := cursor.key()).startswith(first):
                stored = cursor.value()
                version, life_us = HEAD.unpack_from(stored)
                window, limit = stored[HEAD_BYTES:], ANY_LIMIT if life_us else ANY_QUOTA
                if version == ROW_VERSION and window:
                    found |= limit.state(window)[0] > 0 and expires_us(stored, self.now_us, self._unix_us) > self.now_us
                    cursor.put(row, stored[:HEAD_BYTES] + limit.reset(window, self.now_us))
                there = cursor.next()
        return found

    def reset_all(self) -> bool:
        """Forget the windows of all keys and what is in cells; return whether there were any."""
        self._begin_anew()
        databases = self.dbs.windows, self.dbs.cells, self.dbs.ends
        found = any(self.txn.stat(database)["entries"] for database in databases[:2])
        for database in databases:
            self.txn.drop(database, delete=False)
        self.txn.put(RESET, _MOMENT.pack(self.now_us), db=self.dbs.meta)
        return found

    def reset_us(self) -> int:
        """Return when everything was reset, -1 for never: nothing that was charged up to then is handed back."""
        moment = self.txn.get(RESET, None, self.dbs.meta)
        return -1 if moment is None else int(_MOMENT.unpack(moment)[0])

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
        known = window
        if isinstance(limit, Quota):
            window = limit.enter(known, self.now_us, self._unix_us())
            if is_new or limit.mark(window) == limit.mark(known):
                known = window  # a later moment of a period is nothing to write
        windows[row] = window
        self._loaded.append((windows, row, head, known, is_new))

    def _write(self) -> None:
        """Write the windows that have changed."""
        for windows, row, head, known, is_new in self._loaded:
            window = windows[row]
            if window != known:
                shared = windows is self.cells
                self.txn.put(row, head + window, db=self.dbs.cells if shared else self.dbs.windows)
                if is_new:
                    due_us = expires_us(head + window, self.now_us, self._unix_us)
                    self.txn.put(DUE.pack(due_us) + row, b"c" if shared else b"", db=self.dbs.ends)

    def _begin_anew(self) -> None:
        """Write the windows that have changed, and know none any more."""
        self._write()
        self._loaded.clear()
        self.windows.clear()
        self.cells.clear()
        self._held = -1

    def _takes_room(self) -> bool:
        """Take room for a window, and return whether there is any."""
        if self._held < 0:
            self._held = self.txn.stat(self.dbs.windows)["entries"]
        if self._held >= self._max_keys:
            return False
        self._held += 1
        return True

    def _share(self, limit: AnyLimit) -> None:
        """Count a hit in a shared cell, and tell of it once a window, and at most once a second."""
        self.upkeep.shared_hits += 1
        if self.now_us >= self.upkeep.next_shared_event_us:
            self.upkeep.next_shared_event_us = max(limit.leaves_us(self.now_us), self.now_us + SHARED_PAUSE_US)
            message = f"all {self._max_keys} keys are in use, so others are counted in shared cells; raise max_keys"
            self.events.append(Event("keys_shared", message, {"max_keys": self._max_keys}))

    def _look_at(self, row: bytes, cell: bytes) -> bool:
        """Delete a window that is empty and was not asked for just now; return whether that was a key's own window."""
        dbi = self.dbs.cells if cell else self.dbs.windows
        stored = self.txn.get(row, None, dbi)
        if stored is None:
            return False  # everything was reset
        if stored[0] == ROW_VERSION:
            due_us = expires_us(stored, self.now_us, self._unix_us)
            if row in self.windows:  # a key that was told to wait would else find what others spent in its cell
                due_us = max(due_us, self.now_us + HEAD.unpack_from(stored)[1])
            if due_us > self.now_us:
                self.txn.put(DUE.pack(due_us) + row, cell, db=self.dbs.ends)
                return False
        self.txn.delete(row, b"", dbi)
        return not cell
