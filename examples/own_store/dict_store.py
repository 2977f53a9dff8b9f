"""A complete store in one file: windows in a dict, one lock around it.

The core does the arithmetic. A store looks up the windows of a question, which are bytes, lets the core decide, and
saves them, all under one lock, so this store passes the whole contract. A database does the same in a transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Lock
from time import monotonic_ns, time_ns
from typing import TypeAlias

from slidegate import MemoryStore, StoreError
from slidegate.core import (
    COMMAND_DEADLINE_S,
    AnyLimit,
    BanSubject,
    Check,
    Clock,
    Concurrency,
    ConfigurationError,
    Decision,
    Quota,
    Reservation,
    Snapshot,
    Store,
    WindowRef,
    charge_all,
    decide,
    refund_all,
)

Name: TypeAlias = tuple[str, object, str]
"""The name of a window: the rule, the window's length and resolution, and the key."""
Windows: TypeAlias = dict[Name, bytes]


class DictStore(Store):
    """Stores windows and bans in this process.

    It keeps no rows for other processes. It never waits, so a thread gets its answer at once, and no deadline matters.

    Args:
        clock: Returns microseconds; by default the monotonic clock, and the system clock for bans and quotas.
        most: The most windows; a request that needs another one raises `StoreError`.

    Raises:
        ConfigurationError: `most` is not a whole number above 0.
    """

    answers_threads = True

    def __init__(self, *, clock: Clock | None = None, most: int = 100_000) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise ConfigurationError(f"most: expected a whole number above 0, for example 100_000, not {most!r}")
        super().__init__()
        self._most = most
        self._clock = clock or _monotonic_us
        self._unix_us = clock or _unix_us
        self._lock = Lock()
        self._windows: Windows = {}
        self._limits: dict[Name, AnyLimit] = {}
        self._memory = MemoryStore(max_keys=most, max_bans=most, clock=clock)
        self._memory.observe(self.observers.tell)
        self.bans = self._memory.bans

    def hit(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision:
        """Charge every check or none."""
        self.expect_open()
        refusal = self.bans.decide(checks, subjects)
        if refusal is not None:
            return refusal
        with self._guard():
            now_us = self._clock()
            return decide(checks, self._find(checks, self._windows), now_us)

    def peek(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision:
        """Return what `hit` would answer, by deciding on a copy of the windows."""
        self.expect_open()
        refusal = self.bans.decide(checks, subjects)
        if refusal is not None:
            return refusal
        with self._guard():
            now_us, windows = self._clock(), self._windows.copy()
            decision = decide(checks, self._find(checks, windows), now_us)
            decision.reservations = ()
            return decision

    def charge(self, checks: Sequence[Check], deadline_s: float = COMMAND_DEADLINE_S) -> Decision:
        """Charge every cost, even beyond the limits."""
        with self._guard():
            now_us = self._clock()
            return charge_all(checks, self._find(checks, self._windows), now_us)

    def refund(self, reservations: Sequence[Reservation], deadline_s: float = COMMAND_DEADLINE_S) -> bool:
        """Refund charges that still count."""
        with self._guard():
            now_us, windows = self._clock(), self._windows.copy()
            places = self._find([reservation.check for reservation in reservations], windows)
            found = refund_all(reservations, places, now_us)
            # Expired windows are not created again: they may exceed the most windows.
            self._windows |= {name: windows[name] for _, _, _, name, _ in places if name in self._windows}
            return found

    def reset(self, key: str, names: Collection[str] = ()) -> bool:
        """Forget the units of a key, under some names or all."""
        with self._guard():
            found = False
            for name, limit in self._limits.items():
                is_meant = name[2] == key and (not names or name[0] in names)
                if is_meant and not isinstance(limit, Concurrency):
                    found = found or (bool(self._windows[name]) and not self._has_expired(name))
                    self._windows[name] = b""
            return found

    def reset_all(self) -> bool:
        """Forget the windows of all keys, except the permits of requests in progress."""
        with self._guard():
            forgotten = [name for name, limit in self._limits.items() if not isinstance(limit, Concurrency)]
            found = any(not self._has_expired(name) for name in forgotten)
            for name in forgotten:
                del self._windows[name], self._limits[name]
            return found

    def inspect(self, checks: Sequence[Check]) -> Snapshot:
        """Return the windows of some checks."""
        with self._guard():
            now_us, windows = self._clock(), self._windows.copy()
            places = self._find(checks, windows)
            return Snapshot(now_us, self._unix_us(), [windows[name] for _, _, _, name, _ in places])

    def permits_held(self) -> int:
        """Return how many permits are taken; without this method, rules could not limit concurrency."""
        with self._lock:
            held = [name for name, limit in self._limits.items() if isinstance(limit, Concurrency)]
            counted = [self._limits[name].counter_by(self._unix_us).spend(self._windows[name], 0, 0) for name in held]
            return sum(state[0] for _, state in counted)

    def close(self) -> None:
        """Close the store and its bans."""
        super().close()
        self._memory.close()

    def _guard(self) -> Lock:
        """Return the lock, after checking that the store is open."""
        self.expect_open()
        return self._lock

    def _find(self, checks: Sequence[Check], windows: Windows) -> list[WindowRef]:
        """Return the locations of the windows of a question, creating missing windows."""
        asked = [
            (limit, cost, (bucket.name, limit.same_window, key), bucket.count_denied)
            for bucket, key, cost in checks
            for limit in bucket.limits
        ]
        missing = {name: limit for limit, _, name, _ in asked if name not in windows}
        if windows is self._windows and len(windows) + len(missing) > self._most:
            self._delete_expired(kept={name for _, _, name, _ in asked})
            if len(windows) + len(missing) > self._most:
                raise StoreError(f"all {self._most} windows are in use; raise most")
        windows |= dict.fromkeys(missing, b"")
        if windows is self._windows:
            self._limits |= missing
        return [(limit.counter_by(self._unix_us), cost, windows, *place) for limit, cost, *place in asked]

    def _delete_expired(self, kept: set[Name]) -> None:
        """Delete the windows whose units have all left, except `kept`; live windows are never evicted."""
        for name in list(self._limits):
            if name not in kept and self._has_expired(name):
                del self._windows[name], self._limits[name]

    def _has_expired(self, name: Name) -> bool:
        """Return whether all units of a window have left; those of a quota by Unix time."""
        limit = self._limits[name]
        now_us = self._unix_us() if isinstance(limit, Quota) else self._clock()
        return limit.expires_us(self._windows[name]) <= now_us


def _monotonic_us() -> int:
    return monotonic_ns() // 1_000


def _unix_us() -> int:
    return time_ns() // 1_000
