"""Concurrency limits: the number of concurrent requests of a key.

An admitted request takes a permit and returns it when it ends. The row of permits of a key is described in `counters`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .counters import PermitCounter, ends_us
from .limits import AnyLimit, check_amount


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
        self._set_name(name)
        number: int | str = amount
        if isinstance(amount, str) and re.fullmatch("[0-9]{1,18}", amount.strip()):
            number = int(amount)
        self._fill(amount=check_amount(number, "concurrency", 'for example "4" or 4'))

    def expires_us(self, window: bytes) -> int:
        """See `AnyLimit.expires_us`: when the last entry ends."""
        return ends_us(window)

    def counter_by(self, unix_us: Callable[[], int]) -> PermitCounter:
        return PermitCounter(self)

    @property
    def wording(self) -> str:
        return f"{self.amount} at a time"

    def __str__(self) -> str:
        return self._with_name(self.wording)
