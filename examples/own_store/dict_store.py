"""A complete store in one file: windows in a dict, one lock around it.

The core does the arithmetic. A store finds the windows of a demand, has the core judge them in one step that nobody
interrupts, and keeps them. So this one holds every promise of the contract, and a store on a database does the same
inside a transaction.

A charge names the windows that it went to. They are Python objects here, and a refund takes units out of an object that
is still in its place. Where the units of a window have moved, because the clock was set back, a copy takes its place,
and charges from before are not handed back any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from threading import Lock
from time import monotonic_ns, time_ns
from typing import TypeAlias

from slidegate import StoreError
from slidegate.core import Bucket, Check, Clock, ConfigurationError, Decision, Limit, Note, Observer
from slidegate.core.bans.in_force import Guarded
from slidegate.core.demand import charge_all, enter_periods, judge_all
from slidegate.core.limits import AnyLimit
from slidegate.core.observers import Observers
from slidegate.core.quotas import Quota
from slidegate.core.windows.periods import PeriodCount
from slidegate.core.windows.rings import Entry, Ring, convert, new_count
from slidegate.core.windows.views import Snapshot
from slidegate.stores.memory.bans import MemoryBans

Place: TypeAlias = tuple[str, object, str]
"""Where a window lies: the rule, its length and resolution, and the key."""


class DictStore:
    """Remembers windows and bans in this process.

    Args:
        clock: Returns microseconds; by default the monotonic clock, and the system's for bans and quotas.
        most: How many windows to hold; a request that needs one more is a failure of the store.

    Raises:
        ConfigurationError: `most` is not a whole number above 0.
    """

    def __init__(self, *, clock: Clock | None = None, most: int = 100_000) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ConfigurationError(f"most: expected a whole number above 0, for example 100_000, not {most!r}")
        self._most = most
        self._clock = clock or _monotonic_us
        self._unix_us = clock or _unix_us
        self._latest_us = 0
        self._lock = Lock()
        self._windows: dict[Place, tuple[Entry, AnyLimit]] = {}
        self._observers = Observers()
        self.bans = MemoryBans(self._lock, self._now_us, clock, self._observers.tell_all, most)

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Charge every check or none."""
        with self._lock:
            barred = self.bans.judge(checks, guarded, prolong=True)
            if barred is not None:
                return barred
            now_us = self._now_us()
            windows = self._find(checks, now_us)
            decision = judge_all(checks, windows, now_us)
            self._keep(checks, windows, now_us)
            return decision

    def peek(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Say what `hit` would answer: the core judges copies."""
        with self._lock:
            barred = self.bans.judge(checks, guarded, prolong=False)
            if barred is not None:
                return barred
            now_us = self._now_us()
            decision = judge_all(checks, self._find(checks, now_us, copies=True), now_us)
            decision.charge = ()
            return decision

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, whatever the limits."""
        with self._lock:
            now_us = self._now_us()
            windows = self._find(checks, now_us)
            decision = charge_all(checks, windows, now_us)
            self._keep(checks, windows, now_us)
            return decision

    def refund(self, decision: Decision) -> bool:
        """Hand back what was charged, where it still lies in the window that it went to."""
        with self._lock:
            now_us, unix_us, changed = self._now_us(), self._unix_us(), False
            for charged, (place, limit, cost) in zip(decision.charge, _asked(decision.checks), strict=False):
                note = charged if isinstance(charged, Note) else Note(charged, decision.now_us, cost)
                window, _ = self._windows.get(place, (None, limit))
                if window is None or window is not note.window:
                    continue
                if isinstance(window, PeriodCount) and isinstance(limit, Quota):
                    window.enter(limit.period_at(unix_us).end_us, now_us - unix_us)
                changed |= window.remove(now_us, note.spent_us, note.units)
            if changed:
                decision.charge = ()
            return changed

    def reset(self, key: str) -> bool:
        """Forget the windows of a key."""
        with self._lock:
            places = [place for place in self._windows if place[2] == key]
            for place in places:
                del self._windows[place]
            return bool(places)

    def reset_all(self) -> bool:
        """Forget the windows of all keys."""
        with self._lock:
            there = bool(self._windows)
            self._windows.clear()
            return there

    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Snapshot:
        """Return copies of the windows of a key."""
        with self._lock:
            now_us = self._now_us()
            return Snapshot(now_us, self._find([(bucket, key, 0) for bucket in buckets], now_us, copies=True))

    def observe(self, observer: Observer) -> None:
        """Tell somebody of bans that are made and taken back."""
        self._observers.add(observer)

    def close(self) -> None:
        """Do nothing: a dict holds nothing open."""

    def answers_threads(self) -> bool:
        """Say that `Limiter.sync` needs no event loop: no answer has to be awaited."""
        return True

    def _now_us(self) -> int:
        """Return the time. Where it has stepped back, windows whose units move with it become others."""
        now_us = self._clock()
        if now_us < self._latest_us:
            for place, (window, limit) in self._windows.items():
                if window.lies_ahead(now_us):
                    self._windows[place] = copy(window), limit
        self._latest_us = now_us
        return now_us

    def _find(self, checks: Sequence[Check], now_us: int, *, copies: bool = False) -> list[Entry]:
        """Return the windows of a demand, one for each limit of each check, those that are not there yet empty."""
        found: dict[Place, Entry] = {}
        windows = []
        for place, limit, _ in _asked(checks):
            if place not in found:
                window = self._window(place, limit, now_us)
                found[place] = copy(window) if copies else window
            windows.append(found[place])
        enter_periods(checks, windows, now_us, self._unix_us())
        return windows

    def _window(self, place: Place, limit: AnyLimit, now_us: int) -> Entry:
        """Return the window at a place; where the limit needs the other kind of ring, one with the same units."""
        if place not in self._windows:
            return new_count(limit)
        window, before = self._windows[place]
        if before.exact == limit.exact or not isinstance(limit, Limit):
            return window
        return convert(window, limit, now_us) if isinstance(window, Ring) else window

    def _keep(self, checks: Sequence[Check], windows: Sequence[Entry], now_us: int) -> None:
        """Keep the windows that hold something."""
        for (place, limit, _), window in zip(_asked(checks), windows, strict=True):
            if place in self._windows or window.spent:
                self._windows[place] = window, limit
        if len(self._windows) > self._most:
            self._let_go(now_us)

    def _let_go(self, now_us: int) -> None:
        """Let go of the windows whose units have all left. No live window is pushed out: then nothing more fits."""
        for place, (window, limit) in list(self._windows.items()):
            if window.newest_us + limit.span_us <= now_us:
                del self._windows[place]
        if len(self._windows) > self._most:
            raise StoreError(f"all {self._most} windows are in use; raise most")


def _asked(checks: Sequence[Check]) -> Iterator[tuple[Place, AnyLimit, int]]:
    """Yield (place of the window, limit, cost) for each limit of each check."""
    for bucket, key, cost in checks:
        for limit in bucket.limits:
            yield (bucket.rule, limit.same_window, key), limit, cost


def _monotonic_us() -> int:
    return monotonic_ns() // 1_000


def _unix_us() -> int:
    return time_ns() // 1_000
