"""Random demands, times and changes of rules, and how they are played to a store and the reference side by side."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeAlias, TypeVar

from hypothesis import strategies as st

from ..core.decision import Bucket, Check, Decision
from ..core.limits import MAX_AMOUNT, Limit
from ..core.protocols import Store
from . import FakeClock
from .model import Charge, Model, ModelWindow, verdict_of

KEYS = ("ann", "bob", "192.0.2.7")
MIN_WINDOW_US = 1_000
MAX_DRAWN_WINDOW_US = 120_000_000
YEAR_2100_US = 4_102_444_800_000_000

Answered = TypeVar("Answered")
Choice = TypeVar("Choice")


class Ask(NamedTuple):
    """Ask for (rule, key, cost) together. `patient`: on a refusal, wait as long as it says and ask again."""

    demand: tuple[tuple[int, str, int], ...]
    patient: bool


class Look(NamedTuple):
    """Peek at (rule, key, cost) together."""

    demand: tuple[tuple[int, str, int], ...]


class Refund(NamedTuple):
    """Hand back an earlier charge, twice."""

    which: int


class Reset(NamedTuple):
    """Forget a key."""

    key: str


class Step(NamedTuple):
    """Move the clock, backwards where negative."""

    span_us: int


class Align(NamedTuple):
    """Move the clock on to `offset_us` from the next multiple of `slice_us`."""

    slice_us: int
    offset_us: int


class Change(NamedTuple):
    """Give one limit of a rule another amount."""

    rule: int
    limit: int
    amount: int


Move: TypeAlias = Ask | Look | Refund | Reset | Step | Align | Change


class Program(NamedTuple):
    """Rules, the time at first, and what happens."""

    start_us: int
    rules: tuple[tuple[Limit, ...], ...]
    moves: list[Move]


class Dice:
    """Turns drawn bytes into choices; the earlier a choice stands in its list, the simpler it counts when shrinking.

    Hypothesis draws bytes a hundred times faster than it draws a program choice by choice, and shrinks them as well.
    Once the bytes are used up, every choice is the first.
    """

    def __init__(self, rolled: bytes) -> None:
        self._rolled = rolled

    def __bool__(self) -> bool:
        return bool(self._rolled)

    def below(self, end: int) -> int:
        """Choose a number from 0 to `end` - 1."""
        size = (end.bit_length() + 7) // 8
        taken, self._rolled = self._rolled[:size], self._rolled[size:]
        return int.from_bytes(taken, "big") % end

    def pick(self, choices: Sequence[Choice]) -> Choice:
        """Choose one of several."""
        return choices[self.below(len(choices))]

    def amount(self, resolution: int) -> int:
        """Choose an amount: on either side of the resolution, where the ring changes, or far from it."""
        near = max(1, resolution - 2 + self.below(6))
        return self.pick((1 + self.below(6), near, near, 1 + self.below(300), 1 + self.below(10**6), MAX_AMOUNT))

    def limit(self) -> Limit:
        """Choose a limit: resolution 1 to 128, windows that divide evenly and such that do not."""
        drawn_us = MIN_WINDOW_US + self.below(MAX_DRAWN_WINDOW_US)
        window_us = self.pick((1_000, 1_001, 99_999, 10_000_000, 60_000_000, drawn_us))
        highest = min(128, window_us // 10)
        resolution = 1 + self.below(self.pick((3, 10, highest, highest)))
        return Limit(self.amount(resolution), timedelta(microseconds=window_us), resolution=resolution)

    def rule(self) -> tuple[Limit, ...]:
        """Choose one to three limits of different windows."""
        drawn = [self.limit() for _ in range(self.pick((1, 1, 2, 3)))]
        return tuple({limit.same_window: limit for limit in drawn}.values())

    def cost(self, limits: Sequence[Limit]) -> int:
        """Choose a cost: little, nothing, a part of a limit, all of it, or too much."""
        amount = self.pick([limit.amount for limit in limits])
        least = min(limit.amount for limit in limits)
        part = least // (2 + self.below(6)) + 1
        return self.pick((1, 1, 1, 0, 2, part, part, self.below(least) + 1, amount, amount + self.below(2)))

    def span_us(self, limits: Sequence[Limit]) -> int:
        """Choose a span of time, often one beside which something leaves a window."""
        limit = self.pick(limits)
        slice_us, window_us = limit.slice_us, limit.window_us
        marks_us = (slice_us, window_us, limit.slices * slice_us, (limit.slices + 1) * slice_us)
        mark_us = self.pick(marks_us) + self.pick((0, 1, -1))
        within_us = self.below(window_us // (1 + self.below(8)) + 1)
        return self.pick((within_us, mark_us, self.below(4 * slice_us), self.below(50), self.below(3 * window_us)))

    def demand(self, rules: Sequence[Sequence[Limit]]) -> tuple[tuple[int, str, int], ...]:
        """Choose what to ask for: up to three pairs of rule and key, none twice."""
        targets = [(self.below(len(rules)), self.pick(KEYS)) for _ in range(self.pick((1, 1, 1, 2, 3)))]
        return tuple((rule, key, self.cost(rules[rule])) for rule, key in dict.fromkeys(targets))

    def move(self, rules: Sequence[Sequence[Limit]]) -> Move | None:
        """Choose what happens next: mostly requests, with time going on in between."""
        known = [limit for limits in rules for limit in limits]
        kind = self.below(32)
        if kind == 0:
            return None  # so that shrinking, which turns bytes to 0, makes programs shorter
        if kind < 16:
            return Ask(self.demand(rules), patient=kind % 4 == 3)
        if kind < 21:
            return Step(self.span_us(known))
        if kind < 24:
            return Align(self.pick(known).slice_us, self.pick((0, 1, -1)))
        if kind < 26:
            return Look(self.demand(rules))
        if kind < 28:
            return Refund(self.below(4))
        if kind == 28:
            return Reset(self.pick(KEYS))
        if kind == 29:
            return Step(-self.span_us(known))
        rule = self.below(len(rules))
        number = self.below(len(rules[rule]))
        return Change(rule, number, self.amount(rules[rule][number].resolution))


def program(rolled: bytes) -> Program:
    """Make a program out of drawn bytes: rules, a time to start at, and moves until the bytes are used up."""
    dice = Dice(rolled)
    rules = tuple(dice.rule() for _ in range(dice.pick((1, 1, 2, 3))))
    start_us = dice.pick((0, dice.below(10**9), YEAR_2100_US))
    moves = []
    while dice:
        move = dice.move(rules)
        if move is not None:
            moves.append(move)
    return Program(start_us, rules, moves)


def programs() -> st.SearchStrategy[Program]:
    """Draw programs, some short ones and many of 20 to 80 moves."""
    return st.one_of(st.binary(max_size=60), st.binary(min_size=200, max_size=800)).map(program)


async def settle(answer: Answered | Awaitable[Answered]) -> Answered:
    """Return what a store's method answered, having waited for it where the store needs that."""
    if inspect.isawaitable(answer):
        waited: Answered = await answer
        return waited
    return answer


class Player:
    """Plays a program to a store and to the reference, and compares every answer.

    Args:
        store: An empty store that tells the time by `clock`.
        clock: The clock, at the program's start.
        rules: The limits of each rule.
    """

    def __init__(self, store: Store, clock: FakeClock, rules: Sequence[Sequence[Limit]]) -> None:
        self.store = store
        self.clock = clock
        self.model = Model()
        self.buckets = [Bucket(f"rule-{number}", limits) for number, limits in enumerate(rules)]
        self.named: set[tuple[int, str]] = set()
        self.charged: list[tuple[Decision, list[tuple[ModelWindow, Charge]]]] = []

    async def play(self, moves: Sequence[Move]) -> None:
        """Play all moves, one after the other."""
        for number, move in enumerate(moves):
            try:
                await self._play(move)
            except AssertionError as error:
                played = "".join(f"\n  {move}" for move in moves[: number + 1])
                raise AssertionError(f"{error}\nat {self.clock} after{played}\nwith {self.buckets}") from error

    async def _play(self, move: Move) -> None:
        match move:
            case Ask(demand, patient):
                await self._ask(demand, patient)
            case Look(demand):
                checks = self._checks(demand)
                expected = self.model.peek(checks, self.clock.now_us)
                same(verdict_of(await settle(self.store.peek(checks))), expected)
            case Refund(which):
                await self._refund(which)
            case Reset(key):
                await self._reset(key)
            case Step(span_us) if span_us < 0:
                await self._step_back(span_us)
            case Step(span_us):
                self.clock.advance(span_us)
            case Align(slice_us, offset_us):
                self.clock.advance(slice_us - self.clock.now_us % slice_us + offset_us)
            case Change(rule, limit, amount):
                self._change(rule, limit, amount)

    async def _ask(self, demand: tuple[tuple[int, str, int], ...], patient: bool) -> None:
        wait_us = await self._hit(demand)
        if patient and wait_us:
            self.clock.advance(wait_us - 1)
            same(await self._hit(demand), 1)
            self.clock.advance(1)
            same(await self._hit(demand), 0)

    async def _hit(self, demand: tuple[tuple[int, str, int], ...]) -> int | None:
        """Ask both, compare, and return how long to wait."""
        self.named.update((rule, key) for rule, key, _ in demand)
        checks = self._checks(demand)
        expected, charged = self.model.hit(checks, self.clock.now_us)
        decision = await settle(self.store.hit(checks))
        same(verdict_of(decision), expected)
        self.charged.append((decision, charged))
        return expected.retry_after_us

    async def _refund(self, which: int) -> None:
        if self.charged:
            decision, charged = self.charged[-1 - which % len(self.charged)]
            same(await settle(self.store.refund(decision)), self.model.refund(charged, self.clock.now_us))
            same(await settle(self.store.refund(decision)), False)

    async def _reset(self, key: str) -> None:
        known = await settle(self.store.reset(key))
        if not any(named == key for _, named in self.named):
            same(known, False)
        self.model.reset(key)
        self.charged.clear()  # whether a charge from before can be told from later ones is the store's affair

    async def _step_back(self, span_us: int) -> None:
        # When a store strikes off what has left is its own affair as long as time goes on. Before it steps back,
        # every window is looked after, so that the store and the reference have let go of the same.
        for rule, key in sorted(self.named):
            await self._hit(((rule, key, 0),))
        if self.model.carries():
            return  # how long a store carries what it cannot keep is its own affair, too
        self.clock.set(max(self.clock.now_us + span_us, 0))
        self.charged.clear()  # a charge that is moved to another time cannot be found again

    def _change(self, rule: int, number: int, amount: int) -> None:
        bucket = self.buckets[rule]
        changed = list(bucket.limits)
        old = changed[number]
        changed[number] = Limit(amount, timedelta(microseconds=old.window_us), resolution=old.resolution)
        self.buckets[rule] = Bucket(bucket.rule, changed)
        if changed[number].exact is not old.exact:
            self.charged.clear()  # a charge that is kept in another way cannot be found again

    def _checks(self, demand: tuple[tuple[int, str, int], ...]) -> list[Check]:
        return [(self.buckets[rule], key, cost) for rule, key, cost in demand]


def same(answered: object, expected: object) -> None:
    """Assert that the store said what the reference says."""
    assert answered == expected, f"the store says {answered}, the reference {expected}"
