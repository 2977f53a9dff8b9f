"""Concurrency limits: the number of concurrent requests of a key, stored as bytes (uint32, little-endian).

An admitted request takes a permit and returns it when it ends, so it is unknown when the next permit becomes free.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, Self

from .errors import ConfigurationError, quoted
from .limits import MAX_AMOUNT, AnyLimit, Identity, check_name
from .ring import NEVER, OPEN, WindowState

PERMITS: Final = Struct("<I")


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Concurrency(AnyLimit):
    """At most `amount` concurrent requests of a key. Immutable; equal limits hash equal.

    It has no window of time: a unit, called a *permit*, is taken until it is returned, however long that takes.

    Args:
        amount: Permits, 1 to 2**31 - 1, as a whole number or its text.
        name: The name of the limit in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    amount: int
    name: str | None

    def __init__(self, amount: int | str, *, name: str | None = None) -> None:
        if name is not None:
            check_name(name, "limit name")
        self._fill(amount=_amount(amount), name=name)

    def spend(self, window: bytes, now_us: int, cost: int) -> tuple[bytes, WindowState]:
        """See `Ring.spend`; if all permits are taken, the wait is `OPEN`."""
        wanted, amount = cost or 1, self.amount
        if taken(window) + wanted > amount:
            return window, self.state(window, NEVER if wanted > amount else OPEN)
        window = PERMITS.pack(taken(window) + cost)
        return window, self.state(window)

    def undo(self, window: bytes, cost: int) -> bytes:
        """See `Ring.undo`; no permits and an empty window are the same."""
        return PERMITS.pack(taken(window) - cost)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        """See `Ring.charge`."""
        return PERMITS.pack(taken(window) + units), units

    def remove(self, window: bytes, now_us: int, mark: int, units: int) -> bytes | None:
        """See `Ring.remove`; only the number of permits matters."""
        held = taken(window)
        return PERMITS.pack(max(held - units, 0)) if units > 0 and held else None

    def settle(self, window: bytes, now_us: int) -> bytes:
        """See `Ring.settle`; permits do not expire."""
        return window

    def state(self, window: bytes, wait_us: int = 0) -> WindowState:
        """See `Ring.state`; the times are 0, because permits have none."""
        return taken(window), 0, 0, wait_us

    def expires_us(self, window: bytes) -> int:
        """See `AnyLimit.expires_us`; never while a permit is taken."""
        return 2**63 - 1 if taken(window) else 0

    def mark(self, window: bytes) -> int:
        """See `Ring.mark`; permits are not told apart."""
        return 0

    def leaves_us(self, at_us: int) -> int:
        """See `AnyLimit.leaves_us`; a permit may be returned at any time."""
        return at_us

    def listed(self) -> Self:
        """Raise an error, because a concurrency limit cannot be one of `limits`.

        Raises:
            ConfigurationError: Always; the message shows the right option.
        """
        raise ConfigurationError(
            f"a concurrency limit is an option of its own; write concurrency={self.amount}, as in "
            f'Rule("/render", "60/minute", concurrency={self.amount}), not {quoted(self)} among the limits',
            "limits",
        )

    @property
    def counter(self) -> Self:
        """See `AnyLimit.counter`."""
        return self

    @property
    def same_window(self) -> Identity:
        """The same for all: a rule has one count of permits for each key."""
        return 0, 1

    @property
    def suffix(self) -> str:
        """See `AnyLimit.suffix`."""
        return "permits"

    @property
    def said(self) -> str:
        """See `AnyLimit.said`."""
        return f"{self.amount} at a time"

    def __str__(self) -> str:
        return self._named(self.said)


def _amount(amount: object) -> int:
    digits = amount.strip() if isinstance(amount, str) else ""
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else amount
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_AMOUNT:
        hint = "; it has no window" if isinstance(amount, str) and "/" in amount else ""
        raise ConfigurationError(
            f'expected a whole number from 1 to {MAX_AMOUNT}, for example "4" or 4, not {quoted(amount)}{hint}',
            "concurrency",
        )
    return number


def taken(window: bytes) -> int:
    """Return how many permits are taken."""
    return int(PERMITS.unpack(window)[0]) if window else 0
