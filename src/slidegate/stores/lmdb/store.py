"""All processes of one host.

Windows and bans are rows of an LMDB environment, a file that the processes map into memory. Every hit is one writing
transaction, which only one process has at a time: it reads the rows, lets the core decide about the windows in them,
and writes back those that changed. A repeated refusal, a `peek` and the check for bans only read, and wait for nobody.

A hit is a method of `transaction.Transaction`. `batching` chooses the moment at which `Transactions.write` runs it,
alone or with others; `windows` and `permits` read and write the rows, and `core.decide` decides. `environment` has the
files: the gate, their growth, and with `opening`, `checking` and `layout` what is checked before they are trusted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from typing import Final, Literal

try:
    from fcntl import flock  # noqa: F401
    from os import register_at_fork  # noqa: F401
except ImportError:
    raise ImportError(
        "LmdbStore needs POSIX, as Linux and macOS have it; here use MemoryStore for one process, or RedisStore"
    ) from None

try:
    import lmdb  # noqa: F401 - without it, the error says what to install
except ImportError as error:
    raise ImportError('LmdbStore needs the package lmdb: pip install "slidegate[lmdb]"') from error

from ...core.bans.ban import BanSubject
from ...core.decision import Check, Decision, LimitSet
from ...core.errors import ConfigurationError, quoted
from ...core.limits import check_whole
from ...core.reservation import Reservation
from ...core.store import Clock, EventListener, Store
from ...core.views import Snapshot
from ..leases import DEFAULT_PERMIT_LEASE, LeaseRenewer, permit_lease_us
from ..shared import DEFAULT_MAX_BANS, DEFAULT_MAX_KEYS, check_clock, non_decreasing
from ..system_clock import system_us
from .bans import LmdbBans
from .batching import Batcher
from .environment import close_environment, open_environment
from .opening import Options
from .permits import OwnPermits
from .stats import LmdbSharedStats
from .transaction import Settings, Transaction, Transactions

DEFAULT_MAP_SIZE: Final = 64 * 2**20
DEFAULT_MAX_MAP_SIZE: Final = 2**30
MIN_MAP_SIZE: Final = 2**16
MAX_MAP_SIZE: Final = 2**40


@dataclass(frozen=True, slots=True)
class LmdbStats:
    """Counters of an `LmdbStore`.

    Attributes:
        keys: Windows held now, those of all processes, shared cells not included.
        bytes_used: Bytes of the file that have been used so far.
        bytes_held: The size of the file.
        evictions: Empty windows that this process has deleted.
        shared_hits: Hits of this process that were counted in a shared cell.
    """

    keys: int
    bytes_used: int
    bytes_held: int
    evictions: int
    shared_hits: int


class LmdbStore(Store):
    """Remembers windows and bans in a file, for all processes of one host, over restarts and reboots.

    Safe to use from several threads and event loops at once, and after `fork`. Every worker makes its own, with the
    same path and options; two of one process share one environment. The files are opened here, because a path that
    cannot work must not wait for the first request to say so.

    Args:
        path: A directory on a local disk, for slidegate alone; it is made if only its last part is missing.
        map_size: Bytes that the file takes at first, 64 KiB to 1 TiB.
        max_map_size: Bytes that may be in use before new keys share cells; by default 1 GiB, or `map_size` if that is
            more. The file doubles on the way there, and takes a sixteenth more, 2 MiB at least, for known keys.
        max_keys: How many windows to hold. Beyond, further keys share cells, as in memory.
        max_bans: How many bans in force to hold, and as many strikes: those of each key and policy count once. Beyond,
            automatic bans are not recorded, and strikes are forgotten.
        permit_lease: How long the permits of a process that is gone stay taken, 1 s to 10 minutes. A process renews its
            lease three times as often.
        durability: With ``"fast"``, counts and bans survive the end of any process. With ``"safe"`` they are on the
            disk before the answer, and survive a loss of power too. All workers choose the same.
        read_only: Whether nothing is ever written: the files have to be there, and every change is refused with
            `StoreUnavailable`. For tools that look on.
        clock: Returns microseconds; by default the clock of the host. Tests pass `slidegate.testing.FakeClock`.
        wall_clock: Returns Unix time in microseconds, for bans and quotas; by default `clock` if one is given, else
            the clock of the system.

    Raises:
        ConfigurationError: An option is out of range, or the files cannot be used; the message says what would help.
        StoreUnavailable: `read_only`, and the files cannot be read.
        StoreTimeout: Another process holds the lock of the files and does not respond.
    """

    bans: LmdbBans

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        map_size: int = DEFAULT_MAP_SIZE,
        max_map_size: int | None = None,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_bans: int = DEFAULT_MAX_BANS,
        permit_lease: str | float | timedelta = DEFAULT_PERMIT_LEASE,
        durability: Literal["fast", "safe"] = "fast",
        read_only: bool = False,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        check_whole(map_size, MIN_MAP_SIZE, MAX_MAP_SIZE, "map_size", "for example 64 * 2**20")
        if max_map_size is None:
            max_map_size = max(map_size, DEFAULT_MAX_MAP_SIZE)
        check_whole(max_map_size, map_size, MAX_MAP_SIZE, "max_map_size", "for example 2**30")
        check_whole(max_keys, 1, 10**12, "max_keys", "for example 100_000")
        check_whole(max_bans, 1, 10**12, "max_bans", "for example 100_000")
        if durability not in ("fast", "safe"):
            raise ConfigurationError(f'durability: expected "fast" or "safe", not {quoted(durability)}')
        check_clock("clock", clock)
        check_clock("wall_clock", wall_clock)
        super().__init__()
        self._permits = OwnPermits(permit_lease_us(permit_lease))
        self.max_keys = max_keys
        self._env = open_environment(path, Options(map_size, max_map_size, durability == "safe", read_only))
        unix_us = wall_clock or clock or system_us
        now_us = clock or self._env.now_us
        ban_now_us = self._env.now_us if clock is None else non_decreasing(clock)
        settings = Settings(now_us, ban_now_us, unix_us, max_keys, max_bans)
        self._transactions = Transactions(self._env, settings, self.observers, self._permits)
        self._batcher = Batcher(self._transactions, in_thread=durability == "safe")
        self._renewer = LeaseRenewer(self._permits, self.renew_permits)
        self.bans = LmdbBans(self._transactions, self._batcher)
        self.shared_stats = LmdbSharedStats(self._transactions, self._batcher)
        self._transactions.tells = True

    def __repr__(self) -> str:
        return f"<LmdbStore {str(self._env.path)!r}>"

    def stats(self) -> LmdbStats:
        """Return the store's counters."""
        transactions = self._transactions
        sizes = transactions.read(lambda transaction: self._env.sizes(transaction.txn))
        return LmdbStats(*sizes, transactions.evictions, transactions.shared_hits)

    def observe(self, observer: EventListener) -> None:
        """Tell `observer` this store's events from now on, and those of its opening."""
        super().observe(observer)
        self._transactions.tell()

    def close(self) -> None:
        """Close the files, unless another store of this process uses them. Who waits for an answer is told so."""
        if not self.closed:
            super().close()
            self._transactions.closed = True
            self._renewer.close()
            close_environment(self._env)

    def keep_deadline(self, deadline_s: float) -> bool:
        """Set the deadline of this thread's calls, in seconds; False if it cannot be kept."""
        return self._batcher.keep_deadline(deadline_s)

    def answers_threads(self) -> bool:
        """Answer threads without an event loop in time; False if each commit waits for a disk."""
        return not self._batcher.in_thread

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none, in one step, and return the decision."""
        checks, refused = tuple(checks), self._transactions.refused
        if refused and checks in refused:
            refusal = self._batcher.read(Transaction.refusal, checks, subjects)
            if refusal is not None:
                return refusal
            refused.pop(checks, None)
        for bucket, _, _ in checks:
            if bucket.held:
                self._renewer.start()
        batcher = self._batcher
        decision: Decision | Awaitable[Decision] = batcher.run_job(
            (Transaction.hit, (checks, subjects)), batcher.patience_s, instead=Transaction.refusal
        )
        return decision

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        """Return what `hit` would answer now. This changes nothing, and waits for no other process."""
        return self._transactions.read(Transaction.peek, checks, subjects)

    def charge(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Record every cost in one step, whatever the limits, and return the decision."""
        return self._batcher.run(Transaction.charge, checks)

    def refund(self, reservations: Sequence[Reservation]) -> bool | Awaitable[bool]:
        """Hand back what was charged; False if all of it has expired or was handed back before."""
        return self._batcher.run(Transaction.refund, reservations) if reservations else False

    def reset(self, key: str) -> bool | Awaitable[bool]:
        """Forget what `key` has spent under every rule; False if that was nothing.

        Permits stay taken, because the requests are under way. The units of the key in a shared cell stay: they cannot
        be told from those of other keys.
        """
        known = self._transactions
        return self._batcher.run(lambda transaction: transaction.windows.reset(key, known.latest_us))

    def reset_all(self) -> bool | Awaitable[bool]:
        """Delete the windows of all keys under every rule, and shared cells; False if there were none.

        Permits stay taken, because the requests are under way.
        """
        known = self._transactions
        return self._batcher.run(lambda transaction: transaction.windows.reset_all(known.latest_us))

    def inspect(self, key: str, buckets: Sequence[LimitSet]) -> Snapshot:
        """Return the windows that count `key` under some buckets. This waits for no other process."""
        return self._transactions.read(Transaction.inspect, key, buckets)

    def permits_held(self) -> int:
        """Return how many permits of concurrency limits requests of this process hold."""
        return self._permits.count()

    def renew_permits(self) -> Awaitable[None] | None:
        """Renew the lease on the permits of this process, which the store does by itself where asyncio runs."""
        return self._batcher.run(lambda transaction: transaction.permit_rows().renew())
