"""Limits and how they are written: ``"5/minute; 100 per 2 hours; 10/30s"``.

A limit admits at most `amount` units in any half-open interval of `window_us` microseconds.
`resolution` is how many numbers a window may remember. It decides the ring (see `window`):

* ``amount <= resolution``: the time of every unit is kept, and the window is exact;
* otherwise: counts of slices of ``s = ceil(window_us / resolution)`` microseconds. The slice is
  rounded *up*: rounded down, ``k * s`` is shorter than the window and twice the amount fits into it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from .errors import ConfigurationError, closest

MAX_AMOUNT: Final = 2**31 - 1
MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 400 * 86_400_000_000
MAX_RESOLUTION: Final = 3_600
MAX_NAME: Final = 64
# 64 counters of 4 bytes cost a quarter of a kilobyte for a busy
# key and keep the needless wait below 2 % of the window.
DEFAULT_RESOLUTION: Final = 64

EXAMPLE: Final = '"5/minute; 100 per 2 hours; 10/30s"'

_UNITS_US: Final = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400_000_000),
}
_SHORTEST: Final = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000))

_DURATION = re.compile(r"\s*([0-9]{0,18})\s*([A-Za-z]+)\s*", re.ASCII)
_LIMIT = re.compile(
    r"""\s*
    (?:(?P<name>[^:;]+?)\s*:)?\s*
    (?P<amount>[0-9]{1,18})\s*
    (?:/|\s*per\b)\s*
    (?P<window>[0-9]*\s*[A-Za-z]+)\s*
    (?:@\s*(?P<resolution>[0-9]{1,9}))?
    \s*""",
    re.ASCII | re.VERBOSE,
)


def parse_duration_us(value: str | float | timedelta, what: str = "duration") -> int:
    """Return a span of time in microseconds.

    Args:
        value: ``"30s"``, ``"5m"``, ``"2 hours"``, ``"minute"``, a `timedelta`, or a number of seconds.
        what: What the value is, for the error message.

    Raises:
        ConfigurationError: The value is not a positive, finite span of whole microseconds.
    """
    example = f'for example "30s", "2 hours", timedelta(minutes=5) or a number of seconds, not {value!r}'
    if isinstance(value, timedelta):
        span_us = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value)
        unit_us = _UNITS_US.get(match[2].lower()) if match else None
        if match is None or unit_us is None:
            hint = closest(match[2].lower(), _UNITS_US) if match else ""
            raise ConfigurationError(f"{what}: expected a number and a unit, {example}{hint}")
        span_us = int(match[1] or 1) * unit_us
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        span_us = round(value * 1_000_000)
    else:
        raise ConfigurationError(f"{what}: expected a span of time, {example}")
    if span_us <= 0:
        raise ConfigurationError(f"{what}: expected more than nothing, {example}")
    return span_us


def format_duration(span_us: int) -> str:
    """Write microseconds in the largest unit that divides them: 90_000_000 is ``"90s"``."""
    for unit, unit_us in _SHORTEST:
        if span_us % unit_us == 0:
            return f"{span_us // unit_us}{unit}"
    return f"{span_us}us"


def check_name(name: object, what: str) -> str:
    """Return `name` if it can stand in a header field and in a limit string.

    Raises:
        ConfigurationError: Not 1 to 64 printable ASCII characters, or one of ``:`` and ``;`` among them.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise ConfigurationError(f'{what}: expected 1 to {MAX_NAME} characters, for example "api", not {name!r}')
    for character in name:
        if not " " <= character <= "~" or character in ":;":
            raise ConfigurationError(
                f"{what}: {character!r} in {name!r} is not allowed; "
                'use printable ASCII without ":" and ";", for example "api"'
            )
    if name != name.strip():
        raise ConfigurationError(f"{what}: {name!r} starts or ends with a space; write {name.strip()!r}")
    return name


def check_whole(value: object, low: int, high: int, what: str, example: str) -> None:
    """See that `value` is a whole number from `low` to `high`.

    Raises:
        ConfigurationError: It is not; the message says what `what` is, and shows the example.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(f"{what}: expected a whole number from {low} to {high}, {example}, not {value!r}")


class Limit:
    """At most `amount` units in any window of `window_us` microseconds. Immutable; equal limits hash equal.

    Args:
        amount: Units, 1 to 2**31 - 1.
        window: ``"30s"``, ``"2 hours"``, a `timedelta` or seconds; 1 ms to 400 days.
        resolution: How many numbers a window may remember, 1 to 3600 and at most ``window_us / 10``.
        name: What the limit is called in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    __slots__ = ("amount", "exact", "name", "resolution", "slice_us", "slices", "span_us", "window_us")

    amount: int
    window_us: int
    resolution: int
    name: str | None
    slice_us: int
    """Length of a slice: ``ceil(window_us / resolution)``."""
    slices: int
    """k, the number of slices that make up the window: ``ceil(window_us / slice_us)``."""
    exact: bool
    """Whether the time of every unit is kept (``amount <= resolution``)."""
    span_us: int
    """How long a unit holds its place after the end of what it was counted in."""

    def __init__(
        self,
        amount: int,
        window: str | float | timedelta,
        *,
        resolution: int = DEFAULT_RESOLUTION,
        name: str | None = None,
    ) -> None:
        check_whole(amount, 1, MAX_AMOUNT, "amount", 'for example Limit(100, "1m")')
        window_us = parse_duration_us(window, "window")
        if not MIN_WINDOW_US <= window_us <= MAX_WINDOW_US:
            raise ConfigurationError(f'window: expected 1 ms to 400 days, for example "30s", not {window!r}')
        check_whole(resolution, 1, MAX_RESOLUTION, "resolution", "for example 64")
        if resolution * 10 > window_us:
            raise ConfigurationError(
                f"resolution: {resolution} slices of {format_duration(window_us)} would be shorter than 10 us; "
                f"use at most {window_us // 10}"
            )
        if name is not None:
            check_name(name, "limit name")
        slice_us = -(-window_us // resolution)
        slices = -(-window_us // slice_us)
        exact = amount <= resolution
        for field, value in (
            ("amount", amount),
            ("window_us", window_us),
            ("resolution", resolution),
            ("name", name),
            ("slice_us", slice_us),
            ("slices", slices),
            ("exact", exact),
            ("span_us", window_us if exact else slices * slice_us),
        ):
            object.__setattr__(self, field, value)

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError(f"a Limit is immutable; make another one instead of setting {field}")

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"a Limit is immutable; it always has its {field}")

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.amount, self.window_us, self.resolution, self.name)

    @property
    def same_window(self) -> tuple[int, int]:
        """What makes two limits of one rule share their counts: window and resolution, not the amount."""
        return self.window_us, self.resolution

    def counts_from_us(self, at_us: int) -> int:
        """Return when a unit spent at `at_us` starts to count: then, or with its slice."""
        return at_us if self.exact else at_us - at_us % self.slice_us

    def leaves_us(self, at_us: int) -> int:
        """Return when a unit spent at `at_us` has left."""
        return self.counts_from_us(at_us) + (self.window_us if self.exact else self.span_us + self.slice_us)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Limit):
            return NotImplemented
        return (self.amount, self.window_us, self.resolution, self.name) == (
            other.amount,
            other.window_us,
            other.resolution,
            other.name,
        )

    def __hash__(self) -> int:
        return hash((self.amount, self.window_us, self.resolution, self.name))

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name is not None else ""
        resolution = f" @{self.resolution}" if self.resolution != DEFAULT_RESOLUTION else ""
        return f"{name}{self.amount}/{format_duration(self.window_us)}{resolution}"

    def __repr__(self) -> str:
        return f"<Limit {self}>"


def _restore(amount: int, window_us: int, resolution: int, name: str | None) -> Limit:
    return Limit(amount, timedelta(microseconds=window_us), resolution=resolution, name=name)


def parse_limits(limits: str | Limit | Iterable[str | Limit]) -> tuple[Limit, ...]:
    """Read a set of limits that all apply.

    Each is ``AMOUNT/WINDOW`` or ``AMOUNT per WINDOW``, separated by ``;``, with an optional
    ``NAME:`` before and ``@RESOLUTION`` behind: ``"burst: 10/s; 600/minute @10"``.

    Raises:
        ConfigurationError: A part cannot be read (the message names it, its column and an example),
            the set is empty, or two limits have the same window and resolution.
    """
    parts = (limits,) if isinstance(limits, (str, Limit)) else limits
    if not isinstance(parts, Iterable):
        raise ConfigurationError(f"limits: expected text such as {EXAMPLE} or Limit objects, not {limits!r}")
    found: list[Limit] = []
    for part in parts:
        if isinstance(part, Limit):
            found.append(part)
        elif isinstance(part, str):
            found.extend(_parse_text(part))
        else:
            raise ConfigurationError(f"limits: expected text such as {EXAMPLE} or Limit objects, not {part!r}")
    if not found:
        raise ConfigurationError(f"limits: expected at least one, for example {EXAMPLE}")
    by_window: dict[tuple[int, int], Limit] = {}
    for limit in found:
        twin = by_window.setdefault(limit.same_window, limit)
        if twin is not limit:
            raise ConfigurationError(
                f"limits: {str(twin)!r} and {str(limit)!r} have the same window; keep the smaller one"
            )
    return tuple(found)


def _parse_text(text: str) -> list[Limit]:
    found: list[Limit] = []
    column = 1
    for part in text.split(";"):
        start = column + len(part) - len(part.lstrip())
        column += len(part) + 1
        if not part.strip() and found:
            continue  # a trailing ";"
        where = f"limits: {part.strip()!r} at column {start} of {text!r}"
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise ConfigurationError(f"{where} is not AMOUNT/WINDOW; a correct example is {EXAMPLE}")
        try:
            found.append(
                Limit(
                    int(match["amount"]),
                    match["window"],
                    resolution=int(match["resolution"] or DEFAULT_RESOLUTION),
                    name=match["name"],
                )
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}; a correct example is {EXAMPLE}") from None
    return found
