"""The counts of this process in place of a store that does not answer, with ``on_error="local"``.

A memory store is made with the first question that the shared store did not answer. It stays until the shared store is
well and nothing that was counted or banned here may count any more::

    shared   answers ----| does not answer |---- answers ----------------------------->
    local                | decides         | a request has to pass both  | forgotten
                                           |<- the longest window asked ->|
                                               and the bans made here

Keys that were counted under provisional digests (see `secret`) are asked for under those as long as they count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time_ns

from ..core.bans.in_force import Ban, Guarded
from ..core.bans.policy import BanPolicy
from ..core.decision import Check, Decision
from ..core.protocols import Clock, Event
from ..stores.memory.store import MemoryStore
from .key_spelling import Keys


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
        self._keys: Keys | None = None
        self._needed_until_us = 0
        self.made: MemoryStore | None = None

    @property
    def store(self) -> MemoryStore | None:
        """The store of this process, as long as something that it counted or banned may count."""
        if self.made is not None and not self._is_away() and self._clock() >= self._needed_until_us:
            self.made = None
            self._forget_spelling()
        return self.made

    def respell(self, keys: Keys) -> None:
        """Ask here by the spelling from before the secret came, as long as anything counts under it."""
        self._keys = keys
        if self.store is None:
            self._forget_spelling()

    def spelled(self, key: str) -> str:
        """Return a key as this store knows it."""
        return key if self._keys is None else self._keys.before(key)

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Charge every check or none, in place of the shared store."""
        self._keep(checks)
        return self._made().hit(self._checks(checks), self._guards(guarded))

    def hit_too(self, store: MemoryStore, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Charge every check or none, beside the shared store."""
        decision = store.hit(self._checks(checks), self._guards(guarded))
        if decision.ban is not None and decision.ban.ends_us is not None:  # it may have been prolonged
            self._needed_until_us = max(self._needed_until_us, decision.ban.ends_us)
        return decision

    def peek(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        """Say what `hit` would answer now."""
        return self._made().peek(self._checks(checks), self._guards(guarded))

    def charge(self, checks: Sequence[Check]) -> Decision:
        """Record every cost, in place of the shared store."""
        self._keep(checks)
        return self._made().charge(self._checks(checks))

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str) -> Ban | None:
        """Count a strike, in place of the shared store."""
        ban = self._made().bans.strike(policy, self.spelled(key), weight, reason, prefix)
        until_us = self._clock() + policy.after.window_us
        self._needed_until_us = max(self._needed_until_us, until_us, (ban and ban.ends_us) or 0)
        return ban

    def find_ban(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban made here that refuses, if there is one."""
        store = self.store
        return None if store is None else store.bans.find(self._guards(guarded))

    def _made(self) -> MemoryStore:
        if self.made is None:
            self.made = MemoryStore(clock=self._clock, wall_clock=lambda: time_ns() // 1000)
            self.made.observe(self._tell)
        return self.made

    def _keep(self, checks: Sequence[Check]) -> None:
        """Keep the store until every unit that is counted now has expired."""
        spans_us = [limit.span_us + limit.slice_us for bucket, _, _ in checks for limit in bucket.limits]
        self._needed_until_us = max(self._needed_until_us, self._clock() + max(spans_us, default=0))

    def _forget_spelling(self) -> None:
        if self._keys is not None:
            self._keys.settle()
            self._keys = None

    def _checks(self, checks: Sequence[Check]) -> Sequence[Check]:
        if self._keys is None:
            return checks
        return [(bucket, self.spelled(key), cost) for bucket, key, cost in checks]

    def _guards(self, guarded: Sequence[Guarded]) -> Sequence[Guarded]:
        if self._keys is None:
            return guarded
        return [self.spelled(who) if isinstance(who, str) else who for who in guarded]
