"""Concurrency limits: at most so many requests of a key at a time.

A `Concurrency` is a count of what is under way. It has no window: a unit of it, a *place*, leaves when it is handed
back, and never because time has passed. To code that reads limits it is a `Limit` whose window is nothing.
"""

from __future__ import annotations

from typing import Final, Self

from ..errors import ConfigurationError, quoted
from ..limits import MAX_AMOUNT, Limit, check_name

_EXAMPLE: Final = 'for example "4" or 4'


class Concurrency(Limit):
    """At most `amount` requests of a key at a time. Immutable; equal ones hash equal.

    Args:
        amount: Places, 1 to 2**31 - 1, as a whole number or its text.
        name: The name of the limit in the response headers; by default its rule's name.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    __slots__ = ()

    def __init__(self, amount: int | str, *, name: str | None = None) -> None:
        if name is not None:
            check_name(name, "limit name")
        for field, value in (
            ("amount", _whole(amount)),
            ("window_us", 0),
            ("resolution", 1),
            ("name", name),
            ("slice_us", 0),
            ("slices", 0),
            ("exact", True),
            ("span_us", 0),
        ):
            object.__setattr__(self, field, value)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.amount, self.name)

    def listed(self) -> Self:
        """Refuse to stand among limits: places have a bucket of their own.

        Raises:
            ConfigurationError: Always; the message says what to write.
        """
        raise ConfigurationError(
            f"limits: a concurrency limit stands beside them; write concurrency={self.amount}, as in "
            f'Rule("/render", "60/minute", concurrency={self.amount}), not {self!r} among the limits'
        )

    @property
    def suffix(self) -> str:
        """See `AnyLimit.suffix`."""
        return "places"

    @property
    def window_s(self) -> None:
        """None: there is no window."""

    @property
    def said(self) -> str:
        """See `AnyLimit.said`."""
        return f"{self.amount} at a time"

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name is not None else ""
        return f"{name}{self.amount} at a time"


def _restore(amount: int, name: str | None) -> Concurrency:
    return Concurrency(amount, name=name)


def _whole(amount: object) -> int:
    digits = amount.strip() if isinstance(amount, str) else ""
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else amount
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_AMOUNT:
        hint = "; it has no window" if isinstance(amount, str) and "/" in amount else ""
        raise ConfigurationError(
            f"concurrency: expected a whole number from 1 to {MAX_AMOUNT}, {_EXAMPLE}, not {quoted(amount)}{hint}"
        )
    return number
