"""The store for all threads and tasks of one process.

Windows are stored in *shards*, each with its own lock. The hash of a key selects the shard, so a question
about one client acquires one lock; a question about several keys acquires their locks in order. Every hit takes the
same steps: acquire the lock, look up the windows, `core.decide`, release the lock.

Memory is bounded without a thread or a timer:

* The *sweep* removes idle keys during ordinary calls, at most some hundreds in each call, and rules without keys.
* At `max_keys`, a key without a window is counted in one of a fixed number of *shared cells*, selected by a keyed hash.
  So no live window is ever evicted and no key exceeds its limit, but keys that collide may be refused.
* When there is room again, a key gets its own window, which starts as a copy of its cell, because that contains its
  units. So no more units are added to cells, and they expire. Permits are not copied: see `Table.place`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from threading import RLock
from typing import Any, Final, SupportsIndex, TypeAlias

from ...core.arguments import check_whole
from ...core.bans.ban import BanSubject
from ...core.buckets import Bucket, Check
from ...core.counters import Counter
from ...core.decide import WindowRef, charge_all, refund_all, refuse, release_permits
from ...core.decision import OK, Decision
from ...core.events import Event
from ...core.limits import MAX_AMOUNT, AnyLimit
from ...core.logs import Throttle
from ...core.memo import MANY, remember
from ...core.reservation import Reservation
from ...core.ring import WindowState
from ...core.store import COMMAND_DEADLINE_S, Clock, Snapshot, Store
from ..ban_book import LOG_EVERY_US
from ..forks import ForkHook, ThreadLock
from ..shared import DEFAULT_MAX_BANS, DEFAULT_MAX_KEYS, keys_shared, preview
from ..system_clock import SYSTEM, system_us
from .bans import MemoryBanRows, MemoryBans
from .shard import STEP_WINDOWS, Capacity, Identity, Locks, Name, Table, Tables, Windows, locked, release_if_held

SHARD_KEYS: Final = 8_192
"""The most keys of a shard, if shards suffice: copying such a dict takes a fraction of a millisecond."""
MAX_SHARDS: Final = 256
HASH_BITS: Final = 16
"""The hash bits above these select the shard: the lower ones select a dict's slots, and must differ within a shard."""
LEAST_LIFE_US: Final = 1_000_000
"""The least time between two sweeps of a limit."""
SWEEP_PAUSE_US: Final = 1_000_000

Places: TypeAlias = list[list[tuple[Counter, Windows, bool, Table]]]
"""Where the limits of a bucket count the keys of each shard: the counter of each, the fresh windows of its table,
whether refusals are charged to them, and the table. Tables are cleared but keep their dict of fresh windows, so a place
stays valid."""


class MemoryStore(Store):
    """Stores windows in the memory of this process.

    It can be used from several threads and event loops at the same time.

    Args:
        max_keys: The most windows. Beyond it, further keys share cells, see the module docstring; strikes of further
            keys are not counted.
        max_bans: The most bans in force, and the most levels of bans that have ended (one for each key and policy).
            Beyond it, automatic bans and levels are not recorded.
        clock: Returns microseconds; by default the monotonic clock. Tests pass `slidegate.testing.FakeClock`.
        wall_clock: Returns Unix time in microseconds, for bans and quotas; by default `clock` if one is given, else
            the system clock.

    Raises:
        ConfigurationError: `max_keys` or `max_bans` is not a whole number above 0.
    """

    bans: MemoryBans
    answers_threads = True

    def __init__(
        self,
        *,
        max_keys: SupportsIndex = DEFAULT_MAX_KEYS,  # as `int`, compiled code would raise TypeError before our check
        max_bans: SupportsIndex = DEFAULT_MAX_BANS,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.max_keys = check_whole(max_keys, 1, MAX_AMOUNT, "max_keys", "for example 100_000")
        most_bans = check_whole(max_bans, 1, MAX_AMOUNT, "max_bans", "for example 100_000")
        self.clock = clock
        """The clock passed to this store; None for the monotonic clock."""
        self._latest_us = 0
        self.unix_us: Clock = wall_clock or clock or system_us
        shards = min(1 << (self.max_keys // SHARD_KEYS).bit_length(), MAX_SHARDS)  # a power of 2
        # Lock order: the lock of the sweep, that of the bans, those of the shards, that of the capacity.
        self._sweeping = ThreadLock()
        self._ban_rows = MemoryBanRows(self.unix_us)
        self.bans = MemoryBans(
            self,
            self._ban_rows,
            strikes=self,
            max_bans=most_bans,
            max_keys=self.max_keys,
            tidy=lambda: self.tidy(self.time_us()),
        )
        self._locks = [RLock() for _ in range(shards)]
        self._all = Locks(self._locks)
        self._capacity = Capacity(self.max_keys)
        self._shard_bits = (shards - 1) << HASH_BITS
        self._secret = os.urandom(32)
        self._tables: dict[Identity, Tables] = {}
        self._places: dict[Bucket, Places] = {}
        # By the first key of questions: their subjects, and the number of changes of the bans at which these had none.
        self._cleared: dict[str, tuple[Sequence[BanSubject], int]] = {}
        self._new: deque[Tables] = deque()  # the tables of limits that are not scheduled yet
        self._schedule: list[tuple[int, int, Tables]] = []  # a heap of (moment, id, tables): those to sweep next
        self._sweep_us = 0
        self._throttle = Throttle(LOG_EVERY_US)
        self._pending: list[Event] = []  # created under a lock, emitted after its release
        self._in_child = ForkHook(self._restart)

    def _restart(self) -> None:
        """In a forked child, make new locks, and free the permits of the parent's requests.

        Windows are located, counted and swept again. One that another thread was moving is lost, because it was in no
        dict; the child has admitted nothing by it.
        """
        self._cleared.clear()  # another thread may have stored a ban and not yet counted the change
        self._capacity.lock = RLock()
        self._locks[:] = [RLock() for _ in self._locks]
        self._places.clear()
        for table in self._every_table():
            if table.holds_permits:
                table.clear()
        self._capacity.keys = sum([table.key_count() for table in self._every_table()])
        self._new = deque(self._tables.values())
        self._schedule = []
        self._sweep_us = 0

    def __repr__(self) -> str:
        return f"<MemoryStore {self._capacity.keys} of {self.max_keys} keys>"

    def key_count(self) -> int:
        """Return the current number of windows, without shared cells."""
        return self._capacity.keys

    def hit(  # noqa: C901 - inlined
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision:
        """Charge every check or none, atomically, and return the decision, as `decide` does."""
        client_key = checks[0][1] if checks else ""
        at = (hash(client_key) & self._shard_bits) >> HASH_BITS
        lock: Any = self._locks[at]
        if len(checks) > 1:  # perhaps of several clients
            lock = self._lock_of(checks)
        try:
            lock.acquire()  # within `try`: a signal handler may raise in or after it; `with` would take twice as long
            if self.closed:
                self.expect_open()
            if self._ban_rows.has_bans:
                refusal = self._refused(checks, subjects)
                if refusal is not None:
                    lock.release()
                    return refusal
            if self.clock is None:
                now_us = SYSTEM.monotonic_ns() // 1000
            else:
                now_us = self._now_us()
            states: list[WindowState] = []
            has_room = True
            for bucket, key, cost in checks:
                if key is not client_key:
                    client_key, at = key, (hash(key) & self._shard_bits) >> HASH_BITS
                places = self._places.get(bucket) or self._places_of(bucket)
                for counter, windows, _, table in places[at]:
                    name: Name = key
                    if key not in windows:
                        windows, name = self._make_window(table, key)
                    windows[name], state = counter.spend(windows[name], now_us, cost)
                    if state[3]:
                        has_room = False
                    states.append(state)  # last: behind a condition, a signal leaves the lock locked (CPython 3.14)
            if has_room:
                decision = Decision(True, OK, now_us, checks, states, None)
            else:
                decision = refuse(checks, states, now_us, self._refs)
            lock.release()
        except BaseException:
            release_if_held(lock)
            raise
        if now_us >= self._sweep_us:
            self.tidy(now_us)
        return decision

    def peek(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision:
        self.expect_open()
        refusal = self.bans.decide(checks, subjects)
        if refusal is not None:
            return refusal
        return locked(self._lock_of(checks), lambda: preview(checks, self._refs(checks), self.time_us()))

    def inspect(self, checks: Sequence[Check]) -> Snapshot:
        self.expect_open()
        return locked(
            self._lock_of(checks),
            lambda: Snapshot(
                self.time_us(), self.unix_us(), [windows[name] for _, _, windows, name, _ in self._refs(checks)]
            ),
        )

    def charge(self, checks: Sequence[Check], deadline_s: float = COMMAND_DEADLINE_S) -> Decision:
        self.expect_open()
        decision = locked(
            self._lock_of(checks), lambda: charge_all(checks, self._refs(checks, create=True), self._now_us())
        )
        self.tidy(decision.now_us)
        return decision

    def refund(self, reservations: Sequence[Reservation], deadline_s: float = COMMAND_DEADLINE_S) -> bool:
        self.expect_open()
        checks = [reservation.check for reservation in reservations]
        return locked(self._lock_of(checks), lambda: refund_all(reservations, self._refs(checks), self._now_us()))

    def release(self, decision: Decision) -> bool:
        """Return the permits of a decision at once; False if its reservations have to be refunded instead.

        They are in the window of the key, as for any charge.
        """

        def release() -> bool:
            refs: list[WindowRef] = []
            if not decision.is_whole:
                return False
            for bucket, key, cost in decision.checks:
                places = self._places.get(bucket) or self._places_of(bucket)
                for counter, windows, is_charged, _ in places[self._shard_of(key)]:
                    if not windows.get(key):  # in a shared cell, unused for long, or the permits of a parent process
                        return False
                    refs.append((counter, cost, windows, key, is_charged))
            release_permits(decision, refs)
            return True

        return locked(self._lock_of(decision.checks), release)

    def reset(self, key: str, names: Collection[str] = ()) -> bool:
        """Forget the windows of `key`; return whether it had spent units.

        The units of the key in a shared cell stay, because they are mixed with those of other keys. Permits stay taken,
        because their requests are still in progress.
        """
        self.expect_open()
        at = self._shard_of(key)
        with self._locks[at]:
            now_us, unix_us = self.time_us(), self.unix_us()
            had_units = False
            for (name, _), tables in self._tables.copy().items():  # other shards may add some
                is_meant = not names or name in names
                had_units |= is_meant and tables[at].reset(key, now_us, unix_us)
            return had_units

    def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule, and all shared cells; return whether units were spent.

        Permits stay taken, because their requests are still in progress.
        """
        self.expect_open()
        return self._clear(lambda table: not table.holds_permits and not table.counts_strikes)

    def forget(self) -> None:
        """Delete all bans and levels, and the windows of all keys and strikes, without events. For tests.

        Permits stay taken, as those of `reset_all`.
        """
        self.bans.clear()
        self._clear(lambda table: not table.holds_permits)

    def _clear(self, is_included: Callable[[Table], bool]) -> bool:
        """Delete the windows and cells of some tables; return whether any was in use."""
        forgotten = locked(  # under all locks, so that no question finds a part of the keys reset
            self._all,
            lambda: [
                (table, windows) for table in self._every_table() if is_included(table) for windows in table.clear()
            ],
        )
        # The windows are read here, and deallocated on return, without blocking other threads on a lock.
        now_us, unix_us = self.time_us(), self.unix_us()
        for table, windows in forgotten:
            if any(table.in_use(window, now_us, unix_us) for window in windows.values()):
                return True
        return False

    def permits_held(self) -> int:
        return sum([tables.permits() for tables in list(self._tables.values()) if tables[0].holds_permits])

    # -- strikes, for `MemoryBans` ------------------------------------------------------------------------------------

    def strike(self, bucket: Bucket, key: str, weight: int) -> int | None:
        """Charge strikes to the window of a key, and return its units; None if there is no room for a window."""
        at = self._shard_of(key)
        with self._locks[at]:
            ((counter, _, _, table),) = self._places_of(bucket)[at]
            if not table.ensure_window(key):
                return None
            now_us = self._now_us()
            table.fresh[key], _ = counter.charge(table.fresh[key], now_us, weight)
            return counter.spend(table.fresh[key], now_us, 0)[1][0]

    def remove_strikes(self, key: str, bucket: Bucket | None = None) -> bool:
        """Remove the window of a key in a bucket of strikes, or in all of them; return whether there were strikes."""
        at = self._shard_of(key)
        had_strikes = False
        with self._locks[at]:
            now_us = self.time_us()
            all_tables = list(self._tables.values())
            if bucket is not None:
                all_tables = [self._tables_of(bucket.name, bucket.limits[0])]
            for tables in all_tables:
                table = tables[at]
                if not table.counts_strikes:
                    continue
                counter = table.limit.counter_by(self.unix_us)
                in_force, _ = counter.spend(table.remove(key), now_us, 0)
                had_strikes |= in_force != b""
        return had_strikes

    # -- times and shards ---------------------------------------------------------------------------------------------

    def time_us(self) -> int:
        """Return the time without recording it, for calls that charge nothing."""
        if self.clock is None:
            return SYSTEM.monotonic_ns() // 1000
        return self.clock()

    def _now_us(self) -> int:
        """Return the time, and record the latest one, because a user's clock may step back."""
        now_us = self.time_us()
        self._latest_us = max(self._latest_us, now_us)
        return now_us

    def _shard_of(self, key: str) -> int:
        return (hash(key) & self._shard_bits) >> HASH_BITS

    def _lock_of(self, checks: Sequence[Check]) -> Any:
        """Return the lock of the keys of some checks; of several shards, their locks in their order."""
        first_key = checks[0][1] if checks else ""
        for check in checks:
            if check[1] is not first_key:
                break
        else:  # one client
            return self._locks[self._shard_of(first_key)]
        shards = {self._shard_of(key) for _, key, _ in checks}
        if len(shards) == 1:
            return self._locks[shards.pop()]
        return Locks([self._locks[at] for at in sorted(shards)])

    # -- finding and making windows ----------------------------------------------------------------------------------

    def _refused(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the refusal of a question by a ban; None if no ban refuses it. The lock is held.

        The subjects of a client, a tuple, are looked up once after each change of the bans; keys of checks, which may
        be others, with each hit.
        """
        first_key = checks[0][1] if checks else ""
        cleared = subjects, self._ban_rows.changes
        if self._cleared.get(first_key) == cleared:
            rows = self._ban_rows
            client_key = subjects[0] if subjects else None  # cleared with the others
            for _, key, _ in checks:
                if key is not client_key and (key in rows.bans or key in rows.networks.bans):
                    break  # a key of its own may be banned
            else:
                return None
        refusal = self.bans.decide(checks, subjects)
        if refusal is None and type(subjects) is tuple:
            remember(self._cleared, first_key, cleared, MANY)
        return refusal

    def _refs(self, checks: Sequence[Check], *, create: bool = False) -> list[WindowRef]:
        """Return the locations of a question's windows. The lock is held.

        Args:
            create: Whether to make missing windows.
        """
        refs: list[WindowRef] = []
        for bucket, key, cost in checks:
            for counter, windows, is_charged, table in self._places_of(bucket)[self._shard_of(key)]:
                name: Name = key
                if key not in windows:
                    if create:
                        windows, name = self._make_window(table, key)
                    else:
                        windows, name = table.find(key, self._secret)
                refs.append((counter, cost, windows, name, is_charged))
        return refs

    def _make_window(self, table: Table, key: str) -> tuple[Windows, Name]:
        """Make a window for a key, or where there is no room find its shared cell. The lock is held."""
        windows, name = table.place(key, self._secret)
        if name is not key and self._throttle.left_out("keys_shared", self.time_us()) is not None:
            self._pending.append(keys_shared(self.max_keys))
            self._sweep_us = 0  # so that `tidy` emits it
        return windows, name

    def _places_of(self, bucket: Bucket) -> Places:
        """Return the places of a bucket in each shard, after making missing tables. A shard's lock is held."""
        places = self._places.get(bucket)
        if places is not None:
            return places
        places = [[] for _ in self._locks]
        for limit in bucket.limits:
            counter = limit.counter_by(self.unix_us)
            for at, table in enumerate(self._tables_of(bucket.name, limit)):
                places[at].append((counter, table.fresh, bucket.count_denied, table))
        return remember(self._places, bucket, places)

    def _every_table(self) -> list[Table]:
        """Return the tables of all limits in all shards."""
        return [table for tables in list(self._tables.values()) for table in tables]

    def _tables_of(self, name: str, limit: AnyLimit) -> Tables:
        """Return the tables of a limit, one for each shard, after making missing ones. A shard's lock is held."""
        identity = name, limit.same_window
        tables = self._tables.get(identity)
        if tables is not None:
            return tables
        new_tables = Tables(identity, limit, self._locks, self._capacity)
        tables = self._tables.setdefault(identity, new_tables)  # another thread may have been first
        if tables is new_tables:
            self._new.append(new_tables)
            self._sweep_us = 0
        return tables

    # -- events and the sweep ----------------------------------------------------------------------------------------

    def tidy(self, now_us: int) -> None:
        """Emit pending events, and sweep if a sweep is due."""
        if self._pending:
            events, self._pending = self._pending, []
            self.observers.tell(*events)
        if now_us >= self._sweep_us:
            self._sweeping.run(0.0, self._sweep, now_us)  # unless a sweep is under way

    def _sweep(self, now_us: int) -> None:
        """Sweep some of the limits that are due; this takes little time."""
        while self._new:
            self._visit_later(self._new.popleft())
        self._sweep_tables(now_us)
        self.bans.sweep()
        self._sweep_us = now_us + SWEEP_PAUSE_US
        if self._schedule:
            self._sweep_us, _, _ = self._schedule[0]
        # Only now, because another thread may have added some meanwhile, and asked for a sweep at once.
        if self._new or self._pending:
            self._sweep_us = 0

    def _sweep_tables(self, now_us: int) -> None:
        """Sweep limits that are due, all of their tables, as many as one step of the sweep allows."""
        unix_us, work = self.unix_us(), 0
        while work < STEP_WINDOWS and self._schedule and self._schedule[0][0] <= now_us:
            tables = self._schedule[0][-1]
            work += tables.sweep(self._now_us(), unix_us)
            if not tables.is_swept():
                return  # the next call goes on with it
            heappop(self._schedule)
            if any(tables) or not self._drop(tables):
                self._visit_later(tables)

    def _visit_later(self, tables: Tables) -> None:
        """Schedule the next sweep of a limit, for when its windows have expired even if the clock has stepped back."""
        # The next sweep deletes what has not been used since these tables were rotated. While this one waited for their
        # locks, others may have used them, so the time is read now: one of before would delete windows in use.
        due_us = max(self._now_us(), self._latest_us) + max(tables.limit.check_us, LEAST_LIFE_US)
        heappush(self._schedule, (due_us, id(tables), tables))

    def _drop(self, tables: Tables) -> bool:
        """Delete the tables of a limit unless there is a window in them; return whether they are deleted."""

        def drop() -> bool:
            if any(tables):
                return False
            self._tables.pop(tables.identity, None)
            self._places.clear()  # under all locks: no hit may go into windows that are no longer read
            return True

        return locked(self._all, drop)
