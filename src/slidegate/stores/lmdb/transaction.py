"""The transactions of an LMDB store, with all steps of a hit.

`Transactions.write` runs one: gate and begin, clock, the jobs, save, sweep, commit. A job is a method of `Transaction`
with its arguments; `Transaction.hit` checks bans, finds windows, calls `core.decide`, and holds permits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple

import lmdb

from ...core.bans.ban import BanSubject, longest
from ...core.bans.rules import LOG_EVERY_US, BanRules
from ...core.concurrency import Concurrency
from ...core.decide import WindowRef, charge_all, decide, in_periods, refund_all
from ...core.decision import Bucket, Check, Decision, refused_by_ban
from ...core.errors import StoreUnavailable
from ...core.logs import Throttle
from ...core.memo import remember
from ...core.quotas import Quota
from ...core.reservation import Reservation
from ...core.store import Clock, Event, Observers, closed
from ...core.views import Snapshot
from ..leases import permits_lost
from ..shared import SHARED_PAUSE_US, keys_shared
from .ban_rows import KnownNetworks, LmdbBanStorage, ban_of
from .batching import Job
from .environment import IN_PROCESS_S, NO_CHANGES, Environment
from .layout import row_of
from .permits import OwnPermits, PermitRows
from .windows import Bound, WindowRows, bind

SAY_FULL_EVERY_US: Final = 60_000_000
SWEEP_STEP: Final = 16
SWEEP_ALONE: Final = 512
"""The step of a sweep in a transaction of its own, if the file is full."""
SWEEP_PAUSE_US: Final = 100_000

Args = TypeVarTuple("Args")
T = TypeVar("T")


class Settings(NamedTuple):
    """The options of a store that its transactions need.

    Attributes:
        now_us: The store's clock.
        unix_us: Returns Unix time in microseconds, for bans and quotas.
        max_keys: The most windows.
        max_bans: The most bans, and the most strike records.
    """

    now_us: Clock
    unix_us: Clock
    max_keys: int
    max_bans: int


class Transactions:
    """Runs transactions, emits their events, and caches what this process needs across transactions.

    Args:
        env: The environment.
        settings: The options of the store.
        observers: The observers of the store.
        permits: The permits of this process.

    Attributes:
        ban_throttle: Limits the rate of events of bans that could be repeated with every strike.
        bound: A memo of the limits of each bucket, with the digests and heads of their rows.
        closed: Whether the store was closed.
        evictions: How many expired windows were deleted.
        networks: The cached bans of networks.
        refused: Questions whose last answer was a refusal.
        shared_hits: How many hits were counted in shared cells.
    """

    def __init__(self, env: Environment, settings: Settings, observers: Observers, permits: OwnPermits) -> None:
        self.env = env
        self.settings = settings
        self.permits = permits
        self._observers = observers
        self.bound: dict[Bucket, Bound] = {}
        self.networks = KnownNetworks()
        self.refused: dict[Sequence[Check], None] = {}
        self.ban_throttle = Throttle(LOG_EVERY_US)
        self._sweep_due_us = self._next_shared_event_us = 0
        self._throttle = Throttle(SAY_FULL_EVERY_US)
        self.closed = False
        self.evictions = self.shared_hits = 0

    def read(self, ask: Callable[[Transaction, *Args], T], *args: *Args) -> T:
        """Run a method of `Transaction` in a read transaction and return its answer, without waiting for writers.

        If the files have to be opened or have grown, it may wait up to `IN_PROCESS_S`, see `Environment.read`.

        Raises:
            StoreUnavailable: The files cannot be read, or the store was closed.
        """
        return self.read_within(IN_PROCESS_S, ask, *args)

    def read_within(self, patience_s: float, ask: Callable[[Transaction, *Args], T], *args: *Args) -> T:
        """Do the same as `read`, but wait at most `patience_s` for files that have to be opened or have grown."""
        self._expect_open()
        try:
            txn = self.env.read(patience_s)
            try:
                return ask(Transaction(self, txn, self.settings.now_us(), writes=False), *args)
            finally:
                self.env.end_read(txn)
        except (lmdb.Error, OSError) as error:
            raise self.env.failure(error) from error

    def write(self, jobs: Sequence[Job]) -> list[Any] | None:
        """Run jobs in one transaction and return their answers; None while another process or thread writes.

        Raises:
            StoreUnavailable: The files are damaged or full, or the store was closed.
        """
        self._expect_open()
        try:
            while True:
                try:
                    return self._write(jobs)
                except lmdb.MapFullError as error:
                    self._make_room(error)
        except lmdb.MapFullError as error:
            raise StoreUnavailable(f"lmdb: {self.env.path} is full: {error}", concerns="key") from error
        except (lmdb.Error, OSError) as error:
            raise self.env.failure(error) from error

    def _write(self, jobs: Sequence[Job]) -> list[Any] | None:
        txn = self.env.begin()
        if txn is None:
            return None
        transaction = None
        try:
            try:
                if self.env.fullness == NO_CHANGES:
                    raise lmdb.MapFullError("it has no room for changes; raise max_map_size")
                # The clock is read behind the gate: under an older time, units of later charges would leave too early.
                transaction = Transaction(self, txn, self.settings.now_us(), writes=True)
                answers = [do(transaction, *args) for do, args in jobs]
                transaction.save()
                if transaction.now_us >= self._sweep_due_us:
                    self._sweep(transaction, max(SWEEP_STEP, 2 * len(jobs)))
                self.env.look_after(txn, transaction.now_us)
            except BaseException:
                self.env.abort(txn)
                raise
            self.env.commit(txn)
        except BaseException:
            if transaction is not None:
                transaction.roll_back()
            raise
        self._record(transaction)
        return answers

    def _sweep(self, transaction: Transaction, max_count: int) -> bool:
        """Delete expired rows; return whether none are left."""
        evictions, is_swept = transaction.windows.sweep(max_count)
        more = transaction.sweep_bans(max_count)
        self.evictions += evictions
        if is_swept and not more:
            self._sweep_due_us = transaction.now_us + SWEEP_PAUSE_US
        return is_swept and not more

    def _record(self, transaction: Transaction) -> None:
        """Record the results of a committed transaction, and emit its events."""
        now_us, windows = transaction.now_us, transaction.windows
        self.env.untold.extend(transaction.events())
        if windows.shared_hits:
            self.shared_hits += windows.shared_hits
            if now_us >= self._next_shared_event_us:
                self._next_shared_event_us = max(windows.shared_until_us, now_us + SHARED_PAUSE_US)
                self.env.untold.append(keys_shared(self.settings.max_keys))
        self.tell()
        if self.env.fullness:
            self._report_full(now_us)

    def _expect_open(self) -> None:
        if self.closed:
            raise closed(f"lmdb: the store at {self.env.path}")

    def tell(self) -> None:
        """Emit the pending events."""
        with suppress(IndexError):  # another thread may take the last one
            while self.env.untold:
                self._observers.tell(self.env.untold.popleft())

    def _make_room(self, error: lmdb.MapFullError) -> None:
        """Enlarge the map; if it cannot grow, delete some expired rows.

        Raises:
            lmdb.MapFullError: There are none.
        """
        if self.env.grow():
            self.tell()
            return
        fullness = self.env.fullness
        for max_count in (SWEEP_ALONE, SWEEP_STEP, 1):
            with suppress(lmdb.MapFullError):  # deletions copy pages, which needs room
                if self._sweep_alone(max_count) or self.env.fullness < fullness:
                    return
        self._report_full(self.settings.now_us())
        raise error

    def _sweep_alone(self, max_count: int) -> bool:
        """Delete expired rows; return whether there may be more, or another process writes."""
        txn = self.env.begin()
        if txn is None:
            return True
        try:
            is_swept = self._sweep(Transaction(self, txn, self.settings.now_us(), writes=True), max_count)
        except BaseException:
            self.env.abort(txn)
            raise
        self.env.commit(txn, looks=True)
        return not is_swept

    def _report_full(self, now_us: int) -> None:
        if self._throttle.left_out("map_full", now_us) is not None:
            stuck = self.env.stuck
            remedy = "free some space" if stuck else "raise max_map_size"
            message = f"{self.env.path} {stuck or 'is full'}, so new keys are counted in shared cells; {remedy}"
            self.env.untold.append(Event("map_full", message))
        self.tell()


class Transaction:
    """The operations in one LMDB transaction. In a read transaction they simulate changes without writing them.

    Args:
        process: The state that this process keeps across transactions.
        txn: LMDB's transaction.
        now_us: The store's time, in microseconds.
        writes: Whether it may write.

    Attributes:
        dbs: The databases.
        now_us: The store's time, in microseconds.
        txn: LMDB's transaction.
        windows: The rows of windows.
    """

    __slots__ = ("_permits", "_process", "_rules", "_writes", "dbs", "now_us", "txn", "windows")

    def __init__(self, process: Transactions, txn: Any, now_us: int, *, writes: bool) -> None:
        self._process = process
        self._writes = writes
        self.txn = txn
        self.dbs = process.env.dbs
        self.now_us = now_us
        self.windows = WindowRows(txn, process.env, now_us, process.settings.unix_us, process.settings.max_keys)
        self._permits: PermitRows | None = None
        self._rules: BanRules | None = None

    # -- questions ----------------------------------------------------------------------------------------------------

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Charge every check or none, and return the decision."""
        decision: Decision | None = self.refusal_by_ban(checks, subjects)
        if decision is None:
            refs = self._charged(checks)
            decision = decide(checks, refs, self.now_us)
            if decision.allowed:
                return self._hold_permits(decision, refs)
        remember(self._process.refused, checks, None)
        return decision

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Return what `hit` would answer now; for a read transaction."""
        refusal = self.refusal_by_ban(checks, subjects)
        if refusal is not None:
            return refusal
        decision = decide(checks, self._find(checks), self.now_us)
        decision.reservations = ()
        return decision

    def refusal(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the answer of `hit` if it is a refusal that changes no row; else None."""
        decision = self.peek(checks, subjects)
        return None if decision.allowed or self.windows.changed() else decision

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Charge every cost, even beyond the limits, and return the decision."""
        refs = self._charged(checks)
        return self._hold_permits(charge_all(checks, refs, self.now_us), refs)

    def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Refund charges; return False if all of them have expired or were refunded before."""
        left = [one for one in reservations if one.permit is None or self.permit_rows().end(one.permit)]
        refs = self._find([one.check for one in left], makes=False)
        return refund_all(left, refs, self.now_us)

    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Snapshot:
        """Return the windows of `key` under some buckets."""
        refs = self._find([(bucket, key, 0) for bucket in buckets], makes=False)
        return Snapshot(self.now_us, self._process.settings.unix_us(), [windows[row] for _, _, windows, row in refs])

    # -- bans ---------------------------------------------------------------------------------------------------------

    def refusal_by_ban(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the refusal of a question by a ban; None if no ban refuses it."""
        get, bans, found = self.txn.get, self.dbs.bans, []
        keys = {key for _, key, _ in checks}
        for subject in subjects:
            if isinstance(subject, str):
                keys.add(subject)
            else:
                found += self.ban_rows.networks().of(subject)
        for key in keys:
            if (packed := get(key.encode(), None, bans)) is not None and (ban := ban_of(packed)) is not None:
                found.append(ban)
        if not found:
            return None  # most requests end here
        now_us = self._process.settings.unix_us()
        ban = longest(found, now_us)
        return None if ban is None else refused_by_ban(ban, now_us, checks)

    def change_bans(self, do: Callable[[BanRules, int], T]) -> T:
        """Apply a change of `BanRules`; `do` is called with the rules and Unix time."""
        if self._rules is None:
            self._rules = BanRules(self.ban_rows, self._process.settings.max_bans, self._process.ban_throttle)
        return do(self._rules, self._process.settings.unix_us())

    def sweep_bans(self, max_count: int) -> bool:
        """Remove at most `max_count` expired bans and strike records; return whether there may be more."""
        if not self.txn.stat(self.dbs.ban_ends)["entries"]:
            return False
        return self.ban_rows.remove_expired(self._process.settings.unix_us(), max_count)

    @property
    def ban_rows(self) -> LmdbBanStorage:
        """The rows of bans and strike records."""
        return LmdbBanStorage(self.txn, self.dbs, self._process.settings.unix_us, self._process.networks)

    # -- windows and permits ------------------------------------------------------------------------------------------

    def _charged(self, checks: Sequence[Check]) -> list[WindowRef]:
        """Return the locations of the windows of a question that is about to be charged."""
        return self._find(checks)

    def _find(self, checks: Sequence[Check], *, makes: bool = True) -> list[WindowRef]:
        """Return the locations of the windows of a question.

        Args:
            checks: The question.
            makes: Whether to create missing windows.
        """
        refs: list[WindowRef] = []
        dated = False
        for bucket, key, cost in checks:
            for bound in self._process.bound.get(bucket) or bind(bucket, self._process.bound):
                if bucket.is_permit:
                    windows, row = self.permit_rows().find(row_of(key, bound[0]))
                else:
                    windows, row = self.windows.find(key, bound, makes)
                refs.append((bound[2].counter, cost, windows, row))
                dated = dated or isinstance(bound[2], Quota)
        return in_periods(refs, self.now_us, self._process.settings.unix_us()) if dated else refs

    def permit_rows(self) -> PermitRows:
        """Return the rows of permits; before a write, those of this process are valid for at least half a lease."""
        if self._permits is None:
            self._permits = PermitRows(self.txn, self._process.env, self.now_us, self._process.permits)
            if self._writes:
                self._permits.ensure_lease()
        return self._permits

    def _hold_permits(self, decision: Decision, refs: Sequence[WindowRef]) -> Decision:
        """Hold the permits that a decision has charged, and attach them to its reservations."""
        if self._permits is None:
            return decision
        rows = [(limit.amount, row) for limit, _, _, row in refs if isinstance(limit, Concurrency)]
        held = [reservation for reservation in decision.reservations if reservation.check[0].is_permit]
        for reservation, (amount, row) in zip(held, rows, strict=True):
            (units,) = reservation.units
            if units:
                reservation.permit = self._permits.hold(row, amount, units)
        return decision

    # -- its end ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write all changes."""
        self.windows.save()
        if self._permits is not None:
            self._permits.save()

    def roll_back(self) -> None:
        """Undo the changes to the state of this process, because the transaction was not committed."""
        if self._permits is not None:
            self._permits.roll_back()

    def events(self) -> list[Event]:
        """Return the events to emit after the commit."""
        events = [] if self._rules is None else self._rules.events
        if self._permits is not None and self._permits.lost:
            events.append(permits_lost("lmdb", len(self._permits.lost)))
        return events
