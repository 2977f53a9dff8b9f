"""The pause that a server requests in the header fields of a response, in any of the usual fields."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import inf
from typing import Final

_MAX_FIELD: Final = 4_096
"""Longer fields are not read."""
_SEPARATE: Final = ("ratelimit-{}", "x-ratelimit-{}", "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens")
"""Pairs of fields: with ``remaining`` and with ``reset`` in the place of the braces."""
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.?)*"?')
"""A string of RFC 9651, also one that does not end."""
_PAIR: Final = re.compile(r"(?<![\w.*-])([a-z]+)=([0-9]+)(?![0-9.])")  # not within another name or a decimal
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]*)?)(h|ms|m|s|(?![0-9.]))")  # 12 digits are 31,000 years
_SPAN: Final = re.compile(f"(?:{_PART.pattern})+")
_UNIT_S: Final = {"h": 3_600, "m": 60, "s": 1, "": 1, "ms": 0.001}
_UNIX_TIMES_FROM_S: Final = 1e9
"""A greater number of seconds is no span of 32 years but a Unix time, from 2001 on."""


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
    now_s = _unix_s(fields["date"], unix_s)
    # Where a server and its proxy both write it, httpx joins the values; without its name of a day, a date stays valid.
    sources = [[f"{fields['retry-after-ms']}ms"], fields["retry-after"].split(", ")]
    if status < 500:
        exhausted = ["0"]
        if status == 429:
            exhausted.append("")
        sources.append([reset for remaining, reset in _quotas(fields["ratelimit"]) if remaining in exhausted])
        pairs = [(fields[pair.format("remaining")], fields[pair.format("reset")]) for pair in _SEPARATE]
        sources.append([reset for remaining, reset in pairs if remaining in exhausted])
    for texts in sources:
        longest_s = max([_span_s(text, now_s) for text in texts], default=-inf)
        if longest_s > -inf:
            return round(max(0, longest_s) * 1_000_000)
    return None


def _quotas(value: str) -> Iterator[tuple[str, str]]:
    """Yield of each quota in a `RateLimit` field of any draft what remains, "?" if it does not say, and its reset."""
    unnamed = _STRING.sub("", value)
    # In draft 7 the field is one quota: limit=100, remaining=0, reset=12. Later each of its items is one: "a";r=0;t=12.
    single = dict(_PAIR.findall(unnamed))
    yield single.get("remaining", "?"), single.get("reset", "")
    for item in unnamed.split(","):
        parameters = dict(_PAIR.findall(item))
        yield parameters.get("r", "?"), parameters.get("t", "")


def _span_s(text: str, now_s: float) -> float:
    """Return the seconds until a duration in seconds or like ``1m2.5s``, a Unix time or an HTTP-date has passed.

    Another text is over for ever.
    """
    if not _SPAN.fullmatch(text):
        return _unix_s(text, -inf) - now_s
    span_s = sum([float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text)])
    if span_s >= _UNIX_TIMES_FROM_S:
        return span_s - now_s
    return span_s


def _unix_s(text: str, default_s: float) -> float:
    """Return the Unix time of an HTTP-date; of another text the default."""
    try:
        moment = parsedate_to_datetime(text)
        zone = moment.tzinfo or UTC
        return moment.replace(tzinfo=zone).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return default_s
