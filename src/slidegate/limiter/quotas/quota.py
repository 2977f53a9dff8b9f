"""The public quota: it reads its texts. The arithmetic stands in `core.kinds`."""

from __future__ import annotations

import re
from typing import Final, get_args

from ...core.errors import ConfigurationError, quoted
from ...core.kinds.calendar import Anchor, Calendar, Unit
from ...core.kinds.calendar_quota import CalendarQuota
from .zones import load_zone

EXAMPLE: Final = 'Quota("10000/month")'
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_TEXT: Final = r"(?P<amount>[0-9]{1,18}+) *+(?:/|per\b) *+(?P<unit>[A-Za-z]++)"
_TIME: Final = "([01][0-9]|2[0-3]):([0-5][0-9])"
_DAY: Final = "[0-9]{1,2}"
_DATE: Final = "(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"


class Quota(CalendarQuota):
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

    __slots__ = ()

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
        anchor, spelled = _anchor(unit, starts)
        calendar = Calendar(unit, anchor, load_zone(zone))
        super().__init__(int(match["amount"]), calendar, zone, spelled, name=name)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (f"{self.amount}/{self.unit}", self.zone_name, self.starts, self.name)


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


def _restore(text: str, zone: str, starts: str, name: str | None) -> Quota:
    return Quota(text, zone=zone, starts=starts, name=name)
