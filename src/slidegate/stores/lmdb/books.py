"""The rows of bans in an LMDB environment, and the rules at work on them; see `bans`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from struct import Struct
from typing import Any, Final

from ...core.banlist import Ban, BanChange, BanList, Guarded
from ...core.decision import Check
from ...core.protocols import Clock, Event
from ..memory_bans import MAX_HISTORY, MemoryBans
from .ledgers import Ledgers
from .opening import Databases
from .records import pack_ban, pack_change, row_of, text_of, unpack_record

MAX_CHANGES: Final = 4_096
LAST: Final = b"bans"

_NUMBER: Final = Struct(">Q")


class Book:
    """The rows of bans in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
    """

    def __init__(self, txn: Any, dbs: Databases) -> None:
        self.txn = txn
        self.dbs = dbs

    def last(self) -> int:
        """Return the number of the last change."""
        packed = self.txn.get(LAST, None, self.dbs.meta)
        return 0 if packed is None else int(_NUMBER.unpack(packed)[0])

    def put(self, ban: Ban) -> None:
        """Write a ban."""
        number = self._change(ban.key)
        self.txn.put(row_of(ban.key), pack_ban(number, ban), db=self.dbs.bans)

    def remove(self, key: str) -> None:
        """Remove a ban."""
        self._change(key)
        self.txn.delete(row_of(key), b"", self.dbs.bans)

    def get(self, key: str) -> Ban | None:
        """Return the ban of exactly this key."""
        packed = self.txn.get(row_of(key), None, self.dbs.bans)
        record = None if packed is None else unpack_record(packed)
        return None if record is None else record.ban

    def all(self) -> Iterator[Ban]:
        """Return all bans."""
        with self.txn.cursor(self.dbs.bans) as cursor:
            for packed in cursor.iternext(keys=False):
                record = unpack_record(packed)
                if record is not None:
                    yield record.ban

    def changed_since(self, number: int) -> list[str] | None:
        """Return the keys of the changes after a number; None if they are not known any more."""
        packed = [
            self.txn.get(_NUMBER.pack(later), None, self.dbs.changes) for later in range(number + 1, self.last() + 1)
        ]
        return None if None in packed else [text_of(key) for key in packed]

    def remember(self, change: BanChange) -> None:
        """Add to the history, of which no more than `MAX_HISTORY` entries are kept."""
        number = self.last()
        self.txn.put(_NUMBER.pack(number), pack_change(number, change), db=self.dbs.history)
        if self.txn.stat(self.dbs.history)["entries"] > MAX_HISTORY:
            with self.txn.cursor(self.dbs.history) as cursor:
                cursor.first()
                cursor.delete()

    def history(self) -> Iterator[BanChange]:
        """Return the history, oldest first."""
        with self.txn.cursor(self.dbs.history) as cursor:
            for packed in cursor.iternext(keys=False):
                record = unpack_record(packed)
                if record is not None:
                    yield record.change()

    def _change(self, key: str) -> int:
        number = self.last() + 1
        self.txn.put(LAST, _NUMBER.pack(number), db=self.dbs.meta)
        self.txn.put(_NUMBER.pack(number), key.encode("utf-8", "surrogatepass"), db=self.dbs.changes)
        if number > MAX_CHANGES:
            self.txn.delete(_NUMBER.pack(number - MAX_CHANGES), b"", self.dbs.changes)
        return number


class _List(BanList):
    """The bans in force, which writes down what is done to it in a job."""

    def __init__(self) -> None:
        super().__init__()
        self.book: Book | None = None  # where to write; None while rows are read into it

    def add(self, ban: Ban) -> None:
        if self.book is not None:
            self.book.put(ban)
        super().add(ban)

    def remove(self, key: str) -> Ban | None:
        removed = super().remove(key)
        if removed is not None and self.book is not None:
            self.book.remove(key)
        return removed

    def prolong(self, ban: Ban, now_us: int) -> Ban:
        prolonged = super().prolong(ban, now_us)
        if prolonged is not ban and self.book is not None:
            self.book.put(prolonged)
        return prolonged


class _History(deque[BanChange]):
    """The history, which stands in the environment."""

    book: Book | None = None

    def append(self, change: BanChange) -> None:
        assert self.book is not None
        self.book.remember(change)

    def __iter__(self) -> Iterator[BanChange]:
        assert self.book is not None
        return self.book.history()


class Rules(MemoryBans):
    """The rules, at work on what one transaction sees. `open` comes first, `leave` last."""

    list: _List
    _history: _History

    def __init__(self, now_us: Clock, wall_us: Clock | None, most: int) -> None:
        self.told: list[Event] = []
        super().__init__(nullcontext(), now_us, wall_us, self.told.extend, most)  # type: ignore[arg-type]
        self._history = _History()
        self._seen = -1
        self.forget()

    def forget(self) -> None:
        """Read everything again next time."""
        self.list = _List()
        self._prefixes = set()
        self._seen = -1

    def open(self, book: Book) -> None:
        """Look up what has changed since last time."""
        self.list.book = None
        last = book.last()
        keys = book.changed_since(self._seen) if self._seen >= 0 and last - self._seen <= MAX_CHANGES else None
        if last > self._seen and keys is None:
            self.forget()
            for ban in book.all():
                self._record(ban)
        elif last > self._seen:
            for key in keys or ():
                self.list.remove(key)
                known = book.get(key)
                if known is not None:
                    self._record(known)
        self._seen = max(last, self._seen)
        self._history.book = book
        self._ledgers = Ledgers(book.txn, book.dbs)

    def close(self, book: Book) -> None:
        """Write down what a job has changed."""
        self._ledgers.write()  # type: ignore[attr-defined]
        self._seen = book.last()

    def leave(self) -> None:
        """Hold nothing of the transaction any more: a child could not open the files again while anything does."""
        self.list.book = self._history.book = None
        self._ledgers = {}

    def prolongs(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> bool:
        """Tell whether a demand prolongs any ban."""
        asked = (*guarded, *(key for _, key, _ in checks))
        return any(ban.prolong_us for ban in self.list.in_force(asked, self._now_us(), self._wall_us()))

    def take_over(self, found: Sequence[Ban]) -> int:
        """Record bans of another environment; return how many are still in force."""
        now_us, wall_us = self._now_us(), self._wall_us()
        taken = 0
        for ban in found:
            made_us = now_us - max(wall_us - ban.wall_us, 0)
            ends_us = None if ban.ends_us is None else made_us + ban.ends_us - ban.made_us
            known = replace(ban, made_us=made_us, ends_us=ends_us)
            if not known.is_over(now_us, wall_us):
                self._record(known)
                taken += 1
        return taken

    def _standings(self) -> int:
        book = self._history.book
        assert book is not None
        return int(book.txn.stat(book.dbs.standings)["entries"])
