"""The rows of stats in an LMDB environment.

    stats   rollup 0x00 number worker    the time until which it is kept, and its value

The rows of a rollup are sorted by number, so expired ones come first. Each write deletes some expired rows.

Stats must not take the room of windows and bans: they use at most an eighth of the largest size of the file, and
nothing of the reserve of a full one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from struct import Struct
from typing import Final, TypeAlias

from ...core.errors import StoreUnavailable
from ...core.store import CHANGED_LIMITS, SharedStats, StatsRow
from .batching import Batcher
from .transaction import Transaction, Transactions

SHARE: Final = 8
"""Stats may use 1/SHARE of the largest size of the file."""
MOST_DELETED: Final = 512
"""How many rows each write checks for expiry."""

Rows: TypeAlias = list[tuple[int, bytes, bytes]]

_UNTIL: Final = Struct("=q")
_NUMBER: Final = Struct(">Q")
_PER_ROW: Final = 64
"""The overhead of a row, in bytes."""


class LmdbSharedStats(SharedStats):
    """Writes and reads the rows, in transactions of the store.

    Args:
        transactions: Runs transactions.
        batcher: Runs write jobs.
    """

    def __init__(self, transactions: Transactions, batcher: Batcher) -> None:
        self._env = transactions.env
        self._transactions = transactions
        self._batcher = batcher
        self._next_checked = b"\0"

    def time(self) -> int:
        """See `SharedStats`; the time is that of this host."""
        return self._transactions.settings.now_us()

    def write(self, worker: bytes, rows: Sequence[StatsRow]) -> Awaitable[None] | None:
        """See `SharedStats`. All rows together take at most an eighth of `max_map_size`.

        Raises:
            StoreUnavailable: There is no room for more stats.
        """
        answer = self._batcher.run(self._write, worker, rows)
        if isinstance(answer, Awaitable):
            return self._expect_room_later(answer)
        self._expect_room(answer)
        return None

    def _expect_room(self, written: bool) -> None:
        if not written:
            raise StoreUnavailable(f"lmdb: {self._env.path} has no room for more stats; raise max_map_size")

    async def _expect_room_later(self, writing: Awaitable[bool]) -> None:
        self._expect_room(await writing)

    def _write(self, transaction: Transaction, worker: bytes, rows: Sequence[StatsRow]) -> bool:
        """Write rows if there is room for them, and return whether there was; expired rows are deleted in any case."""
        txn, stats = transaction.txn, transaction.dbs.stats
        self._delete_some(transaction)
        needed = sum(len(row.value) + _PER_ROW for row in rows if row.kept_us > 0)
        used = txn.stat(stats)
        pages = used["leaf_pages"] + used["branch_pages"] + used["overflow_pages"]
        most = self._env.room.size // SHARE
        is_command = all(row.rollup == CHANGED_LIMITS for row in rows)
        if not is_command and (pages * used["psize"] + needed > most or not self._env.room.has_room_for(needed)):
            return False
        for row in rows:
            key = _key(row.rollup, row.number) + worker
            if row.kept_us > 0:
                txn.put(key, _UNTIL.pack(transaction.now_us + row.kept_us) + row.value, db=stats)
            else:
                txn.delete(key, b"", stats)
        return True

    def read(self, rollup: str, first: int, last: int) -> Rows | Awaitable[Rows]:
        """See `SharedStats`."""
        return self._batcher.look(_read_rows, rollup, first, last)

    def _delete_some(self, transaction: Transaction) -> None:
        """Delete expired rows. Each write continues where the last one ended."""
        with transaction.txn.cursor(transaction.dbs.stats) as cursor:
            cursor.set_range(self._next_checked)
            for _ in range(MOST_DELETED):
                if not cursor.key():
                    break
                if _UNTIL.unpack_from(cursor.value())[0] <= transaction.now_us:
                    cursor.delete()  # moves the cursor to the next row, if there is one
                else:
                    cursor.next()
            self._next_checked = bytes(cursor.key()) or b"\0"


def _read_rows(transaction: Transaction, rollup: str, first: int, last: int) -> Rows:
    rows = []
    end, name = _key(rollup, last + 1), len(rollup) + 1
    with transaction.txn.cursor(transaction.dbs.stats) as cursor:
        there = cursor.set_range(_key(rollup, first))
        while there and (key := bytes(cursor.key())) < end:
            value = bytes(cursor.value())
            if _UNTIL.unpack_from(value)[0] > transaction.now_us:
                (number,) = _NUMBER.unpack_from(key, name)
                rows.append((number, key[name + _NUMBER.size :], value[_UNTIL.size :]))
            there = cursor.next()
    return rows


def _key(rollup: str, number: int) -> bytes:
    return rollup.encode() + b"\0" + _NUMBER.pack(number)
