"""What a batcher sends: questions and commands, which share calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final, TypeAlias

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.networks import BannedNetworks
from ...core.buckets import Check
from ...core.decision import Decision, Reason, refused_by_ban
from ...core.limits import Limit
from ...core.reservation import Reservation
from ...core.ring import Ring, Terms
from ..leases import HeldPermits
from .parts import Parts
from .script import BANNED, CHARGE, HIT, OK, PEEK, UNSETTLED, Packed, Packing, decision_of, unpack_ban

Read: TypeAlias = Callable[[Any, int], Any]
"""Returns a result, given the answer of the script, which is no failure, and the server's time in microseconds."""


AGAIN: Final = object()
"""The result of a request that is to be asked again."""


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


class Call:
    """The requests of one script call, packed.

    Attributes:
        requests: The requests.
        names: Their keys, one after another.
        packed: The requests as bytes.
        args: The arguments of their commands.
    """

    __slots__ = ("args", "names", "packed", "requests")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.names: list[bytes] = []
        self.packed: list[bytes] = []
        self.args: list[bytes | int] = []

    def add(self, request: Request, packed: Packed) -> None:
        """Add a request."""
        names, request_bytes, args = packed
        self.requests.append(request)
        self.names += names
        self.packed.append(request_bytes)
        self.args += args


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

    __slots__ = ("_packed", "_terms", "checks", "counts_denied", "has_permits", "refusing", "subjects")

    def __init__(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> None:
        self.checks = tuple(checks)
        self.subjects = subjects
        self.refusing: tuple[BanSubject, ...] = (*subjects, *[key for _, key, _ in checks])
        self.counts_denied = any(bucket.count_denied for bucket, _, _ in checks)
        self.has_permits = any(bucket.is_permit for bucket, _, _ in checks)
        self._terms: list[tuple[Ring, Terms]] = []
        self._packed: Packed | None = None

    def pack(self, packing: Packing, held: HeldPermits) -> Packed:
        """Pack a hit. It is remembered while its limits have the same terms, unless it changes with time."""
        for counter, terms in self._terms:
            if counter.terms is not terms:  # an operator has changed the amount
                self._packed = None
        if self._packed is not None:
            return self._packed
        limits = [limit for bucket, _, _ in self.checks for limit in bucket.limits]
        counters = [limit.counter for limit in limits if isinstance(limit, Limit)]
        self._terms = [(counter, counter.terms) for counter in counters]
        packed = packing.question(HIT, self.checks, self.refusing, held)
        if len(counters) == len(limits):  # no quota, which depends on the time, and no permits
            self._packed = packed
        return packed


@dataclass(slots=True, eq=False)
class Asked:
    """A hit, a peek or a charge.

    Attributes:
        future: Receives the decision.
        parts: The parts of the store.
        permits: The permits of the event loop.
        refund: Refunds what nobody awaits, with the next call.
        what: The operation.
        question: What is asked; no ban refuses a charge.
        networks: The bans of networks by which it was packed.
        by_network: Those of them that refuse it.
        sent_ns: When it was packed (monotonic), in nanoseconds.
    """

    future: asyncio.Future[Decision]
    parts: Parts
    permits: HeldPermits
    refund: Callable[[Sequence[Reservation]], None]
    what: int
    question: Question
    networks: BannedNetworks | None = None
    by_network: Sequence[Ban] = ()
    sent_ns: int = 0

    @property
    def has_permits(self) -> bool:
        """See `Command`."""
        return self.question.has_permits

    def pack(self) -> Packed:
        """See `Command`. A question that a banned network refuses is only a peek: the key's own ban may last longer."""
        self.sent_ns = monotonic_ns()
        what, question, packing = self.what, self.question, self.parts.packing
        self._look_at_networks()
        if what == HIT and not self.by_network:
            return question.pack(packing, self.permits)
        if what == CHARGE:
            return packing.question(CHARGE, question.checks, (), self.permits)
        return packing.question(PEEK, question.checks, question.refusing, self.permits)

    def read(self, answer: Any, now_us: int) -> Any:
        """See `Command`.

        A hit that was charged is refunded if nobody awaits it any more, or if a network has been banned since it was
        packed. If the ban that made it a peek has been lifted since, it is asked again.
        """
        decision, refusals = self._decision(answer, now_us), self.parts.refusals
        if decision is None:
            return AGAIN
        if decision.reason is Reason.BANNED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        elif self.what != PEEK and (decision.allowed or self.question.counts_denied):
            refusals.change(self.question.checks)
        elif self.what == HIT and decision.reason is Reason.LIMITED and answer[0] != UNSETTLED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        if self.what == HIT and decision.allowed and self.future.done():
            self.refund(decision.begin_refund())
        return decision

    def _look_at_networks(self) -> None:
        """Find the bans of networks that refuse the question, as this worker knows them now."""
        news = self.parts.news
        self.networks, self.by_network = news.networks, ()
        if self.networks.bans and self.what != CHARGE:
            self.by_network = news.of_networks(self.question.refusing)

    def _decision(self, answer: Any, now_us: int) -> Decision | None:
        """Return the decision; of two bans the longer one refuses. None if the answer is of no use after the news."""
        if self.networks is not self.parts.news.networks:
            was_refused = bool(self.by_network)
            self._look_at_networks()
            is_refused = bool(self.by_network)
            # A ban has been lifted: what was asked was no hit, and is asked again as one.
            if was_refused and not is_refused:
                return None
            # A network has been banned: what was charged before this was known is refunded.
            if is_refused and not was_refused and self.what == HIT and answer[0] == OK:
                self.refund(self._unpacked(answer, now_us).begin_refund())
        own: Sequence[bytes] = ()
        if answer[0] == BANNED:
            own = answer[1:]
        if not self.by_network and not own:
            return self._unpacked(answer, now_us)
        ban = longest([*self.by_network, *map(unpack_ban, own)])
        assert ban is not None, "there is one"
        decided_us = now_us
        if ban.until_us is not None:  # that of a network may have ended since the question was packed
            decided_us = min(now_us, ban.until_us - 1)
        return refused_by_ban(ban, decided_us, self.question.checks)

    def _unpacked(self, answer: bytes, now_us: int) -> Decision:
        """Return what the limits say."""
        decision = decision_of(answer, self.what, self.question.checks, now_us)
        if self.has_permits and decision.reservations:
            self.permits.hold(decision, self.parts.packing.permits_row)
        return decision


Request: TypeAlias = Command | Asked
