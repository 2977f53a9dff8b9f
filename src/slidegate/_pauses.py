"""The pause that a server asks for in the header fields of a response, whichever of the usual fields it writes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

_MAX_FIELD: Final = 4_096
"""Longer fields are not read."""
_SEPARATE: Final = ("ratelimit-{}", "x-ratelimit-{}", "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens")
"""Pairs of fields: with ``remaining`` and with ``reset`` in the place of the braces."""
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.?)*"?')
"""A string of RFC 9651, also one that does not end."""
_PAIR: Final = re.compile(r"(?<![\w.*-])([a-z]+)=([0-9]+)(?![0-9.])")  # not within another name or a decimal
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]*)?)(h|ms|m|s|(?![0-9.]))")  # 12 digits are 31,000 years
_UNIT_S: Final = {"h": 3_600, "m": 60, "s": 1, "": 1, "ms": 0.001}
_UNIX_TIMES_FROM_S: Final = 1e9
"""A greater number of seconds is no span of 32 years but a Unix time, from 2001 on."""


class _Quota(NamedTuple):
    """What a response says of a quota, as it is written: what remains, and when it is reset; empty if it does not."""

    remaining: str
    reset: str


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return the pause that a response requests, in microseconds; None if it requests none.

    It is the first valid one of:

    1. `retry-after-ms` in milliseconds.
    2. `Retry-After` (RFC 9110, 10.2.3) in seconds, also with a fraction, or as a date; the longest of several.
    3. With a status below 500, in `RateLimit` (draft-ietf-httpapi-ratelimit-headers-07 to -11) the longest time to the
       reset of a quota of which 0 remains.
    4. With a status below 500, the same in `RateLimit-Reset` (-03 to -06), `X-RateLimit-Reset`, and
       `X-RateLimit-Reset-Requests` and `-Tokens`. With 429, a reset field without a remaining field is valid, too.

    Args:
        status: The status of the response.
        headers: The header fields of the response, with names in lower case.
        unix_s: The current time, for absolute times in a response without `Date`.
    """
    fields = defaultdict(str, {name: text.strip() for name, text in headers.items() if len(text) <= _MAX_FIELD})
    now_s = _unix_s(fields["date"])
    if now_s is None:
        now_s = unix_s
    # Where a server and its proxy both write it, httpx joins the values; without its name of a day, a date stays valid.
    sources = [[f"{fields['retry-after-ms']}ms"], fields["retry-after"].split(", ")]
    if status < 500:
        spent = ["0"]
        if status == 429:
            spent.append("")
        sources.append(_resets(_quotas(fields["ratelimit"]), spent))
        sources.append(_resets(_separate_quotas(fields), spent))
    for texts in sources:
        pause_us = _longest_us(texts, now_s)
        if pause_us is not None:
            return pause_us
    return None


def _quotas(value: str) -> list[_Quota]:
    """Return the quotas in a `RateLimit` field of any draft; where it does not say what remains, that is "?"."""
    unnamed = _STRING.sub("", value)
    # In draft 7 the field is one quota: limit=100, remaining=0, reset=12. Later each of its items is one: "a";r=0;t=12.
    whole = dict(_PAIR.findall(unnamed))
    quotas = [_Quota(whole.get("remaining", "?"), whole.get("reset", ""))]
    for item in unnamed.split(","):
        parameters = dict(_PAIR.findall(item))
        quotas.append(_Quota(parameters.get("r", "?"), parameters.get("t", "")))
    return quotas


def _separate_quotas(fields: Mapping[str, str]) -> list[_Quota]:
    """Return the quotas of the fields that come in pairs."""
    return [_Quota(fields[pair.format("remaining")], fields[pair.format("reset")]) for pair in _SEPARATE]


def _resets(quotas: Iterable[_Quota], spent: Container[str]) -> list[str]:
    """Return the resets of those quotas that are spent, given what responses say to remain of such."""
    return [quota.reset for quota in quotas if quota.remaining in spent]


def _longest_us(texts: Iterable[str], now_s: float) -> int | None:
    """Return the longest valid one of some spans, in microseconds and at least 0; None if none is valid."""
    spans_s: list[float] = []
    for text in texts:
        span_s = _span_s(text, now_s)
        if span_s is not None:
            spans_s.append(max(span_s, 0))
    if not spans_s:
        return None
    return round(max(spans_s) * 1_000_000)


def _span_s(text: str, now_s: float) -> float | None:
    """Return the seconds until a duration in seconds or like ``1m2.5s``, a Unix time or an HTTP-date has passed."""
    parts = _PART.findall(text)
    spelled = "".join([number + unit for number, unit in parts])
    if parts and spelled == text:
        span_s = sum([float(number) * _UNIT_S[unit] for number, unit in parts])
        if span_s >= _UNIX_TIMES_FROM_S:
            return span_s - now_s
        return span_s
    moment_s = _unix_s(text)
    if moment_s is None:
        return None
    return moment_s - now_s


def _unix_s(text: str) -> float | None:
    """Return the Unix time of an HTTP-date."""
    try:
        moment = parsedate_to_datetime(text)
        zone = moment.tzinfo or UTC
        return moment.replace(tzinfo=zone).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
