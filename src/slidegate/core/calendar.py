"""Calendar periods: the day, week, month or year that contains a point in time, in a time zone.

A period lasts from one start to the next, whatever its length: a day on which clocks are set forward has 23 hours, and
February has 28 or 29 days. A start is a date and a local time of day:

* a local time that a change to daylight saving time skips is shifted by the change (2:30 becomes 3:30);
* of a local time that occurs twice, because clocks are set back, the first counts;
* a day that a month or year lacks (the 31st, 29 February) is replaced by the last day before it.

Times are Unix times in microseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .durations import EPOCH, moment
from .errors import ConfigurationError, quoted

Unit: TypeAlias = Literal["day", "week", "month", "year"]

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: Final = {"day": 1, "week": 7}
_MONTHS: Final = {"month": 1, "year": 12}
_US: Final = timedelta(microseconds=1)
_LAST_US: Final = (datetime(9990, 1, 1, tzinfo=UTC) - EPOCH) // _US
"""Later times are treated as this one, because `datetime` ends with the year 9999."""


class Period(NamedTuple):
    """A period and the end of the next one, in microseconds of Unix time."""

    start_us: int
    end_us: int
    """When the next one starts."""
    next_end_us: int


class Calendar:
    """Computes the periods of one unit, start and time zone.

    Args:
        unit: ``"day"``, ``"week"``, ``"month"`` or ``"year"``.
        start: When a period starts, on a day of a leap year. Each unit uses only its own part: the time of day, the day
            of the week, the day of the month, or month and day.
    """

    __slots__ = ("_latest", "start", "unit", "zone")

    def __init__(self, unit: Unit, start: datetime, zone: tzinfo) -> None:
        self.unit = unit
        self.start = start
        self.zone = zone
        self._latest = Period(0, 0, 0)

    def period_at(self, unix_us: int) -> Period:
        """Return the period that contains `unix_us`; a period includes its start and excludes its end."""
        period = self._latest
        if not period.start_us <= unix_us < period.end_us:
            period = self._latest = self._find(min(unix_us, _LAST_US))
        return period

    def _find(self, unix_us: int) -> Period:
        """Compute the period that contains a time."""
        day = moment(unix_us).astimezone(self.zone).date()
        start = self.start
        moments_us = set()
        # A zone that skips a whole day makes two starts coincide, so there are more than the three that are needed.
        for number in range(-2, 6):
            if self.unit in _DAYS:
                days = _DAYS[self.unit]
                first = day + timedelta(days=days * number - (day.weekday() - start.weekday()) % days)
            else:
                months = _MONTHS[self.unit]
                # 1 is January of the year of `day`, 13 that of the next one, 0 December of the one before.
                month = day.month - (day.month - start.month) % months + months * number
                years, months_before = divmod(month - 1, 12)
                year, month = day.year + years, months_before + 1
                _, last_day = monthrange(year, month)
                first = date(year, month, min(start.day, last_day))
            local = datetime.combine(first, start.time(), tzinfo=self.zone)
            moments_us.add((local - EPOCH) // _US)
        starts = sorted(moments_us)
        following = bisect_right(starts, unix_us)
        return Period(starts[following - 1], starts[following], starts[following + 1])


def read_start(unit: Unit, starts: int | str | None) -> tuple[datetime, str]:
    """Parse the start of a unit's periods; return it for `Calendar`, and its canonical spelling."""
    text, expected = _STARTS[unit]
    try:
        if starts is not None:
            text = str(starts).lower()
        if unit == "week":
            return datetime(2024, 1, 1 + WEEKDAYS.index(text)), text  # from a Monday
        if unit == "month":
            start = datetime(2024, 1, int(text))
            return start, str(start.day)
        if unit == "day":
            start = datetime.strptime(text, "%H:%M")  # a time of day has no zone
            return start, f"{start:%H:%M}"
        start = datetime.strptime(f"2024-{text}", "%Y-%m-%d")
        return start, f"{start:%m-%d}"
    except (ValueError, OverflowError):
        raise ConfigurationError(f"a {unit} starts with {expected}, not {quoted(starts)}", "starts") from None


_STARTS: Final[dict[Unit, tuple[str, str]]] = {
    "day": ("00:00", 'a time of day, for example "06:00"'),
    "week": ("monday", 'a day of the week, for example "monday"'),
    "month": ("1", "a day of the month from 1 to 31, for example 15"),
    "year": ("01-01", 'a month and a day, for example "04-01"'),
}
"""By unit: the default start of a period, and what an error says that was expected."""


def load_zone(name: Any) -> tzinfo:
    """Return the time zone of a name; UTC needs no time zone database.

    Raises:
        ConfigurationError: The zone is unknown, or there is no time zone database.
    """
    if name == "UTC":
        return UTC
    # Imported here, because few applications use time zones.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    # OSError: a folder of zones, for example "Europe"; RuntimeError: of Python 3.15, for a tuple.
    except (ZoneInfoNotFoundError, TypeError, ValueError, OSError, RuntimeError):
        raise ConfigurationError(
            f'expected the name of a time zone, for example "Europe/Berlin" or "UTC", not {quoted(name)}; if it is '
            "one, there is no time zone database: pip install tzdata",
            "zone",
        ) from None
