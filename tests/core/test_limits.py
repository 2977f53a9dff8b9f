"""Limits: how they are written, what they mean, and what is refused."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.core import Limit, parse_duration_us, parse_limits
from slidegate.core.errors import ConfigurationError, closest
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


@pytest.mark.parametrize(
    ("text", "amount", "window_us"),
    [
        ("10/minute", 10, MINUTE_US),
        ("10 per 1 minute", 10, MINUTE_US),
        ("5/2s", 5, 2_000_000),
        ("  7  /  5 m  ", 7, 5 * MINUTE_US),
        ("1/MS", 1, 1_000),
        ("1/1500us", 1, 1_500),
        ("3/1d", 3, DAY_US),
        ("3/week", 3, 7 * DAY_US),
        ("2147483647/400 days", MAX_AMOUNT, 400 * DAY_US),
        ("007/1hr", 7, 3_600_000_000),
    ],
)
def test_a_limit_is_read_as_it_is_written(text: str, amount: int, window_us: int) -> None:
    resolution = "" if window_us >= 1_000 * 64 else " @10"
    (limit,) = parse_limits(text + resolution)
    assert (limit.amount, limit.window_us) == (amount, window_us)


def test_a_set_of_limits_is_read_in_its_order_with_names_and_resolutions() -> None:
    limits = parse_limits("burst: 10/s; 600 per minute @10; the day : 5000/1d;")
    assert [(limit.name, limit.amount, limit.resolution) for limit in limits] == [
        ("burst", 10, 64),
        (None, 600, 10),
        ("the day", 5000, 64),
    ]


def test_limits_and_texts_may_be_mixed() -> None:
    limit = Limit(5, "1m")
    assert parse_limits(limit) == (limit,)
    assert parse_limits([limit, "10/h; 20/d"]) == (limit, Limit(10, "1h"), Limit(20, "1d"))
    assert parse_limits(parse_limits("5/m; 10/h")) == parse_limits(["5/m", "10/h"])
    assert len(parse_limits("5/m; 10/m @10")) == 2, "one window in two resolutions is two windows"


@pytest.mark.parametrize(
    ("value", "span_us"),
    [
        ("30s", 30_000_000),
        ("minute", MINUTE_US),
        ("2 Hours", 7_200_000_000),
        ("1500 ms", 1_500_000),
        (timedelta(minutes=5), 300_000_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=100_000_000), 100_000_000 * DAY_US),  # the most that is taken
    ],
)
def test_a_span_is_text_or_a_timedelta(value: str | timedelta, span_us: int) -> None:
    assert parse_duration_us(value) == span_us


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


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit(5, "60s"), "5/1m"),
        (Limit(5, "90s"), "5/90s"),
        (Limit(5, "2 weeks"), "5/14d"),
        (Limit(5, "1500us", resolution=10), "5/1500us @10"),
        (Limit(5, "1h", name="the api"), "the api: 5/1h"),
    ],
)
def test_a_limit_is_written_in_the_largest_unit_that_divides_it(limit: Limit, text: str) -> None:
    assert str(limit) == text
    assert repr(limit) == f"<Limit {text}>"


def test_no_advice_is_looked_for_by_comparing_words_without_end() -> None:
    assert closest("m" * 100, ["m" * 99]) == f"; did you mean '{'m' * 99}'?"
    assert closest("m" * 101, ["m" * 99]) == ""
