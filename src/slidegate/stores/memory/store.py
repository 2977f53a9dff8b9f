"""All threads and tasks of one process.

What keys have spent lies in *shards* (`shard`), each with a lock of its own. The hash of a key's text chooses the
shard, so a question about one client takes one lock; a question about several keys takes theirs in order. One way leads
from a question to its answer: lock, look up, `core.decide`, let go of the lock.

Bounded memory works in three parts, none of which needs a thread or a timer:

* the *sweep* lets idle keys go, some of one table with each call, as a part of ordinary calls;
* at `max_keys` a key without a window of its own is counted in one of a fixed number of *shared cells*, chosen by a
  digest, so that no live window is ever pushed out and nobody gets past a bound; keys that collide may be refused;
* where there is room again a key gets a window of its own, which starts as a copy of its cell, because its units are
  in there. So nobody joins a cell any more, and it empties. Permits are not copied: see `Table.place`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from time import monotonic_ns
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.bans.ban import BanSubject
from ...core.decide import Counter, WindowRef, charge_all, decide, enter_periods, refund_all
from ...core.decision import Check, Decision, LimitSet
from ...core.errors import Whole, check_positive
from ...core.limits import AnyLimit
from ...core.reservation import Reservation
from ...core.store import Clock, Event, Store
from ...core.views import Snapshot
from ..forks import hold_over_fork
from ..shared import DEFAULT_MAX_BANS, DEFAULT_MAX_KEYS, SHARED_PAUSE_US, check_clock, keys_shared
from ..system_clock import system_us
from .bans import MemoryBans
from .question import Question
from .shard import Identity, Locks, Room, Table, Windows, cell_of

SHARD_KEYS: Final = 8_192
"""The number of shards is such that each has fewer keys: copying such a dict takes a fraction of a millisecond."""
MAX_SHARDS: Final = 256
HASH_BITS: Final = 16
"""The bits of a hash from here on choose the shard: a dict finds its keys by those before, which would be the same."""
MAX_BUCKETS: Final = 4_096
"""How many buckets are remembered with their tables."""
LEAST_LIFE_US: Final = 1_000_000
"""How long a table is left alone at least."""
SWEEP_PAUSE_US: Final = 1_000_000

Tables: TypeAlias = list[Table]
"""The tables of one limit, one for each shard."""

_versions: Final = count(1)
"""The versions of the tables of all stores."""


class MemoryStats(NamedTuple):
    """Counters of a `MemoryStore`.

    Attributes:
        keys: Windows held now, shared cells not included.
        evictions: Empty windows let go so far.
        shared_hits: Hits that were counted in a shared cell so far.
    """

    keys: int
    evictions: int
    shared_hits: int


class MemoryStore(Store):
    """Remembers windows in this process; forgets them when it ends.

    Safe to use from several threads and several event loops at once.

    Args:
        max_keys: How many windows to hold. Beyond, further keys share cells; see the module.
        max_bans: How many bans in force to hold, and as many strikes: those of each key and policy count once. Beyond,
            automatic bans are not recorded, and the oldest strikes are forgotten.
        clock: Returns microseconds; by default the monotonic clock. Tests pass `slidegate.testing.FakeClock`.
        wall_clock: Returns Unix time in microseconds, for bans and quotas; by default `clock` if one is given, else
            the clock of the system.

    Raises:
        ConfigurationError: `max_keys` or `max_bans` is not a whole number above 0, or a clock is not callable.
    """

    bans: MemoryBans

    def __init__(
        self,
        *,
        max_keys: Whole = DEFAULT_MAX_KEYS,
        max_bans: Whole = DEFAULT_MAX_BANS,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.max_keys = check_positive(max_keys, "max_keys", "100_000")
        most_bans = check_positive(max_bans, "max_bans", "100_000")
        check_clock("clock", clock)
        check_clock("wall_clock", wall_clock)
        self._clock = clock
        self._latest_us = 0
        self.unix_us: Clock = wall_clock or clock or system_us
        shards = min(1 << (self.max_keys // SHARD_KEYS).bit_length(), MAX_SHARDS)
        # In the order in which they are taken: that of the sweep, those of the shards, that of the room.
        self._sweeping = Lock()
        self._locks = [Lock() for _ in range(shards)]
        self._room = Room(self.max_keys)
        for lock in (self._sweeping, *self._locks):
            hold_over_fork(lock)
        self._mask = shards - 1
        self._secret = os.urandom(32)
        self._tables: dict[Identity, Tables] = {}
        self._bound: dict[LimitSet, list[tuple[Counter, Tables]]] = {}
        self._version = next(_versions)  # that of the tables; of another one, those of a question may be gone
        self._new: deque[Table] = deque()  # tables that the sweep has not seen
        self._due: list[tuple[int, int, Table]] = []  # a heap of (moment, number, table): the tables to sweep next
        self._numbers = count()
        self._sweep_us = 0
        self._reset_us = -1  # nothing that was charged up to then is handed back
        self._evictions = 0
        self._shared_hits = 0
        self._next_shared_event_us = 0
        self._pending: list[Event] = []  # made under a lock, told after it
        self.bans = MemoryBans(
            self._time_us, wall_clock=wall_clock or clock, emit=self.observers.tell_all, max_bans=most_bans
        )
        self._banned = self.bans.by_key

    def __repr__(self) -> str:
        return f"<MemoryStore {self._room.keys} of {self.max_keys} keys>"

    def stats(self) -> MemoryStats:
        """Return the store's counters."""
        return MemoryStats(self._room.keys, self._evictions, self._shared_hits)

    def close(self) -> None:
        """Answer no question any more. Requests under way keep their permits."""
        super().close()
        self.bans.close()

    @property
    def clock(self) -> Clock | None:
        """The clock that was given to this store; None for the monotonic clock."""
        return self._clock

    def prepare(self, checks: Sequence[Check]) -> Question:
        """Return the same checks with their lock and their tables; see `Store.prepare`."""
        return Question(tuple(checks), self, self._lock_of(checks))

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        """Charge every check or none, in one step, and say everything about it."""
        if self.closed:
            self.expect_open()
        if self._banned and (refusal := self.bans.decide(checks, subjects)) is not None:
            return refusal
        question: Question | None = None
        if isinstance(checks, Question):
            question = checks if checks.store is self else None
            checks = checks.checks
        if question is not None:
            lock = question.lock
        elif len(checks) == 1:
            lock = self._locks[hash(checks[0][1]) >> HASH_BITS & self._mask]
        else:
            lock = self._lock_of(checks)
        lock.acquire()  # `with` takes twice as long
        try:
            now_us = monotonic_ns() // 1000 if self._clock is None else self._now_us()
            refs = self._refs(checks, now_us) if question is None else self._refs_of(question, now_us)
            decision = decide(checks, refs, now_us)
        finally:
            lock.release()
        if now_us >= self._sweep_us or self._pending:
            self._tidy(now_us)
        return decision

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision:
        """Say what `hit` would answer now. Changes nothing."""
        self.expect_open()
        refusal = self.bans.decide(checks, subjects)
        if refusal is not None:
            return refusal
        now_us, refs = self._imagined(checks)
        decision = decide(checks, refs, now_us)
        decision.reservations = ()
        return decision

    def inspect(self, key: str, buckets: Sequence[LimitSet]) -> Snapshot:
        """Return the windows that count `key` under each limit of some buckets. Changes nothing."""
        self.expect_open()
        now_us, refs = self._imagined([(bucket, key, 0) for bucket in buckets])
        return Snapshot(now_us, [windows[name] for _, _, windows, name in refs])

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost in one step, whatever the limits, and say what is left."""
        self.expect_open()
        with self._lock_of(checks):
            now_us = self._now_us()
            decision = charge_all(checks, self._refs(checks, now_us), now_us)
        self._tidy(now_us)
        return decision

    def refund(self, reservations: Sequence[Reservation]) -> bool:
        """Hand back what was charged; False if none of it is there any more."""
        self.expect_open()
        checks = [reservation.check for reservation in reservations]
        with self._lock_of(checks):
            now_us = self._now_us()
            refs = [
                (counter, cost, *tables[self._shard_of(key)].known(key, self._secret))
                for bucket, key, cost in checks
                for counter, tables in self._bound.get(bucket) or self._bind(bucket)
            ]
            enter_periods(refs, now_us, self.unix_us())
            return refund_all(reservations, refs, now_us, latest_us=self._latest_us, floor_us=self._reset_us)

    def reset(self, key: str) -> bool:
        """Forget the windows of `key` under every rule; False if there were none.

        Units that the key spent in a shared cell stay, because they are mixed with those of other keys. Permits stay
        taken: the requests that hold them are still in progress.
        """
        self.expect_open()
        at = self._shard_of(key)
        with self._locks[at]:
            now_us = self._time_us()
            latest_us = max(self._latest_us, now_us)  # where the clock has stepped back, charges lie ahead of now
            return sum(tables[at].reset(key, now_us, latest_us) for tables in list(self._tables.values())) > 0

    def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule, and what is in shared cells; False if there were none.

        Permits stay taken: the requests that hold them are still under way.
        """
        self.expect_open()
        forgotten: list[dict[str, bytes]] = []
        with Locks(self._locks):  # all of them: what was charged before the time of the reset is forgotten
            latest_us = max(self._latest_us, self._time_us())
            for table in [table for tables in self._tables.values() for table in tables if not table.holds_permits]:
                forgotten += table.clear()
            if any(forgotten):
                self._reset_us = latest_us
        # They are let go of here, where nobody waits for a lock.
        return any(forgotten)

    def answers_threads(self) -> bool:
        """Return true: nothing is ever awaited."""
        return True

    def permits_held(self) -> int:
        """Return how many permits of concurrency limits requests hold now, of all keys."""
        tables = [table for tables in list(self._tables.values()) for table in tables if table.holds_permits]
        held = 0
        for table in tables:
            with table.lock:
                held += table.permits()
        return held

    def _time_us(self) -> int:
        """Return the time, for a look or a reset: nobody has spent anything at that moment."""
        return monotonic_ns() // 1000 if self._clock is None else self._clock()

    def _now_us(self) -> int:
        """Return the time, and note the latest one: a clock of the user's may step back."""
        now_us = self._time_us()
        self._latest_us = max(self._latest_us, now_us)
        return now_us

    def _shard_of(self, key: str) -> int:
        return hash(key) >> HASH_BITS & self._mask

    def _lock_of(self, checks: Sequence[Check]) -> Lock | Locks:
        """Return the lock of the shards of some checks; several rules mostly ask about one client."""
        shards = {hash(key) >> HASH_BITS & self._mask for _, key, _ in checks}
        if len(shards) == 1:
            return self._locks[shards.pop()]
        return Locks([self._locks[at] for at in sorted(shards)])

    # -- finding and making windows ----------------------------------------------------------------------------------

    def _refs_of(self, question: Question, now_us: int) -> list[WindowRef]:
        """Return where the windows of a prepared question lie, as `_refs` does. The lock is held."""
        if question.version != self._version:
            self._bind_question(question)
        refs = question.refs
        for _, _, windows, key in refs:
            if key not in windows:
                return self._refs(question.checks, now_us)
        if question.dated:
            enter_periods(refs, now_us, self.unix_us())
        return refs

    def _refs(self, checks: Sequence[Check], now_us: int) -> list[WindowRef]:
        """Return where the windows of a question lie, those of quotas in the period of now. The lock is held."""
        refs: list[WindowRef] = []
        dated = False
        for bucket, key, cost in checks:
            at = hash(key) >> HASH_BITS & self._mask
            for counter, tables in self._bound.get(bucket) or self._bind(bucket):
                table = tables[at]
                windows, name = (table.fresh, key) if key in table.fresh else self._place(table, key, now_us)
                refs.append((counter, cost, windows, name))
                if table.dated:
                    dated = True
        if dated:
            enter_periods(refs, now_us, self.unix_us())
        return refs

    def _bind_question(self, question: Question) -> None:
        """Have a question remember where its windows lie when they were asked for lately. The lock is held."""
        bound = [
            (tables[self._shard_of(key)], counter, cost, key)
            for bucket, key, cost in question.checks
            for counter, tables in self._bound.get(bucket) or self._bind(bucket)
        ]
        question.refs = [(counter, cost, table.fresh, key) for table, counter, cost, key in bound]
        question.dated = any(table.dated for table, *_ in bound)
        question.version = self._version

    def _place(self, table: Table, key: str, now_us: int) -> tuple[Windows, str]:
        """Return where a key is counted that was not asked for lately."""
        windows, name = table.place(key, self._secret)
        if windows is not table.fresh:
            self._share(table.limit, now_us)
        return windows, name

    def _imagined(self, checks: Sequence[Check]) -> tuple[int, list[WindowRef]]:
        """Return the time, and copies of what a question would charge, those of quotas in the period of now."""
        windows: dict[Any, bytes] = {}
        refs: list[WindowRef] = []
        room = self._room.max_keys - self._room.keys
        for bucket, key, cost in checks:
            at = self._shard_of(key)
            with self._locks[at]:
                for limit in bucket.limits:
                    identity = bucket.rule, limit.same_window
                    tables = self._tables.get(identity)
                    window, own = tables[at].find(key, self._secret) if tables else (b"", False)
                    name = (identity, key)
                    if not own and name not in windows:
                        room -= 1
                        if room < 0:
                            name = (identity, cell_of(key, self._secret))
                    windows.setdefault(name, window)
                    refs.append((limit.counter, cost, windows, name))
        now_us = self._time_us()
        enter_periods(refs, now_us, self.unix_us())
        return now_us, refs

    def _bind(self, bucket: LimitSet) -> list[tuple[Counter, Tables]]:
        """Return the counters of a bucket with their tables; missing ones are made. A shard's lock is held."""
        bound = []
        for limit in bucket.limits:
            identity = bucket.rule, limit.same_window
            tables = self._tables.get(identity)
            if tables is None:
                made = [Table(identity, limit, lock, self._room) for lock in self._locks]
                tables = self._tables.setdefault(identity, made)  # another thread may have been first
                if tables is made:
                    self._new.extend(made)
                    self._sweep_us = 0
            bound.append((limit.counter, tables))
        if len(self._bound) >= MAX_BUCKETS:
            self._bound.clear()
        self._bound[bucket] = bound
        return bound

    def _share(self, limit: AnyLimit, now_us: int) -> None:
        """Count a hit in a shared cell, and tell of it once a window, and at most once a second."""
        self._shared_hits += 1
        if now_us >= self._next_shared_event_us:
            self._next_shared_event_us = max(limit.leaves_us(now_us), now_us + SHARED_PAUSE_US)
            self._pending.append(keys_shared(self.max_keys))

    # -- letting go --------------------------------------------------------------------------------------------------

    def _tidy(self, now_us: int) -> None:
        """Tell the events that came up under a lock, and sweep if it is time."""
        if self._pending:
            events, self._pending = self._pending, []
            self.observers.tell_all(events)
        if now_us >= self._sweep_us:
            self._sweep(now_us)

    def _sweep(self, now_us: int) -> None:
        """Sweep a part of the table that is due first, unless another thread does: so no call takes long."""
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            while self._new:
                self._visit_later(self._new.popleft(), now_us)
            if self._due and self._due[0][0] <= now_us:
                table = self._due[0][-1]
                with table.lock:
                    gone, finished = table.sweep(self._now_us(), self.unix_us())
                self._evictions += gone
                if finished:
                    heappop(self._due)
                    if not self._drop(table):
                        self._visit_later(table, now_us)
            self.bans.sweep()
            self._sweep_us = self._due[0][0] if self._due else now_us + SWEEP_PAUSE_US
            if self._new:
                self._sweep_us = 0
        finally:
            self._sweeping.release()

    def _visit_later(self, table: Table, now_us: int) -> None:
        """Plan the next visit to a table: when all that it counted until now is over, also by a clock that ran back."""
        limit, latest_us = table.limit, max(self._latest_us, now_us)
        due_us = max(limit.leaves_us(latest_us), latest_us + max(limit.life_us, LEAST_LIFE_US))
        heappush(self._due, (due_us, next(self._numbers), table))

    def _drop(self, table: Table) -> bool:
        """Let go of a limit of whose windows none is left in any shard; tell whether it is gone."""
        tables = self._tables.get(table.identity)
        if tables is None or tables[self._mask] is not table:  # the last one asks for all of them
            return tables is None
        for lock in self._locks:
            lock.acquire()
        try:
            if any(tables):
                return False
            del self._tables[table.identity]
            self._bound.clear()
            self._version = next(_versions)
            return True
        finally:
            for lock in self._locks:
                lock.release()
