"""Valid requests of servers to pause are parsed; invalid ones are ignored."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate.httpx import read_pause_us

NOW_S = 1_700_000_000.0
"""Tue, 14 Nov 2023 22:13:20 GMT."""


def read_s(fields: dict[str, str], status: int = 429) -> float | None:
    pause_us = read_pause_us(status, fields, NOW_S)
    return None if pause_us is None else pause_us / 1_000_000


def http_date(moment_s: float) -> str:
    return format_datetime(datetime.fromtimestamp(moment_s, UTC), usegmt=True)


def duration(span_s: float) -> str:
    whole, ms = divmod(round(span_s * 1_000), 1_000)
    return f"{whole // 3600}h{whole // 60 % 60}m{whole % 60}.{ms:03}s"


FORMATS: dict[str, tuple[Callable[[float], dict[str, str]], float]] = {
    "seconds": (lambda s: {"retry-after": f"{s:.0f}"}, 1),
    "fraction": (lambda s: {"retry-after": f"{s:.3f}"}, 0.001),
    "date": (lambda s: {"retry-after": http_date(NOW_S + s)}, 1),
    "date of a server ahead": (lambda s: {"retry-after": http_date(NOW_S + s + 99), "date": http_date(NOW_S + 99)}, 1),
    "milliseconds": (lambda s: {"retry-after-ms": f"{s * 1_000:.0f}"}, 0.001),
    "draft 3": (lambda s: {"ratelimit-limit": "9", "ratelimit-remaining": "0", "ratelimit-reset": f"{s:.0f}"}, 1),
    "draft 7": (lambda s: {"ratelimit": f"limit=100, remaining=0, reset={s:.0f}"}, 1),
    "draft 8": (lambda s: {"ratelimit": f'"100-in-1min"; r=0; t={s:.0f}'}, 1),
    "draft 11": (lambda s: {"ratelimit": f'"a,\\"r=9";r=7;t=0, "b";t={s:.0f};r=0;pk=:cGsx:'}, 1),
    "reset in seconds": (lambda s: {"x-ratelimit-reset": f"{s:.0f}"}, 1),
    "reset as Unix time": (lambda s: {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW_S + s:.3f}"}, 0.001),
    "requests": (lambda s: {"x-ratelimit-reset-requests": duration(s)}, 0.001),
    "tokens": (
        lambda s: {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": f"{s * 1_000:.0f}ms"},
        0.001,
    ),
}


@pytest.mark.parametrize("written", FORMATS)
@given(span_s=st.floats(0, 86_400))
def test_a_duration_is_read_as_it_was_written(written: str, span_s: float) -> None:
    write, precision_s = FORMATS[written]
    read = read_s(write(span_s))
    assert read is not None
    assert abs(read - span_s) <= precision_s


def pause_of(response: str) -> str:
    """Return the pause of a response: its status and fields, between bars."""
    status, *fields = response.split(" | ")
    pause_s = read_s(dict(field.split(": ", 1) for field in fields), int(status))
    return "no pause" if pause_s is None else f"{pause_s:g} s"


def test_responses_ask_for_pauses(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("pauses.txt"), "> ", pause_of)
    assert read_s({"ratelimit": ", ".join(['"a";r=0;t=12'] * 5_000)}) is None


def test_dates_are_in_utc_wherever_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(time, "tzset"):
        pytest.skip("Windows has no time.tzset")
    try:
        with monkeypatch.context() as changed:
            changed.setenv("TZ", "America/New_York")
            time.tzset()
            assert read_s({"retry-after": "Tue Nov 14 22:14:20 2023"}) == 60
    finally:
        time.tzset()


NAMES = ("retry-after-ms", "retry-after", "ratelimit", "ratelimit-reset", "ratelimit-remaining", "date")
NAMES += tuple(f"x-ratelimit-{what}{of}" for what in ("reset", "remaining") for of in ("", "-requests", "-tokens"))
WRITTEN = st.text('"a;rtw=0123456789, ()?@:.-hms\\', max_size=60) | st.dates().map(str) | st.floats().map(str)
VALUES = st.binary(max_size=60) | WRITTEN.map(str.encode)


@given(st.sampled_from([403, 429, 503]), st.lists(st.tuples(st.sampled_from(NAMES).map(str.encode), VALUES)))
@example(429, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:60 -9999")])
@example(429, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:60 +" + b"9" * 40)])
@example(429, [(b"retry-after", b"inf"), (b"retry-after-ms", b"9" * 10_000)])
@example(429, [(b"retry-after", "7\u00b2".encode()), (b"x-ratelimit-reset", b"9" * 4_000)])
@example(429, [(b"ratelimit", b'"' + b'\\"' * 2_000 + b"\\")])
@example(429, [(b"ratelimit", b"r=0;t=" + b"9" * 1_000)])
@example(429, [(b"x-ratelimit-reset-tokens", b"999999999999h" * 300)])
def test_no_bytes_raise_and_no_pause_is_negative(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    pause_us = read_pause_us(status, httpx.Headers(headers), NOW_S)
    assert pause_us is None or pause_us >= 0
