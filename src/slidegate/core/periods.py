"""The count of a quota: how many units were spent in one period of the calendar, as bytes.

A period is known by its end, a moment of Unix time, because that is all that matters of it: when the count starts anew.
A count begins another period only where that ends later, so a clock that is set back goes on counting in the newer one,
whose units and whose end stay.

`enter` comes before every other question: it brings the period of the moment, and how far the time of the store is
ahead of Unix time. From then on the count answers in the time of the store, as a ring does.

The bytes: the end of the period in Unix time, the time of the store less Unix time, `floor_us` as in `ring`, and units
(int64 each, little-endian).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

from .ring import NEVER, WindowState

MAX_UNITS: Final = 2**52
"""No debt grows beyond it; stores write such numbers without loss."""
KEPT_US: Final = 3_600_000_000
"""How long a count outlives its period: a system clock that is set back by so much still finds it."""

PERIOD: Final = Struct("<qqqq")


class PeriodLimit(Protocol):
    """What a count must know of its quota."""

    @property
    def amount(self) -> int:
        """Units that a period may hold."""


def enter(window: bytes, end_us: int, ahead_us: int) -> bytes:
    """Begin the period that ends at `end_us`, unless it is this one or an earlier one."""
    known_us, _, floor_us, spent = _read(window)
    if end_us > known_us:
        return _pack(end_us, ahead_us, floor_us, 0)
    return _pack(known_us, ahead_us, floor_us, spent)


def spend(
    limit: PeriodLimit, window: bytes, now_us: int, cost: int, ahead: int = 0, first_in_line: bool = False
) -> tuple[bytes, WindowState]:
    """See `ring.spend`."""
    end_us, ahead_us, floor_us, spent = _read(window)
    wanted = cost or 1
    wait_us = 0
    if spent + wanted > limit.amount:
        wait_us = NEVER if ahead + wanted > limit.amount else end_us + ahead_us - now_us
    elif cost:
        window = _pack(end_us, ahead_us, floor_us, spent + cost)
    return window, state(limit, window, wait_us)


def charge(limit: PeriodLimit, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
    """See `ring.charge`; a debt lasts until the period ends."""
    end_us, ahead_us, floor_us, spent = _read(window)
    kept = min(units, MAX_UNITS - spent)
    return _pack(end_us, ahead_us, floor_us, spent + kept), kept


def remove(limit: PeriodLimit, window: bytes, now_us: int, spent_us: int, mark: int, units: int) -> bytes | None:
    """See `ring.remove`; a charge is found by the end of its period, in Unix time."""
    end_us, ahead_us, floor_us, spent = _read(window)
    if mark != end_us or not 0 < units <= spent or spent_us <= floor_us:
        return None
    return _pack(end_us, ahead_us, floor_us, spent - units)


def state(limit: PeriodLimit, window: bytes, wait_us: int = 0) -> WindowState:
    """See `ring.state`: a unit counts until the period ends, whenever it was spent."""
    end_us, ahead_us, _, spent = _read(window)
    return spent, end_us + ahead_us, end_us + ahead_us, wait_us


def reset(limit: PeriodLimit, window: bytes, now_us: int) -> bytes:
    """See `ring.reset`."""
    end_us, ahead_us, _, _ = _read(window)
    return _pack(end_us, ahead_us, now_us, 0)


def expires_us(limit: PeriodLimit, window: bytes) -> int:
    """Return the moment from which a count is nothing any more, by Unix time as it was at the last look."""
    end_us, ahead_us, _, _ = _read(window)
    return end_us + ahead_us + KEPT_US


def end_us(window: bytes) -> int:
    """Return when the period of a count ends, in Unix time."""
    return _read(window)[0]


def _read(window: bytes) -> tuple[int, int, int, int]:
    return PERIOD.unpack(window) if window else (0, 0, -1, 0)


def _pack(end_us: int, ahead_us: int, floor_us: int, spent: int) -> bytes:
    return PERIOD.pack(end_us, ahead_us, floor_us, spent)
