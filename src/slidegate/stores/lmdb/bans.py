"""The bans of an LMDB environment, which are stored only in its rows; `ban_rows` describes the format.

Every hit reads the bans of its client in its own transaction, so a new ban of any process takes effect immediately.
`BanBook` is applied to the rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from ...core.bans.ban import Ban, BanSubject
from ...core.store import COMMAND_DEADLINE_S
from ..ban_book import BanBook, BookBans
from .ban_rows import ban_of
from .batching import PAUSE_S, Batcher
from .gate import TRY_S
from .layout import rows_from
from .transaction import Transaction, Transactions

T = TypeVar("T")

STEP: Final = 100
"""How many rows are read in one transaction, which blocks an event loop for about a millisecond."""


class LmdbBans(BookBans):
    """Bans for all processes of a host; created by `LmdbStore`.

    Args:
        transactions: Runs transactions.
        batcher: Runs jobs.
    """

    load_step = 20  # in one transaction, which blocks other writers for about 2 ms
    load_pause_s = PAUSE_S  # in which waiting writers get the gate

    def __init__(self, transactions: Transactions, batcher: Batcher) -> None:
        self._transactions = transactions
        self._batcher = batcher
        self._store = transactions.store
        self._unix_us = transactions.settings.unix_us
        self._last_count: int | None = None

    def expect_open(self) -> None:
        """See `BookBans`."""
        self._store.expect_open()

    def find(
        self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban | None] | None:
        """Return the longest ban in force that refuses one of `subjects`, without changing anything."""
        return self._batcher.run(Transaction.find_ban, subjects, needs_room=False, deadline_s=deadline_s)

    def count(self) -> int | None:
        """Return how many bans are stored: those in force, and some that have recently expired.

        While somebody else is behind the gate, it is the number of the last time, if there was one.
        """
        needs_room = False
        counts = self._transactions.write([(_count, (), needs_room)], TRY_S)
        if counts is not None:
            self._last_count = counts[0]
        return self._last_count

    async def pages(self) -> AsyncIterator[list[Ban]]:
        """See `BanStore`; each page is read in its own transaction."""
        rows = await self._batcher.ask(_some_rows, b"", needs_room=False)
        while rows:
            now_us = self._unix_us()
            bans = [ban_of(packed) for _, packed in rows]
            yield [ban for ban in bans if not ban.is_over(now_us)]
            last, _ = rows[-1]
            after_last = last + b"\0"  # the smallest key that is larger
            rows = await self._batcher.ask(_some_rows, after_last, needs_room=False)

    def change(self, do: Callable[[BanBook, int], T], deadline_s: float = COMMAND_DEADLINE_S) -> T | Awaitable[T]:
        """See `BookBans.change`."""
        return self._batcher.run(Transaction.change_bans, do, deadline_s=deadline_s)

    def ban(
        self, key: str, length_us: int | None, reason: str, by: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, replacing a ban that it already has; a length of None means for ever."""

        def put(book: BanBook, now_us: int) -> Ban:
            return book.ban(key, length_us, reason, by, now_us)

        return self._batcher.command(Transaction.change_bans, put, deadline_s=deadline_s)

    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Lift the ban of exactly this key, and forget its strikes and levels; return False if there was nothing."""

        def lift(book: BanBook, now_us: int) -> bool:
            return book.unban(key, by, now_us)

        return self._batcher.command(Transaction.change_bans, lift, needs_room=False)

    async def _load(self, bans: Iterable[Ban]) -> int:
        taken = await super()._load(bans)
        await self._batcher.keep()
        return taken


def _count(transaction: Transaction) -> int:
    return transaction.ban_rows.ban_count()


def _some_rows(transaction: Transaction, first: bytes) -> list[tuple[bytes, bytes]]:
    """Return up to `STEP` rows of bans, from `first` on, and their values."""
    with transaction.rows.txn.cursor(transaction.rows.dbs.bans) as cursor:
        return list(islice(rows_from(cursor, first), STEP))
