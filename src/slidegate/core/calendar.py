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
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .durations import EPOCH, moment
from .errors import ConfigurationError, quoted

Unit: TypeAlias = Literal["day", "week", "month", "year"]

WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_US: Final = timedelta(microseconds=1)
_LAST_US: Final = (datetime(9990, 1, 1, tzinfo=UTC) - EPOCH) // _US
"""Later times are treated as this one, because `datetime` ends with the year 9999."""


class Anchor(NamedTuple):
    """The start of a period within its unit; each unit uses only its own fields."""

    minute: int = 0
    """For days: minutes after midnight, 0 to 1439."""
    weekday: int = 0
    """For weeks: 0 is Monday."""
    day: int = 1
    """For months and years: 1 to 31."""
    month: int = 1
    """For years: 1 to 12."""


class Period(NamedTuple):
    """A period and the end of the next one, in microseconds of Unix time."""

    start_us: int
    end_us: int
    """When the next one starts."""
    next_end_us: int


class Calendar:
    """Computes the periods of one unit, anchor and time zone.

    Args:
        unit: ``"day"``, ``"week"``, ``"month"`` or ``"year"``.
    """

    __slots__ = ("_latest", "anchor", "unit", "zone")

    def __init__(self, unit: Unit, anchor: Anchor, zone: tzinfo) -> None:
        self.unit = unit
        self.anchor = anchor
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
        hour, minute = divmod(self.anchor.minute, 60)
        moments_us = set()
        # A zone that skips a whole day makes two starts coincide, so there are more than the three that are needed.
        for number in range(-2, 6):
            local = datetime.combine(self._first_day(day, number), time(hour, minute), tzinfo=self.zone)
            moments_us.add((local - EPOCH) // _US)
        starts = sorted(moments_us)
        following = bisect_right(starts, unix_us)
        return Period(starts[following - 1], starts[following], starts[following + 1])

    def _first_day(self, day: date, number: int) -> date:
        """Return the first day of a period near a day; that of `number` + 1 is the next one."""
        anchor = self.anchor
        if self.unit == "day":
            return day + timedelta(days=number)
        if self.unit == "week":
            days_since = (day.weekday() - anchor.weekday) % 7
            return day + timedelta(days=7 * number - days_since)
        if self.unit == "month":
            return _clamped(day.year, day.month + number, anchor.day)
        return _clamped(day.year + number, anchor.month, anchor.day)


def _clamped(year: int, month: int, day: int) -> date:
    """Return a date; a day that its month lacks is replaced by the last one of the month.

    Args:
        year: The year in which the months begin to count.
        month: 1 is January of that year, 13 that of the next one, 0 December of the one before.
        day: 1 to 31.
    """
    years, months = divmod(month - 1, 12)
    year, month = year + years, months + 1
    _, last_day = monthrange(year, month)
    return date(year, month, min(day, last_day))


def read_anchor(unit: Unit, starts: int | str | None) -> tuple[Anchor, str]:
    """Parse the start of a unit's periods; return its anchor and its canonical spelling."""
    default, expected = _STARTS[unit]
    if starts is None:
        return Anchor(), default
    try:
        return _anchor_of(unit, str(starts).lower())
    except (ValueError, OverflowError):
        raise ConfigurationError(f"a {unit} starts with {expected}, not {quoted(starts)}", "starts") from None


def _anchor_of(unit: Unit, text: str) -> tuple[Anchor, str]:
    """Return the anchor that a text describes, and its canonical spelling.

    Raises:
        ValueError, OverflowError: It describes none.
    """
    if unit == "week":
        return Anchor(weekday=WEEKDAYS.index(text)), text
    if unit == "month":
        day = date(2000, 1, int(text)).day
        return Anchor(day=day), str(day)
    if unit == "day":
        start = datetime.strptime(text, "%H:%M")  # a time of day has no zone
        return Anchor(minute=60 * start.hour + start.minute), f"{start:%H:%M}"
    start = datetime.strptime(f"2000-{text}", "%Y-%m-%d")
    return Anchor(day=start.day, month=start.month), f"{start:%m-%d}"


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
