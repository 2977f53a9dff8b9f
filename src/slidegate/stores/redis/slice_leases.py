"""The leases of a process: units that Redis has charged ahead, which it spends without asking for each.

A ring counts all units of a slice by its last microsecond, see `core.ring`. So until then it does not matter when units
that Redis has charged are spent: either way no window contains more than its amount::

    Redis    |--charges 8--------------------------------| the slice ends: its 8 units count from here
    worker       1   2 3    4    5                       | 3 are left, and are refunded by the moment of the slice
                 ^ asks     ^ asks nobody

A lease is of one question: all of its checks are charged, or none. It ends with the first slice of its limits, or the
first period of its quotas, but at most `MOST_US` after it was asked for, because what other workers change takes effect
then. The worker measures that time by its monotonic clock from before it asked: so a slow answer makes a lease shorter,
and a worker that was stopped finds its lease ended. What this process changes ends its own leases at once.

Where units may be gone from Redis, a lease is dropped: its units are neither spent nor refunded.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import random
from time import monotonic_ns
from typing import Final, TypeAlias

from ...core.buckets import Check
from ...core.decision import Decision
from ...core.memo import remember
from ...core.reservation import Reservation
from ..forks import InChild, begin_anew_if_forked
from .clock import StoreTime, real_monotonic_us
from .question import Question
from .refusals import Refusals, amounts_of
from .several import admitted_before, charges_of
from .store_news import StoreNews

MOST_US: Final = 1_000_000
"""The longest lease, and how old the news may be by which it is spent."""
FEW: Final = 4
"""Units are charged ahead for a question that was asked so often under a lease, or twice as often under the last."""
MOST_AHEAD: Final = 65_535
"""The most units that are charged ahead."""
CLOCK_ERROR: Final = 1_000
"""A lease is shorter by this part: so much slower than the clock of the server may that of the worker go."""
ROUNDING_US: Final = 5
"""What the rounding of both clocks may add."""
STEP_US: Final = 1_000
"""How far a clock has to step to be noticed."""

Refund: TypeAlias = Callable[[Sequence[Reservation]], None]


@dataclass(slots=True, eq=False)
class SliceLease:
    """What a worker has of a question.

    Attributes:
        decision: What Redis decided last about the question: the states of its windows, with all units of the lease.
        came_us: When that came, by the local clock of the store.
        sent_ns: When the lease was asked for (monotonic).
        until_us: When it ends, by the local clock.
        changes: `Refusals.changes` when it came.
        amounts: The amounts of its limits; an operator may change them.
        cleared: The questions for which it may be spent, one for each client: Redis has said that no ban refuses it.
        units: An element for each unit that is left; threads take them without a lock.
        used: How often the question was asked under the lease.
        used_before: How often under the one before.
        is_dropped: Whether its units may be gone from Redis.
    """

    decision: Decision
    came_us: int
    sent_ns: int
    until_us: int
    changes: int
    amounts: Sequence[int]
    cleared: set[Question]
    units: list[None]
    used: int = 0
    used_before: int = 0
    is_dropped: bool = False

    def take(self) -> bool:
        """Take a unit, if one is left."""
        try:
            self.units.pop()
        except IndexError:
            return False
        return True


class SliceLeases:
    """The leases of a process, in bounded memory. The threads of all event loops share them without a lock.

    Args:
        time: The clock of the store.
        refusals: What this process has changed.
        news: What Redis last said of its data.
    """

    def __init__(self, time: StoreTime, refusals: Refusals, news: StoreNews) -> None:
        self._time = time
        self._refusals = refusals
        self._news = news
        self._leases: dict[tuple[Check, ...], SliceLease] = {}  # by question; also those that have ended
        self._dropped_ns = 0
        self._fresh_until_ns = 0
        """Until when bans of networks are as the news say (monotonic)."""
        self._life = b""
        """The identity of the data, as the news say."""
        self._ahead_us = -math.inf, math.inf
        """How far the server's clock is ahead of the monotonic one, at least and at most."""
        self._in_child = InChild(self.drop)

    # -- questions ---------------------------------------------------------------------------------------------------

    def hit(self, question: Question) -> Decision | None:
        """Spend a unit; return the decision, or None if Redis has to be asked."""
        lease = self._leases.get(question.checks)
        if lease is None:
            return None
        begin_anew_if_forked()  # a child must not spend the units of its parent
        if not lease.take():
            return None
        now_us = self._time.local_us()  # read after a unit was taken: a process may be stopped before any line
        is_cleared = question in lease.cleared and monotonic_ns() < self._fresh_until_ns
        if is_cleared and self._goes_on(lease, question, now_us):
            lease.used += 1
            return admitted_before(lease.decision, len(lease.units), lease.decision.now_us + now_us - lease.came_us)
        lease.units.append(None)
        return None

    def wanted(self, question: Question, refund: Refund) -> int:
        """Return how many units to charge ahead: as many as were used, and at least half of last time's.

        What is left of a lease that has ended is refunded first.

        Args:
            question: The question.
            refund: Refunds what is left of a lease that has ended.
        """
        lease = self._leases.get(question.checks)
        if lease is None:
            return 0
        now_us = self._time.local_us()
        used = lease.used
        before = lease.used_before
        if not self._goes_on(lease, question, now_us):
            self.refund_rest(lease, refund)
            before = used  # the next lease begins
            used = 0
            if now_us >= lease.until_us + MOST_US:
                self._leases.pop(question.checks, None)
                return 0
        # Units that are left are for other clients, whom Redis has cleared.
        if lease.units or (used < FEW and before < 2 * FEW):
            return 0
        return min(max(used, before // 2), MOST_AHEAD)

    def grant(
        self, question: Question, decision: Decision, sent_ns: int, lasts_us: int, spent: int, left: int, refund: Refund
    ) -> None:
        """Keep the units that Redis has charged ahead, or refund them if the lease has ended.

        Args:
            question: The question.
            decision: What Redis said.
            sent_ns: When it was asked (monotonic).
            lasts_us: How long after its decision the first slice ends.
            spent: How many units were spent.
            left: How many are left.
            refund: Refunds them.
        """
        if sent_ns <= self._dropped_ns:
            return  # Redis may count them no longer
        came_us = self._time.local_us()
        changes = self._refusals.changes
        until_us = self._time.sent_us(sent_ns) + min(lasts_us - lasts_us // CLOCK_ERROR - ROUNDING_US, MOST_US)
        # The lease has ended already: its slice is over, or a client or its network has been banned meanwhile.
        if came_us >= until_us or self._refusals.has_changed(question.refusing, sent_ns):
            if left:
                refund(charges_of(decision, left))
            return
        lease = self._leases.get(question.checks)
        if lease is not None and self._goes_on(lease, question, came_us):  # these units are of the same slices
            lease.decision = decision
            lease.came_us = came_us
        else:
            last = lease
            lease = SliceLease(decision, came_us, sent_ns, until_us, changes, amounts_of(question.checks), set(), [])
            if last is not None:
                lease.used_before = last.used
                self.refund_rest(last, refund)
            remember(self._leases, question.checks, lease)
            self._end_later(lease, refund)
        lease.cleared.add(question)
        lease.used += spent
        lease.units += [None] * left

    def _end_later(self, lease: SliceLease, refund: Refund) -> None:
        """Refund what is left of a lease when it has ended; by the clock of a test, with the next question.

        Leases of all keys end with the same slices, so this is spread over half as long again.
        """
        if self._time.is_real:
            lasts_s = (lease.until_us - lease.came_us) / 1_000_000
            asyncio.get_running_loop().call_later(lasts_s * (1 + random() / 2), self.refund_rest, lease, refund)

    # -- refunds -----------------------------------------------------------------------------------------------------

    def give_back(self, reservations: Sequence[Reservation]) -> bool:
        """Return a refunded hit to its lease; False if that has ended, or has no units left.

        Near the limit it has none, so that Redis and others learn of the refund.
        """
        lease = self._leases.get(tuple([one.check for one in reservations]))
        if lease is None or not lease.units or self._time.local_us() >= lease.until_us:
            return False
        hit = charges_of(lease.decision, 1)
        if [(one.marks, one.units) for one in reservations] != [(one.marks, one.units) for one in hit]:
            return False
        self._refusals.invalidate(lease.decision.checks)
        lease.units.append(None)
        return True

    def refund_rest(self, lease: SliceLease, refund: Refund) -> None:
        """Refund what is left of a lease."""
        lease.cleared.clear()
        left = 0
        while lease.take():
            left += 1
        if left and not lease.is_dropped:
            refund(charges_of(lease.decision, left))

    def refund_all(self, refund: Refund) -> None:
        """Refund what is left of all leases."""
        for lease in [*self._leases.values()]:
            self.refund_rest(lease, refund)

    # -- what ends leases --------------------------------------------------------------------------------------------

    def drop(self, key: str | None = None) -> None:
        """Drop the leases of a key, or all, and those that are on their way: Redis may count their units no longer."""
        self._dropped_ns = monotonic_ns()
        for checks, lease in [*self._leases.items()]:
            if key is None or key in [own for _, own, _ in checks]:
                lease.is_dropped = True
                self._leases.pop(checks, None)

    def see(self, now_us: int, sent_ns: int, fresh_until_ns: int) -> None:
        """Take note of an answer received now. If Redis has lost its data, or its clock has stepped, drop all leases.

        Args:
            now_us: The server's time.
            sent_ns: When it was asked for (monotonic).
            fresh_until_ns: Until when the news are new (monotonic).
        """
        is_lost = self._life not in (b"", self._news.life)
        self._life = self._news.life
        self._fresh_until_ns = max(self._fresh_until_ns, fresh_until_ns)
        has_stepped = self._has_stepped(now_us, sent_ns) and self._time.is_real
        if has_stepped or is_lost:
            self.drop()

    def _has_stepped(self, now_us: int, sent_ns: int) -> bool:
        """Return whether the server's clock cannot be ahead of the monotonic one by what it was before."""
        then_least_us, then_most_us = self._ahead_us
        least_us = now_us - real_monotonic_us()
        most_us = now_us - sent_ns // 1_000
        self._ahead_us = least_us - STEP_US, most_us + STEP_US
        return max(least_us, then_least_us) > min(most_us, then_most_us)

    def _goes_on(self, lease: SliceLease, question: Question, now_us: int) -> bool:
        """Return whether the units of a lease may be spent now, by who is not banned."""
        if lease.is_dropped or not lease.came_us <= now_us < lease.until_us:  # a test may set its clock back
            return False
        if lease.amounts != amounts_of(question.checks):
            return False
        refusals = self._refusals
        return lease.changes == refusals.changes or not refusals.has_changed(question.refusing, lease.sent_ns)
