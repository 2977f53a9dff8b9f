"""Leases: units that Redis has charged ahead for a question, and that a worker spends without asking again.

In this file a unit is what one hit of the question costs: with a cost of 10, ten units of each of its limits.

A ring counts all units of a slice by its last microsecond, see `core.ring`. So until then it does not matter when units
that Redis has charged are spent: either way no window contains more than its amount::

    Redis    |--charges 8--------------------------------| the slice ends: the 8 count as spent at this moment
    worker       1   2 3    4    5                       | 3 are left, and are refunded by the moment of the slice
                 ^ asks     ^ asks nobody

A lease is of one question: all of its checks are charged, or none. `hits` asks for leases for questions that are asked
again within about a second. A lease begins without units, and counts the hits of its question; when it has counted a
few, hits ask for units ahead, and those after them take these. Its life, in the order of the methods of `UnitLeases`:

=====================  ===============================================================================================
`refund_ended`         the lease has ended, and a hit is sent: what is left is refunded in front of it
`ask`                  a hit that is sent asks for units ahead, if none are left; Redis may charge fewer
`keep`                 Redis admits the hit: a lease begins, or what was granted is added to the one that goes on
`note_refused`         Redis refuses the hit: no units come
`spend`                a hit takes a unit, and is not sent
`refund_rest`          the lease has ended, and no hit comes: a timer refunds what is left
=====================  ===============================================================================================

A lease ends when the first of its slices ends, or the period of a quota, at the latest `TRUST_US` after it was asked
for, and before that by a change, see `changes`. The worker measures that time by its monotonic clock from before it
asked: so a slow answer makes a lease shorter, and a process that was stopped finds its lease ended. (That clock stands
still while a host is suspended: one that wakes may spend what is left in a later slice.)

Threads share a lease without a lock. Where two meet, a unit may stay charged that nobody spends, and an admission may
say that a few more or fewer units are left; no unit is spent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import random
from time import monotonic_ns
from typing import Final, TypeAlias

from ...core.buckets import Check
from ...core.decision import OK, Decision
from ...core.memo import remember
from ...core.reservation import Reservation, reserved
from ...core.ring import WindowState
from ..forks import ForkHook, restart_if_forked
from .changes import TRUST_US, Changes, KeptAnswer, amounts_of, windows_of
from .protocol import StoreTime
from .requests import Question

LEAST_AHEAD: Final = 4
"""The fewest units that a hit asks for ahead: if fewer are wanted, it asks for none."""
MOST_AHEAD: Final = 65_535
"""The most units that a hit asks for ahead. Redis grants at most a part of the room, see `SHARE` in its script."""
CLOCK_ERROR: Final = 1_000
"""A lease is shorter by one part in so many, because the worker's clock may go slower than the server's by so much."""
ROUNDING_US: Final = 5
"""What the rounding of both clocks may add."""

Refund: TypeAlias = Callable[[Sequence[Reservation]], None]
"""Refunds units in the background, over the connection of the running event loop."""


@dataclass(slots=True, eq=False)
class UnitLease(KeptAnswer):
    """A lease. Its decision has the states of windows after all its units.

    Its `windows` are empty: its units are charged already, so hits and refunds of others do not end it. A charge does:
    `hits.charge` notes its keys, which `holds` looks for in `refusing`. So who is charged beyond an amount does not go
    on with what was granted before.

    Attributes:
        cleared: The questions for which it may be spent, one for each client that no ban refused.
        units: An element for each unit that is left; threads take them without a lock.
        used: How many hits of its question were admitted under it, by Redis or by its units.
        used_before: How many under the lease before.
        is_asking: Whether more units are asked for: of several equal hits in a call, one asks ahead. If its answer is
            lost, none asks until the lease ends.
    """

    cleared: set[Question]
    units: list[None]
    used: int
    used_before: int = 0
    is_asking: bool = False

    def take(self) -> bool:
        """Take a unit, if one is left."""
        try:
            self.units.pop()
        except IndexError:
            return False
        return True

    def add(self, granted: UnitLease) -> None:
        """Add what was granted in the same slices."""
        # Of several event loops, the one that was answered first may read its answer later.
        if granted.decision.now_us >= self.decision.now_us:
            self.decision = granted.decision
        self.cleared |= granted.cleared
        self.used += granted.used
        self.units += granted.units
        # A grant of one is that of a hit that did not ask, so another's answer may still come; or of one that asked
        # where there is little room: then none asks again under this lease.
        if len(granted.units) + granted.used > 1:
            self.is_asking = False


class UnitLeases:
    """The leases of a process, in bounded memory. The threads of all event loops share them without a lock.

    Args:
        time: The clock of the store.
        changes: What ends them.

    Attributes:
        by_checks: The latest lease of each question, by its checks; it may have ended.
    """

    def __init__(self, time: StoreTime, changes: Changes) -> None:
        self._time = time
        self._changes = changes
        self.by_checks: dict[Sequence[Check], UnitLease] = {}
        self._in_child = ForkHook(changes.note_loss)  # in a child of fork units of its parent are lost

    def refund_ended(self, question: Question, refund: Refund) -> None:
        """Refund what is left of the lease of a question if it has ended, before a hit is sent that may need the units.

        It may have ended for this client alone, by a ban: then it ends for all.
        """
        lease = self.by_checks.get(question.checks)
        if lease is not None and lease.units and not lease.holds(question, self._time.local_us(), self._changes):
            self.refund_rest(lease, refund)

    def ask(self, question: Question) -> int:
        """Return how many units a hit that is sent asks for ahead. The lease notes that it asks.

        While a lease goes on these are as many as were used under it, or half of those under the one before, if that is
        more; for the next lease half of those under the last one.
        """
        lease = self.by_checks.get(question.checks)
        # This hit may begin one, by which later ones know how often the question is asked.
        if lease is None:
            return 0
        local_us = self._time.local_us()
        if lease.holds(question, local_us, self._changes):
            wanted = max(lease.used, lease.used_before // 2)
        elif local_us < lease.until_us + TRUST_US:
            # This hit may begin the next one, under which nothing was used yet.
            wanted = lease.used // 2
        else:
            # It ended long ago: the question is no longer asked often.
            self.by_checks.pop(question.checks, None)
            return 0
        # Units on their way will do. So will those that are left: this client may take them once Redis has cleared it.
        if lease.is_asking or lease.units or wanted < LEAST_AHEAD:
            return 0
        lease.is_asking = True  # if it has ended, until the next one takes its place
        return min(wanted, MOST_AHEAD)

    def keep(
        self,
        question: Question,
        decision: Decision,
        sent_ns: int,
        lasts_us: int,
        charged: int,
        spent: int,
        refund: Refund,
    ) -> None:
        """Keep what Redis has granted with the admission of a hit: in the lease that goes on, or as a new one.

        Args:
            decision: The decision after all that was charged.
            sent_ns: When it was asked for (monotonic).
            lasts_us: How long after its decision the first slice ends.
            charged: How many equal hits were charged: the one that asked, and those ahead.
            spent: How many of them are spent already: 1, or 0 if nobody awaits the hit, or a network that was banned
                meanwhile refuses it.
        """
        surely_us = lasts_us - lasts_us // CLOCK_ERROR - ROUNDING_US
        until_us = self._time.sent_us(sent_ns) + min(surely_us, TRUST_US)
        amounts = amounts_of(question.checks)
        units = [None] * (charged - spent)
        granted = UnitLease(
            decision, sent_ns, until_us, amounts, windows=(), cleared={question}, units=units, used=spent
        )
        local_us = self._time.local_us()
        earlier = self.by_checks.get(question.checks)
        # While it was on its way its slice has ended, or a change, such as a ban, has ended it.
        if not granted.holds(question, local_us, self._changes):
            if earlier is not None:
                earlier.is_asking = False
            self.refund_rest(granted, refund)
            return
        # Each ends before its first slice does, and both hold now, so they are of the same slices (a step of the
        # server's clock ends both): what was granted may be spent until the earlier one ends.
        if earlier is not None and earlier.holds(question, local_us, self._changes):
            earlier.add(granted)
            return
        if earlier is not None:
            granted.used_before = earlier.used
            self.refund_rest(earlier, refund)
        remember(self.by_checks, question.checks, granted)
        # Those of many keys end at one moment: their refunds are spread over half a life. A test's clock has no timers.
        if self._time.is_real:
            refunded_s = (until_us - local_us) / 1_000_000 * (1 + random() / 2)
            asyncio.get_running_loop().call_later(refunded_s, self.refund_rest, granted, refund)

    def note_refused(self, question: Question, sent_ns: int, *, is_banned: bool) -> None:
        """Note that a hit was refused: if it asked for units ahead, they do not come.

        If another one did, it may be asked twice. No unit is for the client of one that a ban refused; by limits alone,
        those that are left are for its client, because Redis looks for bans first.

        Args:
            sent_ns: When it was asked for (monotonic).
        """
        lease = self.by_checks.get(question.checks)
        if lease is None:
            return
        lease.is_asking = False
        if is_banned:
            lease.cleared.discard(question)
        # Without units there is nothing to clear it for, and it would be kept; after a change its client may be banned.
        elif lease.units and not self._changes.since(sent_ns, question.refusing):
            lease.cleared.add(question)

    def spend(self, question: Question) -> Decision | None:
        """Return the admission of a hit by a unit of a lease; None if Redis has to be asked."""
        lease = self.by_checks.get(question.checks)
        if lease is None:
            return None
        restart_if_forked()  # a child must not spend the units of its parent
        if not lease.take():
            return None
        local_us = self._time.local_us()  # read once the unit is ours, because a stop before that may last
        # Redis has cleared the client of bans of keys, and the poll, while it is new enough, of those of networks.
        is_cleared = question in lease.cleared and monotonic_ns() < self._changes.polled_until_ns
        if is_cleared and lease.holds(question, local_us, self._changes):
            lease.used += 1
            return admitted_before(lease.decision, len(lease.units), local_us + self._time.ahead_us)
        lease.units.append(None)  # for another client, or to be refunded
        return None

    def refund_rest(self, lease: UnitLease, refund: Refund) -> None:
        """Refund what is left of a lease, unless Redis may have lost it. No client spends it until more is granted."""
        lease.cleared.clear()
        left = 0
        while lease.take():
            left += 1
        decision = lease.decision
        # The names under which `Changes.note_loss` notes it.
        names = [*windows_of(decision.checks), *[key for _, key, _ in decision.checks]]
        # A refund of what Redis has lost would take units that others have spent in the slice since.
        if left and not self._changes.losses.since(lease.sent_ns, names):
            refund(reserved(decision.checks, decision.readings, _cost_of(decision.checks, left)))

    def refund_all(self, refund: Refund) -> None:
        """Refund what is left of all leases."""
        for lease in [*self.by_checks.values()]:
            self.refund_rest(lease, refund)


def admitted_before(decision: Decision, later: int, now_us: int) -> Decision:
    """Return the admission of one of several equal hits, as it was before some of them were charged.

    Args:
        decision: The decision after all of them.
        later: How many were charged after it.
        now_us: The time of the decision, by the server's clock.
    """
    units_later = _cost_of(decision.checks, later)
    readings: list[WindowState] = []
    for (spent, leaves_us, mark, _), units in zip(decision.readings, units_later, strict=True):
        readings.append((spent - units, leaves_us, mark, 0))
    return Decision(True, OK, now_us, decision.checks, readings, None)


def _cost_of(checks: Sequence[Check], times: int) -> list[int]:
    """Return what several hits cost each limit."""
    units: list[int] = []
    for bucket, _, cost in checks:
        units += [times * cost] * len(bucket.limits)
    return units
