"""Hits, peeks and charges: requests for a decision, and what a worker does with the answers.

Redis knows the bans of keys, and a worker those of networks, as it has polled them, perhaps with this very call. So a
hit looks for these twice: when it is packed, and when its answer is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from time import monotonic_ns
from typing import Any, Final

from ...core.bans.ban import Ban
from ...core.decision import Decision, Reason, refused_by_ban
from ...core.reservation import Reservation, reserved
from ...core.ring import OPEN
from .batch import Batcher
from .changes import amounts_of, windows_of
from .protocol import BANNED, CHARGE, HIT, LIMITED, OK, PEEK, TOO_LARGE, UNSETTLED, Packed, read_bans, unexpected
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
class Hit(Request):
    """A hit.

    Attributes:
        batcher: Sends it.
        question: What is asked.
        is_peek: Whether it was packed as a peek, because a banned network refuses it.
        is_unreadable: Whether no ban of its keys can be read: then they refuse nothing.
        is_repeated: Whether it was asked before in about a second, in a store with leases.
    """

    batcher: Batcher
    question: Question
    is_peek: bool = False
    is_unreadable: bool = False
    is_repeated: bool = False

    def pack(self) -> Packed:
        """Pack it; if a banned network refuses it, as a peek: the key's own ban may last longer."""
        question, permits, parts = self.question, self.batcher.permits, self.batcher.parts
        self.is_peek = parts.polled.longest(question.refusing) is not None
        if self.is_peek:
            return parts.packing.question(PEEK, question.checks, question.refusing, permits)
        if self.is_unreadable:
            return parts.packing.question(HIT, question.checks, (), permits)
        packed = question.pack(parts.packing, permits)
        if not question.may_lease:
            return packed
        ahead = 0
        self.is_repeated = question.note_asked(monotonic_ns())
        if self.is_repeated:
            ahead = parts.leases.ask(question)
        return Packed(packed.names, packed.request, (ahead,))

    def deliver(self, answer: Any, now_us: int, sent_ns: int) -> None:
        """Deliver the decision.

        A hit that was charged is refunded if its request was cancelled, or if a network has been banned since it was
        packed. It is asked again if the ban that made it a peek has been lifted since, or that of a key cannot be read.
        """
        parts, question = self.batcher.parts, self.question
        ban = _ban_in(answer, self.batcher, question)
        if answer[0] == OK and not self.is_peek:
            decision = self._admit(answer, now_us, sent_ns, is_banned=ban is not None)
            if ban is None:
                self.answer(decision)
                return
        if ban is not None:
            decision = refused_by_ban(ban, now_us, question.checks)
            parts.refusals.keep(question, decision, sent_ns)
            parts.leases.note_refused(question, sent_ns, is_banned=True)
            self.answer(decision)
        elif self.is_peek or answer[0] == BANNED:
            self.is_unreadable, self.is_repeated = answer[0] == BANNED, False
            self.batcher.add(self)
        else:
            self.answer(self._refuse(answer, now_us, sent_ns))

    def _admit(self, answer: bytes, now_us: int, sent_ns: int, *, is_banned: bool) -> Decision:
        """Return the admission of a hit, and keep what was charged ahead; refund the hit if nobody may use it."""
        parts, question, refund = self.batcher.parts, self.question, self.batcher.refund_in_background
        spent = int(self.is_awaited() and not is_banned)
        decision = _decision(answer, self.batcher, HIT, question, now_us)
        parts.refusals.end(question)
        if self.is_repeated:
            # How many equal hits were charged, and how long after that their first slice ends.
            charged, lasts_us = _LEASED.unpack(answer[-_LEASED.size :])
            parts.leases.keep(question, decision, sent_ns, lasts_us, charged, spent, refund)
            return admitted_before(decision, charged - 1, now_us)
        if not spent:
            refund(decision.begin_refund())
        return decision

    def _refuse(self, answer: bytes, now_us: int, sent_ns: int) -> Decision:
        """Remember a refusal by limits, and return it; or the admission by units that the worker has."""
        parts, question, status = self.batcher.parts, self.question, answer[0]
        decision = _decision(answer, self.batcher, HIT, question, now_us)
        parts.leases.note_refused(question, sent_ns, is_banned=False)
        if self.is_awaited():
            admitted = parts.leases.spend(question)
            if admitted is not None:
                return admitted  # and the refusal is not kept: other clients may take units, too
        if question.counts_denied and status != TOO_LARGE:  # it was charged
            parts.refusals.end(question)
        elif status != UNSETTLED:  # a permit may come back at any moment
            parts.refusals.keep(question, decision, sent_ns)
        return decision


def peek(batcher: Batcher, question: Question) -> asyncio.Future[Decision]:
    """Send a peek: what a hit would be answered now."""

    def read(answer: Any, now_us: int) -> Decision:
        ban = _ban_in(answer, batcher, question)
        if ban is not None:
            return refused_by_ban(ban, now_us, question.checks)
        return _decision(answer, batcher, PEEK, question, now_us)

    return batcher.question(PEEK, question.checks, question.refusing, read)


def charge(batcher: Batcher, question: Question) -> asyncio.Future[Decision]:
    """Send a charge, which no ban and no limit refuses."""

    def read(answer: Any, now_us: int) -> Decision:
        # By its keys leases end, too.
        batcher.parts.changes.note([*windows_of(question.checks), *question.refusing])
        return _decision(answer, batcher, CHARGE, question, now_us)

    return batcher.question(CHARGE, question.checks, (), read)


# -- answers ----------------------------------------------------------------------------------------------------------


def _ban_in(answer: Any, batcher: Batcher, question: Question) -> Ban | None:
    """Return the ban that refuses a question: the longest of those of networks, as they are known now, and of keys."""
    of_keys: Sequence[Ban] = ()
    if answer[0] == BANNED:
        of_keys = read_bans(answer[1:])
    return batcher.parts.polled.longest(question.refusing, of_keys)


def _decision(answer: bytes, batcher: Batcher, what: int, question: Question, now_us: int) -> Decision:
    """Unpack the decision of the limits in an answer that is no failure, and hold its permits.

    Raises:
        StoreUnavailable: The answer has not one valid state for each limit.
    """
    status, checks = answer[0], question.checks
    limits = len(amounts_of(checks))
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
    elif what == CHARGE:
        units = [units for (units,) in _COUNTED.iter_unpack(answer[end:])]
        charged = reserved(checks, states, units)
    decision = Decision(status == OK, _REASONS[status], now_us, checks, states, charged)
    if question.has_permits and decision.reservations:
        batcher.permits.hold(decision, batcher.parts.packing.permits_row)
    return decision
