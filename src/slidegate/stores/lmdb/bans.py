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

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.networks import BannedNetworks
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.rules import LOG_EVERY_US, BanRules, NonDecreasingClock
from ...core.decision import BanRefusal, Check
from ...core.errors import StoreError
from ...core.logs import Throttle
from ...core.store import BanStore, Clock
from ..forks import hold_over_fork
from ..system_clock import system_us
from .ban_rows import VERSION_BYTES, LmdbBanStorage, ban_of, part, record_of, salvage, struck_of
from .batching import PAUSE_S, Batcher, Job
from .layout import NETWORKS
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
        self._non_decreasing = NonDecreasingClock()
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._throttle = Throttle(LOG_EVERY_US)
        self._networks = b"", BannedNetworks()

    # -- for the store ------------------------------------------------------------------------------------------------

    def decide(
        self, transaction: Transaction, checks: Sequence[Check], subjects: Sequence[BanSubject]
    ) -> BanRefusal | None:
        """Return the refusal of a question by a ban, if there is one."""
        found = self._bans_of(transaction, checks, subjects)
        if not found:
            return None  # most requests end here
        now_us = self._at(transaction.now_us)
        ban = longest([ban for ban in found if not ban.is_over(now_us)])
        return None if ban is None else BanRefusal(ban.by, ban, now_us, checks)

    def rescue(self, path: Path, transaction: Transaction) -> int:
        """Take over the bans that are found in a damaged file; return how many are still in force."""
        now_us, wall_us = self._at(transaction.now_us), self._wall()
        try:
            bans = [_redated(ban, now_us, wall_us) for ban in salvage(path)]
        except OSError:
            return 0
        active = [ban for ban in bans if not ban.is_over(now_us)]
        self._take_over(Bans(active, []), transaction)
        return len(active)

    def _bans_of(self, transaction: Transaction, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> list[Ban]:
        """Return the bans of a question, also those that are over."""
        get, dbs, found = transaction.txn.get, transaction.dbs, []
        keys = {key for _, key, _ in checks}
        for subject in subjects:
            if isinstance(subject, str):
                keys.add(subject)
            elif (networks := self._networks_in(transaction)) is not None:
                found += networks.of(subject)
        for key in keys:
            if (packed := get(key.encode(), None, dbs.bans)) is not None and (ban := ban_of(packed)) is not None:
                found.append(ban)
        return found

    def _networks_in(self, transaction: Transaction) -> BannedNetworks | None:
        """Return the bans of networks, which are read again when they have another version."""
        packed = transaction.txn.get(NETWORKS, None, transaction.dbs.meta)
        if packed is None:
            return None
        version = packed[:VERSION_BYTES]
        if self._networks[0] != version:
            self._networks = version, LmdbBanStorage(transaction).networks()
        return self._networks[1]

    # -- for everybody ------------------------------------------------------------------------------------------------

    def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. This changes nothing."""
        refusal = self._transactions.read(lambda transaction: self.decide(transaction, (), subjects))
        return None if refusal is None else refusal.ban

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if that is one too many; return the ban that this makes."""
        return self._write(lambda rules, now_us: rules.strike(policy, key, weight, reason, now_us, self._wall()))

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._write(lambda rules, now_us: rules.ban(key, length_us, reason, by, now_us, self._wall()))

    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        return self._write(lambda rules, now_us: rules.unban(key, by, now_us))

    def load(self, rows: Sequence[Row]) -> int | Awaitable[int]:
        """Take over the rows of a `dump`; of two bans of a key the one that lasts longer stays.

        They are written a part at a time, with pauses in which other processes write. Where the store fails half way, a
        note of the error says how far this came, and the same rows again bring the rest.
        """
        # The deadline is this call's: while it waits, others on the same loop ask with theirs.
        return _answer(self._load(from_rows(rows, self._now_us(), self._wall()), self._batcher.patience_s))

    def count(self) -> int:
        """Return how many bans are written: those in force, and those that ended lately."""
        return self._transactions.read(lambda transaction: LmdbBanStorage(transaction).ban_count())

    def active(self) -> list[Ban] | Awaitable[list[Ban]]:
        """Return the bans in force."""
        return _answer(self._active())

    def dump(self) -> list[Row] | Awaitable[list[Row]]:
        """Return all bans, strikes and levels, as `core.bans.rows` writes them."""
        return _answer(self._dump())

    async def _active(self) -> list[Ban]:
        now_us = self._now_us()
        return [ban async for ban in self._read_bans() if not ban.is_over(now_us)]

    async def _dump(self) -> list[Row]:
        now_us = self._now_us()
        records = [
            (*struck_of(row), record)
            async for row, packed in self._rows("strikes")
            if (record := record_of(packed)).over_us > now_us
        ]
        return list(to_rows(Bans(await self._active(), records), now_us, self._wall()))

    async def _read_bans(self) -> AsyncIterator[Ban]:
        async for _, packed in self._rows("bans"):
            ban = ban_of(packed)
            if ban is not None:
                yield ban

    async def _rows(self, name: str) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the rows of a database, read a part at a time, each in a transaction of its own."""
        row: bytes | None = b""
        while row is not None:
            rows, row = self._transactions.read(partial(_part_of, name, row))
            for one in rows:
                yield one
            await asyncio.sleep(0)

    async def _load(self, stored: Bans, patience_s: float) -> int:
        bans, records = stored
        if self.count() + len(bans) > self._max_bans:
            for _ in range(0, self.count(), LOAD_STEP):
                await self._run(lambda transaction: transaction.sweep(LOAD_STEP), patience_s)
        await self._run(partial(self._work, lambda rules, _: rules.check_room(stored)), patience_s)
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
        self._work(lambda rules, _: rules.take_over(some), transaction)

    def _write(self, do: Callable[[BanRules, int], T]) -> T | Awaitable[T]:
        return self._batcher.run(partial(self._work, do))

    def _work(self, do: Callable[[BanRules, int], T], transaction: Transaction) -> T:
        rules = BanRules(LmdbBanStorage(transaction), self._max_bans, self._throttle)
        answer = do(rules, self._at(transaction.now_us))
        transaction.events += rules.events
        return answer

    def _now_us(self) -> int:
        return self._at(self._clock())

    def _at(self, clock_us: int) -> int:
        """Return the bans' time, which never runs back, at a moment of the store's clock."""
        with self._lock:
            return self._non_decreasing.at(clock_us)


def _part_of(name: str, row: bytes, transaction: Transaction) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    return part(transaction.txn, getattr(transaction.dbs, name), row)


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
