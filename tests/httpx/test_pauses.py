"""What servers say about pausing is read where it can be, and is harmless where it cannot."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.httpx import MAX_CHARACTERS, MAX_PAUSE_S, read_pause_us

NOW_S = 784_111_777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""


def pause_s(status: int, **fields: str) -> float | None:
    headers = httpx.Headers({name.replace("_", "-"): value for name, value in fields.items()})
    pause_us = read_pause_us(status, headers, NOW_S)
    return None if pause_us is None else pause_us / 1_000_000


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0),
        ("7", 7),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60),
        ("Sun Nov  6 08:50:37 1994", 60),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("-7", None),
        ("7.5", None),
        ("", None),
        ("\u0667", None),
        ("9" * MAX_CHARACTERS, MAX_PAUSE_S),
        ("9" * (MAX_CHARACTERS + 1), None),
    ],
)
def test_retry_after_is_seconds_or_a_date(status: int, value: str, expected: int | None) -> None:
    headers = {"retry-after": value}
    assert read_pause_us(status, headers, NOW_S) == (None if expected is None else expected * 1_000_000)


def test_retry_after_counts_on_refusals_alone() -> None:
    assert pause_s(200, retry_after="7") is None
    assert pause_s(301, retry_after="7") is None
    assert pause_s(500, retry_after="7") is None


def test_a_date_is_read_by_the_clock_of_the_server_that_wrote_it() -> None:
    ahead = "Sun, 06 Nov 1994 10:49:37 GMT"
    assert pause_s(429, retry_after=ahead, date="Sun, 06 Nov 1994 10:49:07 GMT") == 30
    assert pause_s(429, retry_after=ahead) == 7_200
    assert pause_s(429, retry_after=ahead, date="yesterday") == 7_200


@pytest.mark.parametrize(
    ("policy", "limit", "expected"),
    [
        ("", '"default";r=0;t=12', 12),
        ("", '"default";r=1;t=12', None),
        ("", '"a";r=0;t=12, "b";r=0;t=30, "c";r=5;t=90', 30),
        ('"a";q=5;w=60', '"a";r=0', 60),
        ('"b";q=5;w=60', '"a";r=0', None),
        ('"a";q=5;w=60', '"a";r=0;t=0', 0),
        ("", '"a";r=0;t=-5', None),
        ("", '"a";r=?0;t=5', None),
        ("", '("a" "b");r=0;t=5', None),
        ("", 'limit=100, remaining=0, reset=50', None),
        ("", '"a;r=0;t=12', None),
        ("", ", ".join(['"a";r=0;t=12'] * 5_000), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [200, 429])
def test_nothing_left_says_when_there_is_more(status: int, policy: str, limit: str, expected: int | None) -> None:
    headers = {"ratelimit-policy": policy, "ratelimit": limit}
    assert read_pause_us(status, headers, NOW_S) == (None if expected is None else expected * 1_000_000)


@pytest.mark.parametrize(
    ("status", "remaining", "reset", "expected"),
    [
        (200, "0", "30", 30),
        (200, "1", "30", None),
        (200, None, "30", None),
        (429, None, "30", 30),
        (200, "0", "1000000030", 30),
        (200, "0", "1000000000", 0),
        (200, "0", "999999999", 999_999_999),
        (200, "0", "-30", None),
    ],
)
def test_the_older_fields_have_seconds_or_a_moment(
    status: int, remaining: str | None, reset: str, expected: int | None
) -> None:
    headers = {"x-ratelimit-reset": reset, "date": "Sun, 09 Sep 2001 01:46:40 GMT"}
    if remaining is not None:
        headers["x-ratelimit-remaining"] = remaining
    assert read_pause_us(status, headers, NOW_S) == (None if expected is None else expected * 1_000_000)


def test_retry_after_comes_before_the_other_fields() -> None:
    fields = {"ratelimit": '"a";r=0;t=40', "x_ratelimit_remaining": "0", "x_ratelimit_reset": "50"}
    assert pause_s(429, retry_after="30", **fields) == 30
    assert pause_s(429, retry_after="soon", **fields) == 40
    assert pause_s(200, retry_after="30", **fields) == 40
    del fields["ratelimit"]
    assert pause_s(503, **fields) == 50


FIELDS = ("retry-after", "date", "ratelimit", "ratelimit-policy", "x-ratelimit-remaining", "x-ratelimit-reset")
TEXT = st.text(max_size=60) | st.text('"a;rtw=0123456789, ()?@:', max_size=60) | st.dates().map(str)


@given(st.sampled_from([200, 429, 503]), st.dictionaries(st.sampled_from(FIELDS), TEXT))
@example(429, {"retry-after": "Fri, 31 Dec 9999 23:59:60 -9999"})
@example(429, {"retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"})
@example(429, {"retry-after": "9" * 65_536})
@example(429, {"x-ratelimit-reset": "9" * 4_000})
@example(429, {"retry-after": "1" + "0" * 20})
@example(200, {"ratelimit": "(" * 65_536})
@example(200, {"ratelimit": "@"})
@example(200, {"ratelimit": '"a";r=0;t=999999999999999'})
def test_no_field_raises_and_no_pause_is_negative(status: int, headers: dict[str, str]) -> None:
    pause_us = read_pause_us(status, headers, NOW_S)
    assert pause_us is None or pause_us >= 0
