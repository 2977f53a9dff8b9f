"""What a batcher sends: questions and commands, which share calls.

Equal hits that wait for the same call are one request, which the script charges as often as there is room. They are
answered as if each had been asked, one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, TypeAlias

from ...core.bans.ban import Ban, longest
from ...core.bans.networks import BannedNetworks
from ...core.decision import LIMITED, Decision, Reason, refused_by_ban
from ...core.reservation import Reservation
from ..leases import HeldPermits
from .parts import Parts
from .question import Question
from .script import BANNED, CHARGE, HIT, OK, PEEK, UNSETTLED, Packed, decision_of, unpack_ban
from .several import admitted_before, charged_of, charges_of, several

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

    def awaiting(self) -> list[asyncio.Future[Any]]:
        """Return the futures of those that still await a result, in the order in which they asked."""
        if len(self.futures) == 1 and not self.futures[0].done():  # as most often
            return self.futures
        return [future for future in self.futures if not future.done()]

    def fail(self, error: Exception) -> None:
        """Raise an error in the tasks that still await a result."""
        for future in self.awaiting():
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
        for future in self.awaiting():
            future.set_result(result)
        return True


class ScriptCall:
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


@dataclass(slots=True, eq=False)
class Asker:
    """What the questions of an event loop have in common.

    Attributes:
        parts: The parts of the store.
        permits: The permits of the loop.
        refund: Refunds what nobody awaits, with the next call.
    """

    parts: Parts
    permits: HeldPermits
    refund: Callable[[Sequence[Reservation]], None]


@dataclass(slots=True, eq=False)
class AskedQuestion(Awaited):
    """Equal hits, a peek or a charge.

    Attributes:
        asker: Who asks.
        what: The operation.
        question: What is asked; no ban refuses a charge.
        networks: The bans of networks by which it was packed, as all that follows.
        by_network: Those of them that refuse it.
        sent_ns: When it was packed (monotonic), in nanoseconds.
        is_several: Whether it was packed as several hits, so that the answer says how many were charged.
    """

    asker: Asker
    what: int
    question: Question
    networks: BannedNetworks = field(init=False)
    by_network: Sequence[Ban] = field(init=False)
    sent_ns: int = field(init=False)
    is_several: bool = field(init=False)

    def pack(self) -> Packed:
        """See `Command`. A question that a banned network refuses is only a peek: the key's own ban may last longer."""
        self.sent_ns = monotonic_ns()
        self.is_several = False
        what, question, packing = self.what, self.question, self.asker.parts.packing
        self._look_at_networks()
        if what == HIT and not self.by_network:
            return self._pack_hits(question.pack(packing, self.asker.permits))
        if what == CHARGE:
            return packing.question(CHARGE, question.checks, (), self.asker.permits)
        return packing.question(PEEK, question.checks, question.refusing, self.asker.permits)

    def _pack_hits(self, hit: Packed) -> Packed:
        """Pack as many hits as are awaited, given one of them."""
        if len(self.futures) == 1:
            return hit
        self.is_several = True
        return several(hit, len(self.awaiting()))

    def deliver(self, answer: Any, now_us: int) -> bool:
        """Give a decision to each who awaits one; return False if the question has to be asked again.

        A hit that was charged is refunded if nobody awaits it any more, or if a network has been banned since it was
        packed. If the ban that made it a peek has been lifted since, it is asked again.
        """
        decision = self._decision(answer, now_us)
        if decision is None:
            return False
        self._note(decision, answer)
        awaiting = self.awaiting()
        if self.what == HIT and decision.allowed:
            self._admit(decision, answer, awaiting)
            return True
        # Callers may change a decision, so that each has its own.
        for future in awaiting[1:]:
            future.set_result(copy(decision))
        if awaiting:
            awaiting[0].set_result(decision)
        return True

    def _note(self, decision: Decision, answer: Any) -> None:
        """Note a refusal, which answers equal hits for a while, or that a charge may have changed what is known."""
        refusals = self.asker.parts.refusals
        if decision.reason is Reason.BANNED:
            refusals.record(decision, self.sent_ns, self.question.refusing)
        elif self.what != PEEK and (decision.allowed or self.question.counts_denied):
            refusals.invalidate(self.question.checks)
        # Who is refused for lack of a permit, which may come back at any moment, asks again.
        elif self.what == HIT and decision.reason is Reason.LIMITED and answer[0] != UNSETTLED:
            refusals.record(decision, self.sent_ns, self.question.refusing)

    def _admit(self, decision: Decision, answer: bytes, awaiting: Sequence[asyncio.Future[Decision]]) -> None:
        """Admit as many hits as were charged, and refuse the others."""
        if not self.is_several:
            if awaiting:
                awaiting[0].set_result(decision)
            else:
                self.asker.refund(decision.begin_refund())
            return
        charged, lasts_us = charged_of(answer)
        for place, future in enumerate(awaiting[:charged], 1):
            future.set_result(admitted_before(decision, charged - place, decision.now_us))
        for future in awaiting[charged:]:
            future.set_result(Decision(False, LIMITED, decision.now_us, decision.checks, decision.readings))
        admitted = min(charged, len(awaiting))
        self._account(decision, admitted, charged - admitted, lasts_us)

    def _account(self, decision: Decision, admitted: int, left: int, lasts_us: int) -> None:
        """Refund the charges for which nobody waits any more. A store with leases keeps them as a lease.

        Args:
            decision: The decision after all charges.
            admitted: How many hits were admitted.
            left: How many more were charged.
            lasts_us: How long after the decision their first slice ends.
        """
        if left:
            self.asker.refund(charges_of(decision, left))

    def _look_at_networks(self) -> None:
        """Find the bans of networks that refuse the question, as this worker knows them now."""
        news = self.asker.parts.news
        self.networks, self.by_network = news.networks, ()
        if self.networks.bans and self.what != CHARGE:
            self.by_network = news.of_networks(self.question.refusing)

    def _decision(self, answer: Any, now_us: int) -> Decision | None:
        """Return the decision; of two bans the longer one refuses. None if the answer is of no use after the news."""
        if self.networks is not self.asker.parts.news.networks:
            was_refused = bool(self.by_network)
            self._look_at_networks()
            is_refused = bool(self.by_network)
            # A ban has been lifted: what was asked was no hit, and is asked again as one.
            if was_refused and not is_refused:
                return None
            # A network has been banned: what was charged before this was known is refunded.
            if is_refused and not was_refused and self.what == HIT and answer[0] == OK:
                self._admit(self._unpacked(answer, now_us), answer, awaiting=())
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
            self.asker.permits.hold(decision, self.asker.parts.packing.permits_row)
        return decision


Request: TypeAlias = Command | AskedQuestion
