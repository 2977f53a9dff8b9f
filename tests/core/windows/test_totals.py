"""Totals over several windows: against a plain list of amounts, at every moment, to the last unit."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core import RollingTotals

from ...racing import THREADS, race
from .plain import SPANS, Plain

AMOUNTS = st.integers(-100, 100) | st.integers(-(2**80), 2**80)


@given(
    st.integers(1, 50),
    st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    st.integers(0, 10**6),
    st.lists(st.tuples(SPANS, AMOUNTS), max_size=30),
)
@example(2, [10], 0, [(0.0, 1), (0.5, 1), (0.5, 1)])
def test_totals_are_those_of_a_plain_list_at_every_moment(
    slice_us: int, windows: list[int], now_us: int, moves: list[tuple[float, int]]
) -> None:
    windows_us = [slices * slice_us for slices in windows]
    totals, plain = RollingTotals(slice_us, windows_us), Plain[int](slice_us, max(windows) + 1)
    assert totals.windows_us == tuple(windows_us)

    def sums(end: int) -> dict[int, int]:
        return {slices * slice_us: sum(plain.within(end - slices, end)) for slices in windows}

    for span, amount in moves:
        now_us = max(now_us + round(span * slice_us), 0)
        totals.add(now_us, amount)
        plain.add(now_us, amount)
        assert totals.dropped == plain.dropped
        for look_us in (now_us, now_us + slice_us, max(now_us - 2 * slice_us, 0), now_us + 10**9):
            number = look_us // slice_us
            assert totals.completed(look_us) == sums(number)
            assert totals.running(look_us) == sums(number + 1)


@pytest.mark.parametrize("amount", [0.5, 1.0, True, "1", None])
def test_an_amount_that_would_drift_is_refused_and_changes_nothing(amount: Any) -> None:
    totals = RollingTotals(10, [20])
    with pytest.raises(ValueError, match="amount: expected a whole number, for example 1999 cents, not "):
        totals.add(0, amount)
    assert totals.running(0) == {20: 0}


def test_eight_threads_that_meet_at_the_change_of_a_slice_lose_nothing() -> None:
    totals, rounds = RollingTotals(10, [1_000]), 100
    race(lambda number, thread: totals.add(number * totals.slice_us, thread - 2), rounds)
    end_us = (rounds - 1) * totals.slice_us
    assert totals.running(end_us) == {1_000: rounds * sum(thread - 2 for thread in range(THREADS))}
    assert totals.completed(end_us + totals.slice_us) == totals.running(end_us)
