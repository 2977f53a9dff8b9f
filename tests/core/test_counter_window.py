"""Counts by the slice: the three readings of a window, checked against a plain list and by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import CounterWindow
from slidegate.core.ring import MAX_UNITS


@given(
    st.integers(1, 12),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(-300, 300) | st.just(10**15), st.integers(0, 9)), max_size=40),
    st.integers(0, 2_000),
)
def test_the_three_readings_are_those_of_a_plain_list(
    slices: int, slice_us: int, moves: list[tuple[int, int]], later_us: int
) -> None:
    """Where the clock steps back, what lies ahead moves into the slice of now, and nothing is revived."""
    window, now_us, made = CounterWindow(slices, slice_us), 10**6, list[tuple[int, int]]()
    for span_us, units in moves:
        now_us += span_us
        window.add(now_us, units)
        if units:
            number = now_us // slice_us
            made = [(min(at, number), some) for at, some in made if at >= number - slices] + [(number, units)]
    for look_us in (now_us, now_us + later_us):
        number = max(look_us // slice_us, max(made, default=(0, 0))[0])
        by_slice = [sum(units for at, units in made if at == number - back) for back in range(slices, -1, -1)]
        starts_us = [(number - back) * slice_us for back in range(slices, -1, -1)]
        assert window.slices(look_us) == list(zip(starts_us, by_slice, strict=True))
        assert window.total(look_us) == sum(by_slice)
        assert window.classic(look_us) == sum(by_slice[1:])
        assert window.completed(look_us) == sum(by_slice[:-1])


def test_a_window_that_would_overflow_is_an_error_and_stays_as_it_is() -> None:
    window = CounterWindow(slices=2, slice_us=100)
    window.add(0, MAX_UNITS - 1)
    with pytest.raises(ValueError, match=f"at most {MAX_UNITS} units, so there is no room for 2 more"):
        window.add(150, 2)
    window.add(150, 1)
    assert (window.total(150), window.classic(250)) == (MAX_UNITS, 1)
    window.add(300, MAX_UNITS - 1)
