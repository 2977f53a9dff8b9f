"""The counts of this process in place of a store that does not answer, with ``on_error="local"``.

A memory store is made with the first question that the shared store did not answer. It stays until the shared store is
well and nothing that was counted or banned here may count any more::

    shared   answers ----| does not answer |---- answers ----------------------------->
    local                | decides         | a request has to pass both  | forgotten
                                           |<- the longest window asked ->|
                                               and the bans made here
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from time import time_ns

from ..core.bans.in_force import Ban, Guarded
from ..core.bans.policy import BanPolicy
from ..core.decision import Check, Decision
from ..core.store import Clock, Event
from ..stores.forks import hold_over_fork
from ..stores.memory.store import MemoryStore


class LocalCounts:
    """A memory store for as long as it is needed.

    Args:
        tell: Hears of its events.
        clock: Returns microseconds that never run back.
        is_away: Tells whether some part of the shared store does not answer.

    Attributes:
        made: The memory store; None while there is none. `store` drops it when it is no longer needed.
    """

    def __init__(self, tell: Callable[[Event], None], clock: Clock, is_away: Callable[[], bool]) -> None:
        self._tell = tell
        self._clock = clock
        self._is_away = is_away
        self._needed_until_us = 0
        self._lock = Lock()  # threads count in one store, and none counts in one that is dropped
        hold_over_fork(self._lock)
        self.made: MemoryStore | None = None

    @property
    def store(self) -> MemoryStore | None:
        """The store of this process, as long as something that it counted or banned may count."""
        if self.made is None:
            return None
        with self._lock:
            due = not self._is_away() and self._clock() >= self._needed_until_us
            # Places may be held by requests that began while the shared store was away.
            if due and self.made is not None and not self.made.permits_held():
                self.made = None
            return self.made

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Charge every check or none, in place of the shared store."""
        return self._made(self._last_us(checks)).hit(checks, guarded)

    def hit_too(self, store: MemoryStore, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Charge every check or none, beside the shared store."""
        decision = store.hit(checks, guarded)
        if decision.ban is not None and decision.ban.ends_us is not None:  # it may have been prolonged
            self._made(decision.ban.ends_us)
        return decision

    def peek(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Say what `hit` would answer now."""
        return self._made().peek(checks, guarded)

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, in place of the shared store."""
        return self._made(self._last_us(checks)).charge(checks)

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str) -> Ban | None:
        """Count a strike, in place of the shared store."""
        store = self._made(self._clock() + policy.after.window_us)
        ban = store.bans.strike(policy, key, weight, reason, prefix)
        if ban is not None and ban.ends_us is not None:
            self._made(ban.ends_us)
        return ban

    def find_ban(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban made here that refuses, if there is one."""
        store = self.store
        return None if store is None else store.bans.find(guarded)

    def _made(self, until_us: int = 0) -> MemoryStore:
        """Return the store, and keep it until a moment."""
        with self._lock:
            self._needed_until_us = max(self._needed_until_us, until_us)
            if self.made is None:
                store = MemoryStore(clock=self._clock, wall_clock=lambda: time_ns() // 1000)
                store.observe(self._tell)
                self.made = store
            return self.made

    def _last_us(self, checks: Sequence[Check]) -> int:
        """Return the moment when every unit that is counted now has expired."""
        spans_us = [limit.span_us + limit.slice_us for bucket, _, _ in checks for limit in bucket.limits]
        return self._clock() + max(spans_us, default=0)
