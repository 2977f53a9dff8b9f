"""The answers that a worker gives without Redis, to questions that were asked before.

*No*: a question that was refused would be refused again until units expire or are refunded, and a banned client until
the ban ends. So a refusal is repeated, but for at most `TRUST_US` after Redis was asked: that is the delay with which a
refund or an unban by another worker takes effect.

*Yes, so many times*, in a store with leases: a ring counts all units of a slice by its last microsecond, see
`core.ring`. So until then it does not matter when units that Redis has charged are spent: either way no window contains
more than its amount::

    Redis    |--charges 8--------------------------------| the slice ends: its 8 units count from here
    worker       1   2 3    4    5                       | 3 are left, and are refunded by the moment of the slice
                 ^ asks     ^ asks nobody

A lease is of one question: all of its checks are charged, or none. It ends with the first slice of its limits, or the
first period of its quotas, but at most `TRUST_US` after it was asked for. The worker measures that time by its
monotonic clock from before it asked: so a slow answer makes a lease shorter, and a worker that was stopped finds its
lease ended.

What this process changes takes effect at once: no answer is used that was asked for before the change. Where units may
be gone from Redis, a lease is dropped: its units are neither spent nor refunded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from random import random
from time import monotonic_ns
from typing import Final, TypeAlias

from ...core.buckets import Check
from ...core.decision import OK, Decision, Reason, refused_by_ban, refused_later
from ...core.memo import MEMO_SIZE, remember
from ...core.reservation import Reservation, reserved
from ...core.ring import WindowState
from ..forks import ForkHook, restart_if_forked
from .protocol import StoreTime
from .requests import Question

TRUST_US: Final = 1_000_000
"""The longest time for which an answer is used, and how old the last poll may be when a lease is spent."""
FEW: Final = 4
"""Units are charged ahead for a question that was asked so often under a lease, or twice as often under the last."""
MOST_AHEAD: Final = 65_535
"""The most units that are charged ahead."""
CLOCK_ERROR: Final = 1_000
"""A lease is shorter by this part: so much slower than the clock of the server may that of the worker go."""
ROUNDING_US: Final = 5
"""What the rounding of both clocks may add."""

Refund: TypeAlias = Callable[[Sequence[Reservation]], None]


@dataclass(slots=True, eq=False)
class Answer:
    """The last answer of Redis to a question: a refusal, or a lease.

    Attributes:
        decision: The decision; in a lease with the states of windows after all its units.
        sent_ns: When it was asked for (monotonic).
        came_us: When it came, by the local clock of the store.
        until_us: Until when it is used, by the same clock.
        amounts: The amounts of its limits; an operator may change them.
        cleared: The questions for which a lease may be spent, one for each client that no ban refused.
        units: An element for each unit that is left; threads take them without a lock.
        used: How often the question was asked under the lease.
        used_before: How often under the one before.
        is_asking: Whether more units are asked for: of several equal hits in a call, one asks ahead.
        is_dropped: Whether its units may be gone from Redis.
    """

    decision: Decision
    sent_ns: int
    came_us: int
    until_us: int
    amounts: Sequence[int]
    cleared: set[Question] = field(default_factory=set)
    units: list[None] = field(default_factory=list)
    used: int = 0
    used_before: int = 0
    is_asking: bool = False
    is_dropped: bool = False

    def take(self) -> bool:
        """Take a unit, if one is left."""
        try:
            self.units.pop()
        except IndexError:
            return False
        return True


class HeldAnswers:
    """The answers that a process has, in bounded memory. The threads of all event loops share them without a lock.

    Args:
        time: The clock of the store.

    Attributes:
        answers: By the checks of a question; refusals by bans by the question, which is that of one client.
        fresh_until_ns: Until when the bans of networks are as they were polled (monotonic).
    """

    def __init__(self, time: StoreTime) -> None:
        self._time = time
        self.answers: dict[Hashable, Answer] = {}
        self.fresh_until_ns = 0
        # When this process last changed a window, by bucket and key, or who is banned, by key; all of them; and any.
        self._changed_ns: dict[Hashable, int] = {}
        self._all_changed_ns = 0
        self._last_change_ns = 0
        self._dropped_ns = 0  # when leases were last dropped
        self._latest_us = 0  # the local time of the last question or refusal, by which a test clock set back is seen
        self._refusals_end_us = 0
        """When the last refusal ends."""
        self._in_child = ForkHook(self.drop)

    # -- questions ---------------------------------------------------------------------------------------------------

    def answer(self, question: Question) -> Decision | None:
        """Return the decision about a hit; None if Redis has to be asked."""
        if not self._time.is_real:
            self._see_test_clock()
        held = self.answers.get(question) or self.answers.get(question.checks)
        if held is None:
            return None
        decision = held.decision
        if decision.allowed:
            return self._spend(held, question)
        now_us = self._time.local_us()
        if not self._is_usable(held, question, now_us):
            self.answers.pop(question, None)  # the refusal by a ban, in front of what its checks have
            return None
        by_server_us = decision.now_us + now_us - held.came_us
        if decision.ban is not None:
            return refused_by_ban(decision.ban, by_server_us, question.checks)
        return refused_later(decision.readings, decision.now_us, by_server_us, question.checks)

    def _see_test_clock(self) -> None:
        """Use no answer from before a test set its clock back, which moves windows."""
        before_us = self._latest_us
        self._latest_us = self._time.local_us()
        if self._latest_us < before_us:
            self.note_change()

    def _spend(self, lease: Answer, question: Question) -> Decision | None:
        """Return an admission by a unit of a lease; None if Redis has to be asked."""
        restart_if_forked()  # a child must not spend the units of its parent
        if not lease.take():
            return None
        now_us = self._time.local_us()  # read after a unit was taken: a process may be stopped before any line
        is_cleared = question in lease.cleared and monotonic_ns() < self.fresh_until_ns
        if is_cleared and self._is_usable(lease, question, now_us):
            lease.used += 1
            return admitted_before(lease.decision, len(lease.units), lease.decision.now_us + now_us - lease.came_us)
        lease.units.append(None)
        return None

    def ahead(self, question: Question, refund: Refund) -> int:
        """Return how many units to charge ahead of a question: as many as were used, at least half of last time's.

        What is left of a lease that has ended is refunded first.

        Args:
            refund: Refunds what is left.
        """
        lease = self.answers.get(question.checks)
        if lease is None:
            return 0
        now_us, used, before = self._time.local_us(), lease.used, lease.used_before
        if not self._is_usable(lease, question, now_us):
            self.refund_rest(lease, refund)
            before = used  # the next lease begins
            used = 0
            if now_us >= lease.until_us + TRUST_US:
                self.answers.pop(question.checks, None)
                return 0
        # Units that are left are for other clients, whom Redis has cleared.
        if lease.units or lease.is_asking or (used < FEW and before < 2 * FEW):
            return 0
        lease.is_asking = True
        return min(max(used, before // 2), MOST_AHEAD)

    # -- answers of Redis --------------------------------------------------------------------------------------------

    def keep_refusal(self, question: Question, decision: Decision, sent_ns: int) -> None:
        """Keep a refusal, by a ban, or by limits until units leave. A change since it was asked ends it, too.

        Args:
            decision: The decision of Redis.
            sent_ns: When it was asked (monotonic).
        """
        subject: Hashable = question
        lasts_us = TRUST_US
        if decision.reason is not Reason.BANNED:
            subject = question.checks
            lease = self.answers.get(subject)
            if lease is not None and lease.units:  # which other clients may spend
                return
            for spent, leaves_us, _, _ in decision.readings:
                if spent and leaves_us:  # permits leave at no known time
                    lasts_us = min(lasts_us, leaves_us - decision.now_us)
        elif decision.retry_after_us is not None:
            lasts_us = min(lasts_us, decision.retry_after_us)
        until_us = self._time.sent_us(sent_ns) + lasts_us
        self._latest_us = came_us = self._time.local_us()
        remember(self.answers, subject, Answer(copy(decision), sent_ns, came_us, until_us, amounts_of(question.checks)))
        self._refusals_end_us = max(self._refusals_end_us, until_us)

    def end_refusals(self, question: Question) -> None:
        """End the refusals that share windows with a question that was charged: they have other numbers now."""
        if self._time.local_us() < self._refusals_end_us:
            self.note_change(windows_of(question.checks))

    def keep_lease(
        self, question: Question, decision: Decision, sent_ns: int, lasts_us: int, units: int, used: int, refund: Refund
    ) -> None:
        """Keep the units that Redis has charged ahead, or refund them if the lease has ended.

        Args:
            decision: The decision of Redis.
            sent_ns: When it was asked (monotonic).
            lasts_us: How long after its decision the first slice ends.
            units: How many units were charged.
            used: How many of them are spent.
            refund: Refunds the others.
        """
        if sent_ns <= self._dropped_ns:
            return  # Redis may count them no longer
        came_us = self._time.local_us()
        until_us = self._time.sent_us(sent_ns) + min(lasts_us - lasts_us // CLOCK_ERROR - ROUNDING_US, TRUST_US)
        left = units - used
        # The lease has ended already: its slice is over, or a client or its network has been banned meanwhile.
        if came_us >= until_us or self._has_changed(question, sent_ns):
            if left:
                refund(charges_of(decision, left))
            return
        lease = self.answers.get(question.checks)
        if lease is None or not lease.decision.allowed or not self._is_usable(lease, question, came_us):
            lease = Answer(decision, sent_ns, came_us, until_us, amounts_of(question.checks))
            self._replace_lease(lease, question, refund)
        lease.decision = decision  # of the same slices
        lease.came_us = came_us
        lease.cleared.add(question)
        lease.is_asking = lease.is_asking and not left  # one without may answer another hit, which asked for none
        lease.used += used
        lease.units += [None] * left

    def _replace_lease(self, lease: Answer, question: Question, refund: Refund) -> None:
        """Replace the last lease of a question by a new one, the rest of which is refunded when it has ended."""
        last = self.answers.get(question.checks)
        if last is not None:
            lease.used_before = last.used
            self.refund_rest(last, refund)
        remember(self.answers, question.checks, lease)
        if self._time.is_real:  # those of all keys end with the same slices: refunds are spread over half as long
            lasts_s = (lease.until_us - lease.came_us) / 1_000_000 * (1 + random() / 2)
            asyncio.get_running_loop().call_later(lasts_s, self.refund_rest, lease, refund)

    # -- refunds -----------------------------------------------------------------------------------------------------

    def refund_rest(self, lease: Answer, refund: Refund) -> None:
        """Refund what is left of a lease, after which no client spends it."""
        lease.cleared.clear()
        left = 0
        while lease.take():
            left += 1
        if left and not lease.is_dropped:
            refund(charges_of(lease.decision, left))

    def refund_all(self, refund: Refund) -> None:
        """Refund what is left of all leases."""
        for held in [*self.answers.values()]:
            self.refund_rest(held, refund)

    # -- what ends answers -------------------------------------------------------------------------------------------

    def note_change(self, names: Iterable[Hashable] | None = None) -> None:
        """Use no answer about some keys and windows that was asked for before now; by default none at all."""
        self._last_change_ns = now_ns = monotonic_ns()
        if names is None or len(self._changed_ns) > MEMO_SIZE:
            self._all_changed_ns = now_ns
            self._changed_ns.clear()
        for name in names or ():
            self._changed_ns[name] = now_ns

    def drop(self, key: str | None = None, names: Collection[str] = ()) -> None:
        """Use no answer from before now. Redis may count the units no longer that a key, or all, have leased.

        Args:
            key: The key; by default all.
            names: The names of the buckets; by default all.
        """
        self.note_change()
        self._dropped_ns = monotonic_ns()
        for subject, held in [*self.answers.items()]:
            windows = windows_of(held.decision.checks)
            if key is None or any(key == checked and (not names or name in names) for name, checked in windows):
                held.is_dropped = True
                self.answers.pop(subject, None)

    def _has_changed(self, question: Question, since_ns: int, *, is_refused: bool = False) -> bool:
        """Return whether this process has changed, since then (monotonic), who is banned, or windows of a refusal."""
        names: list[Hashable] = [*question.refusing]
        if is_refused:
            names += windows_of(question.checks)
        changed_ns = self._changed_ns
        return self._all_changed_ns >= since_ns or any(changed_ns.get(name, 0) >= since_ns for name in names)

    def _is_usable(self, held: Answer, question: Question, now_us: int) -> bool:
        """Return whether an answer may still be used for a question; `cleared` has the clients that no ban refuses."""
        if held.is_dropped or now_us >= held.until_us:
            return False
        if held.amounts != amounts_of(question.checks):
            return False
        if self._last_change_ns < held.sent_ns:  # as most often
            return True
        return not self._has_changed(question, held.sent_ns, is_refused=not held.decision.allowed)


def windows_of(checks: Iterable[Check]) -> list[tuple[str, str]]:
    """Return the names of the windows of a question, for `HeldAnswers.note_change`."""
    return [(bucket.name, key) for bucket, key, _ in checks]


def amounts_of(checks: Sequence[Check]) -> list[int]:
    """Return the amounts of all limits."""
    return [limit.amount for bucket, _, _ in checks for limit in bucket.limits]


def admitted_before(decision: Decision, later: int, now_us: int) -> Decision:
    """Return the admission of one of several equal hits, as it was before some of them were charged.

    Args:
        decision: The decision after all of them.
        later: How many were charged after it.
        now_us: The time of the decision.
    """
    units_later = _units(decision.checks, later)
    readings: list[WindowState] = []
    for (spent, leaves_us, mark, _), units in zip(decision.readings, units_later, strict=True):
        readings.append((spent - units, leaves_us, mark, 0))
    return Decision(True, OK, now_us, decision.checks, readings, None)


def charges_of(decision: Decision, times: int) -> Sequence[Reservation]:
    """Return what several equal hits were charged, given the decision after them."""
    marks = [mark for _, _, mark, _ in decision.readings]
    return reserved(decision.checks, marks, _units(decision.checks, times))


def _units(checks: Sequence[Check], times: int) -> list[int]:
    """Return how many units of each limit several hits are charged."""
    units: list[int] = []
    for bucket, _, cost in checks:
        units += [times * cost] * len(bucket.limits)
    return units
