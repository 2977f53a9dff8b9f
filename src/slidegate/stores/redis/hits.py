"""Hits, peeks and charges: requests for a decision, and what a worker does with the answers.

Redis knows the bans of keys, and a worker those of networks, as it has polled them, perhaps with this very call. So a
worker looks for these twice: when it packs a request, and when it reads the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from time import monotonic_ns
from typing import Any, Final

from ...core.bans.ban import Ban, longest
from ...core.buckets import Check
from ...core.decision import Decision, Reason, refused_by_ban
from ...core.reservation import Reservation, reserved
from ...core.ring import OPEN
from .batch import Batcher
from .changes import windows_of
from .protocol import (
    BANNED,
    CHARGE,
    HIT,
    LIMITED,
    OK,
    PEEK,
    TOO_LARGE,
    UNSETTLED,
    Packed,
    unexpected,
    unpack_ban,
)
from .requests import Question, Request
from .unit_leases import admitted_before

_STATE: Final = Struct("<Qqqq")
_COUNTED: Final = Struct("<I")
_LEASED: Final = Struct("<Iq")
_REASONS: Final = {
    OK: Reason.OK,
    LIMITED: Reason.LIMITED,
    UNSETTLED: Reason.LIMITED,
    TOO_LARGE: Reason.TOO_LARGE,
}


@dataclass(slots=True, eq=False)
class DecisionRequest(Request):
    """A hit, a peek or a charge.

    Attributes:
        batcher: Sends it.
        question: What is asked; no ban refuses a charge.
        by_network: The bans of networks that refuse it, as this worker knows them.
        is_repeated: Whether it was asked before in about a second, in a store with leases.
    """

    batcher: Batcher
    what: int
    question: Question
    by_network: Sequence[Ban] = ()
    is_repeated: bool = False

    def pack(self) -> Packed:
        """Pack it; if a banned network refuses it, as a peek: the key's own ban may last longer."""
        question, permits, parts = self.question, self.batcher.permits, self.batcher.parts
        self._find_networks()
        if self.what == CHARGE:
            return parts.packing.question(CHARGE, question.checks, (), permits)
        if self.what == PEEK or self.by_network:
            return parts.packing.question(PEEK, question.checks, question.refusing, permits)
        packed = question.pack(parts.packing, permits)
        if not question.may_lease:
            return packed
        ahead = 0
        self.is_repeated = question.note_asked(monotonic_ns())
        if self.is_repeated:
            ahead = parts.leases.ahead(question, self.batcher.refund_in_background)
        return Packed(packed.names, packed.request, (ahead,))

    def deliver(self, answer: Any, now_us: int, sent_ns: int) -> None:
        """Deliver the decision.

        A hit that was charged is refunded if its request was cancelled, or if a network has been banned since it was
        packed. If the ban that made it a peek has been lifted since, it is asked again.
        """
        is_hit = self.what == HIT
        was_banned = bool(self.by_network)
        self._find_networks()
        if is_hit and was_banned and not self.by_network:
            self.batcher.add(self)
            return
        if is_hit and not was_banned and answer[0] == OK:
            decision = self._admit(answer, now_us, sent_ns)
            if not self.by_network:  # else it is refunded, and refused by that ban
                self.answer(decision)
                return
        decision = self._decision(answer, now_us)
        if is_hit:
            decision = self._refuse(decision, answer[0], sent_ns)
        elif self.what == CHARGE:
            question = self.question
            self.batcher.parts.changes.note([*windows_of(question.checks), *question.refusing])  # and end leases
        self.answer(decision)

    def _admit(self, answer: bytes, now_us: int, sent_ns: int) -> Decision:
        """Return the admission of a hit, and keep what was charged ahead.

        The hit is refunded if its request was cancelled, or a network has been banned.
        """
        parts, question, refund = self.batcher.parts, self.question, self.batcher.refund_in_background
        spent = int(self.is_awaited() and not self.by_network)
        decision = self._decision_of_limits(answer, now_us)
        parts.refusals.end(question)
        if self.is_repeated:
            # How many equal hits were charged, and how long after that their first slice ends.
            charged, lasts_us = _LEASED.unpack(answer[-_LEASED.size :])
            parts.leases.keep(question, decision, sent_ns, lasts_us, charged, spent, refund)
            return admitted_before(decision, charged - 1, now_us)
        if not spent:
            refund(decision.begin_refund())
        return decision

    def _refuse(self, decision: Decision, status: int, sent_ns: int) -> Decision:
        """Remember the refusal of a hit, and return it; or the admission by a lease that came meanwhile."""
        parts, question = self.batcher.parts, self.question
        if decision.ban is None and question.counts_denied and status != TOO_LARGE:  # it was charged
            parts.refusals.end(question)
        elif decision.ban is not None or status != UNSETTLED:  # a permit may come back at any moment
            parts.refusals.keep(question, decision, sent_ns)
        if not question.may_lease:
            return decision
        parts.leases.note_refusal(question, decision)
        if self.is_awaited():
            return parts.leases.spend(question) or decision
        return decision

    def _find_networks(self) -> None:
        """Find the bans of networks that refuse the question, as this worker knows them now."""
        if self.what != CHARGE:
            self.by_network = self.batcher.parts.polled.of_networks(self.question.refusing)

    def _decision(self, answer: Any, now_us: int) -> Decision:
        """Return the decision; of two bans the longer one refuses."""
        rows: Sequence[bytes] = ()
        if answer[0] == BANNED:
            rows = answer[1:]
        ban = longest([*self.by_network, *map(unpack_ban, rows)])
        if ban is None:
            return self._decision_of_limits(answer, now_us)
        return refused_by_ban(ban, now_us, self.question.checks)

    def _decision_of_limits(self, answer: bytes, now_us: int) -> Decision:
        """Return the decision of the limits, and hold its permits."""
        decision = _unpack_decision(answer, self.what, self.question.checks, now_us)
        if self.has_permits and decision.reservations:
            self.batcher.permits.hold(decision, self.batcher.parts.packing.permits_row)
        return decision


def ask(batcher: Batcher, what: int, question: Question) -> asyncio.Future[Decision]:
    """Send a hit, a peek or a charge."""
    future: asyncio.Future[Decision] = batcher.loop.create_future()
    batcher.add(DecisionRequest(future, question.has_permits, batcher, what, question))
    return future


# -- answers ----------------------------------------------------------------------------------------------------------


def _unpack_decision(answer: bytes, what: int, checks: Sequence[Check], now_us: int) -> Decision:
    """Unpack the decision in an answer that is no failure.

    Raises:
        StoreUnavailable: The answer has not one valid state for each limit.
    """
    status = answer[0]
    limits = 0
    for bucket, _, _ in checks:
        limits += len(bucket.limits)
    end = 1 + limits * _STATE.size
    states = list(_STATE.iter_unpack(answer[1:end]))
    if len(states) != limits:
        raise unexpected(answer)
    for *_, wait_us in states:
        if wait_us < OPEN:
            raise unexpected(answer)
    charged: Sequence[Reservation] | None = ()
    if what == HIT and status == OK:
        charged = None  # each check charged its cost; see `Decision`
    elif what == CHARGE and status == OK:
        units = [units for (units,) in _COUNTED.iter_unpack(answer[end:])]
        charged = reserved(checks, [mark for _, _, mark, _ in states], units)
    return Decision(status == OK, _REASONS[status], now_us, checks, states, charged)
