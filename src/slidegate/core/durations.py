"""Durations in text form: ``"30s"``, ``"2 hours"``, ``"minute"``; and Unix times as dates."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from .errors import ConfigurationError, closest, quoted

SPACES: Final = " \t\n\r\v\f"
"""The whitespace that is allowed around the parts of a text."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_LENGTH: Final = 64
_LONGEST_US: Final = 100_000_000 * 86_400_000_000
_SPELLINGS: Final = {
    "us microsecond microseconds": 1,
    "ms millisecond milliseconds": 1_000,
    "s sec secs second seconds": 1_000_000,
    "m min mins minute minutes": 60_000_000,
    "h hr hrs hour hours": 3_600_000_000,
    "d day days": 86_400_000_000,
    "w week weeks": 604_800_000_000,
}
_UNITS_US: Final = {unit: unit_us for units, unit_us in _SPELLINGS.items() for unit in units.split()}
_NO_LENGTH: Final = (("mo mon month months", "month", 30), ("y yr year years", "year", 365))
"""The spellings of units without a fixed length, each with its name and about how many days it has."""
_SHORTEST: Final = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000))

_DURATION: Final = r"(?a)([0-9]{0,18}+)\s*+([A-Za-z]++)"


def parse_duration_us(
    value: str | timedelta,
    option: str = "duration",
    low_us: int = 1,
    high_us: int = _LONGEST_US,
    example: str = "30s",
) -> int:
    """Return a duration in microseconds.

    Args:
        value: ``"30s"``, ``"5m"``, ``"2 hours"``, ``"minute"``, or a `timedelta`.
        option: The name of the value, for the error message.
        low_us: The shortest duration.
        high_us: The longest one.
        example: A duration between them.

    Raises:
        ConfigurationError: The value is not a duration, or outside these bounds.
    """
    number = quoted(value).strip("'")
    if number.isdecimal():
        raise ConfigurationError(f'which unit? Write "{number}ms" or "{number}s", not {quoted(value)}', option)
    if isinstance(value, timedelta):
        span_us = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        problem = f'expected a whole number and a unit, for example "{example}", not {quoted(value)}'
        span_us = read_span_us(value, option, problem)
    else:
        raise ConfigurationError(f'expected a duration, for example "{example}", not {quoted(value)}', option)
    if not low_us <= span_us <= high_us:
        bounds = f"{format_duration(low_us)} to {format_duration(high_us)}"
        raise ConfigurationError(f'expected {bounds}, for example "{example}", not {quoted(value)}', option)
    return span_us


def read_span_us(text: str, option: str, problem: str) -> int:
    """Parse a number and a unit, or a unit alone; return microseconds.

    Args:
        option: The name of the value, for the error message.
        problem: That message, to which a similar unit is added.

    Raises:
        ConfigurationError: The text is not a duration.
    """
    match = None
    if len(text) <= _MAX_LENGTH:
        match = re.fullmatch(_DURATION, text.strip(SPACES))
    if match is None:
        raise ConfigurationError(problem, option)
    # A unit alone is one of it.
    number = int(match[1] or 1)
    unit = match[2].lower()
    if match[2] == "M":  # who writes months so must not get minutes
        unit = "month"
    if unit in _UNITS_US:
        return number * _UNITS_US[unit]
    for spellings, name, days in _NO_LENGTH:
        if unit in spellings.split():
            problem = f'a {name} has no fixed length; write "{number * days} days", not {quoted(text)}'
            raise ConfigurationError(problem, option)
    raise ConfigurationError(problem + closest(unit, _UNITS_US), option)


def moment(unix_us: int) -> datetime:
    """Return a Unix time in microseconds as a date (UTC)."""
    return EPOCH + timedelta(microseconds=unix_us)


def format_duration(span_us: int) -> str:
    """Format microseconds in the largest unit that divides them: 90_000_000 is ``"90s"``."""
    for unit, unit_us in _SHORTEST:
        if span_us % unit_us == 0:
            return f"{span_us // unit_us}{unit}"
    return f"{span_us}us"
