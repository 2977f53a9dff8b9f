"""Limits: how they are written, what they mean, and what is refused."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import ConfigurationError, Limit, parse_duration_us, parse_limits
from slidegate.core.errors import closest
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


# -- reading ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("1/month", "a month has no fixed length; write \"30 days\", not 'month'"),
        ("10/second, 100/minute", "several are separated by \";\": write '10/second; 100/minute'"),
        ("100/10", 'which unit? write "100/10s" if seconds are meant'),
    ],
)
def test_what_other_libraries_write_is_answered_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_limits(text)
    assert advice in str(caught.value)


@pytest.mark.parametrize("text", [" " * 80_000, "5/" + " " * 80_000, "5/minute" + ";" * 80_000, "x" * 4_097])
def test_a_text_that_is_too_long_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected at most 4096 characters") as caught:
        parse_limits(text)
    assert len(str(caught.value)) < 400


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
        (90, 90_000_000),
        (0.25, 250_000),
        (timedelta(minutes=5), 300_000_000),
        (timedelta(microseconds=1), 1),
        (2**63 // 1_000_000, 2**63 // 1_000_000 * 1_000_000),  # the most that 64 bits hold
    ],
)
def test_a_span_is_text_seconds_or_a_timedelta(value: object, span_us: int) -> None:
    assert parse_duration_us(value) == span_us  # type: ignore[arg-type]


# -- what a limit is -------------------------------------------------------------------------------------------------


@given(st.lists(any_limits(), min_size=1, max_size=4, unique_by=lambda limit: limit.same_window))
def test_a_written_set_reads_back_as_the_same(limits: list[Limit]) -> None:
    assert list(parse_limits("; ".join(map(str, limits)))) == limits


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


def test_a_limit_cannot_be_changed() -> None:
    limit = Limit(5, "1m")
    with pytest.raises(AttributeError, match="cannot assign to field"):
        limit.amount = 6  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del limit.amount  # type: ignore[misc]
    assert limit.amount == 5


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit(5, 60), "5/1m"),
        (Limit(5, 90), "5/90s"),
        (Limit(5, "2 weeks"), "5/14d"),
        (Limit(5, 0.0015, resolution=10), "5/1500us @10"),
        (Limit(5, "1h", name="the api"), "the api: 5/1h"),
    ],
)
def test_a_limit_is_written_in_the_largest_unit_that_divides_it(limit: Limit, text: str) -> None:
    assert str(limit) == text
    assert repr(limit) == f"<Limit {text}>"


# -- what is refused -------------------------------------------------------------------------------------------------

BAD_TEXTS = [
    # (text, what the message names)
    ("", "'' at column 1"),
    ("10", "'10' at column 1"),
    ("1.5/m", "'1.5/m' at column 1"),
    ("0/m", "amount: expected a whole number from 1 to 2147483647"),
    ("9999999999999999999999/m", "'9999999999999999999999/m' at column 1"),
    ("10/0s", "window: expected more than nothing"),
    ("10/minutez", "did you mean 'minute'?"),
    ("10/1m30s", "'10/1m30s' at column 1"),
    ("10/999us", "window: expected 1ms to 400d"),
    ("\uff11\uff10/m", "'\uff11\uff10/m' at column 1"),
    ("1_000/m", "'1_000/m' at column 1"),
    ("10/m; 5/s junk", "'5/s junk' at column 7"),
    ("api: ", "'api:' at column 1"),
    ("a:b: 5/m", "'a:b: 5/m' at column 1"),
    ("caf\u00e9: 5/m", "'\u00e9' in 'caf\u00e9' is not allowed"),
    ("5/m @0", "resolution: expected a whole number from 1 to 3600"),
    ("5/1ms @101", "use at most 100"),
]


@pytest.mark.parametrize(("text", "named"), BAD_TEXTS)
def test_a_bad_limit_names_the_part_its_column_and_an_example(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_limits(text)
    message = str(caught.value)
    assert named in message
    assert '"5/minute; 100 per 2 hours; 10/30s"' in message
    assert re.search(r"at column \d+ of ", message)
    assert repr(text) in message


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ([], "at least one"),
        (5, "not 5"),
        (None, "not None"),
        ([5], "not 5"),
        ("5/m; 10/60s", "'5/1m' and '10/1m' have the same window"),
        ([Limit(5, "1m"), Limit(5, "1m")], "'5/1m' and '5/1m' have the same window"),
        ([Limit(5, "1m", name="a"), "b: 6/m"], "'a: 5/1m' and 'b: 6/1m' have the same window"),
    ],
)
def test_a_bad_set_of_limits_says_what_is_wrong_with_it(limits: object, named: str) -> None:
    with pytest.raises(ConfigurationError, match="limits: ") as caught:
        parse_limits(limits)  # type: ignore[arg-type]
    assert named in str(caught.value)


BAD_ARGUMENTS = [
    ({"amount": 0}, "amount: expected a whole number from 1 to 2147483647"),
    ({"amount": 2**31}, "not 2147483648"),
    ({"amount": True}, "not True"),
    ({"window": ""}, "window: expected a number and a unit"),
    ({"window": 0}, "window: expected more than nothing"),
    ({"window": float("inf")}, "window: expected a span of time"),
    ({"window": True}, "window: expected a span of time"),
    ({"window": 0.0009}, "window: expected 1ms to 400d"),
    ({"window": 400 * 86_400 + 1}, "window: expected 1ms to 400d"),
    ({"window": 1e300}, "window: expected at most 292,000 years"),
    ({"amount": 10**6_000}, "not <int that cannot be written: ValueError>"),
    ({"resolution": 0}, "resolution: expected a whole number from 1 to 3600"),
    ({"resolution": 1.5}, "not 1.5"),
    ({"window": 0.001, "resolution": 101}, "use at most 100"),
    ({"name": ""}, "limit name: expected 1 to 64 characters"),
    ({"name": "x" * 65}, "limit name: expected 1 to 64 characters"),
    ({"name": "a:b"}, "':' in 'a:b' is not allowed"),
    ({"name": "a\nb"}, r"'\n' in 'a\nb' is not allowed"),
    ({"name": "\u00fc"}, "'\u00fc' in '\u00fc' is not allowed"),
    ({"name": " a"}, "starts or ends with a space; write 'a'"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS)
def test_a_bad_argument_says_which_and_what_to_write(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Limit(**{"amount": 100, "window": "1m", **arguments})  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert named in message
    assert re.search("for example|write '|use at most|use printable", message)


def test_no_advice_is_looked_for_by_comparing_words_without_end() -> None:
    assert closest("minut", ["minute"]) == "; did you mean 'minute'?"
    assert closest("minute" * 100_000, ["minute"]) == ""
