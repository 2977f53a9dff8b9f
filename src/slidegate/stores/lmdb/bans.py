"""The bans of an LMDB environment, which are rows of it and nowhere else; `ban_rows` says what stands in them.

Every hit looks for the bans of its client in its own transaction, so it meets a ban that any process has made just
before. The rules are those of `core.bans.rules`, at work on the rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from inspect import isawaitable
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from ...core.bans.ban import Ban, BanChange, BanSubject, longest
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.rules import SAY_EVERY_US, BanRules, Steady
from ...core.bans.strikes import StoredRecords, StrikeRecord, stored_records
from ...core.decision import BanRefusal, Check
from ...core.errors import StoreError
from ...core.logs import Throttle
from ...core.store import BanStore, Clock
from ..forks import hold_over_fork
from ..system_clock import system_us
from .ban_rows import LmdbBanStorage, bans_of, part, policy_of, read_change, salvage, text_of
from .batching import PAUSE_S, Batcher, Job
from .layout import CENSUS
from .transaction import Transactions
from .windows import Transaction

T = TypeVar("T")

LOAD_STEP: Final = 100
"""How many bans of an import are written at once: other processes wait for them, a few milliseconds."""
LOAD_PAUSE_S: Final = 2 * PAUSE_S
"""Then comes a pause in which those that wait try again."""


class LmdbBans(BanStore):
    """Bans for all processes of a host; made by `LmdbStore`.

    Args:
        transactions: Runs transactions.
        batcher: Runs jobs that write.
        now_us: The store's clock.
        wall_us: Unix time, in microseconds; None for the system's.
        max_bans: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(
        self, transactions: Transactions, batcher: Batcher, now_us: Clock, wall_us: Clock | None, max_bans: int
    ) -> None:
        self._transactions = transactions
        self._batcher = batcher
        self._clock = now_us
        self._wall = wall_us or system_us
        self._max_bans = max_bans
        self._steady = Steady()
        self._steady_lock = Lock()
        hold_over_fork(self._steady_lock)
        self._throttle = Throttle(SAY_EVERY_US)

    # -- for the store ------------------------------------------------------------------------------------------------

    def decide(
        self, transaction: Transaction, checks: Sequence[Check], subjects: Sequence[BanSubject]
    ) -> tuple[BanRefusal | None, bool]:
        """Return the refusal of a question by a ban, if there is one, and whether the question prolongs a ban."""
        bans = bans_of(transaction, checks, subjects)
        if not bans:
            return None, False
        moments = self._moments()
        rules = BanRules(LmdbBanStorage(transaction), self._max_bans)
        refusal = rules.decide(bans, checks, *moments, prolong=False)
        return refusal, any(ban.prolong_us and not ban.is_over(*moments) for ban in bans)

    def prolong(self, refusal: BanRefusal, subjects: Sequence[BanSubject], transaction: Transaction) -> BanRefusal:
        """Prolong the bans that refused a question, if requests prolong them, and return the refusal after that."""
        bans = bans_of(transaction, refusal.checks, subjects)
        moments = self._moments()
        prolonged = self._work(lambda rules: rules.decide(bans, refusal.checks, *moments, prolong=True), transaction)
        return refusal if prolonged is None else prolonged

    def sweep(self, transaction: Transaction, max_count: int) -> bool:
        """Delete bans that are over, no more than `max_count` by each clock; return whether there are more."""
        if transaction.txn.get(CENSUS, None, transaction.dbs.meta) is None:
            return False
        return LmdbBanStorage(transaction).active_bans.remove_expired(*self._moments(), max_count)

    def rescue(self, path: Path, transaction: Transaction) -> int:
        """Take over the bans that are found in a damaged file; return how many are still in force."""
        moments = self._moments()
        try:
            bans = [_redated(ban, *moments) for ban in salvage(path)]
        except OSError:
            return 0
        active = [ban for ban in bans if not ban.is_over(*moments)]
        self._take_over(Bans(active, []), transaction)
        return len(active)

    # -- for everybody ------------------------------------------------------------------------------------------------

    def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. This changes nothing."""
        bans = self._transactions.read(lambda transaction: bans_of(transaction, (), subjects))
        moments = self._moments()
        return longest(ban for ban in bans if not ban.is_over(*moments))

    def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = ""
    ) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if that is one too many; return the ban that this makes."""
        return self._write(lambda rules: rules.strike(policy, key, weight, reason, prefix, *self._moments()))

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._write(lambda rules: rules.ban(key, length_us, reason, by, *self._moments()))

    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        return self._write(lambda rules: rules.unban(key, by, *self._moments()))

    def load(self, rows: Sequence[Row]) -> int | Awaitable[int]:
        """Take over the rows of a `dump`; of two bans of a key the one that lasts longer stays.

        They are written a part at a time, with pauses in which other processes write. Where the store fails half way, a
        note of the error says how far this came, and the same rows again bring the rest.
        """
        # The deadline is this call's: while it waits, others on the same loop ask with theirs.
        return _answer(self._load(from_rows(rows, *self._moments()), self._batcher.patience_s))

    def strike_records(self, keys: Sequence[str]) -> StoredRecords:
        """Return how each of some keys stands under each policy. This changes nothing."""

        def look(transaction: Transaction) -> StoredRecords:
            return self._moments()[0], stored_records(LmdbBanStorage(transaction).states(), keys)

        return self._transactions.read(look)

    def count(self) -> int:
        """Return how many bans are written: those in force, and those that ended lately."""
        return self._transactions.read(lambda transaction: len(LmdbBanStorage(transaction).active_bans))

    def active(self) -> list[Ban] | Awaitable[list[Ban]]:
        """Return the bans in force."""
        return _answer(_gather(self._parts("bans", self._active_of)))

    def history(self) -> list[BanChange] | Awaitable[list[BanChange]]:
        """Return the last 10,000 changes, oldest first."""
        return _answer(_gather(self._parts("history", _changes_of)))

    def dump(self) -> list[Row] | Awaitable[list[Row]]:
        """Return all bans, strikes and levels, as `core.bans.rows` writes them."""
        return _answer(self._dump())

    async def _dump(self) -> list[Row]:
        moments = self._moments()
        rows: list[Row] = list(to_rows(Bans([], []), *moments))
        async for bans in self._parts("bans", self._active_of):
            rows += list(to_rows(Bans(list(bans), []), *moments))[1:]
        async for records in self._parts("struck", self._records_of):
            rows += list(to_rows(Bans([], list(records)), *moments))[1:]
        return rows

    async def _parts(
        self, name: str, read: Callable[[LmdbBanStorage, Sequence[tuple[bytes, bytes]]], Sequence[T]]
    ) -> AsyncIterator[Sequence[T]]:
        """Yield the rows of a database as `read` reads them, a part at a time, each in a transaction of its own."""

        def look(transaction: Transaction) -> tuple[Sequence[T], bytes | None]:
            rows, following = part(transaction.txn, getattr(transaction.dbs, name), row or b"")
            return read(LmdbBanStorage(transaction), rows), following

        row: bytes | None = b""
        while row is not None:
            items, row = self._transactions.read(look)
            yield items
            await asyncio.sleep(0)

    def _active_of(self, storage: LmdbBanStorage, rows: Sequence[tuple[bytes, bytes]]) -> Sequence[Ban]:
        moments = self._moments()
        return [change.ban for change in _changes_of(storage, rows) if not change.ban.is_over(*moments)]

    def _records_of(
        self, storage: LmdbBanStorage, rows: Sequence[tuple[bytes, bytes]]
    ) -> Sequence[tuple[str, str, StrikeRecord]]:
        """Return (policy, key, record) for some rows of `struck`, without records that are over."""
        (now_us, _), records = self._moments(), []
        for row, packed in rows:
            policy, key = policy_of(row), text_of(packed)
            state = storage.open_state(policy)
            record = state.strikes.get(key)
            if record is not None and not state.is_over(record, now_us):
                records.append((policy, key, record))
        return records

    async def _load(self, imported: Bans, patience_s: float) -> int:
        bans, records = imported
        if self.count() + len(bans) > self._max_bans:
            for _ in range(0, self.count(), LOAD_STEP):
                await self._run(lambda transaction: self.sweep(transaction, LOAD_STEP), patience_s)

        def check_room(transaction: Transaction) -> None:
            BanRules(LmdbBanStorage(transaction), self._max_bans).check_room(imported)

        self._transactions.read(check_room)
        parts = [Bans(bans[at : at + LOAD_STEP], []) for at in range(0, len(bans), LOAD_STEP)]
        parts += [Bans([], records[at : at + LOAD_STEP]) for at in range(0, len(records), LOAD_STEP)]
        done = 0
        for some in parts:
            try:
                await self._run(partial(self._take_over, some), patience_s)
            except StoreError as error:
                error.add_note(f"{done} of {len(bans)} bans were taken over")
                raise
            done += len(some.bans)
            await _pause(LOAD_PAUSE_S)
        return len(bans)

    async def _run(self, job: Job, patience_s: float) -> None:
        answer = self._batcher.run(job, patience_s=patience_s)
        if isawaitable(answer):
            await answer

    def _take_over(self, some: Bans, transaction: Transaction) -> None:
        self._work(lambda rules: rules.take_over(some, *self._moments()), transaction)

    def _write(self, do: Callable[[BanRules], T]) -> T | Awaitable[T]:
        return self._batcher.run(partial(self._work, do))

    def _work(self, do: Callable[[BanRules], T], transaction: Transaction) -> T:
        storage = LmdbBanStorage(transaction)
        rules = BanRules(storage, self._max_bans, self._throttle)
        answer = do(rules)
        storage.save()
        transaction.events += rules.events
        return answer

    def _moments(self) -> tuple[int, int]:
        """Return the store's time and Unix time; where the first steps back, it goes on from where it was."""
        with self._steady_lock:
            return self._steady.at(self._clock()), self._wall()


def _changes_of(storage: LmdbBanStorage, rows: Sequence[tuple[bytes, bytes]]) -> list[BanChange]:
    changes = (read_change(packed) for _, packed in rows)
    return [change for change in changes if change is not None]


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _answer(work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Return what work in parts comes to; on an event loop an awaitable of it, and the loop turns between the parts."""
    if _on_asyncio():
        return work
    try:
        while True:
            work.send(None)
    except StopIteration as ended:
        answer: T = ended.value
        return answer


async def _gather(parts: AsyncIterator[Sequence[T]]) -> list[T]:
    return [one async for items in parts for one in items]


def _pause(span_s: float) -> Awaitable[None]:
    if _on_asyncio():
        return asyncio.sleep(span_s)
    time.sleep(span_s)
    return asyncio.sleep(0)


def _redated(ban: Ban, now_us: int, wall_us: int) -> Ban:
    """Return a ban of another environment in the time of this one, by the clock of the system."""
    made_us = now_us - max(wall_us - ban.wall_us, 0)
    ends_us = None if ban.ends_us is None else made_us + ban.ends_us - ban.made_us
    return ban._replace(made_us=made_us, ends_us=ends_us)
