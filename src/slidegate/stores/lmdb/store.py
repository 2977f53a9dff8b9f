"""The store for all processes of one host.

Windows and bans are rows of an LMDB environment, a file that the processes map into memory. Every hit is one
transaction, and only one process has one at a time: it reads the rows, calls `core.decide` on the windows in them, and
writes back those that changed.

A hit is a method of `transaction.Transaction`. `batching` decides when `Transactions.write` runs it, alone or with
others; `windows` and `rows` read and write the rows, and `core.decide` decides. `environment` has the files: the `gate`
behind which everything happens, the file of this start of the machine (`counts`), and `kept`, what survives the next
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from datetime import timedelta
from itertools import islice
from os import PathLike
from typing import Final, TypeVar

try:
    from fcntl import flock  # noqa: F401
    from os import register_at_fork  # noqa: F401
except ImportError:
    raise ImportError(
        "LmdbStore needs POSIX, such as Linux or macOS; on this system use MemoryStore for one process, or RedisStore"
    ) from None

try:
    import lmdb  # noqa: F401 - imported here for an error with the package to install
except ModuleNotFoundError as error:
    if error.name != "lmdb":
        raise
    raise ImportError('LmdbStore needs the package lmdb: pip install "slidegate[lmdb]"') from error

from ...core.arguments import check_whole
from ...core.bans.ban import Ban, BanSubject, read_ban
from ...core.buckets import Check
from ...core.decision import Decision
from ...core.errors import StoreUnavailable
from ...core.events import EventListener
from ...core.logs import safe_text
from ...core.reservation import Reservation
from ...core.store import COMMAND_DEADLINE_S, Clock, ReadRow, SharedRow, SharedRows, Snapshot, Store
from ...core.stored import all_readable
from ..ban_book import BanBook, BookBans
from ..leases import DEFAULT_PERMIT_LEASE, HeldPermits, permit_lease_us
from ..shared import (
    DEFAULT_MAX_BANS,
    DEFAULT_MAX_KEYS,
    answer_of,
    in_steps,
    name_digest,
    run_unless_on_loop,
    running_loop,
)
from ..system_clock import system_us
from .batching import PAUSE_S, Batcher
from .counts import Options, Room, boot_us
from .environment import open_environment
from .gate import TRY_S
from .rows import DUE, due_us, rows_from
from .transaction import Settings, Transaction, Transactions
from .windows import RENEWED_AT_ONCE, WORKER_ROWS

T = TypeVar("T")

MIN_MAP_SIZE: Final = 2**20
MAX_MAP_SIZE: Final = 2**40
STEP: Final = 100
"""How many rows are read in one transaction, which blocks an event loop for about a millisecond."""
ALWAYS: Final = 4_096
"""So many bytes are written as a window is; more only while the file is not full."""


class LmdbStore(Store):
    """Stores windows and bans in a file, for all processes of one host, across restarts.

    After a restart of the machine, windows are empty; bans, the levels of their policies, and quotas go on.

    It can be used from several threads and event loops at the same time, and after `fork`. Every worker creates its own
    store with the same path and options; stores of one process share one environment. The constructor opens the files,
    so that an unusable path fails at start-up and not at the first request. If others use them for a second, on an
    event loop for 5 ms, the first request has them opened. On an event loop a thread does so; meanwhile requests wait,
    each within its deadline.

    Args:
        path: A directory on a local disk, used only by slidegate; it is created if its parent exists.
        max_map_size: The size of the file in bytes, 1 MiB to 1 TiB; by default 256 MiB for a new file, which takes
            this space when it is made. An existing file keeps its size, or is made so large by a process that starts
            while no other runs.
        max_keys: The most windows. Beyond it, further keys share cells, as in memory; strikes of further keys are not
            counted.
        max_bans: The most bans in force, and the most levels of bans that have ended (one for each key and policy).
            Beyond it, automatic bans and levels are not recorded.
        permit_lease: How long the permits of a dead process stay taken, 1 s to 10 minutes. A process renews its lease
            three times in this time.
        create: Whether to create the files if there are none; a tool that looks at those of workers does not.
        clock: Returns microseconds; by default the clock of the host. Tests pass `slidegate.testing.FakeClock`.
        wall_clock: Returns Unix time in microseconds, for bans and quotas; by default `clock` if one is given, else
            the system clock.

    Raises:
        ConfigurationError: An option is out of range, there is too little disk space, or the files cannot be used; the
            message names the remedy.
        StoreUnavailable: The files cannot be used, and `create` is false.
    """

    bans: LmdbBans
    answers_threads = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_map_size: int | None = None,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_bans: int = DEFAULT_MAX_BANS,
        permit_lease: str | timedelta = DEFAULT_PERMIT_LEASE,
        create: bool = True,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        if max_map_size is not None:
            check_whole(max_map_size, MIN_MAP_SIZE, MAX_MAP_SIZE, "max_map_size", "for example 2**30")
        check_whole(max_keys, 1, 10**12, "max_keys", "for example 100_000")
        check_whole(max_bans, 1, 10**12, "max_bans", "for example 100_000")
        super().__init__()
        self._permits = HeldPermits(permit_lease_us(permit_lease), self.renew_permits)
        self.unix_us: Clock = wall_clock or clock or system_us
        settings = Settings(max_keys, max_bans, self._permits, clock or boot_us, self.unix_us)
        self._user = object()
        self._env = open_environment(path, Options(max_map_size, bool(create)), self._user)
        self._transactions = Transactions(self, settings, self._env)
        self._batcher = Batcher(self._transactions)
        self.bans = LmdbBans(self._batcher)
        self.shared_rows = LmdbRows(self._batcher)

    def __repr__(self) -> str:
        return f"<LmdbStore {safe_text(str(self._env.path))}>"

    def observe(self, observer: EventListener) -> None:
        """Call `observer` with this store's events from now on, and with those of its opening."""
        super().observe(observer)
        self._transactions.tell()

    def close(self) -> Awaitable[None] | None:
        """Close the files, unless another store of this process uses them. Calls that are waiting raise an error.

        What survives a restart of the machine is on the disk then, on asyncio's event loop when the answer was awaited.
        While a thread hangs in its transaction, the files stay open.
        """
        if self.closed:
            return None
        super().close()
        self._permits.is_open = False
        closing = self._env.leave(self._user)
        if closing is None or running_loop() is None:
            return None
        return asyncio.wrap_future(closing)

    def hit(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision | Awaitable[Decision]:
        return self._batcher.run(Transaction.hit, checks, subjects, deadline_s=deadline_s)

    def peek(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision | Awaitable[Decision]:
        return self._batcher.run(Transaction.peek, checks, subjects, needs_room=False, deadline_s=deadline_s)

    def charge(self, checks: Sequence[Check], deadline_s: float = COMMAND_DEADLINE_S) -> Decision | Awaitable[Decision]:
        return self._batcher.run(Transaction.charge, checks, deadline_s=deadline_s)

    def refund(
        self, reservations: Sequence[Reservation], deadline_s: float = COMMAND_DEADLINE_S
    ) -> bool | Awaitable[bool]:
        if not reservations:
            return False
        return self._batcher.run(Transaction.refund, reservations, needs_room=False, deadline_s=deadline_s)

    def reset(self, key: str, names: Collection[str] = ()) -> bool | Awaitable[bool]:
        """Forget the windows of `key`; return whether it had spent units.

        Permits stay taken, because their requests are still in progress. The units of the key in a shared cell stay,
        because they are mixed with those of other keys.
        """
        digests = tuple(map(name_digest, names))
        return self._batcher.command(lambda transaction: transaction.windows.reset(key, digests), needs_room=False)

    def reset_all(self) -> bool | Awaitable[bool]:
        """Delete the windows of all keys under every rule, and all shared cells; return whether units were spent.

        Permits stay taken, because their requests are still in progress.
        """
        return self._batcher.command(lambda transaction: transaction.windows.reset_all(), needs_room=False)

    def inspect(self, checks: Sequence[Check]) -> Snapshot | Awaitable[Snapshot]:
        return self._batcher.run(Transaction.inspect, checks, needs_room=False)

    def permits_held(self) -> int:
        return self._permits.count()

    def renew_permits(self) -> Awaitable[None] | None:
        """Renew the lease of this process's permits; the store does this automatically where an event loop runs."""
        return run_unless_on_loop(self._renew())

    async def _renew(self) -> None:
        async for some in in_steps(self._permits.rows(), RENEWED_AT_ONCE):
            await answer_of(self._batcher.run(Transaction.renew, some, needs_room=False))


# -- bans --------------------------------------------------------------------------------------------------------------


class LmdbBans(BookBans):
    """Bans for all processes of a host; created by `LmdbStore`.

    Args:
        batcher: Runs jobs.
    """

    load_step = 20  # in one transaction, which blocks other writers for about 2 ms
    load_pause_s = PAUSE_S  # in which waiting writers get the gate

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._last_count: int | None = None

    def find(
        self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban | None] | None:
        return self._batcher.run(Transaction.find_ban, subjects, needs_room=False, deadline_s=deadline_s)

    def count(self) -> int | None:
        """Return how many bans are stored: those in force, and some that have recently expired.

        While others are behind the gate, it is the number of the last time, if there was one.
        """
        counts = self._batcher.transactions.write([(lambda own: own.ban_rows.ban_count(), (), False)], TRY_S)
        if counts is not None:
            self._last_count = counts[0]
        return self._last_count

    async def pages(self) -> AsyncIterator[list[Ban]]:
        """Yield the bans in force in pages, each read in its own transaction."""
        first = b""
        while rows := await answer_of(self._batcher.run(_some_rows, first, needs_room=False)):
            now_us = self._batcher.transactions.settings.unix_us()
            bans = all_readable(read_ban, [packed for _, packed in rows])
            yield [ban for ban in bans if not ban.is_over(now_us)]
            last, _ = rows[-1]
            first = last + b"\0"  # the smallest key that is larger

    def change(self, do: Callable[[BanBook, int], T], deadline_s: float = COMMAND_DEADLINE_S) -> T | Awaitable[T]:
        return self._batcher.run(Transaction.change_bans, do, deadline_s=deadline_s)

    def command(
        self, do: Callable[[BanBook, int], T], deadline_s: float = COMMAND_DEADLINE_S, *, needs_room: bool = True
    ) -> T | Awaitable[T]:
        return self._batcher.command(
            lambda transaction: transaction.change_bans(do), needs_room=needs_room, deadline_s=deadline_s
        )

    async def _load(self, bans: Iterable[Ban]) -> int:
        imported = await super()._load(bans)
        await self._batcher.keep()
        return imported


def _some_rows(transaction: Transaction, first: bytes) -> list[tuple[bytes, bytes]]:
    """Return up to `STEP` rows of bans, from `first` on, and their values."""
    with transaction.rows.txn.cursor(transaction.rows.dbs.bans) as cursor:
        return list(islice(rows_from(cursor, first), STEP))


# -- rows of workers ---------------------------------------------------------------------------------------------------


class LmdbRows(SharedRows):
    """Writes and reads the rows, in transactions of the store.

    Args:
        batcher: Runs jobs.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def time(self) -> int:
        """Return the time of this host."""
        return self._batcher.transactions.settings.now_us()

    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[None] | None:
        """Write a row of a worker.

        Raises:
            StoreUnavailable: There is no room for the row.
        """
        return self._batcher.run(self._write, worker, row, needs_room=row.kept_us > 0, deadline_s=deadline_s)

    def _write(self, transaction: Transaction, worker: bytes, row: SharedRow) -> None:
        """Write or delete a row in a transaction."""
        counts, rows = self._batcher.transactions.env.counts, transaction.rows
        database, key = rows.dbs.worker_rows, _row_key(row.kind, row.number) + worker
        if row.kept_us <= 0:
            rows.txn.delete(key, b"", database)
            return
        size = len(row.value)
        if size > ALWAYS and counts.room is not Room.PLENTY:
            raise StoreUnavailable(
                f"lmdb: no room for {size:,} bytes of rows: {counts.path} is full; raise max_map_size"
            )
        until_us = rows.now_us + row.kept_us
        if rows.txn.get(key, None, database) is None:
            rows.recheck_at(rows.dbs.ends, until_us, key, WORKER_ROWS)
        rows.txn.put(key, DUE.pack(until_us) + row.value, db=database)
        counts.check(rows.txn)  # it may be larger than many windows

    def read(
        self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S
    ) -> list[ReadRow] | Awaitable[list[ReadRow]]:
        return self._batcher.run(_read_rows, kind, first, last, needs_room=False, deadline_s=deadline_s)


def _read_rows(transaction: Transaction, kind: str, first: int, last: int) -> list[ReadRow]:
    """Read the rows of some numbers in a transaction, without those that have expired."""
    rows = transaction.rows
    answer: list[ReadRow] = []
    end = _row_key(kind, last + 1)
    number_at = len(kind) + 1
    with rows.txn.cursor(rows.dbs.worker_rows) as cursor:
        for key, stored in rows_from(cursor, _row_key(kind, first)):
            if key >= end:
                break
            if due_us(stored) > rows.now_us:
                (number,) = DUE.unpack_from(key, number_at)
                answer.append((number, key[number_at + DUE.size :], stored[DUE.size :]))
    return answer


def _row_key(kind: str, number: int) -> bytes:
    """Return what the keys of the rows of a kind and a number begin with."""
    return kind.encode() + b"\0" + DUE.pack(number)
