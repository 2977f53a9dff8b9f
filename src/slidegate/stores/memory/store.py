"""All threads and tasks of one process.

The windows of a limit's identity (rule, window, resolution) are a `Table`, in two storeys: some thousands are live
objects (`hot`), all others rows of bytes (`cold`). One lock guards the store: a call holds it for about a microsecond,
and without it no bound would hold (tests/stores shows both).

Bounded memory works in three parts, none of which needs a thread or a timer:

* a *sweep* visits every window about once in its length and drops those that are empty, 64 at a time, as a part
  of ordinary calls;
* at `max_keys` a key without a window of its own is counted in one of a fixed number of *shared cells*, chosen by
  hash, so that no live window is ever pushed out and nobody gets past a bound; keys that collide may be refused;
* where there is room again a key gets a window of its own, which starts as a copy of its cell, because its units are
  in there. So nobody joins a cell any more, and it empties.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic_ns
from typing import Final, TypeAlias

from ...core.bans.in_force import Guarded
from ...core.decision import Bucket, Check, Decision
from ...core.demand import LIMITED, OK, TOO_LARGE, charge_all, enter_periods, judge, judge_all
from ...core.errors import ConfigurationError, Whole
from ...core.limits import AnyLimit
from ...core.observers import Observers
from ...core.protocols import Clock, Event, Observer
from ...core.quotas import Quota
from ...core.windows.periods import PeriodCount
from ...core.windows.rings import Entry
from ...core.windows.theory import NEVER, Reading, check_positive
from ...core.windows.views import Snapshot
from ..forks import hold_over_fork
from ..system_clock import system_us
from .bans import MemoryBans
from .demands import Flat, hand_back, name_charges
from .generations import Charged, Generations
from .hot import HOT_WINDOWS, HotStorey
from .place_table import PlaceTable
from .quota_tables import QuotaTable
from .tables import Identity, MemoryStats, Shared, Table

# nginx counts 160,000 addresses in the 10 MB of its manual's example; at 200 to 800 bytes each this is 20 to 80 MB.
DEFAULT_MAX_KEYS: Final = 100_000
DEFAULT_MAX_BANS: Final = 100_000
SWEEP_STEP: Final = 64
SWEEP_PAUSE_US: Final = 1_000_000
LEAST_VISITS: Final = 8
"""A look at a table takes as long as so many visits, so that thousands of small tables stall no call either."""
IDLE_US: Final = 60_000_000
"""How long an empty table is kept at least: dropping one and making it again costs more than a table holds."""

MAX_BOUND_BUCKETS: Final = 4_096

Single: TypeAlias = tuple[dict[str, Entry], int, Table]
"""The live windows of a table, the amount of its limit, and the table."""


class MemoryStore:
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

    def __init__(
        self,
        *,
        max_keys: Whole = DEFAULT_MAX_KEYS,
        max_bans: Whole = DEFAULT_MAX_BANS,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
    ) -> None:
        self.max_keys = check_positive(max_keys, "max_keys", "100_000")
        most_bans = check_positive(max_bans, "max_bans", "100_000")
        for name, given in (("clock", clock), ("wall_clock", wall_clock)):
            if given is not None and not callable(given):
                raise ConfigurationError(f"{name}: expected a function that returns microseconds, not {given!r}")
        self._clock = clock
        self.unix_us: Clock = wall_clock or clock or system_us
        self._lock = threading.Lock()
        hold_over_fork(self._lock)
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._tables: dict[Identity, Table] = {}
        self._due: list[tuple[int, int, Table]] = []  # a heap of (moment, number, table): the tables to sweep next
        self._numbers = count()
        self._bound: dict[Bucket, tuple[tuple[Table, AnyLimit], ...]] = {}
        self._single: dict[Bucket, Single] = {}  # those with one window
        self._observers = Observers()
        self._hot, self._generations = HotStorey(HOT_WINDOWS), Generations()
        self._shared = Shared(os.urandom(32), self._hot, self._generations)
        self._keys = 0
        self._evictions = 0
        self._shared_hits = 0
        self._latest_us = 0
        self._sweep_due_us = 0
        self._next_shared_event_us = 0
        self._pending: list[Event] = []  # made under the lock, told after it
        self.bans = MemoryBans(self._lock, self._now_us, wall_clock or clock, self._observers.tell_all, most_bans)
        self._banned = self.bans.list.by_key

    def __repr__(self) -> str:
        return f"<MemoryStore {self._keys} of {self.max_keys} keys>"

    def stats(self) -> MemoryStats:
        """Return the store's counters."""
        return MemoryStats(self._keys, self._evictions, self._shared_hits)

    def observe(self, observer: Observer) -> None:
        """Tell `observer` about this store's events from now on."""
        self._observers.add(observer)

    def close(self) -> None:
        """Do nothing: a memory store holds nothing open."""

    @property
    def clock(self) -> Clock | None:
        """The clock that was given to this store; None for the monotonic clock."""
        return self._clock

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Charge every check or none, in one step, and say everything about it."""
        if len(checks) != 1 or self._banned:
            return self._hit_any(checks, guarded)
        bucket, key, cost = checks[0]
        single = self._single.get(bucket)
        if single is None:
            return self._hit_any(checks, guarded)
        windows, amount, _ = single
        window = windows.get(key)
        if window is None:
            return self._hit_at_rest(checks, guarded, single)
        refusal = window.refusal
        if refusal is not None and self._clock is None:
            # It needs no lock: a refusal that is known changes nothing, and it held when it was read.
            room, until_us, spent, leaves_us, newest_us = refusal
            now_us = monotonic_ns() // 1000
            if now_us < leaves_us and room == amount - (cost or 1):
                wait_us = until_us - now_us
                return Decision(False, LIMITED, now_us, checks, ((spent, leaves_us, newest_us, wait_us),))
        # Not `with`: on CPython 3.11 it takes twice as long, a tenth of the whole call. Nor `self._acquire()`: what is
        # called as a method there is looked up anew each time, unless it is one.
        acquire, release = self._acquire, self._release
        acquire()
        try:
            if windows.get(key) is window:
                now_us = monotonic_ns() // 1000 if self._clock is None else self._now_us()
                reading = window.spend(now_us, amount, cost)
                if now_us >= self._sweep_due_us:
                    self._sweep(now_us)
                if reading[3]:
                    return _refused(checks, reading, now_us)
                return Decision(True, OK, now_us, checks, (reading,), (self._generations.latest,))
        finally:
            release()
        return self._hit_any(checks, guarded)  # another thread has moved the window

    def _hit_at_rest(self, checks: Sequence[Check], guarded: Sequence[Guarded], single: Single) -> Decision:
        """Do what `hit` does for one key that has no live window."""
        windows, amount, table = single
        acquire, release = self._acquire, self._release
        acquire()
        try:
            if not table.dropped:
                now_us = monotonic_ns() // 1000 if self._clock is None else self._now_us()
                decision = self._hit_one(checks, windows, amount, table, now_us)
                if now_us >= self._sweep_due_us:
                    self._sweep(now_us)
                return decision
        finally:
            release()
            if self._pending:
                self._tell()
        return self._hit_any(checks, guarded)

    def _hit_any(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Do what `hit` does, whatever the demand, whether its keys are banned, and wherever their windows are."""
        if not checks and not self._banned:
            # Nothing is counted, and nobody is refused. It needs the lock only where there is something else to do.
            now_us = monotonic_ns() // 1000 if self._clock is None else self._clock()
            if self._latest_us <= now_us < self._sweep_due_us:
                return Decision(True, OK, now_us)
        acquire, release = self._acquire, self._release
        acquire()
        try:
            now_us = monotonic_ns() // 1000 if self._clock is None else self._now_us()
            if self._banned and (barred := self.bans.judge(checks, guarded, prolong=True)) is not None:
                return barred
            single = self._single.get(checks[0][0]) if len(checks) == 1 else None
            decision = self._hit(checks, now_us) if single is None else self._hit_one(checks, *single, now_us)
            if now_us >= self._sweep_due_us:
                self._sweep(now_us)
            return decision
        finally:
            release()
            if self._pending:
                self._tell()

    def _tell(self) -> None:
        """Tell the events that were made under the lock."""
        with self._lock:
            events, self._pending = self._pending, []
        self._observers.tell_all(events)

    def peek(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Say what `hit` would answer now. Changes nothing."""
        with self._lock:
            barred = self.bans.judge(checks, guarded, prolong=False)
            if barred is not None:
                return barred
            now_us = self._now_us()
            decision = judge_all(checks, self._imagined(checks, now_us), now_us)
            decision.charge = ()
            return decision

    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Snapshot:
        """Return copies of the windows that count `key` under each limit of some buckets. Changes nothing."""
        with self._lock:
            now_us = self._now_us()
            return Snapshot(now_us, self._imagined([(bucket, key, 0) for bucket in buckets], now_us))

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost in one step, whatever the limits, and say what is left."""
        with self._lock:
            now_us = self._now_us()
            flat = self._flat(checks, now_us)
            windows = [self._window(table, key, now_us) for table, _, key, _ in flat]
            enter_periods(checks, windows, now_us, self.unix_us())
            decision = charge_all(checks, windows, now_us)
            name_charges(decision, flat)
            self._hot.make_room()
            if now_us >= self._sweep_due_us:
                self._sweep(now_us)
        if self._pending:
            self._tell()
        return decision

    def refund(self, decision: Decision) -> bool:
        """Hand back what `decision` charged; False where it charged nothing, did so before or it has aged out."""
        with self._lock:
            if not decision.charge:
                return False
            changed = hand_back(decision, self._known(decision.checks), self._now_us(), self.unix_us)
            self._hot.make_room()
            return changed

    def reset(self, key: str) -> bool:
        """Forget the windows of `key` under every rule; False where there were none.

        What the key spent in a shared cell stays: it cannot be told from what others spent there. Places stay taken:
        the requests that hold them are still under way.
        """
        with self._lock:
            return sum(table.forget(key) for table in self._tables.values()) > 0

    def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule, and what is in shared cells; False where there were none.

        Places stay taken: the requests that hold them are still under way.
        """
        with self._lock:
            generation, self._keys = self._generations.begin(), 0
            forgotten = [table.forget_all(generation) for table in self._tables.values()]
        # They are let go of here, where nobody waits for the lock.
        return any(rows or cells for rows, cells in forgotten)

    def places_held(self) -> int:
        """Return how many places requests hold now, of all keys."""
        with self._lock:
            return sum(table.held for table in self._tables.values() if isinstance(table, PlaceTable))

    def _now_us(self) -> int:
        """Return the time, and take note of a step back, which the monotonic clock never makes. Needs the lock."""
        if self._clock is None:
            return monotonic_ns() // 1000
        now_us = self._clock()
        if now_us < self._latest_us:
            self._generations.stepped = True
            generation = self._generations.begin()
            for table in self._tables.values():
                table.step_back(now_us, generation)
            self._due = [(table.due_us, number, table) for _, number, table in self._due]
            heapify(self._due)
            self._sweep_due_us = self._next_shared_event_us = now_us
        self._latest_us = now_us
        return now_us

    def _hit_one(
        self, checks: Sequence[Check], windows: dict[str, Entry], amount: int, table: Table, now_us: int
    ) -> Decision:
        """Do what `_hit` does for one check of a bucket that is in `_single`."""
        ((_, key, cost),) = checks
        window = windows.get(key)
        reading = (
            table.spend_at_rest(key, now_us, amount, cost) if window is None else window.spend(now_us, amount, cost)
        )
        charge: int | Charged = self._generations.latest
        if reading is None:
            reading, charge = self._spend_first(table, key, now_us, amount, cost)
        if reading[3]:
            return _refused(checks, reading, now_us)
        return Decision(True, OK, now_us, checks, (reading,), (charge,))

    def _hit(self, checks: Sequence[Check], now_us: int) -> Decision:
        windows: list[Entry] = []
        asked: list[tuple[Entry, int, int]] = []
        plain, in_cells = True, False
        for bucket, key, cost in checks:
            plain = plain and not bucket.count_denied
            for table, limit in self._bound.get(bucket) or self._bind(bucket, now_us):
                window = table.windows.get(key) or self._window(table, key, now_us)
                plain = plain and type(window) is not PeriodCount and window not in windows
                in_cells = in_cells or bool(table.cells)
                windows.append(window)
                asked.append((window, limit.amount, cost))
        if plain:
            decision = judge(checks, asked, windows, now_us)
        else:
            enter_periods(checks, windows, now_us, self.unix_us())
            decision = judge_all(checks, windows, now_us)
        if plain and not in_cells:
            decision.charge = [self._generations.latest] * len(decision.charge)
        else:
            name_charges(decision, self._flat(checks, now_us))
        self._hot.make_room()
        return decision

    def _flat(self, checks: Sequence[Check], now_us: int) -> Flat:
        return [
            (table, limit, key, cost)
            for bucket, key, cost in checks
            for table, limit in self._bound.get(bucket) or self._bind(bucket, now_us)
        ]

    def _known(self, checks: Sequence[Check]) -> Flat:
        """Do what `_flat` does, and keep none of the tables that are missing."""
        missing: dict[Identity, Table] = {}
        flat: Flat = []
        for bucket, key, cost in checks:
            for limit in bucket.limits:
                identity = _identity(bucket, limit)
                table = self._tables.get(identity) or missing.get(identity)
                if table is None:
                    table = missing[identity] = self._new_table(bucket, limit, 0)
                flat.append((table, limit, key, cost))
        return flat

    # -- finding and making windows ----------------------------------------------------------------------------------

    def _bind(self, bucket: Bucket, now_us: int) -> tuple[tuple[Table, AnyLimit], ...]:
        """Find the tables of a bucket, making those that are missing."""
        if len(self._bound) >= MAX_BOUND_BUCKETS:
            self._unbind()
        bound = tuple((self._table(bucket, limit, now_us), limit) for limit in bucket.limits)
        self._bound[bucket] = bound
        if len(bound) == 1 and not bucket.count_denied:
            ((table, limit),) = bound
            if not isinstance(limit, Quota):
                self._single[bucket] = table.windows, limit.amount, table
        return bound

    def _unbind(self) -> None:
        self._bound.clear()
        self._single.clear()

    def _table(self, bucket: Bucket, limit: AnyLimit, now_us: int) -> Table:
        table = self._tables.get(_identity(bucket, limit))
        if table is None:
            # Units that are spent now leave no earlier.
            table = self._new_table(bucket, limit, max(limit.leaves_us(now_us), now_us + SWEEP_PAUSE_US))
            self._tables[table.identity] = table
            if table.twin is not None:
                table.twin.twin = table
            self._visit_later(table)
        return table

    def _new_table(self, bucket: Bucket, limit: AnyLimit, due_us: int) -> Table:
        """Return an empty table, which knows its twin."""
        if bucket.held:
            return PlaceTable(bucket.rule, limit, due_us, self._shared)
        if isinstance(limit, Quota):
            return QuotaTable(bucket.rule, limit, due_us, self._shared, self.unix_us)
        table = Table(bucket.rule, limit, due_us, self._shared)
        table.twin = self._tables.get((*table.identity[:2], not limit.exact))
        return table

    def _window(self, table: Table, key: str, now_us: int) -> Entry:
        """Return the window that counts `key`, live: its own, else a first one where there is room, else its cell."""
        window = table.wake(key)
        if window is None:
            cell = self._enter(table, key, now_us)
            window = table.wake(key) if cell is None else cell
            assert window is not None, "a key that entered has a window"
        return window

    def _spend_first(
        self, table: Table, key: str, now_us: int, amount: int, cost: int
    ) -> tuple[Reading, int | Charged]:
        """Spend for a key that has no window in the table; return the reading, and the name of the charge.

        Its first window stays at rest, because most keys never come again.
        """
        cell = self._enter(table, key, now_us)
        if cell is not None:
            return cell.spend(now_us, amount, cost), Charged(self._generations.latest, now_us, cost, in_cell=True)
        reading = None if key in table.windows else table.spend_at_rest(key, now_us, amount, cost)
        if reading is None:  # the window came up, because its ring was of the other kind
            reading = table.windows[key].spend(now_us, amount, cost)
            self._hot.make_room()
        return reading, self._generations.latest

    def _enter(self, table: Table, key: str, now_us: int) -> Entry | None:
        """Give a key that has no window one, where there is room, and return None; else return its cell."""
        if table.take_over(key, now_us):
            return None
        room = self._keys < self.max_keys
        if table.has_cells or not room:
            number = table.cell_of(key)
            table.take_over(number, now_us)
            if not room:
                self._share(table.limit, now_us)
                return table.open_cell(number)
            table.begin(key, table.first_window(table.cells.get(number), now_us), number)
        else:
            table.begin(key)
        self._keys += 1
        return None

    def _share(self, limit: AnyLimit, now_us: int) -> None:
        """Count a hit in a shared cell, and tell of it once a window."""
        self._shared_hits += 1
        if now_us >= self._next_shared_event_us:
            self._next_shared_event_us = limit.leaves_us(now_us)
            message = f"all {self.max_keys} keys are in use, so others are counted in shared cells; raise max_keys"
            self._pending.append(Event("keys_shared", message, {"max_keys": self.max_keys}))

    def _imagined(self, checks: Sequence[Check], now_us: int) -> list[Entry]:
        """Return copies of the windows that a demand would charge, those of quotas in the period of now."""
        copies: dict[tuple[Table, str | int], Entry] = {}
        places = [self._imagine(table, key, now_us, copies) for table, _, key, _ in self._known(checks)]
        windows = [copies[place] for place in places]
        enter_periods(checks, windows, now_us, self.unix_us())
        return windows

    def _imagine(
        self, table: Table, key: str, now_us: int, copies: dict[tuple[Table, str | int], Entry]
    ) -> tuple[Table, str | int]:
        """Put a copy of the window that `_window` would return into `copies`, and return its place there."""
        if (table, key) in copies:
            return table, key
        place: str | int = key
        window = table.find(key, now_us)
        if window is None:
            number = table.cell_of(key)
            cell = table.find(number, now_us)
            made = sum(isinstance(other, str) and there.find(other, now_us) is None for there, other in copies)
            if self._keys + made < self.max_keys:
                window = table.first_window(cell, now_us)
            else:
                window, place = cell, number
        copies.setdefault((table, place), copy(window) if window is not None else table.new_window())
        return table, place

    # -- letting go --------------------------------------------------------------------------------------------------

    def _sweep(self, now_us: int) -> None:
        """Visit a few windows of the tables that have waited longest, and say when to come again.

        This comes after the answer: a key that asks at the moment when its window has emptied still finds it there.
        """
        left = SWEEP_STEP
        while left > 0 and self._due and self._due[0][0] <= now_us:
            _, _, table = heappop(self._due)
            visits, gone = table.visit(now_us, left)
            left -= max(visits, LEAST_VISITS)
            self._keys -= gone
            self._evictions += gone
            if table.to_visit:
                table.due_us = now_us  # behind all those that have waited longer
            elif not table.is_empty():
                table.due_us = max(table.limit.leaves_us(now_us), now_us + SWEEP_PAUSE_US)
            elif table.idle:
                self._drop(table)
                continue
            else:
                table.idle = True
                table.due_us = max(table.limit.leaves_us(now_us), now_us + IDLE_US)
            self._visit_later(table)
        self._sweep_due_us = self._due[0][0] if self._due else now_us + SWEEP_PAUSE_US

    def _visit_later(self, table: Table) -> None:
        heappush(self._due, (table.due_us, next(self._numbers), table))
        self._sweep_due_us = min(self._sweep_due_us, table.due_us)

    def _drop(self, table: Table) -> None:
        del self._tables[table.identity]
        table.dropped = True
        self._unbind()
        if table.twin is not None:
            table.twin.twin = None


def _identity(bucket: Bucket, limit: AnyLimit) -> Identity:
    return bucket.rule, limit.same_window, limit.exact


def _refused(checks: Sequence[Check], reading: Reading, now_us: int) -> Decision:
    """Return the refusal of one check."""
    return Decision(False, TOO_LARGE if reading[3] == NEVER else LIMITED, now_us, checks, (reading,))
