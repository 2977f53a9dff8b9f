"""Limits: their common base, that of a sliding window, and that of concurrent requests. `limit_texts` reads texts.

A limit admits at most `amount` units in any half-open interval of `window_us` microseconds. Its `resolution`, the
number of counters that a window may store, determines the contents of its ring (see `ring`):

* ``amount <= resolution``: the time of every unit is stored, and the window is exact;
* otherwise: counts of slices of ``s = ceil(window_us / resolution)`` microseconds. The slice is rounded *up*: rounded
  down, ``k * s`` would be shorter than the window, and the window could admit twice the amount.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from datetime import timedelta
from typing import Final, Self, TypeAlias

from .arguments import check_name, check_whole
from .counters import Counter, PermitCounter, ends_us
from .durations import format_duration, parse_duration_us
from .errors import ConfigurationError
from .ring import Ring, expires_us

Identity: TypeAlias = tuple[int, int | str]
"""Distinguishes the windows of one rule; the first element is the window length, or 0 for other kinds of limits."""

MAX_AMOUNT: Final = 2**31 - 1
MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 400 * 86_400_000_000
MAX_RESOLUTION: Final = 3_600
# 64 entries of 12 bytes take three quarters of a kilobyte, and keep the extra wait below 2 % of the window.
DEFAULT_RESOLUTION: Final = 64


def check_amount(amount: object, option: str, example: str) -> int:
    """Return `amount` if it can be that of a limit; of 0, which other limiters read in two ways, say what to write.

    Raises:
        ConfigurationError: It cannot.
    """
    hint = ""
    if amount == 0:
        hint = '; to refuse all requests, write Rule("/path", block=True)'
    return check_whole(amount, 1, MAX_AMOUNT, option, example, hint)


def check_within(cost: object, limits: Iterable[AnyLimit], option: str) -> int:
    """Return `cost` if it is a whole number of units that each limit can admit.

    Raises:
        ConfigurationError: It is not.
    """
    return check_whole(cost, 0, min(limit.amount for limit in limits), option, "for example 1")


class AnyLimit:
    """At most `amount` units of something: the base of `Limit`, `Quota` and `Concurrency`. Immutable for its users.

    A `Bucket` accepts limits of any kind, and a question charges all of them or none. It makes copies of its own, whose
    amounts an operator may change while it counts. The units that a key has spent form a *window*, stored as bytes:
    ``b""`` if there are none. Only the counter of the limit reads and changes these bytes; to a store they are opaque.

    Attributes:
        amount: Units, 1 to 2**31 - 1.
        name: The name of the limit in the response headers; by default its rule's name.
        resolution: The number of counters that a window may store; 0 for other kinds.
        span_us: How long a unit counts after it was spent, in microseconds.
        life_us: The longest time that a unit may count in a window of this length, in microseconds; 0 if unknown.
        is_listed: Whether it can be one of several limits; if not, it is configured by an option of its own.
        suffix: Distinguishes the limit's name on the wire from others of its rule.
        check_us: How long after the moment of units to check whether they have left, in microseconds.
    """

    # Not an ABC: every decision calls `isinstance` on limits, which ABCMeta makes ten times slower. Not a dataclass:
    # making three of them takes a tenth of the time to import this package.
    __slots__ = ("amount", "name")

    amount: int
    name: str | None
    resolution: int = 0
    span_us: int = 0
    life_us: int = 0
    check_us: int = 0
    is_listed: bool = True
    suffix: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyLimit) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; create another one instead of setting {name}")

    def __setstate__(self, state: tuple[object, dict[str, object]]) -> None:
        _, values = state  # no limit has a dict
        self._fill(**values)

    @abstractmethod
    def counter_by(self, unix_us: Callable[[], int]) -> Counter:
        """Return the object that counts the limit's units in a store.

        Args:
            unix_us: Returns the store's Unix time in microseconds, which quotas use.
        """

    @property
    def same_window(self) -> Identity:
        """The identity of the window: limits of one rule with equal ones share a window. A rule has permits once."""
        return 0, 1

    def mutable_copy(self) -> Self:
        """Return a copy whose amount may change, without a change of this limit."""
        return copy(self)

    def become(self, amount: int) -> None:
        """Change the amount of a bucket's own copy; the change holds for the next hit."""
        self._fill(amount=amount)

    @property
    def window_s(self) -> int | None:
        """The length of the window in seconds, `w` of RateLimit-Policy; None if that is not a whole number."""
        return None

    @property
    @abstractmethod
    def wording(self) -> str:
        """The limit in words: ``"100 per 1m"``."""

    def expires_us(self, window: bytes) -> int:
        """Return when a window becomes empty if nothing is added to it, in microseconds, whatever the amount."""
        return expires_us(window, self.check_us)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _compared(self) -> tuple[object, ...]:
        """Return what limits are equal by."""
        return type(self), self.amount, self.name, self.same_window

    def _set_name(self, name: str | None) -> None:
        if name is not None:
            check_name(name, "limit name")
        self._fill(name=name)

    def _fill(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _with_name(self, text: str) -> str:
        if self.name is None:
            return text
        return f"{self.name}: {text}"


class Limit(AnyLimit):
    """At most `amount` units in any window of `window_us` microseconds. Immutable; equal limits hash equal.

    Args:
        amount: Units, 1 to 2**31 - 1.
        window: ``"30s"``, ``"2 hours"`` or a `timedelta`; 1 ms to 400 days.
        resolution: The number of counters that a window may store, 1 to 3600 and at most ``window_us / 10``.
        name: The name of the limit in the response headers; by default its rule's name.

    Attributes:
        window_us: The length of the window.
        slice_us: Length of a slice: ``ceil(window_us / resolution)``.
        slices: k, the number of slices that make up the window: ``ceil(window_us / slice_us)``.
        exact: Whether the time of every unit is stored (``amount <= resolution``).
        span_us: How long a unit counts after its moment, which is the last microsecond of its slice.
        life_us: The longest time that a unit counts, whatever the amount: k + 1 slices.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    __slots__ = (
        "check_us",
        "counter",
        "exact",
        "life_us",
        "resolution",
        "slice_us",
        "slices",
        "span_us",
        "suffix",
        "window_us",
    )

    window_us: int
    slice_us: int
    slices: int
    exact: bool
    counter: Ring

    def __init__(
        self,
        amount: int,
        window: str | timedelta,
        *,
        resolution: int = DEFAULT_RESOLUTION,
        name: str | None = None,
    ) -> None:
        check_amount(amount, "amount", 'for example Limit(100, "1m")')
        window_us = parse_duration_us(window, "window", MIN_WINDOW_US, MAX_WINDOW_US, "30s")
        check_whole(resolution, 1, MAX_RESOLUTION, "resolution", "for example 64")
        if resolution * 10 > window_us:
            raise ConfigurationError(
                f"{resolution} slices of {format_duration(window_us)} would be shorter than 10 us; "
                f"use at most {window_us // 10}",
                "resolution",
            )
        self._set_name(name)
        slice_us = -(-window_us // resolution)
        slices = -(-window_us // slice_us)
        life_us = (slices + 1) * slice_us
        self._fill(
            window_us=window_us,
            resolution=resolution,
            slice_us=slice_us,
            slices=slices,
            life_us=life_us,
            check_us=life_us,
            suffix=f"{window_us / 1_000_000:.6f}".rstrip("0").rstrip("."),
            counter=Ring((amount, slice_us, window_us), resolution),
        )
        self.become(amount)

    def counter_by(self, unix_us: Callable[[], int]) -> Ring:
        return self.counter

    def mutable_copy(self) -> Self:
        twin = copy(self)
        twin._fill(counter=copy(self.counter))
        return twin

    def become(self, amount: int) -> None:
        exact = amount <= self.resolution
        step_us, span_us = self.slice_us, self.slices * self.slice_us + 1
        if exact:
            step_us, span_us = 1, self.window_us
        self.counter.terms = amount, step_us, span_us
        self._fill(amount=amount, exact=exact, span_us=span_us)

    @property
    def same_window(self) -> Identity:
        """Window and resolution: limits of one rule with both equal share a window, whatever their amounts."""
        return self.window_us, self.resolution

    @property
    def window_s(self) -> int | None:
        seconds, fraction = divmod(self.window_us, 1_000_000)
        if fraction:
            return None
        return seconds

    @property
    def wording(self) -> str:
        return f"{self.amount} per {format_duration(self.window_us)}"

    def __str__(self) -> str:
        text = f"{self.amount}/{format_duration(self.window_us)}"
        if self.resolution != DEFAULT_RESOLUTION:
            text += f" @{self.resolution}"
        return self._with_name(text)


class Concurrency(AnyLimit):
    """At most `amount` concurrent requests of a key. Immutable; equal limits hash equal.

    It has no window of time: a unit, called a *permit*, is taken until the request returns it at its end, however long
    that takes. The row of permits of a key is described in `counters`.

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
