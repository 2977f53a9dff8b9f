"""Totals over several windows: against a plain list of amounts, at every moment, to the last unit."""

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core import RollingTotals

from ...racing import THREADS, race
from .plain import Plain, spans_us


class Program(NamedTuple):
    """Windows and what is added to them: (step, negative where the clock steps back; amount)."""

    slice_us: int
    windows_us: list[int]
    start_us: int
    moves: list[tuple[int, int]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    slice_us = draw(st.integers(1, 50))
    slices = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True))
    amount = st.one_of(st.integers(-100, 100), st.integers(-(2**80), 2**80))
    moves = draw(st.lists(st.tuples(spans_us(slice_us, max(slices) * slice_us), amount), max_size=30))
    return Program(slice_us, [count * slice_us for count in slices], draw(st.integers(0, 10**6)), moves)


@given(programs())
@example(Program(2, [20], 0, [(0, 1), (1, 1), (1, 1)]))
def test_totals_are_those_of_a_plain_list_at_every_moment(made: Program) -> None:
    totals = RollingTotals(made.slice_us, made.windows_us)
    plain, now_us = Plain[int](made.slice_us, max(made.windows_us) // made.slice_us + 1), made.start_us
    assert totals.windows_us == tuple(made.windows_us)

    def sums(end: int) -> dict[int, int]:
        return {span_us: sum(plain.within(end - span_us // made.slice_us, end)) for span_us in made.windows_us}

    for span_us, amount in made.moves:
        now_us = max(now_us + span_us, 0)
        totals.add(now_us, amount)
        plain.add(now_us, amount)
        assert totals.dropped == plain.dropped
        for look_us in (now_us, now_us + made.slice_us, max(now_us - 2 * made.slice_us, 0), now_us + 10**9):
            number = look_us // made.slice_us
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
