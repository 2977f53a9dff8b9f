"""Quotas: a number of units in each period of the calendar, and their count as bytes.

A period is known by its end, a moment of Unix time, because that is all that matters of it: when the count starts anew.
A count begins another period only where that ends later, so a clock that is set back goes on counting in the newer one,
whose units and whose end stay.

`Quota.enter` comes before every other question: it brings the period of the moment, and how far the time of the store
is ahead of Unix time. From then on the count answers in the time of the store, as a ring does.

The bytes: the end of the period in Unix time, the time of the store less Unix time, `floor_us` as in `ring`, and units
(int64 each, little-endian).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Self

from .calendar import UNITS, Calendar, Period, Unit, load_zone, read_anchor
from .errors import ConfigurationError, quoted
from .limits import MAX_AMOUNT, AnyLimit, Identity, check_name, check_whole
from .ring import NEVER, WindowState

MAX_UNITS: Final = 2**52
"""No debt grows beyond it; stores write such numbers without loss."""
KEPT_US: Final = 3_600_000_000
"""How long a count is kept after its period, for system clocks that are set back."""
PERIOD: Final = Struct("<qqqqx")  # no ring is as long, so a store can tell them apart

QUOTA_EXAMPLE: Final = 'Quota("10000/month")'
_QUOTA: Final = re.compile(r"(?P<amount>[0-9]{1,18}+) *+(?:/|per\b) *+(?P<unit>[A-Za-z]++)", re.ASCII)


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Quota(AnyLimit):
    """At most `amount` units in each day, week, month or year of the calendar. Immutable; equal quotas hash equal.

    It stands wherever a limit stands, and goes by Unix time, also where windows of the same store go by a clock that is
    never set. It is no sliding window: at the turn of a period everything is free again, so up
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

    def __init__(
        self, text: str, *, zone: str = "UTC", starts: int | str | None = None, name: str | None = None
    ) -> None:
        match = _QUOTA.fullmatch(text.strip(" ")) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(f'expected AMOUNT/PERIOD, for example "10000/month", not {quoted(text)}', "quota")
        unit = match["unit"].lower()
        if unit not in UNITS:
            raise ConfigurationError(
                f"expected a day, week, month or year, for example {match['amount']}/month, not {quoted(text)}; "
                'for other spans write a limit, for example "100/hour"',
                "quota",
            )
        amount = check_whole(int(match["amount"]), 1, MAX_AMOUNT, "quota", f"for example {QUOTA_EXAMPLE}")
        if name is not None:
            check_name(name, "name")
        anchor, spelled = read_anchor(unit, starts)
        calendar = Calendar(unit, anchor, load_zone(zone))
        self._fill(amount=amount, unit=unit, starts=spelled, zone_name=zone, name=name, calendar=calendar)

    def enter(self, window: bytes, now_us: int, unix_us: int) -> bytes:
        """Return a count in the period of a moment, which the store and Unix call by different numbers."""
        known_us, _, floor_us, spent = _read(window)
        until_us = self.period_at(unix_us).end_us
        if until_us > known_us:
            return _pack(until_us, now_us - unix_us, floor_us, 0)
        return _pack(known_us, now_us - unix_us, floor_us, spent)

    def spend(self, window: bytes, now_us: int, cost: int, ahead: int = 0) -> tuple[bytes, WindowState]:
        """See `Ring.spend`."""
        until_us, ahead_us, floor_us, spent = _read(window)
        wanted = cost or 1
        wait_us = 0
        if spent + wanted > self.amount:
            wait_us = NEVER if ahead + wanted > self.amount else until_us + ahead_us - now_us
        elif cost:
            window = _pack(until_us, ahead_us, floor_us, spent + cost)
        return window, self.state(window, wait_us)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        """See `Ring.charge`; a debt lasts until the period ends."""
        until_us, ahead_us, floor_us, spent = _read(window)
        kept = min(units, MAX_UNITS - spent)
        return _pack(until_us, ahead_us, floor_us, spent + kept), kept

    def remove(self, window: bytes, now_us: int, spent_us: int, mark: int, units: int) -> bytes | None:
        """See `Ring.remove`; a charge is found by the end of its period, in Unix time."""
        until_us, ahead_us, floor_us, spent = _read(window)
        if mark != until_us or not 0 < units <= spent or spent_us <= floor_us:
            return None
        return _pack(until_us, ahead_us, floor_us, spent - units)

    def settle(self, window: bytes, now_us: int) -> bytes:
        """See `Ring.settle`: nothing leaves before the period ends."""
        return window

    def state(self, window: bytes, wait_us: int = 0) -> WindowState:
        """See `Ring.state`: a unit counts until the period ends, whenever it was spent."""
        until_us, ahead_us, _, spent = _read(window)
        return spent, until_us + ahead_us, until_us + ahead_us, wait_us

    def reset(self, window: bytes, now_us: int, latest_us: int = 0) -> bytes:
        """See `Ring.reset`."""
        until_us, ahead_us, floor_us, spent = _read(window)
        return _pack(until_us, ahead_us, max(floor_us, now_us, latest_us), 0) if spent else window

    def expires_us(self, window: bytes) -> int:
        """See `AnyLimit.expires_us`: by Unix time as it was at the last look."""
        until_us, ahead_us, _, _ = _read(window)
        return until_us + ahead_us + KEPT_US

    def mark(self, window: bytes) -> int:
        """See `Ring.mark`: the end of the period, in Unix time."""
        return end_us(window)

    @property
    def counter(self) -> Self:
        """See `AnyLimit.counter`."""
        return self

    @property
    def same_window(self) -> Identity:
        """Unit, zone and start: quotas of one rule that agree in them share their counts, whatever their amounts."""
        return 0, f"{self.unit} {self.starts} {self.zone_name}"

    def with_amount(self, amount: int) -> Quota:
        """See `AnyLimit.with_amount`."""
        return Quota(f"{amount}/{self.unit}", zone=self.zone_name, starts=self.starts, name=self.name)

    @property
    def suffix(self) -> str:
        """See `AnyLimit.suffix`: the unit."""
        return self.unit

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

    def __str__(self) -> str:
        return self._named(f"{self.amount}/{self.unit} from {self.starts} in {self.zone_name}")


def end_us(window: bytes) -> int:
    """Return when the period of a count ends, in Unix time."""
    return _read(window)[0]


def _read(window: bytes) -> tuple[int, int, int, int]:
    return PERIOD.unpack(window) if window else (0, 0, -1, 0)


def _pack(until_us: int, ahead_us: int, floor_us: int, spent: int) -> bytes:
    return PERIOD.pack(until_us, ahead_us, floor_us, spent)
