"""Quotas: limits on the units of each calendar period.

The count of a quota is a ring in Unix time with one slice, which began in 1970 and ends when the period does. So its
units have one moment, the end of the period, and leave then. When the clock is set back into an earlier period,
counting continues in the newer one, as in the newest slice of any ring.

All other limits of a question use the store's time. The counter of a quota reads the Unix time of its store itself,
and returns when its units leave in the store's time, as the other limits do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from .calendar import Calendar, Unit, load_zone, read_start
from .counters import QuotaCounter
from .errors import ConfigurationError, quoted
from .limits import AnyLimit, Identity, check_amount

KEPT_US: Final = 3_600_000_000
"""How long a count is kept after its period, in case the system clock is set back."""

_QUOTA: Final = r"(?ai)(?P<amount>[0-9]{1,18}+) *+(?:/|per\b) *+(?P<unit>day|week|month|year)"


class Quota(AnyLimit):
    """At most `amount` units in each calendar day, week, month or year. Immutable; equal quotas hash equal.

    It can be used wherever a limit can, and follows Unix time, even in a store whose windows use a monotonic clock: a
    step of the system clock moves the ends of periods. It is not a sliding window: at the end of a period all units
    become free, so up to twice the amount can pass around that time. Combine it with a sliding limit to keep bursts
    small: ``["10/second", quota]``.

    Args:
        text: ``"10000/month"``: the amount, 1 to 2**31 - 1, and ``day``, ``week``, ``month`` or ``year``.
        zone: The time zone in which periods start, by its name in the time zone database: ``"Europe/Berlin"``.
        starts: When a period starts. For a day a time, ``"06:00"``; for a week ``"sunday"``; for a month the day, 1 to
            31, where 31 is the last day of a shorter month; for a year month and day, ``"04-01"``. By default midnight,
            Monday, the 1st, and 1 January.
        name: The name of the quota in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value is invalid, the zone is unknown, or there is no time zone database.
    """

    __slots__ = ("calendar", "starts", "suffix", "unit", "zone_name")

    check_us = KEPT_US
    unit: Unit
    """``"day"``, ``"week"``, ``"month"`` or ``"year"``."""
    starts: str
    zone_name: str
    calendar: Calendar

    def __init__(
        self, text: str, *, zone: str = "UTC", starts: int | str | None = None, name: str | None = None
    ) -> None:
        match = re.fullmatch(_QUOTA, text.strip(" ")) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(
                f'expected an amount in a day, week, month or year, for example "10000/month", not {quoted(text)}; for '
                'other spans write a limit, for example "100/hour"',
                "quota",
            )
        unit: Any = match["unit"].lower()
        amount = check_amount(int(match["amount"]), "quota", 'for example Quota("10000/month")')
        self._set_name(name)
        start, spelled = read_start(unit, starts)
        calendar = Calendar(unit, start, load_zone(zone))
        self._fill(amount=amount, unit=unit, suffix=unit, starts=spelled, zone_name=zone, calendar=calendar)

    def counter_by(self, unix_us: Callable[[], int]) -> QuotaCounter:
        return QuotaCounter(self, unix_us)

    @property
    def same_window(self) -> Identity:
        """Unit, zone and start: quotas of one rule with all three equal share a count, whatever their amounts."""
        return 0, f"{self.unit} {self.starts} {self.zone_name}"

    @property
    def wording(self) -> str:
        return f"{self.amount} per {self.unit}"

    def __str__(self) -> str:
        return self._with_name(f"{self.amount}/{self.unit} from {self.starts} in {self.zone_name}")
