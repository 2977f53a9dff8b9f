"""Amounts that change while they are counted by: the bound holds, and whoever has prepared a question learns of it."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import MemoryStore, Quota
from slidegate.core import AnyLimit, Bucket, Concurrency, Decision, Limit, Reason
from slidegate.testing import FakeClock

from ..hurry import at_once

WINDOW_US = 10_000_000
RESOLUTION = 8
AMOUNTS = st.sampled_from([1, 3, 7, 8, 9, 20])  # on both sides of the resolution
HITS = st.tuples(st.just("hit"), st.integers(0, 6))
STEPS = st.tuples(st.just("step"), st.integers(0, WINDOW_US // 2))
CHANGES = st.tuples(st.just("become"), AMOUNTS)
MOVES = st.lists(st.one_of(HITS, HITS, STEPS, CHANGES), max_size=60)


def buckets(amount: int) -> tuple[Bucket, Bucket]:
    """Return a bucket and one that is derived of it."""
    bucket = Bucket("api", [Limit(amount, "10s", resolution=RESOLUTION)])
    derived = bucket.under("other")
    derived.count_denied = True
    return bucket, derived


def shown(decision: Decision) -> tuple[object, ...]:
    return decision.reason, decision.readings, decision.remaining, decision.retry_after_us, decision.reset_after_us


@given(AMOUNTS, st.sampled_from([1, 2]), MOVES)
def test_prepared_questions_follow_a_changed_amount_and_the_bound_holds(
    amount: int, cost: int, moves: list[tuple[str, int]]
) -> None:
    clock, admitted = FakeClock(10**12), list[int]()
    store, fresh = MemoryStore(clock=clock), MemoryStore(clock=clock)
    bucket, derived = buckets(amount)
    question = store.prepare([(bucket, "ann", cost), (derived, "ann", 1)])
    for move, number in moves:
        if move == "step":
            clock.advance(us=number)
        elif move == "become":
            bucket.limits[0].become(number)
            amount = number
        for _ in range(number if move == "hit" else 0):
            own, other = buckets(amount)
            decision = store.ask(question)
            assert shown(decision) == shown(fresh.hit([(own, "ann", cost), (other, "ann", 1)]))
            if decision:
                admitted.append(clock.now_us)
                assert cost * sum(at_us > clock.now_us - WINDOW_US for at_us in admitted) <= amount
    assert [one.amount for one in bucket.limits + derived.limits] == [amount, amount]


def test_hits_of_several_threads_pass_no_more_than_the_largest_amount() -> None:
    store, bucket = MemoryStore(), Bucket("api", [Limit(50, "1h", resolution=64)])
    question, at_work = store.prepare([(bucket, "ann", 1)]), {*range(4)}

    def work(number: int) -> int:
        while number == 4 and at_work:
            for amount in (300, 10, 64, 65, 200):  # exact or not
                bucket.limits[0].become(amount)
        try:
            return sum(store.ask(question).allowed for _ in range(4_000 if number < 4 else 0))
        finally:
            at_work.discard(number)

    admitted = sum(at_once(work, 5))
    bucket.limits[0].become(300)
    while store.ask(question):
        admitted += 1
    assert admitted == 300


def test_what_a_user_made_never_changes() -> None:
    made = [Limit(5, "1m"), Quota("10/day"), Concurrency(3)]
    texts, bucket = list(map(str, made)), Bucket("api", made)
    for one in bucket.limits:
        one.become(2)
    assert (list(map(str, made)), list(map(hash, made))) == (texts, list(map(hash, pickle.loads(pickle.dumps(made)))))
    assert [one.amount for one in bucket.limits] == [2, 2, 2]


def test_quotas_and_permits_are_refused_by_the_amount_that_holds_now() -> None:
    store = MemoryStore(clock=FakeClock(10**15))
    for one in (Quota("4/day"), Concurrency(4)):
        bucket = Bucket(type(one).__name__, [one])
        question = store.prepare([(bucket, "ann", 1)])
        assert store.ask(question)
        assert store.ask(question)
        bucket.limits[0].become(2)
        assert store.ask(question).reason is Reason.LIMITED
        bucket.limits[0].become(3)
        assert store.ask(question)


@pytest.mark.parametrize(
    "one",
    [
        Limit(5, "1m", resolution=10, name="burst"),
        Quota("5/month", zone="Europe/Berlin", starts=15, name="plan"),
        Concurrency(5, name="permits"),
    ],
    ids=str,
)
def test_a_limit_with_another_amount_differs_in_nothing_else(one: AnyLimit) -> None:
    other = one.own()
    other.become(9)
    assert (other.amount, other.name, other.same_window) == (9, one.name, one.same_window)
    assert other != one
    other.become(5)
    assert other == one
