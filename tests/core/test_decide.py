"""A question is a set of windows: what it contains twice counts once, with the larger cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slidegate import MemoryStore
from slidegate.core import Bucket, Check, Decision, decide, merged, parse_limits
from slidegate.testing import FakeClock

BUCKETS = [Bucket(name, parse_limits(limits)) for name in ("a", "b") for limits in ("5/minute", "9/hour; 70/day")]
CHECKS = st.lists(st.tuples(st.sampled_from(BUCKETS), st.sampled_from(["ann", "bob"]), st.integers(0, 10)), max_size=8)


def answer(checks: list[Check]) -> Decision:
    return MemoryStore(clock=FakeClock(10**12)).hit(checks)


@given(CHECKS)
def test_a_window_given_twice_counts_the_larger_cost(checks: list[Check]) -> None:
    largest: dict[tuple[Bucket, str], int] = {}
    for bucket, key, cost in checks:
        largest[bucket, key] = max(cost, largest.get((bucket, key), 0))
    asked = merged(checks)
    assert {(bucket, key): cost for bucket, key, cost in asked} == largest
    assert len(asked) == len(largest)
    decision = answer([*asked])
    assert decision.allowed is all(
        max(cost, 1) <= limit.amount for (bucket, _), cost in largest.items() for limit in bucket.limits
    )
    if decision.allowed:
        charged = {(one.check[0], one.check[1]): one.units for one in decision.reservations}
        assert all(set(charged[which]) == {cost} for which, cost in largest.items())


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4))
def test_keys_of_one_question_that_share_a_cell_fit_if_each_of_them_fits(costs: list[int]) -> None:
    bucket = BUCKETS[0]
    counter = bucket.limits[0].counter
    checks = [(bucket, f"key-{number}", cost) for number, cost in enumerate(costs)]
    cells: dict[object, bytes] = {7: b""}
    decision = decide(checks, [(counter, cost, cells, 7) for _, _, cost in checks], 10**12)
    assert decision.allowed is (max(costs) <= 5)
    assert counter.state(cells[7], 10**12)[0] == (max(costs) if decision.allowed else 0)
    assert not any(any(one.units) for one in decision.reservations)
