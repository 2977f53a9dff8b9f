"""Playing random programs to a Redis store and to a memory store, which asks the core, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from slidegate import BanPolicy
from slidegate.core.addresses import parse_address
from slidegate.core.bans.ban import Ban, ban_key
from slidegate.core.decision import Bucket, Check, Decision
from slidegate.core.limits import Limit
from slidegate.stores.memory.store import MemoryStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.player import settle
from slidegate.testing.contract.programs import (
    KEYS,
    Align,
    Ask,
    Change,
    Choices,
    Debt,
    Look,
    Move,
    Program,
    Refund,
    Reset,
    Step,
)

IN_ONE_TURN = 4


class Twin:
    """Plays a program of windows to both stores, several moves in one turn, and compares answers.

    Args:
        store: The Redis store.
        clock: The clock of both.
        made: The program.
    """

    def __init__(self, store: RedisStore, clock: FakeClock, made: Program) -> None:
        self.store = store
        self.memory = MemoryStore(clock=clock)
        self.clock = clock
        self.program = made
        self.plain = [Bucket(f"rule-{number}", limits) for number, limits in enumerate(made.rules)]
        self.pending: list[tuple[Any, Any]] = []
        self.charged: list[tuple[Decision, Decision]] = []

    async def play(self) -> None:
        """Play all moves, and compare what is left in every window."""
        for number, move in enumerate(self.program.moves):
            await self._play(number, move)
            if number % IN_ONE_TURN == IN_ONE_TURN - 1:
                await self._answers()
        await self._look_after_all()

    async def _play(self, number: int, move: Move) -> None:
        match move:
            case Ask(demand, _, plain):
                # Some demands ask one window twice, and some are the first in their line.
                checks = self._checks(demand + demand[:1] if number % 3 == 0 else demand, plain)
                self._both("hit", checks, first_in_line=number % 4 == 1)
            case Look(demand):
                self._both("peek", self._checks(demand))
            case Debt(demand):
                self._both("charge", self._checks(demand))
            case Refund(which):
                await self._refund(which)
            case Reset(key):
                await self._look_after_all()  # what is over is forgotten by both
                self.memory.reset(key)
                self.pending.append((self.store.reset(key), None))  # units that have left may still be there
            case Step(span_us):
                await self._go_to(self.clock.now_us + span_us)
            case Align(slice_us, offset_us):
                await self._go_to(self.clock.now_us + slice_us - self.clock.now_us % slice_us + offset_us)
            case Change(rule, number, amount):
                await self._answers()
                self._change(rule, number, amount)

    async def _refund(self, which: int) -> None:
        await self._answers()
        for _ in range(2 if self.charged else 0):
            ours, theirs = self.charged[-1 - which % len(self.charged)]
            self.pending.append((self.store.refund(ours), self.memory.refund(theirs)))

    async def _go_to(self, now_us: int) -> None:
        """Set the clock; time goes on alone, because the contract plays steps back."""
        await self._answers()
        self.clock.set(max(now_us, self.clock.now_us))

    def _both(self, what: str, checks: Sequence[Check], **how: bool) -> None:
        self.pending.append((getattr(self.store, what)(checks, **how), getattr(self.memory, what)(checks, **how)))

    async def _answers(self) -> None:
        pending, self.pending = self.pending, []
        answers = await asyncio.gather(*(settle(ours) for ours, _ in pending))
        for answer, (_, theirs) in zip(answers, pending, strict=True):
            if isinstance(answer, Decision):
                same = (answer.reason, answer.states) == (theirs.reason, theirs.states)
                assert same, f"Redis says {answer} {answer.states}, memory {theirs} {theirs.states}"
                if answer.charge:
                    self.charged.append((answer, theirs))
            elif theirs is not None:
                assert answer == theirs, f"Redis says {answer} to a refund, memory {theirs}"

    async def _look_after_all(self) -> None:
        """Ask every window for nothing."""
        await self._answers()
        charged = self.charged.copy()
        for bucket in self.plain:
            for key in KEYS:
                self._both("hit", ((bucket, key, 0),))
        await self._answers()
        self.charged = charged  # there is nothing to hand back of a look

    def _change(self, rule: int, number: int, amount: int) -> None:
        limits = list(self.plain[rule].limits)
        old = limits[number]
        limits[number] = Limit(amount, timedelta(microseconds=old.window_us), resolution=old.resolution)
        self.plain[rule] = Bucket(self.plain[rule].rule, limits)

    def _checks(self, demand: Sequence[tuple[int, str, int]], plain: bool = False) -> list[Check]:
        counts = [not plain and counted for counted in self.program.count_denied]
        return [(_counting(self.plain[rule], counts[rule]), *rest) for rule, *rest in demand]


def _counting(bucket: Bucket, count_denied: bool) -> Bucket:
    return Bucket(bucket.rule, bucket.limits, bucket.names, count_denied=True) if count_denied else bucket


MAX_BANS = 40
"""Room for everybody, but for no more than four of the six prefixes."""
POLICIES = (
    BanPolicy("2/minute", "1h", factor=3, longest="1d", forgive="2h", jitter=0.2, name="p", max_rate="3/hour"),
    BanPolicy("1/minute", "10m", jitter=0, name="q", max_rate="1000/hour", prefix_after="2/1d"),
)
PREFIXES = {f"198.51.100.{number}": "198.51.100.0/24" for number in range(2)} | {
    f"2001:db8:{high}:{low}::/64": f"2001:db8:{high}::/56" for high in range(1, 6) for low in range(1, 3)
}
ADDRESSES = tuple(PREFIXES)


class BanTwin:
    """Plays strikes and bans to both stores, in little room, and compares what is in force and what was told.

    Args:
        store: The Redis store.
        clock: The clock of both.
    """

    def __init__(self, store: RedisStore, clock: FakeClock) -> None:
        self.clock = clock
        self.books: tuple[Any, Any] = store.bans, MemoryStore(clock=clock, max_bans=MAX_BANS).bans

    async def play(self, rolled: bytes) -> None:
        """Play moves until the bytes are used up."""
        dice = Choices(rolled)
        while dice:
            await self._move(dice)
            await self._compare(dice)

    async def _move(self, dice: Choices) -> None:
        key, policy = dice.pick(ADDRESSES), dice.pick(POLICIES)
        kind = dice.below(16)
        if kind < 8:
            weight = dice.pick((1, 1, 2))
            ours, theirs = await self._both("strike", policy, key, weight, "why", PREFIXES[key])
            assert _shown(ours) == _shown(theirs)
        elif kind < 10:
            length_us = dice.pick((None, 60_000_000, 7_200_000_000))
            ours, theirs = await self._both("ban", dice.pick((key, PREFIXES[key], "user:eve")), length_us, "", "ann")
            assert _shown(ours) == _shown(theirs)
        elif kind < 12:
            ours, theirs = await self._both("unban", dice.pick((key, PREFIXES[key], "user:eve")), "ann")
            assert ours == theirs
        elif kind == 12:
            for key in ADDRESSES:
                await self._both("strike", POLICIES[1], key, 1, "why", PREFIXES[key])
        else:
            self.clock.advance(us=dice.pick((1, 59_999_999, 600_000_000, 3_600_000_000, 20_000_000_000)))

    async def _both(self, what: str, *asked: Any) -> list[Any]:
        return [await settle(getattr(book, what)(*asked)) for book in self.books]

    async def _compare(self, dice: Choices) -> None:
        ours, theirs = await self._both("active")
        assert sorted(map(_shown, ours)) == sorted(map(_shown, theirs))
        for text in (dice.pick(ADDRESSES).removesuffix("/64"), "198.51.100.200", "2001:db8:3:9::1"):
            ours, theirs = await self._both("find", (parse_address(text), ban_key(text)))
            assert (ours and ours.left_us(self.clock.now_us)) == (theirs and theirs.left_us(self.clock.now_us))


def _shown(ban: Ban | None) -> tuple[Any, ...]:
    if ban is None:
        return ()
    return ban.key, ban.by, ban.level, ban.reason, -1 if ban.ends_us is None else ban.ends_us - ban.made_us
