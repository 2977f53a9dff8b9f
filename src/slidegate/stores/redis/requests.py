"""What a batcher sends: questions and commands, which share calls.

Equal hits that wait for the same call are one request, which the script charges as often as there is room. They are
answered as if each had been asked, one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, TypeAlias

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.networks import BannedNetworks
from ...core.buckets import Check
from ...core.decision import LIMITED, Decision, Reason, refused_by_ban
from ...core.decision import OK as ADMITTED
from ...core.limits import Limit
from ...core.reservation import Reservation, reserved
from ...core.ring import Ring, Terms, WindowState
from ..leases import HeldPermits
from .parts import Parts
from .script import (
    BANNED,
    CHARGE,
    HIT,
    OK,
    PEEK,
    UNSETTLED,
    Packed,
    Packing,
    decision_of,
    several,
    times_charged,
    unpack_ban,
)

Read: TypeAlias = Callable[[Any, int], Any]
"""Returns a result, given the answer of the script, which is no failure, and the server's time in microseconds."""


@dataclass(slots=True, eq=False)
class Awaited:
    """What a command and a question have in common: somebody awaits them.

    Attributes:
        futures: Receive the results, unless they are cancelled; only equal hits have more than one.
        has_permits: Whether it is about permits, so that its call waits for the answers to others that are, too.
    """

    futures: list[asyncio.Future[Any]]
    has_permits: bool

    def is_awaited(self) -> bool:
        """Return whether anybody still awaits a result."""
        for future in self.futures:
            if not future.done():
                return True
        return False

    def fail(self, error: Exception) -> None:
        """Raise an error in the tasks that still await a result."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


@dataclass(slots=True, eq=False)
class Command(Awaited):
    """A request that no ban refuses.

    Attributes:
        pack: Returns the packed request; called when it is sent.
        read: Returns the result; an exception is raised in the task that awaits the request.
    """

    pack: Callable[[], Packed]
    read: Read

    def deliver(self, answer: Any, now_us: int) -> bool:
        """Give the result to who awaits it; return True, because no command is asked again."""
        result = self.read(answer, now_us)
        for future in self.futures:
            if not future.done():
                future.set_result(result)
        return True


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
        has_permits: See `Awaited`.
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

    @property
    def is_joinable(self) -> bool:
        """Whether equal hits may be one request: a refusal changes nothing, and an admission takes no permit."""
        if self.counts_denied or self.has_permits:
            return False
        return all(cost for _, _, cost in self.checks)

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
class Asked(Awaited):
    """Equal hits, a peek or a charge.

    Attributes:
        parts: The parts of the store.
        permits: The permits of the event loop.
        refund: Refunds what nobody awaits, with the next call.
        what: The operation.
        question: What is asked; no ban refuses a charge.
        networks: The bans of networks by which it was packed.
        by_network: Those of them that refuse it.
        sent_ns: When it was packed (monotonic), in nanoseconds.
        is_several: Whether it was packed as several hits, so that the answer says how many were charged.
    """

    parts: Parts
    permits: HeldPermits
    refund: Callable[[Sequence[Reservation]], None]
    what: int
    question: Question
    networks: BannedNetworks | None = None
    by_network: Sequence[Ban] = ()
    sent_ns: int = 0
    is_several: bool = False

    def pack(self) -> Packed:
        """See `Command`. A question that a banned network refuses is only a peek: the key's own ban may last longer."""
        self.sent_ns = monotonic_ns()
        self.is_several = False
        what, question, packing = self.what, self.question, self.parts.packing
        self._look_at_networks()
        if what == HIT and not self.by_network:
            return self._pack_hits(question.pack(packing, self.permits))
        if what == CHARGE:
            return packing.question(CHARGE, question.checks, (), self.permits)
        return packing.question(PEEK, question.checks, question.refusing, self.permits)

    def _pack_hits(self, hit: Packed) -> Packed:
        """Pack as many hits as are awaited, given one of them."""
        if len(self.futures) == 1:
            return hit
        self.is_several = True
        return several(hit, sum([not future.done() for future in self.futures]))

    def deliver(self, answer: Any, now_us: int) -> bool:
        """Give each who awaits it a decision; return False if the question has to be asked again.

        A hit that was charged is refunded if nobody awaits it any more, or if a network has been banned since it was
        packed. If the ban that made it a peek has been lifted since, it is asked again.
        """
        decision, refusals = self._decision(answer, now_us), self.parts.refusals
        if decision is None:
            return False
        if decision.reason is Reason.BANNED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        elif self.what != PEEK and (decision.allowed or self.question.counts_denied):
            refusals.change(self.question.checks)
        elif self.what == HIT and decision.reason is Reason.LIMITED and answer[0] != UNSETTLED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        awaiting = [future for future in self.futures if not future.done()]
        if self.what == HIT and decision.allowed:
            self._admit(decision, answer, awaiting)
            return True
        for future in awaiting[1:]:
            future.set_result(copy(decision))
        for future in awaiting[:1]:
            future.set_result(decision)
        return True

    def _admit(self, decision: Decision, answer: bytes, awaiting: Sequence[asyncio.Future[Decision]]) -> None:
        """Admit as many hits as were charged, and refuse the others; refund those that nobody awaits any more."""
        if not self.is_several and awaiting:
            awaiting[0].set_result(decision)
            return
        if not self.is_several:
            self.refund(decision.begin_refund())
            return
        charged = times_charged(answer)
        unused = max(charged - len(awaiting), 0)
        for place, future in enumerate(awaiting[:charged], 1):
            future.set_result(admitted_before(decision, charged - place))
        for future in awaiting[charged:]:
            future.set_result(Decision(False, LIMITED, decision.now_us, decision.checks, decision.readings))
        if unused:
            self.refund(charges_of(decision.checks, decision.readings, unused))

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
                self._admit(self._unpacked(answer, now_us), answer, ())
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


def admitted_before(decision: Decision, later: int) -> Decision:
    """Return the admission of one of several equal hits, as it was before some of them were charged.

    Args:
        decision: The decision after all of them.
        later: How many were charged after it.
    """
    readings: list[WindowState] = []
    costs = [cost for bucket, _, cost in decision.checks for _ in bucket.limits]
    for (spent, leaves_us, mark, _), cost in zip(decision.readings, costs, strict=True):
        readings.append((spent - later * cost, leaves_us, mark, 0))
    return Decision(True, ADMITTED, decision.now_us, decision.checks, readings, None)


def charges_of(checks: Sequence[Check], readings: Sequence[WindowState], times: int) -> Sequence[Reservation]:
    """Return what was charged last, for so many equal hits, given the states after it."""
    marks = [mark for _, _, mark, _ in readings]
    units = [times * cost for bucket, _, cost in checks for _ in bucket.limits]
    return reserved(checks, marks, units)
