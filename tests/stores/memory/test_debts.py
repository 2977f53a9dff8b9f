"""Debts and refusals that count in the memory store: bounds, and memory."""

import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given

from slidegate import MemoryStore
from slidegate.core import Bucket, Decision, Limit, Reason, parse_limits
from slidegate.testing import FakeClock

from ...contract.programs import Ask, Debt, Program, Refund, Step, programs


def bucket(limits: str, *, count_denied: bool = False) -> Bucket:
    return Bucket("rule", parse_limits(limits), count_denied=count_denied)


class Ledger:
    """Plays a program to a store and notes what was let through at which moment; time only goes on."""

    def __init__(self, program: Program) -> None:
        self.clock = FakeClock(program.start_us)
        self.store = MemoryStore(clock=self.clock)
        self.buckets = [
            Bucket(f"rule-{place}", limits, count_denied=counts)
            for place, (limits, counts) in enumerate(zip(program.rules, program.count_denied, strict=True))
        ]
        self.plain = [Bucket(bucket.name, bucket.limits) for bucket in self.buckets]
        self.let_through: list[Decision] = []
        for move in program.moves:
            self.play(move)

    def play(self, move: object) -> None:
        match move:
            case Ask(question, _, plain):
                buckets = self.plain if plain else self.buckets
                decision = self.store.hit([(buckets[rule], key, cost) for rule, key, cost in question])
                if decision:
                    self.let_through.append(decision)
            case Debt(question):
                self.store.charge([(self.buckets[rule], key, cost) for rule, key, cost in question])
            case Refund(which) if self.let_through:
                decision = self.let_through[-1 - which % len(self.let_through)]
                if self.store.refund(decision.take_back()):
                    self.let_through.remove(decision)
            case Step(span_us):
                self.clock.advance(us=abs(span_us))

    def breaches(self) -> list[str]:
        charges = defaultdict(list)
        for decision in self.let_through:
            for asked, key, cost in decision.checks:
                charges[asked.name, key].append((decision.now_us, cost))
        return [
            f"{spent} in {limit} of {rule} for {key} from {first_us}"
            for (rule, key), spending in charges.items()
            for limit in self.plain[int(rule.removeprefix("rule-"))].limits
            if isinstance(limit, Limit)
            for first_us, _ in spending
            if (spent := sum(c for at_us, c in spending if first_us <= at_us < first_us + limit.window_us))
            > limit.amount
        ]


@given(programs())
def test_no_window_holds_more_than_the_amount_beside_debts_and_refusals_that_count(program: Program) -> None:
    assert Ledger(program).breaches() == []


@pytest.mark.parametrize("limits", ["10/minute", "1000/minute"])
def test_huge_debts_and_endless_hammering_need_no_memory(limits: str) -> None:
    store = MemoryStore(clock=FakeClock())
    counting = bucket(limits, count_denied=True)
    store.charge(((counting, "ann", 10**30),))
    tracemalloc.start()
    try:
        for _ in range(1_000):
            store.charge(((counting, "ann", 10**30),))
            assert store.hit(((counting, "ann", 1),)).reason is Reason.LIMITED
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 10_000
