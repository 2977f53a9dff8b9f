"""Limits: how they are written, what they mean, and what is refused."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core import Limit, parse_duration_us, parse_limits
from slidegate.core.errors import ConfigurationError
from slidegate.core.limits import MAX_AMOUNT, MAX_WINDOW_US

MINUTE_US = 60_000_000
DAY_US = 86_400_000_000
NAMES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters=":;"), min_size=1, max_size=64)


@st.composite
def any_limits(draw: st.DrawFn) -> Limit:
    window_us = draw(st.one_of(st.sampled_from([1_000, MINUTE_US, DAY_US]), st.integers(1_000, MAX_WINDOW_US)))
    return Limit(
        draw(st.integers(1, MAX_AMOUNT)),
        timedelta(microseconds=window_us),
        resolution=draw(st.integers(1, min(3_600, window_us // 10))),
        name=draw(st.none() | NAMES.filter(lambda name: name == name.strip())),
    )


@example(50)
@given(st.integers(0, 10**12))
def test_a_number_without_a_unit_is_refused_with_both_that_may_be_meant(number: int) -> None:
    for written in (number, str(number)):
        with pytest.raises(ConfigurationError) as refused:
            parse_duration_us(written, "deadline")  # type: ignore[arg-type]
        assert str(refused.value) == f'deadline: which unit? Write "{number}ms" or "{number}s", not {written!r}'


@given(st.floats() | st.integers(max_value=-1) | st.booleans() | st.none())
def test_what_is_neither_text_nor_a_timedelta_is_no_span(value: object) -> None:
    with pytest.raises(ConfigurationError, match="expected a duration, for example"):
        parse_duration_us(value)  # type: ignore[arg-type]


@given(st.lists(any_limits(), min_size=1, max_size=4, unique_by=lambda limit: limit.same_window))
def test_a_written_set_reads_back_as_the_same(limits: list[Limit]) -> None:
    assert list(parse_limits("; ".join(map(str, limits)))) == limits


@example(Limit(5, "1m"), Limit(5, "1m", name="api"))
@given(any_limits(), any_limits())
def test_equal_limits_hash_equal(one: Limit, other: Limit) -> None:
    again = Limit(one.amount, timedelta(microseconds=one.window_us), resolution=one.resolution, name=one.name)
    assert one == again
    assert hash(one) == hash(again)
    same = (one.amount, one.same_window, one.name) == (other.amount, other.same_window, other.name)
    assert (one == other) is same


@given(any_limits())
def test_slices_cover_the_window_and_are_no_more_than_asked_for(limit: Limit) -> None:
    assert limit.slice_us >= 10
    assert limit.slices <= limit.resolution
    assert limit.window_us <= limit.slices * limit.slice_us < limit.window_us + limit.slice_us
    assert (limit.slices + 1) * limit.slice_us < limit.window_us + 2 * limit.slice_us
