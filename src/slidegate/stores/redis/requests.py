"""The requests to Redis: questions, and commands about the windows and permits of a key."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...core.bans.ban import BanSubject
from ...core.decision import BanRefusal, Check, Decision
from .script import BANNED, CHARGE, HIT, LOOK, OK, UNSETTLED, decision_of, raise_failure

if TYPE_CHECKING:
    from .batch import Shared


class Request(ABC):
    """A request that a batcher carries; this one is refused by no ban, and changes nothing more once it was given up.

    Args:
        future: Gets the result.

    Attributes:
        group: Requests of one group go in one call to a node of a cluster: a slot, or a name; None where none is known.
        redirections: How often a cluster has sent it elsewhere.
    """

    __slots__ = ("future", "group", "redirections")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.group: object = None
        self.redirections = 0

    @property
    @abstractmethod
    def name(self) -> bytes | None:
        """One of the names in Redis that it is about, which lie in one slot of a cluster; None where it has none."""

    @abstractmethod
    def pack(self, names: dict[bytes, int]) -> bytes:
        """Return the request for the script; `names` are the names in its call with their places, and get its own."""

    @abstractmethod
    def answered(self, answer: bytes, now_us: int, sent_us: int) -> Any:
        """Return the result for the task that awaits the request; an error that is raised here is raised there.

        Args:
            answer: What the script says.
            now_us: The server's time.
            sent_us: When the call was sent (monotonic).
        """

    @property
    def subjects(self) -> tuple[BanSubject, ...]:
        """The keys and addresses whose bans refuse it."""
        return ()

    def refused(self, told: bytes) -> BanRefusal | None:
        """Return the answer where Redis has found bans, None where it found none; see `RedisBans.refused`."""
        return None

    def known(self) -> BanRefusal | None:
        """Return the answer where a ban that is known here refuses it, however long ago Redis was heard."""
        return None


class Command(Request):
    """A request about one key.

    Args:
        future: Gets the result.
        name: A name in Redis that it is about.
        pack: See `Request.pack`.
        read: Returns the result, given the answer and the server's time.
    """

    __slots__ = ("_name", "_pack", "_read")

    def __init__(
        self,
        future: asyncio.Future[Any],
        name: bytes,
        pack: Callable[[dict[bytes, int]], bytes],
        read: Callable[[bytes, int], Any],
    ) -> None:
        super().__init__(future)
        self._name = name
        self._pack = pack
        self._read = read

    @property
    def name(self) -> bytes:
        """See `Request`."""
        return self._name

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._pack(names)

    def answered(self, answer: bytes, now_us: int, sent_us: int) -> Any:
        """See `Request`."""
        raise_failure(answer)
        return self._read(answer, now_us)


class Question(Request):
    """A hit, a peek or a charge."""

    __slots__ = ("_asked_us", "_outdated", "_shared", "_subjects", "checks", "what")

    def __init__(
        self,
        future: asyncio.Future[Decision],
        shared: Shared,
        what: int,
        checks: Sequence[Check],
        subjects: Sequence[BanSubject],
    ) -> None:
        super().__init__(future)
        self._shared = shared
        self.what = what
        self.checks = checks
        self._subjects = subjects
        self._outdated = shared.refusals.outdated
        self._asked_us = shared.renewals.now_us() if any(bucket.held for bucket, _, _ in checks) else None

    @property
    def name(self) -> bytes | None:
        """See `Request`."""
        return self._shared.packing.name_of(self.checks[0][1]) if self.checks else None

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._shared.packing.question(self.what, self.checks, names)

    def answered(self, answer: bytes, now_us: int, sent_us: int) -> Decision:
        """See `Request`."""
        if answer[0] == BANNED:
            refusal = self.refused(answer[1:])
            assert refusal is not None, "Redis says that a request is banned, and not by which ban"
            return refusal
        decision = decision_of(answer, self.what, self.checks, now_us)
        if self._asked_us is not None and decision.reservations:
            self._shared.renewals.hold(decision, self._asked_us)
        refusals = self._shared.refusals
        if self.what in (HIT, CHARGE):  # a look changes nothing
            refusals.saw(now_us)
        if decision.allowed and not refusals.known:
            return decision
        if self.what == HIT:
            refusals.learn(decision, sent_us, self._outdated, lasts=answer[0] != UNSETTLED)
        elif self.what == CHARGE:
            refusals.forget(self.checks)
        return decision

    def missed(self, answer: bytes, now_us: int) -> None:
        """Hand back the permits that were taken for a request that was given up; units of windows stay charged."""
        if self._asked_us is None or answer[0] != OK:
            return
        decision = decision_of(answer, self.what, self.checks, now_us)
        if decision.reservations:
            self._shared.renewals.hold(decision, self._asked_us)
            self._shared.hand_back(decision.take_back(held=True))

    @property
    def subjects(self) -> tuple[BanSubject, ...]:
        """See `Request`."""
        return () if self.what == CHARGE else subjects_of(self.checks, self._subjects)

    def refused(self, told: bytes) -> BanRefusal | None:
        """See `Request`."""
        return self._shared.bans.refused(told, self.checks, self.subjects, is_hit=self.what in (HIT, LOOK))

    def known(self) -> BanRefusal | None:
        """See `Request`."""
        return self._shared.refusals.banned(self.checks, self.subjects, stale=True)


def subjects_of(checks: Sequence[Check], subjects: Sequence[BanSubject]) -> tuple[BanSubject, ...]:
    """Return the keys and addresses whose bans refuse a question."""
    return *subjects, *(key for _, key, _ in checks)
