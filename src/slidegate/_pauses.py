"""The pause that a server asks for in the header fields of a response, whichever of the usual fields it writes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

_SEPARATE: Final = ("ratelimit-{}", "x-ratelimit-{}", "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens")
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]*)?)(h|ms|m|s|(?![0-9.]))")  # 12 digits are 31,000 years
_PAIR: Final = re.compile(r"(?<![\w.*-])([a-z]+)=([0-9]+)(?![0-9.])")  # not within another name or a decimal
_UNIT_S: Final = {"h": 3_600, "m": 60, "s": 1, "": 1, "ms": 0.001}


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return the pause that a response requests, in microseconds; None if it requests none.

    It is the first valid one of:

    1. `retry-after-ms` in milliseconds.
    2. `Retry-After` (RFC 9110, 10.2.3) in seconds, also with a fraction, or as a date.
    3. With a status below 500, in `RateLimit` (draft-ietf-httpapi-ratelimit-headers-07 to -11) the longest time to the
       reset of a quota of which 0 remains.
    4. With a status below 500, the same in `RateLimit-Reset` (-03 to -06), `X-RateLimit-Reset`, and
       `X-RateLimit-Reset-Requests` and `-Tokens`. With 429, a reset field without a remaining field is valid, too.

    Args:
        status: The status of the response.
        headers: The header fields of the response, with names in lower case.
        unix_s: The current time, for absolute times in a response without `Date`.
    """
    fields = defaultdict(str, {name: text.strip() for name, text in headers.items() if len(text) <= 4_096})
    now_s = _span_s(fields["date"], 0) or unix_s
    sources = [[("0", f"{fields['retry-after-ms']}ms")], [("0", fields["retry-after"])]]
    if status < 500:
        separate = [(fields[name.format("remaining")], fields[name.format("reset")]) for name in _SEPARATE]
        sources += [_quotas(fields["ratelimit"]), separate]
    spent = ("0", "") if status == 429 else ("0",)
    for source in sources:
        spans_s = [_span_s(text, now_s) for remaining, text in source if remaining in spent]
        if valid := [span_s for span_s in spans_s if span_s is not None]:
            return round(max(*valid, 0) * 1_000_000)
    return None


def _quotas(value: str) -> list[tuple[str, str]]:
    """Return what remains and when it resets, of each quota in a `RateLimit` field of any draft."""
    unnamed = re.sub(r'"(?:[^"\\]|\\.?)*"?', "", value)
    pairs = [dict(_PAIR.findall(part)) for part in (unnamed, *unnamed.split(","))]
    draft_7 = (pairs[0].get("remaining", "?"), pairs[0].get("reset", ""))
    return [draft_7, *((pair.get("r", "?"), pair.get("t", "")) for pair in pairs[1:])]


def _span_s(text: str, now_s: float) -> float | None:
    """Return the seconds until a duration in seconds or like ``1m2.5s``, a Unix time or an HTTP-date has passed."""
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        span_s = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
        return span_s - now_s if span_s >= 1e9 else span_s  # a Unix time from 2001 on, or less than 32 years
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now_s
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
