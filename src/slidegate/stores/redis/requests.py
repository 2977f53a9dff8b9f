"""What a batcher sends: questions, and commands about windows and permits, which share calls; and calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.bans.ban import BanSubject, lasts_longer, longest
from ...core.decision import Check, Decision, Reason, refused_by_ban
from ...core.errors import StoreUnavailable
from ...core.limits import Limit
from ...core.question import Question
from ...core.ring import Terms
from ..leases import HeldPermits
from .ban_rows import unpack_bans
from .errors import NONSENSE
from .script import BANNED, CHARGE, HIT, OK, PEEK, UNSETTLED, Packed, Packing, decision_of, raise_failure

if TYPE_CHECKING:
    from .batch import Shared
    from .permits import LoopPermits


@dataclass(slots=True, eq=False)
class Call:
    """A command of ``lua/bans.lua``, which is a call of its own.

    Attributes:
        future: Receives the server's time, and the rest of the answer.
        name: The command.
        keys: Its KEYS.
        args: Its arguments.
    """

    future: asyncio.Future[list[Any]]
    name: bytes
    keys: Sequence[bytes]
    args: Sequence[bytes | int]


@dataclass(slots=True, eq=False)
class Command:
    """A request that no ban refuses, and whose result is dropped if it was cancelled.

    Attributes:
        future: Receives the result.
        pack: Returns the packed request.
        read: Returns the result, given the answer and the server's time in microseconds.
        has_permits: Whether it is about permits, so that its call waits for the answers to others that are, too.
    """

    future: asyncio.Future[Any]
    pack: Callable[[], Packed]
    read: Callable[[bytes, int], Any]
    has_permits: bool

    def answered(self, answer: bytes, now_us: int, sent_ns: int) -> Any:
        """Return the result for the task that awaits the request; an exception raised here is raised there.

        Args:
            answer: The answer of the script.
            now_us: The server's time, in microseconds.
            sent_ns: When the call was made (monotonic), in nanoseconds.
        """
        raise_failure(answer)
        return self.read(answer, now_us)

    def missed(self, answer: bytes, now_us: int) -> None:
        """Do nothing with an answer that nobody awaits."""


class PreparedQuestion(Question):
    """A question that remembers how it is packed.

    Args:
        checks: The checks.
        subjects: Further keys and addresses whose bans refuse it.

    Attributes:
        refusing: All keys and addresses whose bans refuse it.
        has_permits: See `Command`.
    """

    __slots__ = ("_memo", "has_permits", "refusing")

    def __init__(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> None:
        super().__init__(checks, subjects)
        self.refusing: tuple[BanSubject, ...] = (*subjects, *[key for _, key, _ in checks])
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
        shared: The parts of the store.
        permits: The permits of the event loop.
        what: The operation.
        question: What is asked; no ban refuses a charge.
        by_network: The refusal by the ban of a network, when it was packed.
    """

    future: asyncio.Future[Decision]
    shared: Shared
    permits: LoopPermits
    what: int
    question: PreparedQuestion
    by_network: Decision | None = None

    @property
    def has_permits(self) -> bool:
        """See `Command`."""
        return self.question.has_permits

    def pack(self) -> Packed:
        """See `Command`. A question that a banned network refuses is only a peek: the key's own ban may last longer."""
        what, question, packing = self.what, self.question, self.shared.packing
        subjects = () if what == CHARGE else question.refusing
        if self.shared.bans.networks.bans and subjects:
            self.by_network = self.shared.bans.refused_by_network(question.checks, subjects)
        if self.by_network is not None:
            what = PEEK
        if what == HIT:
            return question.pack(packing, self.permits)
        return packing.question(what, question.checks, subjects, self.permits)

    def answered(self, answer: bytes, now_us: int, sent_ns: int) -> Decision:
        """See `Command`."""
        decision, refusals = self._decision(answer, now_us), self.shared.refusals
        if decision.reason is Reason.BANNED:
            refusals.learn(decision, sent_ns, self.question.refusing)
        elif self.what != PEEK and (decision.allowed or _counts(self.question.checks)):
            refusals.change(self.question.checks)
        elif self.what == HIT and decision.reason is Reason.LIMITED and answer[0] != UNSETTLED:
            refusals.learn(decision, sent_ns)
        return decision

    def _decision(self, answer: bytes, now_us: int) -> Decision:
        """Unpack the decision; of two bans the longer one refuses."""
        by_network = self.by_network
        if answer[0] == BANNED:
            decision = self._refused(answer[1:], now_us)
            lasts = by_network is None or lasts_longer(decision.ban, by_network.ban)  # type: ignore[arg-type]
            return decision if lasts or by_network is None else by_network
        if by_network is not None:
            raise_failure(answer)
            return by_network
        decision = decision_of(answer, self.what, self.question.checks, now_us)
        if self.question.has_permits and decision.reservations:
            self.permits.hold(decision)
        return decision

    def _refused(self, packed: bytes, now_us: int) -> Decision:
        try:
            ban = longest(unpack_bans(packed))
        except NONSENSE as error:
            raise StoreUnavailable(f"redis: the ban of a key cannot be read: {error!r}", concerns="key") from error
        assert ban is not None, "an answer has a ban"
        return refused_by_ban(ban, now_us, self.question.checks)

    def missed(self, answer: bytes, now_us: int) -> None:
        """Refund an admitted hit that nobody awaits any more."""
        if self.what == HIT and answer[0] == OK and self.by_network is None:
            self.shared.hand_back(self._decision(answer, now_us).take_back())


Request: TypeAlias = Command | Asked


def _counts(checks: Sequence[Check]) -> bool:
    """Return whether a refusal of these checks is charged, so that it cannot be repeated."""
    return any(bucket.count_denied for bucket, _, _ in checks)
