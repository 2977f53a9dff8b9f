"""Totals over several windows: against a plain list of amounts, at every moment, to the last unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core import RollingTotals

from ...racing import THREADS, race


class Program(NamedTuple):
    """Windows and what is added to them: (step, negative where the clock steps back; amount)."""

    slice_us: int
    windows_us: list[int]
    start_us: int
    moves: list[tuple[int, int]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draw short steps, gaps, jumps longer than the ring, and steps back."""
    slice_us = draw(st.integers(1, 50))
    slices = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True))
    ring_us = max(slices) * slice_us
    span_us = st.one_of(
        st.integers(0, slice_us), st.just(slice_us), st.integers(0, 2 * ring_us), st.integers(-2 * ring_us, 0)
    )
    amount = st.one_of(st.integers(-100, 100), st.integers(-(2**80), 2**80))
    moves = draw(st.lists(st.tuples(span_us, amount), max_size=30))
    return Program(slice_us, [count * slice_us for count in slices], draw(st.integers(0, 10**6)), moves)


class Plain:
    """The same as a list of everything that was accepted."""

    def __init__(self, made: Program) -> None:
        self.made = made
        self.longest = max(made.windows_us) // made.slice_us
        self.newest: int | None = None
        self.dropped = 0
        self.held: list[tuple[int, int]] = []

    def add(self, now_us: int, amount: int) -> None:
        number = now_us // self.made.slice_us
        if self.newest is not None and number < self.newest - self.longest:
            self.dropped += 1
            return
        self.newest = number if self.newest is None else max(number, self.newest)
        self.held.append((number, amount))

    def totals(self, end: int) -> dict[int, int]:
        """Sum, for each window, the slices that end before `end`, those that the ring has let go of left out."""
        oldest = 0 if self.newest is None else self.newest - self.longest
        return {
            window_us: sum(
                amount
                for number, amount in self.held
                if max(end - window_us // self.made.slice_us, oldest) <= number < end
            )
            for window_us in self.made.windows_us
        }


@given(programs())
@example(Program(2, [20], 0, [(0, 1), (1, 1), (1, 1)]))
def test_totals_are_those_of_a_plain_list_at_every_moment(made: Program) -> None:
    totals, plain = RollingTotals(made.slice_us, made.windows_us), Plain(made)
    assert totals.windows_us == tuple(made.windows_us)
    now_us = made.start_us
    for span_us, amount in made.moves:
        now_us = max(now_us + span_us, 0)
        totals.add(now_us, amount)
        plain.add(now_us, amount)
        assert totals.dropped == plain.dropped
        for look_us in (now_us, now_us + made.slice_us, max(now_us - 2 * made.slice_us, 0), now_us + 10**9):
            number = look_us // made.slice_us
            assert totals.completed(look_us) == plain.totals(number)
            assert totals.running(look_us) == plain.totals(number + 1)


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
