"""What a batcher sends: questions and commands, which share calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.buckets import Check
from ...core.decision import Decision, Reason, refused_by_ban
from ...core.limits import Limit
from ...core.ring import Terms
from ..leases import HeldPermits
from .script import BANNED, CHARGE, HIT, PEEK, UNSETTLED, Packed, Packing, decision_of, unpack_ban

if TYPE_CHECKING:
    from .store import RedisStore


Read: TypeAlias = Callable[[Any, int], Any]
"""Returns a result, given the answer of the script, which is no failure, and the server's time in microseconds."""


@dataclass(slots=True, eq=False)
class Command:
    """A request that no ban refuses.

    Attributes:
        future: Receives the result, unless it was cancelled.
        pack: Returns the packed request; called when it is sent.
        read: Returns the result; an exception is raised in the task that awaits the request.
        has_permits: Whether it is about permits, so that its call waits for the answers to others that are, too.
    """

    future: asyncio.Future[Any]
    pack: Callable[[], Packed]
    read: Read
    has_permits: bool = False


class Question:
    """Checks and the subjects of bans, which remember how they are packed: packing takes half of a hit's time.

    Args:
        checks: The checks.
        subjects: Further keys and addresses whose bans refuse it.

    Attributes:
        checks: The checks, as a tuple.
        subjects: The argument.
        refusing: All keys and addresses whose bans refuse it.
        counts_denied: Whether a refusal is charged, so that it cannot be repeated.
        has_permits: See `Command`.
    """

    __slots__ = ("_memo", "checks", "counts_denied", "has_permits", "refusing", "subjects")

    def __init__(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> None:
        self.checks = tuple(checks)
        self.subjects = subjects
        self.refusing: tuple[BanSubject, ...] = (*subjects, *[key for _, key, _ in checks])
        self.counts_denied = any(bucket.count_denied for bucket, _, _ in checks)
        self.has_permits = any(bucket.is_permit for bucket, _, _ in checks)
        self._memo: tuple[list[Terms], Packed] | None = None

    def pack(self, packing: Packing, held: HeldPermits) -> Packed:
        """Pack a hit. It is remembered while its limits have the same terms; others are packed each time."""
        limits = [limit for bucket, _, _ in self.checks for limit in bucket.limits]
        terms = [limit.counter.terms for limit in limits if isinstance(limit, Limit)]
        if len(terms) < len(limits):
            return packing.question(HIT, self.checks, self.refusing, held)
        if self._memo is None or self._memo[0] != terms:
            self._memo = terms, packing.question(HIT, self.checks, self.refusing, held)
        return self._memo[1]


@dataclass(slots=True, eq=False)
class Asked:
    """A hit, a peek or a charge.

    Attributes:
        future: Receives the decision.
        store: The store.
        permits: The permits of the event loop.
        what: The operation.
        question: What is asked; no ban refuses a charge.
        has_permits: See `Command`.
        by_network: The bans of networks that refused it when it was packed.
        sent_ns: When it was packed (monotonic), in nanoseconds.
    """

    future: asyncio.Future[Decision]
    store: RedisStore
    permits: HeldPermits
    what: int
    question: Question
    has_permits: bool
    by_network: Sequence[Ban] = ()
    sent_ns: int = 0

    def pack(self) -> Packed:
        """See `Command`. A question that a banned network refuses is only a peek: the key's own ban may last longer."""
        self.sent_ns = monotonic_ns()
        what, question, packing = self.what, self.question, self.store.packing
        subjects = () if what == CHARGE else question.refusing
        self.by_network = self.store.bans.of_networks(subjects)
        if self.by_network:
            what = PEEK
        if what == HIT:
            return question.pack(packing, self.permits)
        return packing.question(what, question.checks, subjects, self.permits)

    def read(self, answer: Any, now_us: int) -> Decision:
        """See `Command`. An admitted hit that nobody awaits any more is refunded."""
        decision, refusals = self._decision(answer, now_us), self.store.refusals
        if decision.reason is Reason.BANNED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        elif self.what != PEEK and (decision.allowed or self.question.counts_denied):
            refusals.change(self.question.checks)
        elif self.what == HIT and decision.reason is Reason.LIMITED and answer[0] != UNSETTLED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        if self.future.done() and self.what == HIT and decision.allowed:
            self.store.refund_in_background(decision.begin_refund())
        return decision

    def _decision(self, answer: Any, now_us: int) -> Decision:
        """Unpack the decision; of two bans the longer one refuses."""
        own = answer[1:] if answer[0] == BANNED else ()
        ban = longest([*self.by_network, *map(unpack_ban, own)])
        if ban is not None:  # that of a network may have ended since it was packed
            decided_us = now_us if ban.until_us is None else min(now_us, ban.until_us - 1)
            return refused_by_ban(ban, decided_us, self.question.checks)
        decision = decision_of(answer, self.what, self.question.checks, now_us)
        if self.question.has_permits and decision.reservations:
            self.permits.hold(decision, self.store.packing.permits_row)
        return decision


Request: TypeAlias = Command | Asked
