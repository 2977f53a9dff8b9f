"""Durations in text form: ``"30s"``, ``"2 hours"``, ``"minute"``."""

from __future__ import annotations

import re
from typing import Final

from .errors import ConfigurationError, closest, quoted

SPACES: Final = " \t\n\r\v\f"
"""The whitespace that is allowed around the parts of a text."""

_MAX_LENGTH: Final = 64
_UNITS_US: Final = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000_000),
}
_NO_LENGTH_DAYS: Final = {
    **dict.fromkeys(("mo", "mon", "month", "months"), ("month", 30)),
    **dict.fromkeys(("y", "yr", "year", "years"), ("year", 365)),
}
_SHORTEST: Final = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000))

_DURATION: Final = r"(?a)([0-9]{0,18}+)\s*+([A-Za-z]++)"


def read_span_us(text: str, what: str, example: str) -> int:
    """Parse a number and a unit, or a unit alone; return microseconds.

    Args:
        text: The duration.
        what: The name of the value, for the error message.
        example: The end of the error message, with a correct example; empty where the caller gives one.

    Raises:
        ConfigurationError: The text is not a duration.
    """
    match = re.fullmatch(_DURATION, text.strip(SPACES)) if len(text) <= _MAX_LENGTH else None
    unit = match[2].lower() if match else ""
    if match is None or unit not in _UNITS_US:
        if match is not None and unit in _NO_LENGTH_DAYS:
            name, days = _NO_LENGTH_DAYS[unit]
            days *= int(match[1] or 1)
            raise ConfigurationError(f'a {name} has no fixed length; write "{days} days", not {quoted(text)}', what)
        hint = closest(unit, _UNITS_US) if match else ""
        problem = f"expected a number and a unit, {example}" if example else f"no unit {quoted(unit)}"
        raise ConfigurationError(f"{problem}{hint}", what)
    return int(match[1] or 1) * _UNITS_US[unit]


def format_duration(span_us: int) -> str:
    """Format microseconds in the largest unit that divides them: 90_000_000 is ``"90s"``."""
    for unit, unit_us in _SHORTEST:
        if span_us % unit_us == 0:
            return f"{span_us // unit_us}{unit}"
    return f"{span_us}us"
