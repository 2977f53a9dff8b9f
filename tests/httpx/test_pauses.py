"""Valid requests of servers to pause are parsed; invalid ones are ignored."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.httpx import read_pause_us

NOW_S = 784_111_777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""


ALL = {"retry-after": "7", "ratelimit": '"a";r=0;t=40', "x-ratelimit-reset": "50"}
LATE = "Sun, 06 Nov 1994 10:49:37 GMT"
PAUSES: list[tuple[dict[str, str], float | None]] = [
    ({"retry-after": "0"}, 0),
    ({"retry-after": "Sun, 06 Nov 1994 08:50:37 GMT"}, 60),
    ({"retry-after": "Sun Nov  6 08:50:37 1994"}, 60),
    ({"retry-after": "-7"}, None),
    ({"retry-after": "7.5"}, None),
    ({"retry-after": "\u0667"}, None),
    ({"retry-after": "9" * 13}, None),
    # A date is relative to the clock of the server.
    ({"retry-after": LATE, "date": "Sun, 06 Nov 1994 10:49:07 GMT"}, 30),
    ({"retry-after": LATE}, 7_200),
    ({"retry-after": LATE, "date": "yesterday"}, 7_200),
    ({"ratelimit": '"default";r=0;t=12'}, 12),
    ({"ratelimit": '"default";r=1;t=12'}, None),
    ({"ratelimit": '"a";r=0;t=12, "b";r=0;t=30, "c";r=5;t=90'}, 30),
    ({"ratelimit": '"a";r=0;t=0'}, 0),
    ({"ratelimit": '"a";r=0'}, None),
    ({"ratelimit": '"a";r=0;t=-5'}, None),
    ({"ratelimit": '"a;r=0;t=12'}, None),
    ({"ratelimit": ", ".join(['"a";r=0;t=12'] * 5_000)}, None),
    ({"x-ratelimit-reset": "30"}, 30),
    ({"x-ratelimit-reset": "1000000030", "date": "Sun, 09 Sep 2001 01:46:40 GMT"}, 30),
    ({"x-ratelimit-reset": "1000000000", "date": "Sun, 09 Sep 2001 01:46:40 GMT"}, 0),
    ({"x-ratelimit-reset": "-30"}, None),
    (ALL, 7),
    ({**ALL, "retry-after": "soon"}, 40),
]


@pytest.mark.parametrize(("fields", "expected"), PAUSES)
def test_a_refusal_says_for_how_long_in_the_first_field_that_can_be_read(
    fields: dict[str, str], expected: float | None
) -> None:
    expected_us = None if expected is None else expected * 1_000_000
    assert read_pause_us(429, fields, NOW_S) == expected_us
    of_overload = expected_us if fields.get("retry-after", "soon") != "soon" else None
    assert read_pause_us(503, fields, NOW_S) == of_overload
    assert [read_pause_us(status, fields, NOW_S) for status in (200, 301, 403, 500)] == [None] * 4


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
