"""The rows of bans in an LMDB environment; `bans` says what stands in each database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Any, Final

from ....core.bans.in_force import Ban, BanChange
from ....core.bans.records import MAX_HISTORY
from ..layout import Databases
from .ban_codec import Record, pack_ban, pack_change, row_of, text_of, unpack_record

MAX_CHANGES: Final = 4_096
STEP: Final = 200
"""How many rows are read at once: an event loop waits for them, a millisecond or two."""
LAST: Final = b"bans"

_NUMBER: Final = Struct(">Q")


class BanRows:
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

    def is_far_from(self, number: int) -> bool:
        """Return whether more changes than one step reads were made after a number."""
        return self.last() - number > STEP

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
        """Yield all bans."""
        with self.txn.cursor(self.dbs.bans) as cursor:
            for packed in cursor.iternext(keys=False):
                record = unpack_record(packed)
                if record is not None:
                    yield record.ban

    def part(self, dbi: Any, row: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return `STEP` rows of a database, from `row` on, and the row to go on with; None at the end."""
        with self.txn.cursor(dbi) as cursor:
            if not cursor.set_range(row):
                return [], None
            found = list(islice(cursor.iternext(), STEP + 1))
        return (found[:STEP], found[STEP][0]) if len(found) > STEP else (found, None)

    def count(self) -> int:
        """Return the number of bans."""
        return int(self.txn.stat(self.dbs.bans)["entries"])

    def are_few(self) -> bool:
        """Return whether all bans are read in one step."""
        return self.count() <= STEP

    def changed_since(self, number: int) -> list[str] | None:
        """Return the keys of the first `STEP` changes after a number; None if some of them are deleted already."""
        until = min(self.last(), number + STEP)
        packed = [self.txn.get(_NUMBER.pack(later), None, self.dbs.changes) for later in range(number + 1, until + 1)]
        return None if None in packed else [text_of(key) for key in packed]

    def remember(self, change: BanChange) -> None:
        """Add an entry to the history, and delete the oldest one beyond `MAX_HISTORY`."""
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


def records_of(rows: Sequence[tuple[bytes, bytes]]) -> list[Record]:
    """Return the records that stand in some rows of `bans` or `history`, without damaged ones."""
    return [record for record in (unpack_record(packed) for _, packed in rows) if record is not None]
