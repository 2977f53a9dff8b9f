"""What servers say about pausing is read where it can be, and is harmless where it cannot."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.httpx import read_pause_us

NOW_S = 784_111_777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""


def pause_s(status: int, **fields: str) -> float | None:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
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
        ("-7", None),
        ("7.5", None),
        ("\u0667", None),
        ("9" * 13, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(status: int, value: str, expected: int | None) -> None:
    assert pause_s(status, retry_after=value) == expected


@pytest.mark.parametrize("status", [200, 301, 403, 500])
def test_only_refusals_ask_for_pauses(status: int) -> None:
    assert pause_s(status, retry_after="7", ratelimit='"a";r=0;t=7', x_ratelimit_reset="7") is None


def test_a_date_is_read_by_the_clock_of_the_server_that_wrote_it() -> None:
    ahead = "Sun, 06 Nov 1994 10:49:37 GMT"
    assert pause_s(429, retry_after=ahead, date="Sun, 06 Nov 1994 10:49:07 GMT") == 30
    assert pause_s(429, retry_after=ahead) == 7_200
    assert pause_s(429, retry_after=ahead, date="yesterday") == 7_200


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"default";r=0;t=12', 12),
        ('"default";r=1;t=12', None),
        ('"a";r=0;t=12, "b";r=0;t=30, "c";r=5;t=90', 30),
        ('"a";r=0', None),
        ('"a";r=0;t=-5', None),
        ('"a;r=0;t=12', None),
        (", ".join(['"a";r=0;t=12'] * 5_000), None),
    ],
)
def test_a_limit_with_nothing_left_says_when_there_is_more(value: str, expected: int | None) -> None:
    assert pause_s(429, ratelimit=value) == expected


@pytest.mark.parametrize(("reset", "expected"), [("30", 30), ("1000000030", 30), ("1000000000", 0), ("-30", None)])
def test_the_older_field_has_seconds_or_a_moment(reset: str, expected: int | None) -> None:
    assert pause_s(429, x_ratelimit_reset=reset, date="Sun, 09 Sep 2001 01:46:40 GMT") == expected


def test_retry_after_comes_before_the_other_fields() -> None:
    fields = {"ratelimit": '"a";r=0;t=40', "x_ratelimit_reset": "50"}
    assert pause_s(429, retry_after="30", **fields) == 30
    assert pause_s(429, retry_after="soon", **fields) == 40
    assert pause_s(429, x_ratelimit_reset="50") == 50
    assert pause_s(503, **fields) is None


FIELDS = ("retry-after", "date", "ratelimit", "x-ratelimit-reset")
TEXT = st.text(max_size=60) | st.text('"a;rtw=0123456789, ()?@:', max_size=60) | st.dates().map(str)


@given(st.sampled_from([200, 429, 503]), st.dictionaries(st.sampled_from(FIELDS), TEXT))
@example(429, {"retry-after": "Fri, 31 Dec 9999 23:59:60 -9999"})
@example(429, {"retry-after": "9" * 65_536})
@example(429, {"x-ratelimit-reset": "9" * 4_000})
@example(429, {"ratelimit": "(" * 65_536})
@example(429, {"ratelimit": '"a";r=0;t=999999999999999'})
def test_no_field_raises_and_no_pause_is_negative(status: int, headers: dict[str, str]) -> None:
    pause_us = read_pause_us(status, headers, NOW_S)
    assert pause_us is None or pause_us >= 0
