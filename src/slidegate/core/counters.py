"""The counters of limits: what counts the units of a key in the bytes of its window.

A sliding limit has a `Ring`. Those of quotas and permits, which are here, have the same methods, so one loop charges
limits of any kind. Amounts may change while they count, so these counters read them from their limits.

An admitted request takes a permit and returns it when it ends, so it is unknown when the next permit becomes free. The
permits of a key are a row of entries, one for each worker that has some, 20 bytes each, little-endian:

=====================  ===============================================================================================
worker (8 bytes)       the name of a process or an event loop; zeros in the memory of one process
end (int64)            when its permits are free if it does not write its entry again, in microseconds
units (uint32)         how many permits its requests in progress have
=====================  ===============================================================================================

A worker writes only its own entry. In a shared store it renews it, by writing the true count and a new end: that
corrects whatever was lost on the way, and the permits of a dead worker expire. In memory an entry has no end.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, Protocol, TypeAlias, final

from .calendar import Calendar
from .ring import MAX_UNITS, NEVER, OPEN, Ring, WindowState

ENTRY: Final = Struct("<8sqI")
ALONE: Final = bytes(8)
"""The worker in the memory of one process."""
NO_END: Final = 2**63 - 1


class Amount(Protocol):
    """A `Concurrency`, as far as its counter needs one."""

    @property
    def amount(self) -> int:
        """The most units or permits of a key."""


class Periods(Amount, Protocol):
    """A `Quota`, as far as its counter needs one."""

    @property
    def calendar(self) -> Calendar:
        """Its periods."""


@final
class QuotaCounter:
    """Counts the units of a quota, see `Ring`. All units of a period have one moment, its end, and leave then.

    Args:
        unix_us: Returns the store's Unix time, in microseconds.
    """

    __slots__ = ("_quota", "_unix_us")

    def __init__(self, quota: Periods, unix_us: Callable[[], int]) -> None:
        self._quota = quota
        self._unix_us = unix_us

    def spend(self, window: bytes, now_us: int, cost: int) -> tuple[bytes, WindowState]:
        """See `Ring.spend`; the units leave by the store's time, and their moment is a Unix time."""
        unix_us = self._unix_us()
        window, (spent, leaves_us, moment_us, wait_us) = self._ring(unix_us).spend(window, unix_us, cost)
        if spent:
            leaves_us += now_us - unix_us
        return window, (spent, leaves_us, moment_us, wait_us)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        """See `Ring.charge`; a debt lasts until the period ends."""
        unix_us = self._unix_us()
        return self._ring(unix_us).charge(window, unix_us, units)

    def remove(self, window: bytes, now_us: int, mark: int, units: int) -> bytes | None:
        unix_us = self._unix_us()
        return self._ring(unix_us).remove(window, unix_us, mark, units)

    def _ring(self, unix_us: int) -> Ring:
        """Return the ring of the period that contains a Unix time: one slice, whose last microsecond is the end."""
        period = self._quota.calendar.period_at(unix_us)
        return Ring((self._quota.amount, period.end_us + 1, 0), 1)


@final
class PermitCounter:
    """Counts the permits of a limit as one worker, see `Ring`.

    Args:
        worker: The worker; by default the only one.
        until_us: When the permits that it takes end if they are not renewed, in microseconds.
    """

    __slots__ = ("_limit", "_until_us", "_worker")

    def __init__(self, limit: Amount, worker: bytes = ALONE, until_us: int = NO_END) -> None:
        self._limit = limit
        self._worker = worker
        self._until_us = until_us

    def spend(self, window: bytes, now_us: int, cost: int) -> tuple[bytes, WindowState]:
        """See `Ring.spend`; if all permits are taken, the wait is `OPEN`."""
        other_entries, spent, own_units = apart(window, self._worker, now_us)
        # A cost of 0 takes no permit, and is admitted if one is free.
        needed = cost or 1
        amount = self._limit.amount
        if spent + needed > amount:
            wait_us = OPEN
            if needed > amount:
                wait_us = NEVER
            in_force, _, _ = apart(window, b"", now_us)  # of no worker: all entries are those of others
            return in_force, (spent, 0, 0, wait_us)
        taken = entry(self._worker, self._until_us, own_units + cost)
        return other_entries + taken, (spent + cost, 0, 0, 0)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        other_entries, spent, own_units = apart(window, self._worker, now_us)
        charged = min(units, MAX_UNITS - spent)
        return other_entries + entry(self._worker, self._until_us, own_units + charged), charged

    def remove(self, window: bytes, now_us: int, mark: int, units: int) -> bytes | None:
        """See `Ring.remove`; permits need no mark, because all are alike."""
        other_entries, _, own_units = apart(window, self._worker, now_us)
        if not own_units:
            return None
        if own_units <= units:
            return other_entries
        return other_entries + entry(self._worker, self._until_us, own_units - units)


Counter: TypeAlias = Ring | QuotaCounter | PermitCounter
"""Counts the units of a limit, see `Ring`."""


def apart(window: bytes, worker: bytes, now_us: int = -1) -> tuple[bytes, int, int]:
    """Return the entries of other workers, how many permits are taken, and how many of them `worker` has.

    Args:
        now_us: The store's time, in microseconds, at which entries may have ended; by default none has.
    """
    other_entries = b""
    spent = own_units = 0
    for owner, until_us, units in ENTRY.iter_unpack(window):
        if until_us <= now_us:
            continue
        spent += units
        if owner == worker:
            own_units = units
        else:
            other_entries += ENTRY.pack(owner, until_us, units)
    return other_entries, spent, own_units


def entry(worker: bytes, until_us: int, units: int) -> bytes:
    """Return the entry of a worker; nothing if it has no permits."""
    if not units:
        return b""
    return ENTRY.pack(worker, until_us, units)


def ends_us(window: bytes) -> int:
    """Return when the last entry of a row ends, in microseconds; 0 if there is none."""
    ends = [until_us for _, until_us, _ in ENTRY.iter_unpack(window)]
    return max(ends, default=0)
