"""The requests to Redis: demands, refunds, resets and inspections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...core.bans.in_force import Guarded
from ...core.barred import Barred
from ...core.decision import Bucket, Check, Decision
from ...core.views import Snapshot
from .bans.ban_codec import UNGUARDED, pack_guards
from .bans.ban_replica import guards_of
from .bans.bans import RedisBans
from .known_refusals import Answers
from .packing import (
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
from .places.renewals import Renewals
from .server_clock import ServerClock
from .wire.batch import Unguarded


class Tools(NamedTuple):
    """The parts of a store that its requests use."""

    packing: Packing
    bans: RedisBans
    answers: Answers
    renewals: Renewals
    hand_back: Callable[[Decision], object]
    """Hands back, without waiting for it."""


class Demand:
    """A hit, a peek or a charge."""

    __slots__ = ("_asked_us", "_first", "_hand_backs", "_tools", "checks", "future", "guarded", "judged", "what")

    def __init__(
        self,
        future: asyncio.Future[Decision],
        tools: Tools,
        what: int,
        checks: Sequence[Check],
        guarded: Sequence[Guarded],
        judged: bytes | None,
        *,
        first_in_line: bool = False,
    ) -> None:
        self.future = future
        self._tools = tools
        self.what = what
        self._first = first_in_line and what in (HIT, LOOK)
        self.checks = checks
        self.guarded = guarded
        self.judged = judged
        self._hand_backs = tools.answers.hand_backs
        self._asked_us = tools.renewals.held.now_us() if any(bucket.held for bucket, _, _ in checks) else None

    @property
    def key(self) -> str | None:
        """See `Request`."""
        return self.checks[0][1] if self.checks else None

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._tools.packing.demand(self.what | FIRST if self._first else self.what, self.checks, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Decision:
        """See `Request`."""
        if answer[0] == BANNED:
            barred = self.refused(answer[1:])
            assert barred is not None, "Redis says that a request is banned, and not by which ban"
            return barred
        decision = decision_of(answer, self.what, self.checks, now_us)
        if self._asked_us is not None and decision.charge:
            self._tools.renewals.hold(decision, self._asked_us)
        answers = self._tools.answers
        if self.what in (HIT, CHARGE):  # a look changes nothing
            answers.saw(now_us)
        if decision.allowed and not answers.known:
            return decision
        if self.what == HIT:
            answers.learn(decision, clock, self._hand_backs, lasts=answer[0] != UNSETTLED and not self._first)
        elif self.what == CHARGE:
            answers.forget(self.checks)
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

    def guards(self) -> bytes:
        """See `Request`."""
        return UNGUARDED if self.judged is None else pack_guards(guards_of(self.checks, self.guarded))

    def held(self) -> Barred | None:
        """See `Request`."""
        return self._tools.bans.judge(self.checks, self.guarded)

    def refused(self, told: bytes) -> Barred | None:
        """See `Request`."""
        return self._tools.bans.refused(told, self.checks, prolong=self.what in (HIT, LOOK))


class Refund(Unguarded):
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
    def key(self) -> str:
        """See `Request`."""
        return self._decision.checks[0][1]

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._tools.packing.refund(self._decision, self._charged, self._tools.answers.latest_us, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> bool:
        """See `Request`."""
        raise_failure(answer)
        self._tools.answers.saw(now_us)
        self._tools.answers.forget([check for check in self._decision.checks if not check[0].held])
        return answer[0] in (CHANGED, LET_GO)


class Reset(Unguarded):
    """A reset of the windows of a key."""

    __slots__ = ("_tools", "key")

    def __init__(self, future: asyncio.Future[bool], tools: Tools, key: str) -> None:
        super().__init__(future)
        self._tools = tools
        self.key = key

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return REQUEST.pack(RESET, self._tools.packing.place_of(self.key, names))

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> bool:
        """See `Request`."""
        raise_failure(answer)
        self._tools.answers.forget_key(self.key)
        return answer[0] == CHANGED


class Inspection(Unguarded):
    """A look at the windows of a key under some buckets."""

    __slots__ = ("_checks", "_tools", "key")

    def __init__(self, future: asyncio.Future[Snapshot], tools: Tools, key: str, buckets: Sequence[Bucket]) -> None:
        super().__init__(future)
        self._tools = tools
        self._checks = [(bucket, key, 0) for bucket in buckets]
        self.key = key

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        return self._tools.packing.demand(INSPECT, self._checks, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Snapshot:
        """See `Request`."""
        return Snapshot(now_us, windows_of(answer, sum(len(bucket.limits) for bucket, _, _ in self._checks)))
