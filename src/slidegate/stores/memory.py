"""All threads and tasks of one process.

The windows of a limit's identity (rule, window, resolution, see `Table`) are a dict by key. One lock guards the
store: what happens under it takes about a microsecond, and without it no bound would hold (tests/stores shows both).

Bounded memory works in three parts, none of which needs a thread or a timer:

* a *sweep* visits every window about once in its length and lets go of those that are empty, 64 at a time, as a part
  of ordinary calls;
* at `max_keys` a key without a window of its own is counted in one of a fixed number of *shared cells*, chosen by
  hash, so that no live window is ever pushed out and nobody gets past a bound; what collides may be refused;
* a key stays in its cell until the cell is empty, because its units are in there.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final, TypeAlias

from ..core.decision import Bucket, Check, Decision, Reason
from ..core.errors import ConfigurationError
from ..core.limits import Limit
from ..core.protocols import Clock, Event, Observer
from ..core.window import NEVER, CounterWindow, TimestampWindow, convert, new_window

# nginx counts 160,000 addresses in the 10 MB of its manual's example; at about 300 bytes each this is 30 MB.
DEFAULT_MAX_KEYS: Final = 100_000
SHARED_CELLS: Final = 4_096
SWEEP_STEP: Final = 64
SWEEP_PAUSE_US: Final = 1_000_000
MAX_BOUND_BUCKETS: Final = 4_096

Ring: TypeAlias = TimestampWindow | CounterWindow
OK: Final = Reason.OK
LIMITED: Final = Reason.LIMITED
TOO_LARGE: Final = Reason.TOO_LARGE


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Counters of a `MemoryStore`.

    Attributes:
        keys: Windows held now, shared cells not included.
        evictions: Empty windows let go so far.
        shared_hits: Hits that were counted in a shared cell so far.
    """

    keys: int
    evictions: int
    shared_hits: int


class Table:
    """The windows of one identity and kind of ring.

    `windows` holds a window by key, and the shared cells by their number. None stands where a window moved to the
    twin, so that `queue` names each entry exactly once.
    """

    __slots__ = ("due_us", "limit", "queue", "to_visit", "twin", "windows")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.windows: dict[str | int, Ring | None] = {}
        self.queue: deque[str | int] = deque()  # the longest unvisited first
        self.to_visit = 0
        self.due_us = 0
        self.twin: Table | None = None  # the other kind of ring, once an amount has crossed the resolution

    def holds(self, window: Ring, now_us: int) -> bool:
        """Tell whether anything spent in `window` is still in it."""
        return window.spent > 0 and now_us < window.newest_us + self.limit.span_us

    def put(self, key: str | int, window: Ring) -> Ring:
        if key not in self.windows:
            self.queue.append(key)
        self.windows[key] = window
        return window

    def take_from_twin(self, key: str | int, now_us: int) -> Ring | None:
        """Fetch a window that the other kind of ring holds."""
        window = self.twin.windows.get(key) if self.twin is not None else None
        if self.twin is None or window is None:
            return None
        self.twin.windows[key] = None
        return self.put(key, convert(window, self.limit, now_us))


_Flat: TypeAlias = list[tuple[Table, Limit, str, int]]


class MemoryStore:
    """Remembers windows in this process; forgets them when it ends.

    Safe to use from several threads and several event loops at once.

    Args:
        max_keys: How many windows to hold. Beyond, further keys share cells; see the module.
        clock: Returns microseconds; by default the monotonic clock. Tests pass `slidegate.testing.FakeClock`.

    Raises:
        ConfigurationError: `max_keys` is not a whole number above 0, or `clock` is not callable.
    """

    def __init__(self, *, max_keys: int = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        if not isinstance(max_keys, int) or isinstance(max_keys, bool) or max_keys < 1:
            raise ConfigurationError(
                f"max_keys: expected a whole number above 0, for example 100_000, not {max_keys!r}"
            )
        if clock is not None and not callable(clock):
            raise ConfigurationError(f"clock: expected a function that returns microseconds, not {clock!r}")
        self.max_keys = max_keys
        self.secret = os.urandom(32)
        self._clock = clock
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._tables: dict[tuple[str, int, int, bool], Table] = {}
        self._bound: dict[Bucket, tuple[tuple[Table, Limit], ...]] = {}
        self._single: dict[Bucket, tuple[Table, dict[str | int, Ring | None], int]] = {}  # those with one limit
        self._observers: list[Observer] = []
        self._keys = 0
        self._evictions = 0
        self._shared_hits = 0
        self._sweep_due_us = 0
        self._next_shared_event_us = 0
        self._pending: list[Event] = []  # made under the lock, told after it

    def __repr__(self) -> str:
        return f"<MemoryStore {self._keys} of {self.max_keys} keys>"

    def stats(self) -> MemoryStats:
        """Return the store's counters."""
        return MemoryStats(self._keys, self._evictions, self._shared_hits)

    def observe(self, observer: Observer) -> None:
        """Tell `observer` about this store's events from now on."""
        self._observers.append(observer)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def hit(self, checks: Sequence[Check]) -> Decision:
        """Charge every check or none, in one step, and say everything about it."""
        # Not `with`: on CPython 3.11 it takes twice as long, a seventh of the whole call.
        self._acquire()
        try:
            now_us = monotonic_ns() // 1000 if self._clock is None else self._clock()
            if now_us >= self._sweep_due_us:
                self._sweep(now_us)
            try:
                ((bucket, key, cost),) = checks
                table, windows, amount = self._single[bucket]
            except (KeyError, ValueError):
                return self._hit_all(checks, now_us)
            window = windows.get(key) or self._window(table, key, now_us)
            reading = window.spend(now_us, amount, cost)
            wait_us = reading[3]
            if wait_us:
                return Decision(False, TOO_LARGE if wait_us == NEVER else LIMITED, now_us, checks, (reading,))
            return Decision(True, OK, now_us, checks, (reading,), [window])
        finally:
            self._release()
            if self._pending:
                self._tell()

    def peek(self, checks: Sequence[Check]) -> Decision:
        """Say what `hit` would answer now. Changes nothing."""
        with self._lock:
            now_us = self._now_us()
            copies: dict[object, Ring] = {}
            windows: list[Ring] = []
            flat = self._flat(checks)
            for table, limit, key, _ in flat:
                window = self._find(table, key, now_us)
                if window is None:
                    windows.append(copies.setdefault((table, key), new_window(limit)))
                else:
                    windows.append(copies.setdefault(window, copy(window)))
            decision = self._judge(checks, flat, windows, now_us)
            decision.charge = ()
            return decision

    def refund(self, decision: Decision) -> bool:
        """Hand back what `decision` charged; False where it charged nothing, did so before or it has aged out."""
        with self._lock:
            if not decision.charge:
                return False
            now_us = self._now_us()
            changed = False
            for window, (table, _, key, cost) in zip(decision.charge, self._flat(decision.checks), strict=True):
                # A window that was reset, evicted or converted since is another object, and has nothing of ours.
                if window in (table.windows.get(key), table.windows.get(_cell(key))):
                    changed |= window.remove(now_us, decision.now_us, cost)
            decision.charge.clear()
            return changed

    def reset(self, key: str) -> bool:
        """Forget the windows of `key` under every rule; False where there were none.

        What the key spent in a shared cell stays: it cannot be told from what others spent there.
        """
        with self._lock:
            found = False
            for table in self._tables.values():
                if table.windows.get(key) is not None:
                    found = True
                    table.windows[key] = new_window(table.limit)
            return found

    def _now_us(self) -> int:
        return monotonic_ns() // 1000 if self._clock is None else self._clock()

    def _tell(self) -> None:
        events, self._pending = self._pending, []
        for event in events:
            for observer in self._observers:
                observer(event)

    # -- several limits or keys at once ------------------------------------------------------------------------------

    def _hit_all(self, checks: Sequence[Check], now_us: int) -> Decision:
        flat = self._flat(checks)
        windows = [table.windows.get(key) or self._window(table, key, now_us) for table, _, key, _ in flat]
        return self._judge(checks, flat, windows, now_us)

    def _judge(self, checks: Sequence[Check], flat: _Flat, windows: Sequence[Ring], now_us: int) -> Decision:
        """Charge all windows or none."""
        pairs = list(zip(windows, flat, strict=True))
        if len(set(map(id, windows))) < len(windows):
            waits = _waits_together(pairs, now_us)
        else:
            waits = [window.wait_us(now_us, limit.amount - (cost or 1)) for window, (_, limit, _, cost) in pairs]
        if any(waits):
            readings = [(w.spent, w.leaves_us, w.newest_us, wait) for w, wait in zip(windows, waits, strict=True)]
            return Decision(False, TOO_LARGE if NEVER in waits else LIMITED, now_us, checks, readings)
        readings = [window.spend(now_us, limit.amount, cost) for window, (_, limit, _, cost) in pairs]
        return Decision(True, OK, now_us, checks, readings, windows)

    def _flat(self, checks: Sequence[Check]) -> _Flat:
        return [
            (table, limit, key, cost)
            for bucket, key, cost in checks
            for table, limit in self._bound.get(bucket) or self._bind(bucket)
        ]

    # -- finding and making windows ----------------------------------------------------------------------------------

    def _bind(self, bucket: Bucket) -> tuple[tuple[Table, Limit], ...]:
        """Find the tables of a bucket, making those that are missing."""
        if len(self._bound) >= MAX_BOUND_BUCKETS:
            self._unbind()
        bound = tuple((self._table(bucket.rule, limit), limit) for limit in bucket.limits)
        self._bound[bucket] = bound
        if len(bound) == 1:
            ((table, limit),) = bound
            self._single[bucket] = table, table.windows, limit.amount
        return bound

    def _unbind(self) -> None:
        self._bound.clear()
        self._single.clear()

    def _table(self, rule: str, limit: Limit) -> Table:
        identity = (rule, limit.window_us, limit.resolution, limit.exact)
        table = self._tables.get(identity)
        if table is None:
            table = self._tables[identity] = Table(limit)
            twin = self._tables.get((*identity[:3], not limit.exact))
            if twin is not None:
                table.twin, twin.twin = twin, table
            self._sweep_due_us = 0
        return table

    def _find(self, table: Table, key: str, now_us: int) -> Ring | None:
        """Return the window that counts `key` now, or a copy of the right kind, if there is one."""
        for place in (key, _cell(key)):
            if (window := table.windows.get(place)) is not None:
                return window
            if table.twin is not None and (window := table.twin.windows.get(place)) is not None:
                return convert(window, table.limit, now_us)
        return None

    def _window(self, table: Table, key: str, now_us: int) -> Ring:
        """Return the window for a key that has none of its own: its cell while that is in use, else a new one."""
        moved = table.take_from_twin(key, now_us)
        if moved is not None:
            return moved
        number = _cell(key)
        cell = table.windows.get(number) or table.take_from_twin(number, now_us)
        if (cell is None or not table.holds(cell, now_us)) and self._keys < self.max_keys:
            self._keys += 1
            return table.put(key, new_window(table.limit))
        self._shared_hits += 1
        if now_us >= self._next_shared_event_us:
            self._next_shared_event_us = now_us + table.limit.window_us
            message = (
                f"all {self.max_keys} keys are in use: further clients are counted in shared cells; raise max_keys"
            )
            self._pending.append(Event("keys_shared", message, {"max_keys": self.max_keys}))
        return cell or table.put(number, new_window(table.limit))

    # -- letting go --------------------------------------------------------------------------------------------------

    def _sweep(self, now_us: int) -> None:
        """Visit a few windows of the table that waits longest, and say when to come again."""
        table = min(self._tables.values(), key=lambda table: table.due_us, default=None)
        if table is None or table.due_us > now_us:
            self._sweep_due_us = table.due_us if table is not None else now_us + SWEEP_PAUSE_US
            return
        if not table.to_visit:
            table.to_visit = len(table.queue)
        visits = min(SWEEP_STEP, table.to_visit)
        table.to_visit -= visits
        for _ in range(visits):
            key = table.queue.popleft()
            window = table.windows[key]
            if window is not None and table.holds(window, now_us):
                table.queue.append(key)
                continue
            del table.windows[key]
            if window is not None and isinstance(key, str):
                self._keys -= 1
                self._evictions += 1
        if not table.to_visit:
            table.due_us = now_us + max(table.limit.span_us, SWEEP_PAUSE_US)
            if not table.queue:
                self._drop(table)

    def _drop(self, table: Table) -> None:
        self._tables = {identity: kept for identity, kept in self._tables.items() if kept is not table}
        self._unbind()
        if table.twin is not None:
            table.twin.twin = None


def _waits_together(pairs: Sequence[tuple[Ring, tuple[Table, Limit, str, int]]], now_us: int) -> list[int]:
    """Return the waits where one window is asked more than once, as when two keys share a cell."""
    asked: dict[Ring, int] = {}
    waits: list[int] = []
    for window, (table, limit, key, cost) in pairs:
        before = asked.get(window, 0)
        asked[window] = before + cost
        wait_us = window.wait_us(now_us, limit.amount - before - (cost or 1))
        if wait_us == NEVER and cost <= limit.amount and table.windows.get(key) is None:
            wait_us = max(window.newest_us + limit.span_us - now_us, 1)  # another cell or none may serve it then
        waits.append(wait_us)
    return waits


def _cell(key: str) -> int:
    return hash(key) % SHARED_CELLS
