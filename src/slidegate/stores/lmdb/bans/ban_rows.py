"""The rows of bans in an LMDB environment, and the rules at work on them; see `bans`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from struct import Struct
from time import time_ns
from typing import Any, Final

from ....core.addresses import Address, format_network
from ....core.bans.in_force import Ban, BanChange, BanList, Guarded
from ....core.bans.policy import BanPolicy
from ....core.bans.records import MAX_HISTORY, Ledger
from ....core.bans.rows import Row, from_rows
from ....core.bans.rules import BanRules, Steady
from ....core.bans.standing import Standing
from ....core.barred import Barred
from ....core.decision import Check
from ....core.memo import remember
from ....core.protocols import Clock, Event
from ..files.layout import Databases
from .ban_codec import pack_ban, pack_change, row_of, text_of, unpack_record
from .standing_rows import LedgerRows, policy_of

MAX_CHANGES: Final = 4_096
STEP: Final = 200
"""How many rows are read at once: an event loop waits for them, a millisecond or two."""
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
        return self.at(row_of(key))

    def at(self, row: bytes) -> Ban | None:
        """Return the ban that stands in a row."""
        packed = self.txn.get(row, None, self.dbs.bans)
        record = None if packed is None else unpack_record(packed)
        return None if record is None else record.ban

    def all(self) -> Iterator[Ban]:
        """Return all bans."""
        with self.txn.cursor(self.dbs.bans) as cursor:
            for packed in cursor.iternext(keys=False):
                record = unpack_record(packed)
                if record is not None:
                    yield record.ban

    def part(self, dbi: Any, row: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return `STEP` rows of a database, from `row` on, and the one to go on with; None at the end."""
        with self.txn.cursor(dbi) as cursor:
            if not cursor.set_range(row):
                return [], None
            found = list(islice(cursor.iternext(), STEP + 1))
        return (found[:STEP], found[STEP][0]) if len(found) > STEP else (found, None)

    def count(self) -> int:
        """Return the number of bans."""
        return int(self.txn.stat(self.dbs.bans)["entries"])

    def changed_since(self, number: int) -> list[str] | None:
        """Return the keys of the first `STEP` changes after a number; None if they are not known any more."""
        until = min(self.last(), number + STEP)
        packed = [self.txn.get(_NUMBER.pack(later), None, self.dbs.changes) for later in range(number + 1, until + 1)]
        return None if None in packed else [text_of(key) for key in packed]

    def remember(self, change: BanChange) -> None:
        """Add to the history, of which no more than `MAX_HISTORY` entries are kept."""
        number = self.last()
        self.txn.put(_NUMBER.pack(number), pack_change(number, change), db=self.dbs.history)
        if self.txn.stat(self.dbs.history)["entries"] > MAX_HISTORY:
            with self.txn.cursor(self.dbs.history) as cursor:
                cursor.first()
                cursor.delete()

    def _change(self, key: str) -> int:
        number = self.last() + 1
        self.txn.put(LAST, _NUMBER.pack(number), db=self.dbs.meta)
        self.txn.put(_NUMBER.pack(number), key.encode("utf-8", "surrogatepass"), db=self.dbs.changes)
        if number > MAX_CHANGES:
            self.txn.delete(_NUMBER.pack(number - MAX_CHANGES), b"", self.dbs.changes)
        return number


class _List(BanList):
    """The bans in force, which writes down what is done to it in a job.

    Until it has been read whole, it answers from the rows of the transaction, and nothing that it holds counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book: Book | None = None  # where to write; None while rows are read into it
        self.rows: Book | None = None  # where to look while it is not whole
        self.is_whole = True
        self._named: dict[Address, tuple[bytes, ...]] = {}

    def __len__(self) -> int:
        return super().__len__() if self.rows is None else self.rows.count()

    def __iter__(self) -> Iterator[Ban]:
        return super().__iter__() if self.rows is None else self.rows.all()

    def get(self, key: str) -> Ban | None:
        return super().get(key) if self.rows is None else self.rows.get(key)

    def named(self, guarded: Iterable[Guarded]) -> list[Ban]:
        if self.rows is None:
            return super().named(guarded)
        rows = [row for key in guarded for row in ([row_of(key)] if isinstance(key, str) else self._networks_of(key))]
        return [ban for ban in map(self.rows.at, rows) if ban is not None]

    def add(self, ban: Ban) -> None:
        if self.book is not None:
            self.book.put(ban)
        super().add(ban)

    def remove(self, key: str) -> Ban | None:
        known = self.get(key)
        super().remove(key)
        if known is not None and self.book is not None:
            self.book.remove(key)
        return known

    def follow(self, key: str, ban: Ban | None) -> None:
        """Take over what somebody else has done about a key."""
        super().remove(key)
        if ban is not None:
            super().add(ban)

    def prolong(self, ban: Ban, now_us: int) -> Ban:
        prolonged = super().prolong(ban, now_us)
        if prolonged is not ban and self.book is not None:
            self.book.put(prolonged)
        return prolonged

    def let_go(self, now_us: int, wall_us: int, most: int = 2) -> None:
        if self.rows is None:
            super().let_go(now_us, wall_us, most)

    def _networks_of(self, address: Address) -> tuple[bytes, ...]:
        """Return the rows of all networks that an address lies in."""
        found = self._named.get(address)
        if found is None:
            version, value = address
            prefixes = range(1, (32 if version == 4 else 128) + 1)
            found = tuple(row_of(format_network(version, value, prefix)) for prefix in prefixes)
            remember(self._named, address, found)
        return found


def changes_of(rows: Sequence[tuple[bytes, bytes]]) -> Sequence[BanChange]:
    """Return the changes that stand in some rows of `history`."""
    return [record.change() for record in (unpack_record(packed) for _, packed in rows) if record is not None]


class Rules:
    """The rules of bans, at work on what one transaction sees. `open` comes first, `leave` last."""

    def __init__(self, now_us: Clock, wall_us: Clock | None, most: int) -> None:
        self._clock = now_us
        self._wall = wall_us
        self._steady = Steady()
        self._rules = BanRules(self, most)
        self._book: Book | None = None
        self._ledgers: LedgerRows | None = None
        self.forget()

    # -- what the rules of bans ask for ------------------------------------------------------------------------------

    def ledger(self, policy: str) -> Ledger | None:
        """Return what is remembered under a policy, None if that is nothing."""
        return self._rows.get(policy)

    def open_ledger(self, policy: str) -> Ledger:
        """Return what is remembered under a policy, a new ledger if that is nothing."""
        return self._rows.open(policy)

    def ledgers(self) -> Collection[Ledger]:
        """Return the ledgers of all policies."""
        return self._rows.all()

    def standings(self) -> int:
        """Return how many standings there are under all policies."""
        return self._rows.count()

    def remember(self, change: BanChange) -> None:
        """Add a change to the history."""
        assert self._book is not None
        self._book.remember(change)

    @property
    def _rows(self) -> LedgerRows:
        assert self._ledgers is not None
        return self._ledgers

    # -- what is asked of the rules ----------------------------------------------------------------------------------

    def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. Changes nothing."""
        return self.list.find(guarded, *self.moments())

    def judge(self, checks: Sequence[Check], guarded: Sequence[Guarded], *, prolong: bool) -> Barred | None:
        """Return the refusal of a demand by a ban, if there is one."""
        bans = self.list.named((*guarded, *[key for _, key, _ in checks]))
        return self._rules.judge(bans, checks, *self.moments(), prolong=prolong) if bans else None

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it."""
        return self._rules.strike(policy, key, weight, reason, prefix, *self.moments())

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._rules.ban(key, length_us, reason, by, *self.moments())

    def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        return self._rules.unban(key, by, *self.moments())

    def load(self, rows: Sequence[Row]) -> int:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays."""
        moments = self.moments()
        return self._rules.load(from_rows(rows, *moments), *moments)

    def take_events(self) -> list[Event]:
        """Return what there is to tell of, and forget it."""
        events, self._rules.events = self._rules.events, []
        return events

    # -- the list of this process ------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Read everything again next time."""
        self.list = _List()
        self.prefixes: set[str] = set()
        self._seen = -1
        self._row: bytes | None = None  # the next one to read, while not all have been

    def open(self, book: Book) -> None:
        """Look up what has changed since last time, if that is soon done; else `read_on` has to follow."""
        self.list.book = None
        last = book.last()
        if self.list.is_whole and last > self._seen:
            if self._seen < 0 or last - self._seen > STEP:
                self.forget()
                self._seen, self._row, self.list.is_whole = last, b"", False
                if book.count() <= STEP:
                    self.list.rows = book
                    self._read_part(book)
                    self._row, self.list.is_whole = None, True
            else:
                self._follow(book)
        self.list.rows = None if self.list.is_whole else book
        self._book = book
        self._ledgers = LedgerRows(book.txn, book.dbs)

    def read_on(self, book: Book) -> None:
        """Read some more of the bans, and then of what has changed meanwhile."""
        if self.list.is_whole:
            return
        if self._row is not None:
            self._read_part(book)
        elif not self._follow(book):
            self.forget()  # too much has changed: the next transaction begins again
        else:
            self.list.is_whole = self._seen >= book.last()

    def _read_part(self, book: Book) -> None:
        assert self._row is not None
        rows, self._row = book.part(book.dbs.bans, self._row)
        for _, packed in rows:
            record = unpack_record(packed)
            if record is not None:
                self._rules.record(record.ban)

    def _follow(self, book: Book) -> bool:
        """Look up what has changed, a part of it; False if that is not known any more."""
        keys = book.changed_since(self._seen)
        for key in keys or ():
            ban = book.get(key)
            self.list.follow(key, None)
            if ban is not None:
                self._rules.record(ban)
        self._seen += len(keys or ())
        return keys is not None

    def close(self, book: Book) -> None:
        """Write down what a job has changed."""
        self._rows.write()
        if self.list.is_whole:
            self._seen = book.last()

    def leave(self) -> None:
        """Hold nothing of the transaction any more: a child could not open the files again while anything does."""
        self.list.book = self.list.rows = self._book = None
        self._ledgers = None

    def prolongs(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> bool:
        """Tell whether a demand prolongs any ban."""
        asked = (*guarded, *(key for _, key, _ in checks))
        return any(ban.prolong_us for ban in self.list.in_force(asked, *self.moments()))

    def take_over(self, found: Sequence[Ban]) -> int:
        """Record bans of another environment; return how many are still in force."""
        now_us, wall_us = self.moments()
        taken = 0
        for ban in found:
            made_us = now_us - max(wall_us - ban.wall_us, 0)
            ends_us = None if ban.ends_us is None else made_us + ban.ends_us - ban.made_us
            known = replace(ban, made_us=made_us, ends_us=ends_us)
            if not known.is_over(now_us, wall_us):
                self._rules.record(known)
                taken += 1
        return taken

    def active_of(self, rows: Sequence[tuple[bytes, bytes]]) -> Sequence[Ban]:
        """Return the bans in force that stand in some rows."""
        now_us, wall_us = self.moments()
        records = [unpack_record(packed) for _, packed in rows]
        return [record.ban for record in records if record is not None and not record.ban.is_over(now_us, wall_us)]

    def standings_of(self, rows: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[str, str, Standing]]:
        """Return (policy, key, standing) of those in some rows of `struck` that have something left to remember."""
        (now_us, _), found = self.moments(), []
        for row, packed in rows:
            policy, key = policy_of(row), text_of(packed)
            ledger = self._rows.get(policy)
            standing = ledger.standings.get(key) if ledger is not None else None
            if ledger is not None and standing is not None and not ledger.is_over(standing, now_us):
                found.append((policy, key, standing))
        return found

    def moments(self) -> tuple[int, int]:
        """Return the store's time and Unix time."""
        return self._steady.at(self._clock()), time_ns() // 1000 if self._wall is None else self._wall()
