"""How long a server wants to be left alone, as its answer says in header fields.

In this order, the first that can be read: `Retry-After` (RFC 9110, 10.2.3) on 429 and 503; `RateLimit` with nothing
left (draft-ietf-httpapi-ratelimit-headers-11), which says when there is more, or else the window of its policy; the
older `X-RateLimit-Remaining: 0` with `X-RateLimit-Reset`.

Fields are somebody else's text: one that is longer than `MOST_CHARACTERS`, or cannot be read, is as good as none.
The caller bounds the pause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Any, Final

import http_sf

from ..core.draft_parameters import MORE_AFTER_S, REMAINING, WINDOW_S

REFUSALS: Final = (429, 503)
MOST_CHARACTERS: Final = 4_096
MOST_S: Final = 10**12
"""The largest number of seconds that is told from a larger one: 31,000 years."""
UNIX_FROM: Final = 1_000_000_000
"""`X-RateLimit-Reset` is a Unix time from this number of seconds on: 2001 as a moment, 31 years as a span."""

_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return how long a server wants no request, in microseconds; None where it does not say.

    Args:
        status: The status of the answer.
        headers: Its fields; names are looked up in lower case.
        unix_s: The time now, for moments in an answer without a `Date`.
    """
    sent_s = _moment_s(headers.get("date"))
    now_s = unix_s if sent_s is None else sent_s
    refused = status in REFUSALS
    span_s = _retry_after_s(headers, now_s) if refused else None
    if span_s is None:
        span_s = _rate_limit_s(headers)
    if span_s is None:
        span_s = _older_s(headers, now_s, refused)
    return None if span_s is None else ceil(span_s * 1_000_000)


def _retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    value = headers.get("retry-after")
    span_s = _number(value)
    if span_s is not None:
        return span_s
    moment_s = _moment_s(value)
    return None if moment_s is None else max(moment_s - now_s, 0)


def _rate_limit_s(headers: Mapping[str, str]) -> int | None:
    """Return the longest time until more becomes available, out of the items where nothing is left."""
    windows = {name: _whole(given, WINDOW_S) for name, given in _items(headers.get("ratelimit-policy"))}
    spans = []
    for name, given in _items(headers.get("ratelimit")):
        span_s = _whole(given, MORE_AFTER_S) if MORE_AFTER_S in given else windows.get(name)
        if _whole(given, REMAINING) == 0 and span_s is not None:
            spans.append(span_s)
    return max(spans, default=None)


def _older_s(headers: Mapping[str, str], now_s: float, refused: bool) -> float | None:
    remaining = headers.get("x-ratelimit-remaining")
    if _number(remaining) != 0 and not (refused and remaining is None):
        return None
    reset_s = _number(headers.get("x-ratelimit-reset"))
    if reset_s is None or reset_s < UNIX_FROM:
        return reset_s
    return max(reset_s - now_s, 0)


def _items(value: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the names of a list of structured fields, each with its parameters; nothing if it cannot be read."""
    if value is None or len(value) > MOST_CHARACTERS:
        return []
    try:
        parsed: Any = http_sf.parse(value.encode("latin-1"), tltype="list")
    except Exception:  # no ASCII, or no list; old versions of the parser raise an IndexError for some of it
        return []
    # An inner list has a list in place of its name.
    return [(str(name), given) for name, given in parsed if isinstance(name, str)]


def _number(value: str | None) -> int | None:
    text = "" if value is None else value.strip()
    return min(int(text), MOST_S) if len(text) <= MOST_CHARACTERS and _DIGITS.fullmatch(text) else None


def _moment_s(value: str | None) -> float | None:
    """Return an HTTP-date in Unix seconds."""
    if value is None or len(value) > MOST_CHARACTERS:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _whole(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
