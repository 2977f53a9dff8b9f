"""Times as access logs write them, in microseconds since 1970 UTC.

A time without a zone is the writer's local time, and nobody knows where that was: it is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

MAX_TIME_CHARACTERS: Final = 64
MAX_TIME_US: Final = 253_402_300_800_000_000  # the year 10000

_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CLF_TIME: Final = re.compile(
    r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}) ([+-][0-9]{2}[0-5][0-9])"
)
_NUMBER: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,12})?")


@lru_cache(maxsize=1_024)
def text_time_us(text: str) -> int | None:
    """Read ``12/May/2024:00:00:17 +0000``, ISO 8601 with a zone, or a number; None for any other text."""
    match = _CLF_TIME.fullmatch(text)
    if match is not None:
        day, month, year, time, zone = match.groups()
        text = f"{year}-{_MONTHS.find(month) // 3 + 1:02}-{day}T{time}{zone}"
    elif _NUMBER.fullmatch(text):
        whole, _, decimals = text.partition(".")
        # Not by way of a float, which has no room for the nanoseconds that some servers write.
        return number_time_us(int(whole), int(decimals[:6].ljust(6, "0")))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment_us(moment)


def moment_us(moment: datetime) -> int | None:
    """Return a moment with a zone in microseconds since 1970; None without a zone, or before that."""
    time_us = (moment - _EPOCH) // timedelta(microseconds=1) if moment.tzinfo is not None else -1
    return time_us if time_us >= 0 else None


def number_time_us(value: object, millionths: int = 0) -> int | None:
    """Read a number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by its size.

    Args:
        value: The number.
        millionths: A fraction of one, to add to a whole number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_TIME_US * 1_000:
        return None
    for unit_us in (1_000_000, 1_000, 1):
        if value * unit_us < MAX_TIME_US:
            return round(value * unit_us) + millionths * unit_us // 1_000_000
    return round(value // 1_000)


def any_time_us(value: object) -> int | None:
    """Read a time out of a JSON value: text or a number."""
    if isinstance(value, str):
        return text_time_us(value) if 0 < len(value) <= MAX_TIME_CHARACTERS else None
    return number_time_us(value)
