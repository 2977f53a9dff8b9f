"""Quotas: limits on the units of each calendar period, and their counts as bytes.

A count identifies its period by the period's end in Unix time, when it starts again from zero. It enters another period
only if that ends later: when the clock is set back, counting continues in the newer period.

`Quota.enter` has to be called before every other method: it selects the current period, and stores the difference
between the store's time and Unix time. All other methods use the store's time, as those of a ring do.

The bytes: the end of the period in Unix time, the store's time minus Unix time, `floor_us` as in `ring`, and the units
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
"""The most units of a count, debts included; every store can represent this number exactly."""
KEPT_US: Final = 3_600_000_000
"""How long a count is kept after its period, in case the system clock is set back."""
PERIOD: Final = Struct("<qqqqx")  # no ring has this length, so a store can distinguish them

QUOTA_EXAMPLE: Final = 'Quota("10000/month")'
_QUOTA: Final = re.compile(r"(?P<amount>[0-9]{1,18}+) *+(?:/|per\b) *+(?P<unit>[A-Za-z]++)", re.ASCII)


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Quota(AnyLimit):
    """At most `amount` units in each calendar day, week, month or year. Immutable; equal quotas hash equal.

    It can be used wherever a limit can, and follows Unix time, even in a store whose windows use a monotonic clock. It
    is not a sliding window: at the end of a period all units become free, so up to twice the amount can pass around
    that time. Combine it with a sliding limit to keep bursts small: ``["10/second", quota]``.

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
        """Return a count in its current period; `now_us` and `unix_us` are the same time on both clocks."""
        known_us, _, floor_us, spent = _read(window)
        until_us = self.period_at(unix_us).end_us
        if until_us > known_us:
            return _pack(until_us, now_us - unix_us, floor_us, 0)
        return _pack(known_us, now_us - unix_us, floor_us, spent)

    def spend(self, window: bytes, now_us: int, cost: int) -> tuple[bytes, WindowState]:
        """See `Ring.spend`."""
        until_us, ahead_us, floor_us, spent = _read(window)
        wanted, amount = cost or 1, self.amount
        wait_us = 0
        if spent + wanted > amount:
            wait_us = NEVER if wanted > amount else until_us + ahead_us - now_us
        elif cost:
            window = _pack(until_us, ahead_us, floor_us, spent + cost)
        return window, self.state(window, wait_us)

    def undo(self, window: bytes, cost: int) -> bytes:
        """See `Ring.undo`."""
        until_us, ahead_us, floor_us, spent = _read(window)
        return _pack(until_us, ahead_us, floor_us, spent - cost)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        """See `Ring.charge`; a debt lasts until the period ends."""
        until_us, ahead_us, floor_us, spent = _read(window)
        kept = min(units, MAX_UNITS - spent)
        return _pack(until_us, ahead_us, floor_us, spent + kept), kept

    def remove(self, window: bytes, now_us: int, spent_us: int, mark: int, units: int) -> bytes | None:
        """See `Ring.remove`; the mark of a charge is the end of its period, in Unix time."""
        until_us, ahead_us, floor_us, spent = _read(window)
        if mark != until_us or not 0 < units <= spent or spent_us <= floor_us:
            return None
        return _pack(until_us, ahead_us, floor_us, spent - units)

    def settle(self, window: bytes, now_us: int) -> bytes:
        """See `Ring.settle`; nothing leaves before the period ends."""
        return window

    def state(self, window: bytes, wait_us: int = 0) -> WindowState:
        """See `Ring.state`; all units leave when the period ends."""
        until_us, ahead_us, _, spent = _read(window)
        return spent, until_us + ahead_us, until_us + ahead_us, wait_us

    def reset(self, window: bytes, now_us: int, latest_us: int = 0) -> bytes:
        """See `Ring.reset`."""
        until_us, ahead_us, floor_us, spent = _read(window)
        return _pack(until_us, ahead_us, max(floor_us, now_us, latest_us), 0) if spent else window

    def expires_us(self, window: bytes) -> int:
        """See `AnyLimit.expires_us`; computed with the Unix time of the last `enter`."""
        until_us, ahead_us, _, _ = _read(window)
        return until_us + ahead_us + KEPT_US

    def mark(self, window: bytes) -> int:
        """See `Ring.mark`; it is the end of the period, in Unix time."""
        return end_us(window)

    @property
    def counter(self) -> Self:
        """See `AnyLimit.counter`."""
        return self

    @property
    def same_window(self) -> Identity:
        """Unit, zone and start: quotas of one rule with all three equal share a count, whatever their amounts."""
        return 0, f"{self.unit} {self.starts} {self.zone_name}"

    def with_amount(self, amount: int) -> Quota:
        """See `AnyLimit.with_amount`."""
        return Quota(f"{amount}/{self.unit}", zone=self.zone_name, starts=self.starts, name=self.name)

    @property
    def suffix(self) -> str:
        """See `AnyLimit.suffix`; it is the unit."""
        return self.unit

    @property
    def said(self) -> str:
        """See `AnyLimit.said`."""
        return f"{self.amount} per {self.unit}"

    def period_at(self, unix_us: int) -> Period:
        """Return the period that contains a Unix time in microseconds."""
        return self.calendar.period_at(unix_us)

    def leaves_us(self, at_us: int) -> int:
        """See `AnyLimit.leaves_us`; the result does not depend on when the period ends."""
        return at_us + KEPT_US

    def __str__(self) -> str:
        return self._named(f"{self.amount}/{self.unit} from {self.starts} in {self.zone_name}")


def end_us(window: bytes) -> int:
    """Return the end of a count's period, in microseconds of Unix time."""
    return _read(window)[0]


def _read(window: bytes) -> tuple[int, int, int, int]:
    return PERIOD.unpack(window) if window else (0, 0, -1, 0)


def _pack(until_us: int, ahead_us: int, floor_us: int, spent: int) -> bytes:
    return PERIOD.pack(until_us, ahead_us, floor_us, spent)
