"""Places in the rows of an LMDB environment, as one transaction sees them.

    places    key 0xff digest(rule)     version, then for each worker that holds places its name and how many
    workers   name of a worker          version, end of its lease

The places of a worker whose lease is over are free, and leave the row when it is written next. A row without places is
deleted at once; renewals go through the rows, a few at a time, to find those of dead workers that nobody asks for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, Final

from ....core.permits import PERMITS
from ....core.protocols import Event
from ..files.layout import Databases
from .own_places import WORKER_BYTES, OwnPlaces, Place

ROW_VERSION: Final = 1
LOOK_AT: Final = 256
"""How many rows to look at in one renewal."""

_VERSION: Final = bytes((ROW_VERSION,))
_HOLDER: Final = Struct(f"={WORKER_BYTES}sI")
_LEASE: Final = Struct("=Bq")


class PlaceRow:
    """The places of one key and rule in a transaction.

    Attributes:
        row: The key of its row.
        others: How many places each other worker holds whose lease is not over.
        own: How many this process holds.
        stored: The row as it was read; empty for a new one.
    """

    __slots__ = ("others", "own", "row", "stored")

    def __init__(self, row: bytes, others: dict[bytes, int], own: int, stored: bytes) -> None:
        self.row = row
        self.others = others
        self.own = own
        self.stored = stored

    @property
    def taken(self) -> int:
        """How many places are taken, by whomever."""
        return self.own + sum(self.others.values())


class PlacesInFile:
    """The places in one transaction. Nothing is written before `save`.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time.
        held: The places of this process.
        undo: Gets functions to call if the transaction is not committed.
        events: Gets events to tell once it is.
    """

    def __init__(
        self,
        txn: Any,
        dbs: Databases,
        now_us: int,
        held: OwnPlaces,
        undo: list[Callable[[], None]],
        events: list[Event],
    ) -> None:
        self._txn = txn
        self._dbs = dbs
        self._now_us = now_us
        self._held = held
        self._undo = undo
        self._events = events
        self._rows: dict[bytes, PlaceRow] = {}
        self._windows: dict[bytes, bytes] = {}  # for the core
        self._ends_us: dict[bytes, int] = {}  # of the leases of other workers
        self._lease_us = 0  # the end to write, if it changes
        self._over = b""  # the name that this process has given up

    def find(self, row: bytes) -> PlaceRow:
        """Return the places of a row."""
        found = self._rows.get(row)
        if found is None:
            stored = self._txn.get(row, None, self._dbs.places) or b""
            others, own = {}, 0
            if stored[:1] == _VERSION:
                for worker, many in _HOLDER.iter_unpack(stored[1:]):
                    if worker == self._held.worker:
                        own = many
                    elif self._end_us(worker) > self._now_us:
                        others[worker] = many
            found = self._rows[row] = PlaceRow(row, others, own, stored)
        return found

    def window(self, row: bytes, attends: bool) -> tuple[dict[bytes, bytes], bytes]:
        """Return where the core finds how many places of a row are taken, for one question."""
        if attends:
            self.attend()
        self._windows[row] = PERMITS.pack(self.find(row).taken)
        return self._windows, row

    def take(self, row: bytes, amount: int, units: int) -> Place:
        """Take places for which the core has found room; the transaction has to come to `attend` first."""
        self.find(row).own += units
        place = Place(row, amount, units, self._held.worker)
        known = self._held.of(row).places
        known.add(place)
        self._undo.append(partial(known.discard, place))
        return place

    def leave(self, place: Place) -> bool:
        """Hand a place back; False if it was handed back before, or was lost."""
        known = self._held.rows.get(place.row)
        if known is None or place not in known.places:
            return False
        known.places.discard(place)
        self._undo.append(partial(known.places.add, place))
        if place.worker != self._held.worker:
            return False
        self.find(place.row).own -= place.units
        return True

    def attend(self) -> bool:
        """Make sure that this process has a lease before it takes or leaves places; renew one that has grown short.

        Returns:
            Whether the lease was over, and places that ran out were dealt with.
        """
        held = self._held
        held.know_process()
        until_us = self._end_us(held.worker) if held.worker else 0
        if until_us > self._now_us:
            if until_us - self._now_us < held.lease_us // 2:
                self._renew()
            return False
        self._undo.append(partial(setattr, held, "worker", held.worker))
        self._over, held.worker = held.worker, os.urandom(WORKER_BYTES)
        self._rows.clear()
        self._renew()
        if held.rows:
            self._put_back()
        return True

    def renew(self) -> None:
        """Renew the lease of this process, correct rows that say more than it holds, and look for those of the dead."""
        was_over = self.attend()
        self._renew()
        held = self._held
        for row, known in list(held.rows.items()):
            for place in known.places:
                if place.ended:
                    known.places.discard(place)
            live = sum(place.units for place in known.places if place.worker == held.worker)
            if live != known.written:
                self.find(row).own = live
            elif not live and not known.places:
                held.rows.pop(row, None)
        if not was_over and any(place.worker != held.worker for place in held.all()):
            self._put_back()
        self._bury()

    def save(self) -> None:
        """Write what has changed."""
        held = self._held
        if self._lease_us:
            self._undo.append(partial(setattr, held, "ends_us", held.ends_us))
            held.ends_us, self._lease_us = self._lease_us, 0
            self._txn.put(held.worker, _LEASE.pack(ROW_VERSION, held.ends_us), db=self._dbs.workers)
        if self._over:
            self._txn.delete(self._over, b"", self._dbs.workers)
            self._over = b""
        for found in self._rows.values():
            holders = {**found.others, held.worker: found.own} if found.own else found.others
            packed = _VERSION + b"".join(_HOLDER.pack(*holder) for holder in holders.items()) if holders else b""
            if packed == found.stored:
                continue
            if packed:
                self._txn.put(found.row, packed, db=self._dbs.places)
            else:
                self._txn.delete(found.row, b"", self._dbs.places)
            found.stored = packed
            known = held.of(found.row)
            self._undo.append(partial(setattr, known, "written", known.written))
            known.written = found.own
            if not found.own and not known.places:
                self._undo.append(partial(held.rows.__setitem__, found.row, known))
                del held.rows[found.row]

    def _renew(self) -> None:
        self._lease_us = self._ends_us[self._held.worker] = self._now_us + self._held.lease_us

    def _put_back(self) -> None:
        """Take the places of a lease that is over again, where there is room; tell how many there were."""
        held, back, lost = self._held, 0, 0
        for row, known in list(held.rows.items()):
            for place in [place for place in known.places if place.worker != held.worker]:
                found = self.find(row)
                is_new = place.worker == self._over
                if found.taken + place.units <= place.amount:
                    self._undo.append(partial(setattr, place, "worker", place.worker))
                    place.worker = held.worker
                    found.own += place.units
                    back += 1
                else:
                    lost += is_new
        if back or lost:
            message = (
                f"lmdb: {back + lost} places of requests under way had run out, because they were not renewed in time; "
                f"{back} were put back, and others had taken {lost}"
            )
            self._events.append(Event("places_lost", message, {"lost": lost, "back": back}))

    def _bury(self) -> None:
        """Delete leases that are over, and the places of their workers in some rows; the next renewal goes on there."""
        with self._txn.cursor(self._dbs.workers) as workers:
            over = [bytes(name) for name, lease in workers if _LEASE.unpack(lease)[1] <= self._now_us]
        for name in over:
            if name != self._held.worker:
                self._txn.delete(name, b"", self._dbs.workers)
                self._ends_us[name] = 0
        with self._txn.cursor(self._dbs.places) as rows:
            names: list[bytes] = []
            there = rows.set_range(self._held.looked_at) or rows.first()
            while there and len(names) < LOOK_AT:
                names.append(bytes(rows.key()))
                there = rows.next()
            self._held.looked_at = names[-1] + b"\0" if there else b""
        for name in names:
            self.find(name)  # whose worker has died drops out of it, and `save` writes it

    def _end_us(self, worker: bytes) -> int:
        ends_us = self._ends_us.get(worker)
        if ends_us is None:
            lease = self._txn.get(worker, None, self._dbs.workers)
            known = lease is not None and lease[0] == ROW_VERSION
            ends_us = self._ends_us[worker] = _LEASE.unpack(lease)[1] if known else 0
        return ends_us
