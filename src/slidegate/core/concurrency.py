"""Concurrency limits: the number of concurrent requests of a key.

An admitted request takes a permit and returns it when it ends, so it is unknown when the next permit becomes free. The
permits of a key are a row of entries, one for each worker that has some, 20 bytes each, little-endian:

=====================  ===============================================================================================
worker (8 bytes)       the name of a process or an event loop; zeros in the memory of one process
end (int64)            when its permits are free if it does not write its entry again, in microseconds
units (uint32)         how many permits its requests in progress have
=====================  ===============================================================================================

A worker writes only its own entry. In a shared store it renews it, by writing the true count and a new end: that
corrects whatever was lost on the way, and what a dead worker had ends by itself. In memory an entry has no end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Final, final

from .limits import AnyLimit, check_amount, check_name
from .ring import MAX_UNITS, NEVER, OPEN, WindowState

ENTRY: Final = Struct("<8sqI")
ALONE: Final = bytes(8)
"""The worker in the memory of one process."""
NO_END: Final = 2**63 - 1
_AMOUNT: Final = "[0-9]{1,18}"


class Concurrency(AnyLimit):
    """At most `amount` concurrent requests of a key. Immutable; equal limits hash equal.

    It has no window of time: a unit, called a *permit*, is taken until it is returned, however long that takes.

    Args:
        amount: Permits, 1 to 2**31 - 1, as a whole number or its text.
        name: The name of the limit in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    __slots__ = ()

    is_listed = False

    def __init__(self, amount: int | str, *, name: str | None = None) -> None:
        if name is not None:
            check_name(name, "limit name")
        digits = amount.strip() if isinstance(amount, str) else ""
        number = int(digits) if re.fullmatch(_AMOUNT, digits) else amount
        self._fill(amount=check_amount(number, "concurrency", 'for example "4" or 4'), name=name)

    def expires_us(self, window: bytes) -> int:
        """See `AnyLimit.expires_us`: when the last entry ends."""
        return ends_us(window)

    def counter_by(self, unix_us: Callable[[], int]) -> PermitCounter:
        """See `AnyLimit.counter_by`."""
        return PermitCounter(self)

    @property
    def said(self) -> str:
        """See `AnyLimit.said`."""
        return f"{self.amount} at a time"

    def __str__(self) -> str:
        return self._named(self.said)


@final
class PermitCounter:
    """Counts the permits of a limit as one worker, see `Ring`.

    Args:
        limit: The limit.
        worker: The worker; by default the only one.
        until_us: When the permits that it takes end if they are not renewed, in microseconds.
    """

    __slots__ = ("_limit", "_until_us", "_worker")

    def __init__(self, limit: Concurrency, worker: bytes = ALONE, until_us: int = NO_END) -> None:
        self._limit = limit
        self._worker = worker
        self._until_us = until_us

    def spend(self, window: bytes, now_us: int, cost: int) -> tuple[bytes, WindowState]:
        """See `Ring.spend`; if all permits are taken, the wait is `OPEN`."""
        others, spent, own = apart(window, self._worker, now_us)
        wanted, amount = cost or 1, self._limit.amount
        if spent + wanted > amount:
            return in_force(window, now_us), (spent, 0, 0, NEVER if wanted > amount else OPEN)
        return others + self._entry(own + cost), (spent + cost, 0, 0, 0)

    def undo(self, window: bytes, cost: int) -> bytes:
        """See `Ring.undo`."""
        others, _, own = apart(window, self._worker)
        return others + self._entry(own - cost)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        """See `Ring.charge`."""
        others, spent, own = apart(window, self._worker, now_us)
        kept = min(units, MAX_UNITS - spent)
        return others + self._entry(own + kept), kept

    def remove(self, window: bytes, now_us: int, mark: int, units: int) -> bytes | None:
        """See `Ring.remove`; only the number of permits matters."""
        others, _, own = apart(window, self._worker, now_us)
        gone = min(units, own)
        return others + self._entry(own - gone) if gone else None

    def state(self, window: bytes, now_us: int, wait_us: int = 0) -> WindowState:
        """See `Ring.state`; the times are 0, because permits have none, and so is the mark: they are not told apart."""
        return apart(window, self._worker, now_us)[1], 0, 0, wait_us

    def _entry(self, units: int) -> bytes:
        return entry(self._worker, self._until_us, units)


def apart(window: bytes, worker: bytes, now_us: int = -1) -> tuple[bytes, int, int]:
    """Return the entries of other workers, how many permits are taken, and how many of them a worker has.

    Args:
        window: A row.
        worker: The worker.
        now_us: The store's time, in microseconds, at which entries may have ended; by default none has.
    """
    others, spent, own = b"", 0, 0
    for owner, until_us, units in ENTRY.iter_unpack(window):
        if until_us > now_us:
            spent += units
            if owner == worker:
                own = units
            else:
                others += ENTRY.pack(owner, until_us, units)
    return others, spent, own


def entry(worker: bytes, until_us: int, units: int) -> bytes:
    """Return the entry of a worker; nothing if it has no permits."""
    return ENTRY.pack(worker, until_us, units) if units else b""


def in_force(window: bytes, now_us: int) -> bytes:
    """Return a row without the entries that have ended."""
    return b"".join([ENTRY.pack(*one) for one in ENTRY.iter_unpack(window) if one[1] > now_us])


def ends_us(window: bytes) -> int:
    """Return when the last entry of a row ends, in microseconds; 0 if there is none."""
    return max([until_us for _, until_us, _ in ENTRY.iter_unpack(window)], default=0)
