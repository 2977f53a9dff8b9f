"""Quotas: counts that start anew at moments of the calendar. `calendar` says which moments those are.

A quota goes by Unix time, also where windows of the same store go by a clock that is never set. A store asks for the
period of its own moment, and counts in the newer one of that period and the one that it counts in already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Final, get_args

from . import periods
from .calendar import Anchor, Calendar, Period, Unit
from .errors import ConfigurationError, quoted
from .limits import MAX_AMOUNT, AnyLimit, Identity, check_name, check_whole

EXAMPLE: Final = 'Quota("10000/month")'
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_TEXT: Final = r"(?P<amount>[0-9]{1,18}+) *+(?:/|per\b) *+(?P<unit>[A-Za-z]++)"
_TIME: Final = "([01][0-9]|2[0-3]):([0-5][0-9])"
_DAY: Final = "[0-9]{1,2}"
_DATE: Final = "(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Quota(AnyLimit):
    """At most so many units in each day, week, month or year of the calendar. Immutable; equal quotas hash equal.

    It stands wherever a limit stands. It is no sliding window: at the turn of a period everything is free again, so up
    to twice the amount passes within a moment. A sliding limit beside it keeps bursts small: ``["10/second", quota]``.

    Args:
        text: ``"10000/month"``: the amount, 1 to 2**31 - 1, and ``day``, ``week``, ``month`` or ``year``.
        zone: The time zone by whose clocks periods start, as in the time zone database: ``"Europe/Berlin"``.
        starts: Where in the calendar they start. For a day ``"06:00"``, a time of day; for a week ``"sunday"``; for a
            month the day, 1 to 31, where 31 is the last day of a shorter month; for a year ``"04-01"``, month and day.
            By default midnight, Monday, the 1st, and 1 January.
        name: What the quota is called in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value cannot be read, or there is no such zone, or no time zone database.
    """

    amount: int
    unit: Unit
    """``"day"``, ``"week"``, ``"month"`` or ``"year"``."""
    starts: str
    zone_name: str
    name: str | None
    calendar: Calendar = field(compare=False)
    resolution: int = field(compare=False)
    exact: bool = field(compare=False)
    slice_us: int = field(compare=False)
    span_us: int = field(compare=False)
    life_us: int = field(compare=False)

    def __init__(
        self, text: str, *, zone: str = "UTC", starts: int | str | None = None, name: str | None = None
    ) -> None:
        match = re.fullmatch(_TEXT, text.strip(" "), re.ASCII) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(f'quota: expected AMOUNT/PERIOD, for example "10000/month", not {quoted(text)}')
        unit = match["unit"].lower()
        if unit not in UNITS:
            raise ConfigurationError(
                f"quota: expected a day, week, month or year, for example {match['amount']}/month, not {quoted(text)}; "
                'for other spans write a limit, for example "100/hour"'
            )
        amount = check_whole(int(match["amount"]), 1, MAX_AMOUNT, "amount", f"for example {EXAMPLE}")
        if name is not None:
            check_name(name, "quota name")
        anchor, spelled = _anchor(unit, starts)
        calendar = Calendar(unit, anchor, load_zone(zone))
        self._fill(amount=amount, unit=unit, starts=spelled, zone_name=zone, name=name, calendar=calendar)
        self._fill(resolution=0, exact=False, slice_us=0, span_us=0, life_us=0)

    spend = periods.spend
    charge = periods.charge
    remove = periods.remove
    state = periods.state
    reset = periods.reset
    expires_us = periods.expires_us

    def settle(self, window: bytes, now_us: int) -> bytes:
        """See `AnyLimit.settle`: `enter` does it."""
        return window

    def mark(self, window: bytes) -> int:
        """See `AnyLimit.mark`: the end of the period, in Unix time."""
        return periods.end_us(window)

    def enter(self, window: bytes, now_us: int, unix_us: int) -> bytes:
        """Return a count in the period of a moment, which the store and Unix call by different numbers."""
        return periods.enter(window, self.period_at(unix_us).end_us, now_us - unix_us)

    @property
    def same_window(self) -> Identity:
        """Unit, zone and start: quotas of one rule that agree in them share their counts, whatever their amounts."""
        return 0, f"{self.unit} {self.starts} {self.zone_name}"

    @property
    def suffix(self) -> str:
        """See `AnyLimit.suffix`: the unit."""
        return self.unit

    @property
    def window_s(self) -> None:
        """None: periods are of different lengths."""

    @property
    def said(self) -> str:
        """See `AnyLimit.said`."""
        return f"{self.amount} per {self.unit}"

    def period_at(self, unix_us: int) -> Period:
        """Return the period of a moment of Unix time, in microseconds."""
        return self.calendar.period_at(unix_us)

    def leaves_us(self, at_us: int) -> int:
        """See `AnyLimit.leaves_us`; a period may end at any time."""
        return at_us + periods.KEPT_US

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name is not None else ""
        return f"{name}{self.amount}/{self.unit} from {self.starts} in {self.zone_name}"

    def __repr__(self) -> str:
        return f"<Quota {self}>"


def _anchor(unit: Unit, starts: int | str | None) -> tuple[Anchor, str]:
    """Return where periods of a unit start, and how that is spelled."""
    given = starts if isinstance(starts, str) else ""
    if unit == "day":
        match = re.fullmatch(_TIME, "00:00" if starts is None else given)
        if match is not None:
            return Anchor(minute=int(match[1]) * 60 + int(match[2])), match[0]
        expected = 'a time of day, for example "06:00"'
    elif unit == "week":
        weekday = "monday" if starts is None else given.lower()
        if weekday in WEEKDAYS:
            return Anchor(weekday=WEEKDAYS.index(weekday)), weekday
        expected = 'a day of the week, for example "monday"'
    elif unit == "month":
        day = 1 if starts is None else int(given) if re.fullmatch(_DAY, given) else starts
        if isinstance(day, int) and not isinstance(day, bool) and 1 <= day <= 31:
            return Anchor(day=day), str(day)
        expected = "a day of the month from 1 to 31, for example 15"
    else:
        match = re.fullmatch(_DATE, "01-01" if starts is None else given)
        if match is not None and int(match[2]) <= _DAYS[int(match[1]) - 1]:
            return Anchor(month=int(match[1]), day=int(match[2])), match[0]
        expected = 'a month and a day, for example "04-01"'
    raise ConfigurationError(f"starts: a {unit} starts with {expected}, not {quoted(starts)}")


def load_zone(name: object) -> tzinfo:
    """Return a time zone with its rules; UTC has none, and needs no database.

    Raises:
        ConfigurationError: There is no such zone, or no time zone database; the message says what would help.
    """
    example = 'for example "Europe/Berlin" or "UTC"'
    if not isinstance(name, str):
        raise ConfigurationError(f"zone: expected the name of a time zone, {example}, not {quoted(name)}")
    if name == "UTC":
        return UTC
    # Imported here, because few applications need them.
    from difflib import get_close_matches
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, for example "Europe"
        known = available_timezones()
    if not known:
        raise ConfigurationError(f"zone: there is no time zone database to find {quoted(name)} in: pip install tzdata")
    near = get_close_matches(name, known, 3) or [zone for zone in sorted(known) if name.lower() in zone.lower()][:3]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if name and near else ""
    raise ConfigurationError(f"zone: expected the name of a time zone, {example}, not {quoted(name)}{hint}")
