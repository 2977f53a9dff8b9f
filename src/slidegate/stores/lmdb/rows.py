"""The rows of the file: its databases, how rows are named and swept, and the rows of bans and levels.

    bans      key                  the ban as JSON
    bans      0xff key             the ban as JSON, of a network
    levels    key 0xff policy      the level as JSON
    ban_ends  time, row            when to check a row again, and its database
    meta      "networks"           8 random bytes, the version of the bans of networks

JSON has the fields by name: those of later versions are ignored, and kept as long as the row is. Each change of a ban
or of a level is noted, because it survives a restart of the machine, see `kept`. The other databases have windows, also
those of strikes, and permits, see `windows`; and the rows of workers, see `store`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from ...core.bans.ban import Ban, read_ban
from ...core.bans.networks import MAX_NETWORKS, BannedNetworks
from ...core.bans.strikes import Level, read_level
from ...core.errors import SlidegateError
from ...core.store import Clock
from ...core.stored import all_readable, json_of, read_by_name, readable

NETWORKS: Final = b"networks"
"""The key of the version of the bans of networks, which is random, so that no two processes write the same one."""

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)
"""What LMDB reports of a damaged file. All other errors are those of this process, and the file stays."""

HEAD: Final = Struct("=q")
"""The head of the value of a window: its life, or 0 for a quota."""
NO_LIFE: Final = HEAD.pack(0)
ALL_WINDOWS: Final = b"a"
"""The name under which it is noted that all windows were deleted; it comes before those of windows."""
WINDOWS: Final = "windows"
BANS: Final = "bans"
LEVELS: Final = "levels"
DUE: Final = Struct(">q")
BETWEEN: Final = b"\xff"
"""Separates a key from the rest of its row, and begins the rows of banned networks, which are the last ones of their
database; it never occurs in UTF-8 text."""

_VERSION_BYTES: Final = 8
_ENDS: Final = {BANS: (read_ban, "until_us"), LEVELS: (read_level, "over_us")}
"""How the rows of a database are read, and which of their fields has their ends."""

CachedNetworks: TypeAlias = dict[bytes, BannedNetworks]
"""The banned networks as this process last read them, by the bytes of their version: one entry at most.

A transaction that fails after it has changed them leaves a version here that no row has, so it is never found."""
READ_STEP: Final = 100
"""How many bans of networks are read in one transaction, which blocks an event loop for about a millisecond."""


class Unfinished(SlidegateError):
    """A transaction changes nothing and is tried again: it has done a part of what takes an event loop too long."""


class Databases(NamedTuple):
    """The databases of an environment, and the random key of the hash that selects shared cells."""

    meta: Any
    windows: Any
    cells: Any
    permits: Any
    strikes: Any
    bans: Any
    levels: Any
    worker_rows: Any
    ends: Any
    ban_ends: Any
    unkept: Any
    cell_key: bytes


NAMES: Final = Databases._fields[:-1]

Fields: TypeAlias = Mapping[str, Any]
"""What a ban or a level says, by name."""
DueAt: TypeAlias = Callable[[str, bytes, bytes], int | None]
"""Returns when a row ends (None for never), given the name of its database, the row and its value."""


def row_of(key: str, name: bytes = b"") -> bytes:
    """Return the row of a key under a name; without a name, the common prefix of all rows of this key only."""
    return key.encode() + BETWEEN + name


def rows_from(cursor: Any, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a database from `first` on, in order, and their values."""
    if cursor.set_range(first):
        yield from cursor.iternext()


def due_us(stored: bytes) -> int:
    """Return when a row of a worker ends, which stands at its head; 0 if that cannot be read."""
    if len(stored) < DUE.size:
        return 0
    (until_us,) = DUE.unpack_from(stored)
    return int(until_us)


class TransactionRows:
    """The rows in one transaction.

    Args:
        txn: LMDB's transaction.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds.

    Attributes:
        noted: The names of rows that have changed and survive a restart of the machine, see `kept`: the first letter of
            their database, and the row.
    """

    def __init__(self, txn: Any, dbs: Databases, now_us: int, unix_us: Clock) -> None:
        self.txn = txn
        self.dbs = dbs
        self.now_us = now_us
        self.unix_us = unix_us
        self.noted: list[bytes] = []

    def note(self, kind: str, row: bytes) -> None:
        """Note that a row has changed, which survives a restart of the machine."""
        self.noted.append(kind[0].encode() + row)

    def starting_with(self, first: bytes, database: Any) -> list[tuple[bytes, bytes]]:
        """Return the rows of a database that begin with `first`, and their values."""
        with self.txn.cursor(database) as cursor:
            return list(takewhile(lambda row: row[0].startswith(first), rows_from(cursor, first)))

    def recheck_at(self, index: Any, due_us: int, row: bytes, kind: str) -> None:
        """Schedule a check of a row.

        Args:
            index: The index by time, `ends` or `ban_ends`.
            due_us: When to check the row, in microseconds.
            kind: The name of its database.
        """
        self.txn.put(DUE.pack(due_us) + row, kind.encode(), db=index)

    def check_due(self, index: Any, now_us: int, max_count: int, ends_us: DueAt) -> bool:
        """Check rows that are due, and delete those that have expired; return whether more rows may be due.

        Args:
            index: The index by time, `ends` or `ban_ends`.
            now_us: The time, in microseconds.
            max_count: The most rows to check.
            ends_us: Returns when a row ends: it is deleted then, and checked again if that is later.
        """
        for _ in range(max_count):
            with self.txn.cursor(index) as cursor:
                if not cursor.first():
                    return False
                entry = cursor.key()
                if DUE.unpack_from(entry)[0] > now_us:
                    return False
                row = entry[DUE.size :]
                kind = cursor.value().decode()
                cursor.delete()
            database = getattr(self.dbs, kind)
            stored = self.txn.get(row, None, database)
            if stored is None:
                continue
            moment_us = ends_us(kind, row, stored)
            if moment_us is None:
                continue
            if moment_us > now_us:
                self.recheck_at(index, moment_us, row, kind)
            else:
                self.txn.delete(row, b"", database)
                if kind in (BANS, LEVELS) or (kind == WINDOWS and stored.startswith(NO_LIFE)):
                    self.note(kind, row)
        return True


# -- bans and levels ---------------------------------------------------------------------------------------------------


class LmdbBanRows:
    """The bans and levels in one transaction, as `BanRows`.

    Args:
        rows: The rows of the transaction.
        cached: The bans of networks as a transaction of this process has left them.
    """

    def __init__(self, rows: TransactionRows, cached: CachedNetworks) -> None:
        self._rows = rows
        self._txn = rows.txn
        self._dbs = rows.dbs
        self._cached = cached

    def bans_of(self, key: str) -> list[Ban]:
        rows = [self._txn.get(row, None, self._dbs.bans) for row in (key.encode(), BETWEEN + key.encode())]
        return all_readable(read_ban, [packed for packed in rows if packed is not None])

    def restore(self, kind: str, row: bytes, fields: Fields) -> None:
        """Store a row of an earlier file, which may have fields of a later version.

        Args:
            kind: `BANS` or `LEVELS`, the name of the database.
        """
        if kind == BANS:
            row = _row_of_ban(read_by_name(Ban, fields))
        self._write(kind, row, fields)

    def put_ban(self, ban: Ban) -> None:
        if ban.network() is not None:  # those whose bans have ended make room for it
            before = self.networks()
            after = before.with_ban(ban, self._rows.unix_us())
            self._cache(new_version(self._txn, self._dbs), after)
            for ended in before.bans.keys() - after.bans.keys():
                self._write(BANS, BETWEEN + ended.encode(), None)
        self._write(BANS, _row_of_ban(ban), ban._asdict())

    def remove_ban(self, ban: Ban) -> None:
        if ban.network() is not None:
            new_version(self._txn, self._dbs)
        self._write(BANS, _row_of_ban(ban), None)

    def ban_count(self) -> int:
        return int(self._txn.stat(self._dbs.bans)["entries"])

    def networks(self) -> BannedNetworks:
        """Return the bans of networks, reading them again if their version has changed.

        Raises:
            Unfinished: Many rows were read; they are remembered.
        """
        version = self._txn.get(NETWORKS, b"", self._dbs.meta)
        networks = self._cached.get(version)
        if networks is None:
            bans, most_misses = [], _read_network.cache_info().misses + READ_STEP
            for _, packed in self._rows.starting_with(BETWEEN, self._dbs.bans):
                bans.append(_read_network(packed))
                if _read_network.cache_info().misses >= most_misses:
                    raise Unfinished
            networks = BannedNetworks(filter(None, bans))
            self._cache(version, networks)
        return networks

    def level(self, policy: str, key: str) -> Level | None:
        packed = self._txn.get(row_of(key, policy.encode()), None, self._dbs.levels)
        if packed is None:
            return None
        return readable(read_level, packed)

    def put_level(self, policy: str, key: str, level: Level) -> None:
        self._write(LEVELS, row_of(key, policy.encode()), level._asdict())

    def remove_levels(self, key: str) -> list[Level]:
        rows = self._rows.starting_with(row_of(key), self._dbs.levels)
        for row, _ in rows:
            self._write(LEVELS, row, None)
        return all_readable(read_level, [packed for _, packed in rows])

    def level_count(self) -> int:
        return int(self._txn.stat(self._dbs.levels)["entries"])

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        before = len(self._rows.noted)
        is_more = self._rows.check_due(self._dbs.ban_ends, now_us, max_count, _due_us)
        of_network = BANS[0].encode() + BETWEEN
        if any(name.startswith(of_network) for name in self._rows.noted[before:]):
            new_version(self._txn, self._dbs)  # else they would go on to refuse if Unix time were set back
        return is_more

    def _write(self, kind: str, row: bytes, new: Fields | None) -> None:
        """Replace or delete a row, and its end in the index.

        Args:
            kind: `BANS` or `LEVELS`, the name of the database.
            row: The key of the row.
            new: Its fields; None to delete it.
        """
        database = getattr(self._dbs, kind)
        index = self._dbs.ban_ends
        self._rows.note(kind, row)
        old = self._txn.get(row, None, database)
        if old is not None:
            old_end_us = _due_us(kind, row, old)
            if old_end_us is not None:  # else it would stay in the index until then
                self._txn.delete(DUE.pack(old_end_us) + row, b"", index)
        if new is None:
            self._txn.delete(row, b"", database)
            return
        self._txn.put(row, json_of(new), db=database)
        _, end = _ENDS[kind]
        end_us = new[end]
        if end_us is not None:
            self._rows.recheck_at(index, end_us, row, kind)

    def _cache(self, version: bytes, networks: BannedNetworks) -> None:
        """Keep the bans of networks for the next transactions of this process, in place of an earlier version."""
        self._cached.clear()
        self._cached[version] = networks


@lru_cache(2 * MAX_NETWORKS)
def _read_network(packed: bytes) -> Ban | None:
    return readable(read_ban, packed)


def new_version(txn: Any, dbs: Databases) -> bytes:
    """Give the banned networks a new version, which all processes read before their next decision, and return it."""
    version = os.urandom(_VERSION_BYTES)
    txn.put(NETWORKS, version, db=dbs.meta)
    return version


def _row_of_ban(ban: Ban) -> bytes:
    """Return the key of the row of a ban."""
    if ban.network() is None:
        return ban.key.encode()
    return BETWEEN + ban.key.encode()


def _due_us(kind: str, row: bytes, packed: bytes) -> int | None:
    """Return when a row of `bans` or `levels` ends and can be deleted; None for never, 0 if it cannot be read."""
    read, end = _ENDS[kind]
    fields = readable(read, packed)
    if fields is None:
        return 0
    end_us: int | None = getattr(fields, end)
    return end_us
