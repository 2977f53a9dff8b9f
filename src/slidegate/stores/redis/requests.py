"""What a batcher sends: questions, and commands about windows and permits, which share calls; and calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.bans.ban import BanSubject, lasts_longer, longest
from ...core.decision import Check, Decision, Reason, refused_by_ban
from ...core.errors import StoreUnavailable
from .ban_rows import unpack_bans
from .errors import NONSENSE
from .script import BANNED, HIT, OK, PEEK, UNSETTLED, decision_of, raise_failure

if TYPE_CHECKING:
    from .batch import Shared
    from .permits import LoopPermits


class Call:
    """A command of ``lua/bans.lua``, which is a call of its own.

    Args:
        future: Receives the server's time, and the rest of the answer.
        name: The command.
        keys: Its KEYS.
        args: Its arguments.
    """

    __slots__ = ("args", "future", "keys", "name")

    def __init__(
        self, future: asyncio.Future[list[Any]], name: bytes, keys: Sequence[bytes], args: Sequence[bytes | int]
    ) -> None:
        self.future = future
        self.name = name
        self.keys = keys
        self.args = args


class Command:
    """A request that no ban refuses, and whose result is dropped if it was cancelled.

    Args:
        future: Receives the result.
        pack: Returns the packed request. Its argument maps the names in the call to indexes; `pack` adds its own names.
        read: Returns the result, given the answer and the server's time in microseconds.
        has_permits: Whether it is about permits, so that its call waits for the answers to others that are, too.
    """

    __slots__ = ("_read", "future", "has_permits", "pack")

    def __init__(
        self,
        future: asyncio.Future[Any],
        pack: Callable[[dict[bytes, int]], bytes],
        read: Callable[[bytes, int], Any],
        has_permits: bool,
    ) -> None:
        self.future = future
        self.pack = pack
        self._read = read
        self.has_permits = has_permits

    def answered(self, answer: bytes, now_us: int, sent_ns: int) -> Any:
        """Return the result for the task that awaits the request; an exception raised here is raised there.

        Args:
            answer: The answer of the script.
            now_us: The server's time, in microseconds.
            sent_ns: When the call was made (monotonic), in nanoseconds.
        """
        raise_failure(answer)
        return self._read(answer, now_us)

    def missed(self, answer: bytes, now_us: int) -> None:
        """Do nothing with an answer that nobody awaits."""


class Question:
    """A hit, a peek or a charge.

    Args:
        future: Receives the decision.
        shared: The parts of the store.
        permits: The permits of the event loop.
        what: The operation.
        checks: The checks.
        subjects: The keys and addresses whose bans refuse it, those of the checks included; empty for a charge.

    Attributes:
        has_permits: See `Command`.
    """

    __slots__ = ("_by_network", "_permits", "_shared", "_subjects", "checks", "future", "has_permits", "what")

    def __init__(
        self,
        future: asyncio.Future[Decision],
        shared: Shared,
        permits: LoopPermits,
        what: int,
        checks: Sequence[Check],
        subjects: Sequence[BanSubject],
    ) -> None:
        self.future = future
        self._shared = shared
        self._permits = permits
        self.has_permits = any(bucket.is_permit for bucket, _, _ in checks)
        self.what = what
        self.checks = checks
        self._subjects = subjects
        self._by_network: Decision | None = None

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Command`. A question that a banned network refuses is only a peek: the key's own ban may last longer."""
        if self._shared.bans.networks.bans and self._subjects:
            self._by_network = self._shared.bans.refused_by_network(self.checks, self._subjects)
        what = self.what if self._by_network is None else PEEK
        banned = dict.fromkeys([one for one in self._subjects if isinstance(one, str)])
        return self._shared.packing.question(what, self.checks, banned, self._permits, names)

    def answered(self, answer: bytes, now_us: int, sent_ns: int) -> Decision:
        """See `Command`."""
        decision, refusals = self._decision(answer, now_us), self._shared.refusals
        if decision.reason is Reason.BANNED:
            refusals.learn(decision, sent_ns, self._subjects)
        elif self.what != PEEK and (decision.allowed or _counts(self.checks)):
            refusals.change(self.checks)
        elif self.what == HIT and decision.reason is Reason.LIMITED and answer[0] != UNSETTLED:
            refusals.learn(decision, sent_ns)
        return decision

    def _decision(self, answer: bytes, now_us: int) -> Decision:
        """Unpack the decision; of two bans the longer one refuses."""
        by_network = self._by_network
        if answer[0] == BANNED:
            decision = self._refused(answer[1:], now_us)
            lasts = by_network is None or lasts_longer(decision.ban, by_network.ban)  # type: ignore[arg-type]
            return decision if lasts or by_network is None else by_network
        if by_network is not None:
            raise_failure(answer)
            return by_network
        decision = decision_of(answer, self.what, self.checks, now_us)
        if self.has_permits and decision.reservations:
            self._permits.hold(decision)
        return decision

    def _refused(self, packed: bytes, now_us: int) -> Decision:
        try:
            ban = longest(unpack_bans(packed))
        except NONSENSE as error:
            raise StoreUnavailable(f"redis: the ban of a key cannot be read: {error!r}", concerns="key") from error
        assert ban is not None, "an answer has a ban"
        return refused_by_ban(ban, now_us, self.checks)

    def missed(self, answer: bytes, now_us: int) -> None:
        """Refund an admitted hit that nobody awaits any more."""
        if self.what == HIT and answer[0] == OK and self._by_network is None:
            self._shared.hand_back(self._decision(answer, now_us).take_back())


Request: TypeAlias = Command | Question


def _counts(checks: Sequence[Check]) -> bool:
    """Return whether a refusal of these checks is charged, so that it cannot be repeated."""
    return any(bucket.count_denied for bucket, _, _ in checks)


def subjects_of(checks: Sequence[Check], subjects: Sequence[BanSubject]) -> tuple[BanSubject, ...]:
    """Return the keys and addresses whose bans refuse a question."""
    return *subjects, *(key for _, key, _ in checks)
