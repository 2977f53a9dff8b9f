"""Rows that the workers of a host keep for each other, in an LMDB environment.

    worker_rows   kind 0x00 number worker    the time until which it is kept, and its value

They expire as windows do, see `ends` in `windows`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ...core.errors import StoreUnavailable
from ...core.store import COMMAND_DEADLINE_S, ReadRow, SharedRow, SharedRows
from .batching import Batcher
from .counts import Room
from .layout import DUE, rows_from
from .transaction import Transaction, Transactions
from .windows import WORKER_ROWS

ALWAYS: Final = 4_096
"""So many bytes are written as a window is; more only while the file is not full."""


class LmdbRows(SharedRows):
    """Writes and reads the rows, in transactions of the store.

    Args:
        transactions: Runs transactions.
        batcher: Runs jobs.
    """

    def __init__(self, transactions: Transactions, batcher: Batcher) -> None:
        self._transactions = transactions
        self._batcher = batcher

    def time(self) -> int:
        """See `SharedRows`; the time is that of this host."""
        return self._transactions.settings.now_us()

    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[None] | None:
        """See `SharedRows`.

        Raises:
            StoreUnavailable: There is no room for the row.
        """
        if row.kept_us <= 0:
            return self._batcher.run(_delete, worker, row, needs_room=False, deadline_s=deadline_s)
        return self._batcher.run(self._write, worker, row, deadline_s=deadline_s)

    def _write(self, transaction: Transaction, worker: bytes, row: SharedRow) -> None:
        """Write a row in a transaction."""
        counts = self._transactions.env.counts
        size = len(row.value)
        if size > ALWAYS and counts.room is not Room.PLENTY:
            full = f"{counts.path} is full; raise max_map_size"
            raise StoreUnavailable(f"lmdb: no room for {size:,} bytes of rows: {full}")
        rows = transaction.rows
        database = rows.dbs.worker_rows
        key = _key(row.kind, row.number) + worker
        until_us = rows.now_us + row.kept_us
        if rows.txn.get(key, None, database) is None:
            rows.recheck_at(rows.dbs.ends, until_us, key, WORKER_ROWS)
        rows.txn.put(key, DUE.pack(until_us) + row.value, db=database)
        counts.check(rows.txn)  # it may be larger than many windows

    def read(
        self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S
    ) -> list[ReadRow] | Awaitable[list[ReadRow]]:
        """See `SharedRows`."""
        return self._batcher.run(_read_rows, kind, first, last, needs_room=False, deadline_s=deadline_s)


def _delete(transaction: Transaction, worker: bytes, row: SharedRow) -> None:
    """Delete a row in a transaction."""
    rows = transaction.rows
    rows.txn.delete(_key(row.kind, row.number) + worker, b"", rows.dbs.worker_rows)


def _read_rows(transaction: Transaction, kind: str, first: int, last: int) -> list[ReadRow]:
    """Read the rows of some numbers in a transaction, without those that have expired."""
    rows = transaction.rows
    found: list[ReadRow] = []
    end = _key(kind, last + 1)
    number_at = len(kind) + 1
    worker_at = number_at + DUE.size
    with rows.txn.cursor(rows.dbs.worker_rows) as cursor:
        for key, stored in rows_from(cursor, _key(kind, first)):
            if key >= end:
                break
            (until_us,) = DUE.unpack_from(stored)
            if until_us > rows.now_us:
                (number,) = DUE.unpack_from(key, number_at)
                found.append((number, key[worker_at:], stored[DUE.size :]))
    return found


def _key(kind: str, number: int) -> bytes:
    """Return what the keys of the rows of a kind and a number begin with."""
    return kind.encode() + b"\0" + DUE.pack(number)
