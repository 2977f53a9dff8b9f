"""What decides in place of a store that does not answer: a store of this process, everything or nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

from ..core.bans.ban import Ban, BanSubject
from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.errors import StoreUnavailable
from ..core.store import Clock, Store
from ..stores.system_clock import system_us
from .failure_policy import STRICTEST_FIRST, OnError

MIN_RETRY_US: Final = 1_000_000
SWEEP_EVERY_US: Final = 100_000
"""How often, after an outage, the memory is reclaimed of some windows that this process has counted in."""
SWEEP_FOR_US: Final = 3_600_000_000
"""How long: nobody else asks a store that no outage needs, and most windows are over by then."""


class StandIn:
    """Decides in place of a store.

    Args:
        local: Counts with ``"local"``: a store of this process that answers at once. Its windows expire by themselves,
            so that several outages admit an amount once.
        on_error: What decides for rules that do not say it.
        pause_us: Returns for how long the store is not asked.
        clock: Returns monotonic time in microseconds.

    Attributes:
        has_counted: Whether it has counted lately, so that `sweep` has something to do.
    """

    def __init__(self, local: Store, on_error: OnError, pause_us: Callable[[], int], clock: Clock) -> None:
        self.local = local
        self._on_error: OnError = on_error
        self._pause_us = pause_us
        self._clock = clock
        self.has_counted = False
        self._sweep_us = self._used_us = 0

    def decide(
        self, what: Literal["hit", "peek", "charge"], checks: Sequence[Check], subjects: Sequence[BanSubject] = ()
    ) -> Decision:
        """Decide instead of the store, by the strictest `on_error` of the rules."""
        choice = self._strictest(checks)
        if choice == "local":
            return self._count(what, checks, subjects)
        wait_us = max(self._pause_us(), MIN_RETRY_US)
        # What is charged has been used already: nothing refuses it.
        allowed = choice == "allow" or what == "charge"
        return Decision(allowed, Reason.UNAVAILABLE, checks=checks, at_least_us=wait_us)

    def _strictest(self, checks: Collection[Check]) -> OnError:
        choices = {bucket.on_error or self._on_error for bucket, _, _ in checks} or {self._on_error}
        return next(one for one in STRICTEST_FIRST if one in choices)

    def _count(self, what: str, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision:
        """Count in this process. What it has charged is refunded here, too."""
        self._use()
        decision: Any
        if what == "charge":
            decision = self.local.charge(checks)
        elif what == "peek":
            decision = self.local.peek(checks, subjects)
        else:
            decision = self.local.hit(checks, subjects)
        for reservation in decision.reservations:
            reservation.store = self.local
        return decision  # type: ignore[no-any-return]

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike instead of the store.

        Raises:
            StoreUnavailable: `on_error` is ``"deny"``.
        """
        if self._on_error == "deny":
            raise StoreUnavailable("the store did not answer a strike, so it is unknown whether it bans")
        if self._on_error == "allow":
            return None
        self._use()
        bans = self.local.bans
        made: Any = bans.strike(policy, key, weight, reason)
        if made:
            return made  # type: ignore[no-any-return]
        earlier: Any = bans.find((key,))
        if earlier is None:
            return None
        # Who strikes takes the time from since to until as what is left of a ban.
        return earlier._replace(since_us=system_us())  # type: ignore[no-any-return]

    def ban(self, *banned: Any) -> Any:
        """Ban a key for this process alone, with the arguments of `BanStore.ban`.

        Raises:
            StoreUnavailable: `on_error` is not ``"local"``.
        """
        if self._on_error != "local":
            raise StoreUnavailable("the store did not answer")
        self._use()
        return self.local.bans.ban(*banned)

    def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return a ban that this process has made."""
        found: Any = self.local.bans.find(subjects)
        return found  # type: ignore[no-any-return]

    def _use(self) -> None:
        self.has_counted = True
        self._used_us = self._clock()
        self._sweep_us = 0  # with the next answer of the store

    def sweep(self) -> None:
        """Drop some of what has expired, for a while after an outage: an empty question does that."""
        now_us = self._clock()
        if now_us >= self._sweep_us:
            self.local.hit(())
            self._sweep_us = now_us + SWEEP_EVERY_US
            self.has_counted = now_us - self._used_us <= SWEEP_FOR_US
