"""Debts, refusals that count and bookings in the memory store: bounds, memory and many at once."""

from __future__ import annotations

import random
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import given

from slidegate.core import Bucket, Decision, Reason, parse_limits
from slidegate.limiter import Limiter
from slidegate.stores.memory.store import MemoryStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.programs import Ask, Debt, Mode, Program, Refund, Step, programs

SECOND_US = 1_000_000


def bucket(
    limits: str, rule: str = "rule", *, count_denied: bool = False, wait_s: float = 0, places: int = 0
) -> Bucket:
    return Bucket(
        rule, parse_limits(limits), count_denied=count_denied, wait_us=round(wait_s * SECOND_US), wait_max=places
    )


# -- the bound, from a plain list of what was let through and when --------------------------------------------------


class Ledger:
    """Plays a program to a store and notes what may go on at which moment; time only goes on."""

    def __init__(self, program: Program) -> None:
        self.clock = FakeClock(program.start_us)
        self.store = MemoryStore(clock=self.clock)
        self.buckets = [
            Bucket(f"rule-{place}", limits, **mode._asdict())
            for place, (limits, mode) in enumerate(zip(program.rules, program.modes, strict=True))
        ]
        self.plain = [Bucket(bucket.rule, bucket.limits) for bucket in self.buckets]
        self.let_through: list[Decision] = []
        for move in program.moves:
            self.play(move)

    def play(self, move: object) -> None:
        match move:
            case Ask(demand, _, plain):
                buckets = self.plain if plain else self.buckets
                decision = self.store.hit([(buckets[rule], key, cost) for rule, key, cost in demand])
                if decision:
                    self.let_through.append(decision)
            case Debt(demand):
                self.store.charge([(self.buckets[rule], key, cost) for rule, key, cost in demand])
            case Refund(which) if self.let_through:
                decision = self.let_through[-1 - which % len(self.let_through)]
                if self.store.refund(decision):
                    self.let_through.remove(decision)
            case Step(span_us):
                self.clock.advance(us=abs(span_us))

    def breaches(self) -> list[str]:
        charges = defaultdict(list)
        for decision in self.let_through:
            for asked, key, cost in decision.checks:
                charges[asked.rule, key].append((decision.now_us + decision.wait_us, cost))
        return [
            f"{spent} in {limit} of {rule} for {key} from {first_us}"
            for (rule, key), spending in charges.items()
            for limit in self.plain[int(rule.removeprefix("rule-"))].limits
            for first_us, _ in spending
            if (spent := sum(c for at_us, c in spending if first_us <= at_us < first_us + limit.window_us))
            > limit.amount
        ]


@given(programs())
def test_no_window_holds_more_than_the_amount_with_those_who_wait(program: Program) -> None:
    modes = tuple(
        mode if mode.wait_us else Mode(wait_us=rule[0].window_us, wait_max=9)
        for mode, rule in zip(program.modes, program.rules, strict=True)
    )
    assert Ledger(program._replace(modes=modes)).breaches() == []


# -- waiting ---------------------------------------------------------------------------------------------------------


async def test_waiting_tasks_pass_at_the_rate_of_the_limit(rng: random.Random) -> None:
    clock = FakeClock(10**12)
    limiter = Limiter(MemoryStore(clock=clock))
    asked = bucket("5/second", wait_s=10, places=40)
    passed = []
    for _ in range(200):
        decision = await limiter.hit_all([(asked, "ann", 1)])
        if decision.allowed:
            if rng.random() < 0.2:
                assert await limiter.refund(decision) is True
            else:
                passed.append(clock.now_us + decision.wait_us)
        clock.advance(us=rng.randrange(100_000))
    for first_us in passed:
        assert sum(first_us <= at_us < first_us + SECOND_US for at_us in passed) <= 5
    assert len(passed) > 50


def test_places_are_counted_per_key_and_per_bucket_that_has_no_room() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    shared, own = bucket("3/minute", "shared", wait_s=60, places=2), bucket("1/minute", "own", wait_s=60, places=1)
    for key in ("ann", "bob", "eve"):
        assert store.hit(((own, key, 1),)).wait_us == 0
        assert store.hit(((own, key, 1), (shared, "all", 1))).wait_us == 60 * SECOND_US  # room in `shared`, so no place
        assert store.hit(((own, key, 1),)).reason is Reason.LIMITED
    clock.advance("1s")
    assert [store.hit(((shared, "all", 1),)).reason for _ in range(3)] == [Reason.LIMITED] * 3  # behind those three
    clock.advance("119s")
    assert store.hit(((shared, "all", 3),)).reason is Reason.OK
    assert [store.hit(((shared, "all", 1),)).reason for _ in range(3)] == [Reason.WAITED] * 2 + [Reason.LIMITED]


def test_keys_that_wait_are_not_let_go_and_need_no_more_than_others_afterwards() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    asked, other = bucket("2/second", wait_s=100, places=100), bucket("100/minute", "other")
    waits = [store.hit(((asked, "ann", 1),)).wait_us for _ in range(60)]
    assert waits == [turn // 2 * SECOND_US for turn in range(60)]
    for _ in range(28):
        clock.advance("1s")
        store.hit(((other, "bob", 1),))
    assert store.hit(((asked, "ann", 1),)).wait_us == 2 * SECOND_US
    clock.advance("3s")
    clock.advance("2m")
    for _ in range(10):
        store.hit(((other, "bob", 1),))
    assert store.stats().keys == 1


# -- debts and refusals that count -----------------------------------------------------------------------------------


async def test_debts_are_charged_through_the_limiter() -> None:
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    owed = await limiter.charge("ann", "10/minute", 25, rule="tokens")
    assert (owed.allowed, owed.remaining, owed.reset_after) == (True, 0, 60)
    assert not await limiter.hit("ann", "10/minute", rule="tokens")
    assert await limiter.hit("ann", "10/minute")
    assert await limiter.refund(owed) is True
    assert await limiter.hit("ann", "10/minute", 10, rule="tokens")


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


def test_hammering_is_counted_in_every_bucket_that_says_so_and_in_no_other() -> None:
    store = MemoryStore(clock=FakeClock())
    tight, counting, plain = (
        bucket("1/minute", "t"),
        bucket("9/minute", "c", count_denied=True),
        bucket("9/minute", "p"),
    )
    demand = ((tight, "ann", 1), (counting, "ann", 1), (plain, "ann", 1))
    assert [store.hit(demand).states[1].remaining for _ in range(4)] == [8, 7, 6, 5]
    assert store.peek(((plain, "ann", 0),)).remaining == 8
    assert store.peek(((tight, "ann", 0),)).retry_after_us == 60 * SECOND_US


def test_a_debt_in_a_full_store_is_told_like_any_other_hit() -> None:
    store, asked = MemoryStore(max_keys=1, clock=FakeClock()), bucket("5/minute")
    events: list[str] = []
    store.observe(lambda event: events.append(event.kind))
    store.charge(((asked, "ann", 1), (asked, "bob", 1)))
    assert events == ["keys_shared"]
