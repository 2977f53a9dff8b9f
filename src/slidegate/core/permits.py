"""The permits of one key: how many requests are under way, as bytes (uint32, little-endian).

A permit is taken when a request is admitted, and free again when it is given back. So there is no moment at which the
next one is free: a demand that finds all of them taken gets the wait `OPEN`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

from .ring import NEVER, OPEN, WindowState

PERMITS: Final = Struct("<I")


class PermitLimit(Protocol):
    """What the permits of a key must know of their limit."""

    @property
    def amount(self) -> int:
        """Permits that there are."""


def spend(
    limit: PermitLimit, window: bytes, now_us: int, cost: int, ahead: int = 0, first_in_line: bool = False
) -> tuple[bytes, WindowState]:
    """See `ring.spend`."""
    wanted = cost or 1
    if taken(window) + wanted > limit.amount:
        return window, state(limit, window, NEVER if ahead + wanted > limit.amount else OPEN)
    window = PERMITS.pack(taken(window) + cost)
    return window, state(limit, window)


def charge(limit: PermitLimit, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
    """See `ring.charge`."""
    return PERMITS.pack(taken(window) + units), units


def remove(limit: PermitLimit, window: bytes, now_us: int, spent_us: int, mark: int, units: int) -> bytes | None:
    """See `ring.remove`; permits are given back by their number."""
    left = taken(window) - units
    return PERMITS.pack(left) if units > 0 and left >= 0 else None


def state(limit: PermitLimit, window: bytes, wait_us: int = 0) -> WindowState:
    """See `ring.state`; the moments are 0, because nobody knows them."""
    return taken(window), 0, 0, wait_us


def taken(window: bytes) -> int:
    """Return how many permits are taken."""
    return int(PERMITS.unpack(window)[0]) if window else 0
