"""Quotas: counts that start anew at moments of the calendar. `calendar` says which moments those are.

A quota goes by Unix time, also where windows of the same store go by a clock that is never set. A store asks for the
period of its own moment, and counts in the newer one of that period and the one that it counts in already.
"""

from __future__ import annotations

from typing import Final

from ..limits import MAX_AMOUNT, check_name, check_whole
from .any_limit import AnyLimit, Identity
from .calendar import Calendar, Period

KEPT_US: Final = 3_600_000_000
"""How long a count outlives its period, so that a clock which is set back finds which period has begun."""


class CalendarQuota(AnyLimit):
    """At most `amount` units in each period of a calendar. Immutable; equal quotas hash equal.

    Args:
        amount: Units, 1 to 2**31 - 1.
        calendar: The periods.
        zone_name: What the zone of the calendar is called; with the unit and `starts` it tells quotas apart.
        starts: How the start of a period is spelled, for example ``"monday"``.
        name: What the quota is called in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    __slots__ = ("calendar", "starts", "zone_name")

    calendar: Calendar
    zone_name: str
    starts: str

    def __init__(
        self, amount: int, calendar: Calendar, zone_name: str, starts: str, *, name: str | None = None
    ) -> None:
        check_whole(amount, 1, MAX_AMOUNT, "amount", 'for example Quota("10000/month")')
        if name is not None:
            check_name(name, "quota name")
        self._fill(amount=amount, calendar=calendar, zone_name=zone_name, starts=starts, name=name)
        self._fill(resolution=0, exact=False, slice_us=0, span_us=0)

    @property
    def unit(self) -> str:
        """``"day"``, ``"week"``, ``"month"`` or ``"year"``."""
        return self.calendar.unit

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
        return at_us + KEPT_US

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CalendarQuota):
            return NotImplemented
        return (self.amount, self.same_window, self.name) == (other.amount, other.same_window, other.name)

    def __hash__(self) -> int:
        return hash((self.amount, self.same_window, self.name))

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name is not None else ""
        return f"{name}{self.amount}/{self.unit} from {self.starts} in {self.zone_name}"

    def __repr__(self) -> str:
        return f"<Quota {self}>"
