"""The transactions of an LMDB store, with all steps of a hit.

`Transactions.write` runs one: gate and begin, clock, the jobs, save, sweep and commit. A job is a method of
`Transaction` with its arguments; `Transaction.hit` checks bans, finds windows, calls `core.decide`, and holds permits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import lmdb

from ...core.bans.ban import Ban, BanSubject, read_ban
from ...core.buckets import Bucket, Check
from ...core.decide import WindowRef, charge_all, decide, refund_all
from ...core.decision import Decision, refused_by_bans
from ...core.errors import StoreUnavailable
from ...core.events import Event
from ...core.logs import Throttle
from ...core.reservation import Reservation
from ...core.store import Clock, Snapshot, Store
from ...core.stored import all_readable
from ..ban_book import LOG_EVERY_US, BanBook
from ..leases import HeldPermits
from ..shared import keys_shared, preview
from .counts import CHECK_EVERY, Room
from .environment import Environment
from .kept import note
from .rows import CachedNetworks, LmdbBanRows, TransactionRows, row_of
from .windows import BoundLimits, WindowRows

SWEEP_STEP: Final = 16
SWEEP_PAUSE_US: Final = 100_000

T = TypeVar("T")
Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], bool]
"""A function that is called with a transaction, its further arguments, and whether it may need room in the file."""


class Settings(NamedTuple):
    """What a store was made with.

    Attributes:
        max_keys: The most windows.
        max_bans: The most bans, and the most levels.
        permits: The permits of this process.
        now_us: The clock of windows.
        unix_us: The clock of bans and quotas.
    """

    max_keys: int
    max_bans: int
    permits: HeldPermits
    now_us: Clock
    unix_us: Clock


class Transactions:
    """Runs transactions, emits their events, and caches what this process needs across transactions.

    Args:
        store: The store, as far as any store has it.
        settings: What it was made with.
        env: Its environment.

    Attributes:
        throttle: Limits the rate of events that could be repeated with every strike or key.
        bound: The limits of each bucket, with the digests and heads of their rows.
        networks: The cached bans of networks.
        sweep_due_us: When to delete expired rows again.
    """

    def __init__(self, store: Store, settings: Settings, env: Environment) -> None:
        self.store = store
        self.settings = settings
        self.env = env
        self.bound = BoundLimits(settings.unix_us)
        self.networks: CachedNetworks = {}
        self.throttle = Throttle(LOG_EVERY_US)
        self.sweep_due_us = 0

    def write(self, jobs: Sequence[Job], wait_s: float = 0.0) -> list[Any] | None:
        """Run jobs in one transaction and return their answers; None while others are behind the gate.

        Args:
            wait_s: How long to wait for other threads of this process; 0 on an event loop.

        Raises:
            StoreUnavailable: The files are damaged or full, or the store was closed.
        """
        if self.store.closed:  # once a hit
            self.store.expect_open()
        transaction = Transaction(self, jobs)
        try:
            if not self.env.run(transaction.run, wait_s):
                return None
        except BaseException as error:
            transaction.answers.clear()  # their permits count as long as they exist, and the error refers to this frame
            if isinstance(error, lmdb.MapFullError):
                self._make_room()
                raise StoreUnavailable(f"lmdb: {self.env.path} is full: {error}", concerns="request") from error
            if isinstance(error, (lmdb.Error, OSError)):
                raise self.env.failure(error) from error
            raise
        if transaction.has_unkept:
            self.env.kept.keep_up()
        now_us = transaction.rows.now_us
        self.env.pending_events.extend(transaction.events)
        if self.env.counts.room is not Room.PLENTY:
            self._note_full(now_us)
        elif transaction.windows.shares and self.throttle.left_out("keys_shared", now_us) is not None:
            self.env.pending_events.append(keys_shared(self.settings.max_keys))
        if self.env.pending_events:
            self.tell()
        return transaction.answers

    def tell(self) -> None:
        """Emit the pending events."""
        while self.env.pending_events:
            with suppress(IndexError):  # another thread may take the last one
                self.store.observers.tell(self.env.pending_events.popleft())

    def _make_room(self) -> None:
        """Delete some expired rows; where there are none, known keys have no room either."""
        for max_count in (SWEEP_STEP, 1):
            sweep = Transaction(self, [(Transaction.sweep, (max_count,), False)])
            with suppress(lmdb.Error, OSError):
                self.env.run(sweep.run)
                break
        self._note_full(self.settings.now_us())
        self.tell()

    def _note_full(self, now_us: int) -> None:
        """Add the event for a file that is full."""
        if self.throttle.left_out("map_full", now_us) is not None:
            message = f"{self.env.counts.path} is full; raise max_map_size, so new keys are counted in shared cells"
            self.env.pending_events.append(Event("map_full", message))


class Transaction:
    """The operations in one LMDB transaction.

    Args:
        process: The state that this process keeps across transactions.
        jobs: What it does.

    Attributes:
        answers: The answers of the jobs.
        events: The events to emit after the commit.
        has_unkept: Whether there are changes to copy, of this transaction or of a killed process, see `kept`.
        rows: Its rows.
        windows: The rows of windows.
    """

    def __init__(self, process: Transactions, jobs: Sequence[Job]) -> None:
        self._process = process
        self._jobs = jobs
        self.answers: list[Any] = []
        self.events: list[Event] = []
        self.has_unkept = False

    def run(self, txn: Any) -> None:
        """Do the jobs, and what is due."""
        process, jobs = self._process, self._jobs
        settings, counts = process.settings, process.env.counts
        may_grow = False
        for _, _, needs_room in jobs:
            may_grow |= needs_room
        if may_grow and counts.room is Room.NO_CHANGES:
            raise lmdb.MapFullError("it has no room for changes")
        # The clock is read behind the gate: under an older time, units of later charges would leave too early.
        self.rows = rows = TransactionRows(txn, counts.dbs, settings.now_us(), settings.unix_us)
        self.windows = windows = WindowRows(rows, counts.room, settings.max_keys, settings.permits)
        for do, args, _ in jobs:
            self.answers.append(do(self, *args))
        windows.save()
        if may_grow and rows.now_us >= process.sweep_due_us:
            self.sweep(max(SWEEP_STEP, 2 * len(jobs)))
        if txn.id() >= counts.check_from or len(jobs) > CHECK_EVERY:
            counts.check(txn)
        if rows.noted:
            process.env.check_in_place()
            note(txn, counts.dbs, rows.noted)
            self.has_unkept = True

    def command(self, do: Callable[[Transaction], T]) -> tuple[T, bool]:
        """Do a job; return its answer, and whether it has changed what survives a restart of the machine."""
        before = len(self.rows.noted)
        answer = do(self)
        return answer, len(self.rows.noted) > before

    # -- questions ----------------------------------------------------------------------------------------------------

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Charge every check or none, and return the decision."""
        decision = self.refusal_by_ban(checks, subjects)
        if decision is None:
            decision = decide(checks, self._find(checks), self.rows.now_us)
            if self.windows.permits:
                self._hold_permits(decision)
        return decision

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Return what `hit` would answer now, without a charge."""
        decision = self.refusal_by_ban(checks, subjects)
        if decision is None:
            decision = preview(checks, self._find(checks, create=False), self.rows.now_us)
        return decision

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Charge every cost, even beyond the limits, and return the decision."""
        decision = charge_all(checks, self._find(checks), self.rows.now_us)
        self._hold_permits(decision)
        return decision

    def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Refund charges; return False if all of them have expired or were refunded before."""
        of_windows: list[Reservation] = []
        for charge in reservations:
            bucket, key, _ = charge.check
            if bucket.is_permit:  # the worker has counted it no longer since the refund began
                self.windows.renew(self._permits_row(bucket, key))
            else:
                of_windows.append(charge)
        refs = self._find([charge.check for charge in of_windows], create=False)
        has_refunded = refund_all(of_windows, refs, self.rows.now_us)
        return has_refunded or len(of_windows) < len(reservations)

    def renew(self, rows: Sequence[bytes]) -> None:
        """Renew the permits of this process in some rows."""
        for row in rows:
            self.windows.renew(row)

    def inspect(self, checks: Sequence[Check]) -> Snapshot:
        """Return the windows of some checks."""
        refs = self._find(checks, create=False)
        return Snapshot(self.rows.now_us, self.rows.unix_us(), [windows[row] for _, _, windows, row, _ in refs])

    # -- bans ---------------------------------------------------------------------------------------------------------

    def refusal_by_ban(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the refusal of a question by a ban; None if no ban refuses it."""
        get, database = self.rows.txn.get, self.rows.dbs.bans
        bans: list[Ban] = []
        refusing = set(subjects)
        for _, key, _ in checks:
            refusing.add(key)
        for subject in refusing:
            if isinstance(subject, str):
                packed = get(subject.encode(), None, database)
                if packed is not None:
                    bans += all_readable(read_ban, [packed])
                if "/" not in subject:  # it is no network
                    continue
            bans += self.ban_rows.networks().of(subject)
        if not bans:
            return None  # most requests end here, and read no other clock
        return refused_by_bans(bans, self.rows.unix_us(), checks)

    def find_ban(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the longest ban in force that refuses one of `subjects`."""
        refusal = self.refusal_by_ban((), subjects)
        if refusal is None:
            return None
        return refusal.ban

    def change_bans(self, do: Callable[[BanBook, int], T]) -> T:
        """Apply a change; `do` is called with the book of bans and Unix time."""
        settings, throttle = self._process.settings, self._process.throttle
        book = BanBook(self.ban_rows, self.windows, settings.max_bans, settings.max_keys, throttle)
        answer = do(book, self.rows.unix_us())
        self.events += book.events
        return answer

    @property
    def ban_rows(self) -> LmdbBanRows:
        """The rows of bans and levels."""
        return LmdbBanRows(self.rows, self._process.networks)

    # -- windows and permits ------------------------------------------------------------------------------------------

    def _find(self, checks: Sequence[Check], *, create: bool = True) -> list[WindowRef]:
        """Return the locations of the windows of a question.

        Args:
            create: Whether to create missing windows.
        """
        refs: list[WindowRef] = []
        for bucket, key, cost in checks:
            denied = bucket.count_denied
            if bucket.is_permit:
                row = self._permits_row(bucket, key)
                counter, windows = self.windows.find_permits(row, bucket.limits[0])
                refs.append((counter, cost, windows, row, denied))
                continue
            for bound in self._process.bound[bucket]:
                windows, row = self.windows.find(key, bound, create=create)
                refs.append((bound.counter, cost, windows, row, denied))
        return refs

    def _permits_row(self, bucket: Bucket, key: str) -> bytes:
        return row_of(key, self._process.bound[bucket][0].digest)

    def _hold_permits(self, decision: Decision) -> None:
        """Count the permits that a decision has charged from now on."""
        self._process.settings.permits.hold(decision, self._permits_row)

    # -- its end ------------------------------------------------------------------------------------------------------

    def sweep(self, max_count: int) -> None:
        """Delete at most `max_count` expired rows of either index."""
        self.has_unkept = self.rows.txn.stat(self.rows.dbs.unkept)["entries"] > 0
        is_more = self.windows.sweep(max_count)
        if self.rows.txn.stat(self.rows.dbs.ban_ends)["entries"]:
            is_more = self.ban_rows.remove_expired(self.rows.unix_us(), max_count) or is_more
        if not is_more:
            self._process.sweep_due_us = self.rows.now_us + SWEEP_PAUSE_US
