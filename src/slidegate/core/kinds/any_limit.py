"""The base of all kinds of limits, as buckets, stores and headers use them.

A `Limit` is a sliding window, a `CalendarQuota` a count that starts anew at moments of the calendar. A bucket takes any
of them, and a demand charges all or none, whatever their kinds. Each kind has a count of its own, which a store keeps
(`windows.rings.new_count`) and may write as bytes (`windows.codec`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self, TypeAlias

Identity: TypeAlias = tuple[int, int | str]
"""A rule tells its counts apart by these two; the first is the length of a window, and 0 for other kinds."""


class AnyLimit(ABC):
    """At most `amount` units of something. Immutable.

    Attributes:
        amount: Units, 1 to 2**31 - 1.
        name: What the limit is called in the response headers; by default its rule's name.
        resolution: How many numbers a window may remember; 0 for other kinds.
        exact: Whether the time of every unit is kept.
        slice_us: How far the end of a unit may be from its own, in microseconds.
        span_us: How long a unit counts after the newest moment of a reading, in microseconds.
    """

    __slots__ = ("amount", "exact", "name", "resolution", "slice_us", "span_us")

    amount: int
    name: str | None
    resolution: int
    exact: bool
    slice_us: int
    span_us: int

    def _fill(self, **values: object) -> None:
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, field: str, value: object) -> None:
        kind = type(self).__name__
        raise AttributeError(f"a {kind} is immutable; make another one instead of setting {field}")

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; it always has its {field}")

    def listed(self) -> Self:
        """Return this limit, as one of those that apply together.

        Raises:
            ConfigurationError: A limit of this kind stands by itself.
        """
        return self

    @property
    @abstractmethod
    def same_window(self) -> Identity:
        """Limits of one rule that agree in this share their counts, whatever their amounts."""

    @property
    @abstractmethod
    def suffix(self) -> str:
        """The part of a name on the wire that tells the limit apart from others of its rule."""

    @property
    @abstractmethod
    def window_s(self) -> int | None:
        """The length of the window in whole seconds: `w` of RateLimit-Policy; None where there is no such number."""

    @property
    @abstractmethod
    def said(self) -> str:
        """The limit in a sentence for people: ``"100 per 1m"``."""

    @abstractmethod
    def leaves_us(self, at_us: int) -> int:
        """Return the moment at which to look whether units that were spent at `at_us` have left."""
