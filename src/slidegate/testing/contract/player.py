"""Playing a random program to a store and to the reference, side by side."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import TypeAlias, TypeVar

from ...core.decision import Check, Decision, LimitSet
from ...core.limits import Limit
from ...core.store import Store
from ..clock import FakeClock
from ..reference.model import Model, Note, verdict_of
from .programs import Align, Ask, Change, Debt, Look, Move, Refund, Reset, Step

Answered = TypeVar("Answered")
Question: TypeAlias = tuple[tuple[int, str, int], ...]


async def settle(answer: Answered | Awaitable[Answered]) -> Answered:
    """Return the answer of a store's method; wait for it where the store needs that."""
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
        count_denied: Whether each rule counts refusals; by default none does.
    """

    def __init__(
        self, store: Store, clock: FakeClock, rules: Sequence[Sequence[Limit]], count_denied: Sequence[bool] = ()
    ) -> None:
        self.store = store
        self.clock = clock
        self.model = Model()
        self.count_denied = count_denied or [False] * len(rules)
        self.plain = [LimitSet(f"rule-{number}", limits) for number, limits in enumerate(rules)]
        self.buckets = [_counting(*pair) for pair in zip(self.plain, self.count_denied, strict=True)]
        self.named: set[tuple[int, str]] = set()
        self.prepared: dict[tuple[Check, ...], Sequence[Check]] = {}
        self.charged: list[tuple[Decision, list[Note]]] = []

    async def play(self, moves: Sequence[Move]) -> None:
        """Play all moves, one after the other."""
        for number, move in enumerate(moves):
            try:
                await self._play(move)
            except AssertionError as error:
                played = "".join(f"\n  {move}" for move in moves[: number + 1])
                rules = [*zip(self.buckets, self.count_denied, strict=True)]
                raise AssertionError(f"{error}\nat {self.clock} after{played}\nwith {rules}") from error

    async def _play(self, move: Move) -> None:
        match move:
            case Ask(question, patient, plain):
                await self._ask(question, patient, plain)
            case Look(question):
                checks = self._checks(question)
                expected = self.model.peek(checks, self.clock.now_us)
                same(verdict_of(await settle(self.store.peek(self._put(checks)))), expected)
            case Debt(question):
                await self._charge(question)
            case Refund(which):
                await self._refund(which)
            case Reset(key):
                await self._reset(key)
            case Step(span_us) if span_us < 0:
                await self._step_back(span_us)
            case Step(span_us):
                self.clock.advance(us=span_us)
            case Align(slice_us, offset_us):
                self.clock.advance(us=slice_us - self.clock.now_us % slice_us + offset_us)
            case Change(rule, limit, amount):
                self._change(rule, limit, amount)

    async def _ask(self, question: Question, patient: bool, plain: bool) -> None:
        wait_us = await self._hit(question, plain)
        if patient and wait_us:
            # Plainly: else the refusal would be charged.
            self.clock.advance(us=wait_us - 1)
            same(await self._hit(question, plain=True), 1)
            self.clock.advance(us=1)
            same(await self._hit(question, plain=True), 0)

    async def _hit(self, question: Question, plain: bool = False) -> int | None:
        """Ask both, compare, and return how long to wait."""
        self.named.update((rule, key) for rule, key, _ in question)
        checks = self._checks(question, plain)
        expected, charged = self.model.hit(checks, self.clock.now_us)
        decision = await settle(self.store.hit(self._put(checks)))
        same(verdict_of(decision), expected)
        self.charged.append((decision, charged))
        return expected.retry_after_us

    async def _charge(self, question: Question) -> None:
        self.named.update((rule, key) for rule, key, _ in question)
        checks = self._checks(question)
        expected, charged = self.model.charge(checks, self.clock.now_us)
        decision = await settle(self.store.charge(self._put(checks)))
        same(verdict_of(decision), expected)
        self.charged.append((decision, charged))

    async def _refund(self, which: int) -> None:
        if self.charged:
            decision, charged = self.charged[-1 - which % len(self.charged)]
            same(await settle(self.store.refund(decision.take_back())), self.model.refund(charged, self.clock.now_us))
            same(await settle(self.store.refund(decision.take_back())), False)

    async def _reset(self, key: str) -> None:
        await self.look_after_all()  # what is over is forgotten by both
        known = await settle(self.store.reset(key))
        if not any(named == key for _, named in self.named):
            same(known, False)
        self.model.reset(key, self.clock.now_us)
        self.clock.advance(us=1)  # what is charged at the moment of a reset may be taken for a charge of before

    async def _step_back(self, span_us: int) -> None:
        # A store may drop expired units whenever it likes, as long as time goes on. Before it steps back,
        # every window is looked after, so that the store and the reference have let go of the same.
        await self.look_after_all()
        self.clock.set(max(self.clock.now_us + span_us, 0))
        await self.look_after_all()  # units ahead of now move back, which a store notices when it looks

    async def look_after_all(self) -> None:
        """Ask every window once, for nothing."""
        for rule, key in sorted(self.named):
            await self._hit(((rule, key, 0),), plain=True)

    def _change(self, rule: int, number: int, amount: int) -> None:
        bucket = self.plain[rule]
        changed = list(bucket.limits)
        old = changed[number]
        assert isinstance(old, Limit), "programs have windows alone"
        changed[number] = Limit(amount, timedelta(microseconds=old.window_us), resolution=old.resolution)
        self.plain[rule] = LimitSet(bucket.rule, changed)
        self.buckets[rule] = _counting(self.plain[rule], self.count_denied[rule])

    def _checks(self, question: Question, plain: bool = False) -> list[Check]:
        buckets = self.plain if plain else self.buckets
        return [(buckets[rule], key, cost) for rule, key, cost in question]

    def _put(self, checks: Sequence[Check]) -> Sequence[Check]:
        """Return checks as they are when they are asked first, and from then on as they were prepared at that time."""
        known = self.prepared.get(tuple(checks))
        if known is None:
            self.prepared[tuple(checks)] = self.store.prepare(checks)
        return known or checks


def _counting(bucket: LimitSet, count_denied: bool) -> LimitSet:
    return bucket.under(bucket.rule, count_denied=count_denied)


def same(answered: object, expected: object) -> None:
    """Assert that the store said what the reference says."""
    assert answered == expected, f"the store says {answered}, the reference {expected}"
