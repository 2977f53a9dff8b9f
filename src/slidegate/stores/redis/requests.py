"""The requests to Redis: demands, refunds, resets and inspections."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.bans.ban import BanSubject
from ...core.decision import BanRefusal, Bucket, Check, Decision
from ...core.views import Snapshot
from .clock import ServerClock
from .refusals import RefusalCache
from .script import (
    BANNED,
    CHANGED,
    CHARGE,
    FIRST,
    HIT,
    INSPECT,
    LET_GO,
    LOOK,
    OK,
    REQUEST,
    RESET,
    UNSETTLED,
    Charged,
    Packing,
    decision_of,
    raise_failure,
    windows_of,
)

if TYPE_CHECKING:
    from .bans import RedisBans
    from .permits import Renewals


class Tools(NamedTuple):
    """The parts of a store that its requests use."""

    packing: Packing
    bans: RedisBans
    refusals: RefusalCache
    renewals: Renewals
    hand_back: Callable[[Decision], object]
    """Hands back, without waiting for it."""


class Request(ABC):
    """A request that a batcher carries; this one is refused by no ban, and changes nothing more once it was given up.

    Args:
        future: Gets the result.
    """

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    @property
    @abstractmethod
    def name(self) -> bytes | None:
        """One of the names in Redis that it is about, which lie in one slot of a cluster; None where it has none."""

    @abstractmethod
    def pack(self, names: dict[bytes, int]) -> bytes:
        """Return the request for the script; `names` are the names in its call with their places, and get its own."""

    @abstractmethod
    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Any:
        """Return the result for the task that awaits the request; an error that is raised here is raised there."""

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


class Demand(Request):
    """A hit, a peek or a charge."""

    __slots__ = ("_asked_us", "_first", "_hand_backs", "_subjects", "_tools", "checks", "what")

    def __init__(
        self,
        future: asyncio.Future[Decision],
        tools: Tools,
        what: int,
        checks: Sequence[Check],
        subjects: Sequence[BanSubject],
        *,
        first_in_line: bool = False,
    ) -> None:
        super().__init__(future)
        self._tools = tools
        self.what = what
        self._first = first_in_line and what in (HIT, LOOK)
        self.checks = checks
        self._subjects = subjects
        self._hand_backs = tools.refusals.hand_backs
        self._asked_us = tools.renewals.now_us() if any(bucket.held for bucket, _, _ in checks) else None

    @property
    def name(self) -> bytes | None:
        """See `Request`."""
        return self._tools.packing.name_of(self.checks[0][1]) if self.checks else None

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._tools.packing.demand(self.what | FIRST if self._first else self.what, self.checks, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Decision:
        """See `Request`."""
        if answer[0] == BANNED:
            refusal = self.refused(answer[1:])
            assert refusal is not None, "Redis says that a request is banned, and not by which ban"
            return refusal
        decision = decision_of(answer, self.what, self.checks, now_us)
        if self._asked_us is not None and decision.charge:
            self._tools.renewals.hold(decision, self._asked_us)
        refusals = self._tools.refusals
        if self.what in (HIT, CHARGE):  # a look changes nothing
            refusals.saw(now_us)
        if decision.allowed and not refusals.known:
            return decision
        if self.what == HIT:
            refusals.learn(decision, clock, self._hand_backs, lasts=answer[0] != UNSETTLED and not self._first)
        elif self.what == CHARGE:
            refusals.forget(self.checks)
        return decision

    def missed(self, answer: bytes, now_us: int) -> None:
        """Hand back the places that were taken for a request that was given up; units of windows stay charged."""
        if self._asked_us is None or answer[0] != OK:
            return
        decision = decision_of(answer, self.what, self.checks, now_us)
        if decision.charge:
            self._tools.renewals.hold(decision, self._asked_us)
            for part in decision.take_apart(held=True):
                self._tools.hand_back(part)

    @property
    def subjects(self) -> tuple[BanSubject, ...]:
        """See `Request`."""
        return () if self.what == CHARGE else guards_of(self.checks, self._subjects)

    def refused(self, told: bytes) -> BanRefusal | None:
        """See `Request`."""
        return self._tools.bans.refused(told, self.checks, self.subjects, is_hit=self.what in (HIT, LOOK))

    def known(self) -> BanRefusal | None:
        """See `Request`."""
        return self._tools.refusals.banned(self.checks, self.subjects, stale=True)


class Refund(Request):
    """A refund of everything that a decision charged."""

    __slots__ = ("_charged", "_decision", "_tools")

    def __init__(
        self, future: asyncio.Future[bool], tools: Tools, decision: Decision, charged: Sequence[Charged | None]
    ) -> None:
        super().__init__(future)
        self._tools = tools
        self._decision = decision
        self._charged = charged

    @property
    def name(self) -> bytes:
        """See `Request`."""
        return self._tools.packing.name_of(self._decision.checks[0][1])

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._tools.packing.refund(self._decision, self._charged, self._tools.refusals.latest_us, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> bool:
        """See `Request`."""
        raise_failure(answer)
        self._tools.refusals.saw(now_us)
        self._tools.refusals.forget([check for check in self._decision.checks if not check[0].held])
        return answer[0] in (CHANGED, LET_GO)


class Reset(Request):
    """A reset of the windows of a key."""

    __slots__ = ("_key", "_tools")

    def __init__(self, future: asyncio.Future[bool], tools: Tools, key: str) -> None:
        super().__init__(future)
        self._tools = tools
        self._key = key

    @property
    def name(self) -> bytes:
        """See `Request`."""
        return self._tools.packing.name_of(self._key)

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return REQUEST.pack(RESET, self._tools.packing.place_of(self._key, names))

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> bool:
        """See `Request`."""
        raise_failure(answer)
        self._tools.refusals.forget_key(self._key)
        return answer[0] == CHANGED


class Inspection(Request):
    """A look at the windows of a key under some buckets."""

    __slots__ = ("_checks", "_key", "_tools")

    def __init__(self, future: asyncio.Future[Snapshot], tools: Tools, key: str, buckets: Sequence[Bucket]) -> None:
        super().__init__(future)
        self._tools = tools
        self._checks = [(bucket, key, 0) for bucket in buckets]
        self._key = key

    @property
    def name(self) -> bytes:
        """See `Request`."""
        return self._tools.packing.name_of(self._key)

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._tools.packing.demand(INSPECT, self._checks, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Snapshot:
        """See `Request`."""
        return Snapshot(now_us, windows_of(answer, sum(len(bucket.limits) for bucket, _, _ in self._checks)))


def guards_of(checks: Sequence[Check], subjects: Sequence[BanSubject]) -> tuple[BanSubject, ...]:
    """Return the keys and addresses whose bans refuse a demand."""
    return *subjects, *(key for _, key, _ in checks)
