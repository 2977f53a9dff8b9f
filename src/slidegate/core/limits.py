"""Limits and their text form: ``"5/minute; 100 per 2 hours; 10/30s"``.

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
from typing import TYPE_CHECKING, Final, Self, TypeAlias, overload

from .durations import SPACES, format_duration, read_span_us
from .errors import ConfigurationError, quoted
from .ring import Ring, Terms, expires_us

if TYPE_CHECKING:
    from .decide import Counter

Identity: TypeAlias = tuple[int, int | str]
"""Distinguishes the windows of one rule; the first element is the window length, or 0 for other kinds of limits."""

MAX_AMOUNT: Final = 2**31 - 1
MIN_WINDOW_US: Final = 1_000
MAX_WINDOW_US: Final = 400 * 86_400_000_000
MAX_RESOLUTION: Final = 3_600
MAX_NAME: Final = 64
MAX_TEXT: Final = 4_096
"""The longest text of limits, in characters; about forty named limits fit."""
_LONGEST_US: Final = 100_000_000 * 86_400_000_000
# 64 entries of 12 bytes take three quarters of a kilobyte, and keep the extra wait below 2 % of the window.
DEFAULT_RESOLUTION: Final = 64

REFUSE_ALL: Final = 'to refuse all requests, write Rule("/path", block=True)'
COUNT_NONE: Final = 'to count no requests, write Rule("/path", exempt=True), or leave the limits out'
EXAMPLE: Final = '"5/minute; 100 per 2 hours"'

# Possessive quantifiers (`++`), and no two adjacent runs of spaces: hostile text is scanned only once.
# They are texts, which `re` compiles at their first use: a compiled one takes a share of the import.
_LIMIT: Final = r"""(?ax)(?P<amount>[0-9]{1,18}+)\s*+
    (?:/|per\b)\s*+
    (?P<window>[0-9]*+\s*+[A-Za-z]++)\s*+
    (?:@\s*+(?P<resolution>[0-9]{1,9}+))?"""
_NAME: Final = "(?! )[ -9<-~]+(?<! )"
_NO_LIMIT: Final = "(?i)[+-]?(?:inf(?:inite|inity)?|unlimited|no limits?|none|off|never|disabled|∞)(?: *(?:/| per ).*)?"
"""What stands for no limit in the settings of other limiters."""
_NO_WHOLE: Final = "(?a)([0-9]*[.][0-9]+|-[0-9.]+) *(?:/| per ).*"
_NO_UNIT: Final = r"(?a)([0-9]{1,18}+)\s*+(?:/|per\b)\s*+([0-9]{1,18}+)"


def parse_duration_us(
    value: str | timedelta,
    what: str = "duration",
    low_us: int = 1,
    high_us: int = _LONGEST_US,
    example: str = "30s",
) -> int:
    """Return a duration in microseconds.

    Args:
        value: ``"30s"``, ``"5m"``, ``"2 hours"``, ``"minute"``, or a `timedelta`.
        what: The name of the value, for the error message.
        low_us: The shortest duration.
        high_us: The longest one.
        example: A duration between them.

    Raises:
        ConfigurationError: The value is not a duration, or outside these bounds.
    """
    number = quoted(value).strip("'")
    if number.isdecimal():
        raise ConfigurationError(f'which unit? Write "{number}ms" or "{number}s", not {quoted(value)}', what)
    if isinstance(value, timedelta):
        span_us = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        span_us = read_span_us(value, what, f'for example "{example}", not {quoted(value)}')
    else:
        raise ConfigurationError(f'expected a duration, for example "{example}", not {quoted(value)}', what)
    if not low_us <= span_us <= high_us:
        bounds = f"{format_duration(low_us)} to {format_duration(high_us)}"
        raise ConfigurationError(f'expected {bounds}, for example "{example}", not {quoted(value)}', what)
    return span_us


def check_name(name: object, what: str, most: int = MAX_NAME) -> str:
    """Return `name` if it is valid in a header field and in a limit string.

    Raises:
        ConfigurationError: It is not 1 to `most` printable ASCII characters, contains ``:`` or ``;``, or starts or ends
            with a space.
    """
    if not isinstance(name, str) or len(name) > most or not re.fullmatch(_NAME, name):
        raise ConfigurationError(
            f'expected 1 to {most} printable ASCII characters without ":" and ";" and without spaces around them, '
            f'for example "api", not {quoted(name)}',
            what,
        )
    return name


def check_whole(value: object, low: int, high: int, what: str, example: str) -> int:
    """Return `value` if it is a whole number from `low` to `high`.

    Raises:
        ConfigurationError: It is not; the message contains `what` and the example.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigurationError(f"expected a whole number from {low} to {high}, {example}, not {quoted(value)}", what)
    return value


def check_amount(amount: object, what: str, example: str) -> int:
    """Return `amount` if it can be that of a limit; of 0, which other limiters read in two ways, say what to write.

    Raises:
        ConfigurationError: It cannot.
    """
    if amount == 0:
        problem = f"expected a whole number from 1 to {MAX_AMOUNT}, {example}, not {quoted(amount)}; {REFUSE_ALL}"
        raise ConfigurationError(problem, what)
    return check_whole(amount, 1, MAX_AMOUNT, what, example)


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
        check_us: How long after units were spent to check whether they have left, in microseconds.
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyLimit) and type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; create another one instead of setting {name}")

    def __setstate__(self, state: tuple[dict[str, object] | None, dict[str, object]]) -> None:
        self._fill(**(state[0] or {}), **state[1])

    @abstractmethod
    def counter_by(self, unix_us: Callable[[], int]) -> Counter:
        """Return the object that counts the limit's units in a store.

        Args:
            unix_us: Returns the store's Unix time in microseconds, which a quota goes by.
        """

    @property
    def same_window(self) -> Identity:
        """The identity of the window: limits of one rule with equal ones share a window. A rule has permits once."""
        return 0, 1

    def own(self) -> Self:
        """Return a copy whose amount may change, without a change of this limit."""
        return copy(self)

    def become(self, amount: int) -> None:
        """Change the amount of a bucket's own copy; the change holds for the next hit, whoever has prepared it."""
        self._fill(amount=amount)

    @property
    def suffix(self) -> str:
        """The suffix that distinguishes the limit's name on the wire from others of its rule."""
        return ""

    @property
    def window_s(self) -> int | None:
        """The length of the window in seconds, `w` of RateLimit-Policy; None if that is not a whole number."""
        return None

    @property
    @abstractmethod
    def said(self) -> str:
        """The limit in words: ``"100 per 1m"``."""

    @abstractmethod
    def expires_us(self, window: bytes) -> int:
        """Return when a window becomes empty if nothing is added to it, in microseconds."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _identity(self) -> tuple[object, ...]:
        return self.amount, self.name, self.same_window

    def _fill(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _named(self, text: str) -> str:
        return text if self.name is None else f"{self.name}: {text}"


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
        counter: Counts the units.

    Raises:
        ConfigurationError: A value is outside its range.
    """

    __slots__ = ("check_us", "counter", "exact", "life_us", "resolution", "slice_us", "slices", "span_us", "window_us")

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
        if name is not None:
            check_name(name, "limit name")
        slice_us = -(-window_us // resolution)
        slices = -(-window_us // slice_us)
        self._fill(window_us=window_us, resolution=resolution, name=name, slice_us=slice_us, slices=slices)
        life_us = (slices + 1) * slice_us
        self._fill(counter=Ring(amount, resolution, *self._terms(amount)[1:]), life_us=life_us, check_us=life_us)
        self.become(amount)

    def _terms(self, amount: int) -> Terms:
        """Return what the counter needs to know for an amount."""
        if amount <= self.resolution:
            return amount, 1, self.window_us
        return amount, self.slice_us, self.slices * self.slice_us + 1

    def counter_by(self, unix_us: Callable[[], int]) -> Ring:
        """See `AnyLimit.counter_by`."""
        return self.counter

    def own(self) -> Self:
        """See `AnyLimit.own`."""
        twin = copy(self)
        twin._fill(counter=copy(self.counter))
        return twin

    def become(self, amount: int) -> None:
        """See `AnyLimit.become`."""
        terms = self._terms(amount)
        self.counter.become(terms)
        self._fill(amount=amount, exact=amount <= self.resolution, span_us=terms[2])

    @property
    def same_window(self) -> Identity:
        """Window and resolution: limits of one rule with both equal share a window, whatever their amounts."""
        return self.window_us, self.resolution

    @property
    def suffix(self) -> str:
        """See `AnyLimit.suffix`: the seconds of the window."""
        return f"{self.window_us / 1_000_000:.6f}".rstrip("0").rstrip(".")

    @property
    def window_s(self) -> int | None:
        """See `AnyLimit.window_s`."""
        seconds, rest = divmod(self.window_us, 1_000_000)
        return None if rest else seconds

    @property
    def said(self) -> str:
        """See `AnyLimit.said`."""
        return f"{self.amount} per {format_duration(self.window_us)}"

    def expires_us(self, window: bytes) -> int:
        """See `AnyLimit.expires_us`; the result does not depend on the amount."""
        return expires_us(window, self.life_us)

    def __str__(self) -> str:
        resolution = f" @{self.resolution}" if self.resolution != DEFAULT_RESOLUTION else ""
        return self._named(f"{self.amount}/{format_duration(self.window_us)}{resolution}")


@overload
def parse_limits(limits: str | Limit | Iterable[str | Limit]) -> tuple[Limit, ...]: ...


@overload
def parse_limits(limits: str | AnyLimit | Iterable[str | AnyLimit]) -> tuple[AnyLimit, ...]: ...


def parse_limits(limits: str | AnyLimit | Iterable[str | AnyLimit]) -> tuple[AnyLimit, ...]:
    """Parse a set of limits that all apply; objects in it, such as quotas, are returned unchanged.

    Each is ``AMOUNT/WINDOW`` or ``AMOUNT per WINDOW``, separated by ``;``, with an optional
    ``NAME:`` prefix and ``@RESOLUTION`` suffix: ``"burst: 10/s; 600/minute @10"``.

    Raises:
        ConfigurationError: A part is invalid, the set is empty, or two limits have the same window and resolution.
    """
    parts = limits if isinstance(limits, Iterable) and not isinstance(limits, (str, bytes)) else (limits,)
    found: list[AnyLimit] = []
    for part in parts:
        if isinstance(part, AnyLimit):
            if not part.is_listed:
                raise ConfigurationError(
                    f"a concurrency limit is an option of its own; write concurrency={part.amount}, as in "
                    f'Rule("/render", "60/minute", concurrency={part.amount}), not {quoted(part)} among the limits',
                    "limits",
                )
            found.append(part)
        elif isinstance(part, str):
            found.extend(_parse_text(part))
        else:
            raise ConfigurationError(f"expected text such as {EXAMPLE} or Limit objects, not {quoted(part)}", "limits")
    if not found:
        raise ConfigurationError(f"expected at least one, for example {EXAMPLE}", "limits")
    by_window: dict[Identity, AnyLimit] = {}
    for limit in found:
        twin = by_window.setdefault(limit.same_window, limit)
        if twin is not limit:
            raise ConfigurationError(f"'{twin}' and '{limit}' have the same window; keep the smaller one", "limits")
    return tuple(found)


def _parse_text(text: str) -> list[Limit]:
    if len(text) > MAX_TEXT:
        raise ConfigurationError(
            f"expected at most {MAX_TEXT} characters, for example {EXAMPLE}, not {len(text)}: {quoted(text)}", "limits"
        )
    found: list[Limit] = []
    for part in text.split(";"):
        if not part.strip() and found:
            continue  # a trailing ";"
        try:
            found.append(_parse_limit(part.strip(SPACES)))
        except ConfigurationError as error:
            problem = f"{quoted(part.strip())}: {error}"
            if "example" not in problem:
                problem += f"{'' if problem.endswith('?') else '.'} Example: {EXAMPLE}"
            raise ConfigurationError(problem, "limits") from None
    return found


def _parse_limit(text: str) -> Limit:
    """Parse one limit.

    Raises:
        ConfigurationError: The text is not a limit. The caller completes the message.
    """
    name, colon, rest = text.partition(":")
    match = re.fullmatch(_LIMIT, (rest if colon else name).strip(SPACES))
    if match is None or (colon and not name.strip(SPACES)):
        raise ConfigurationError(_what_is_meant(text))
    read_span_us(match["window"], "", "")
    return Limit(
        int(match["amount"]),
        match["window"],
        resolution=int(match["resolution"] or DEFAULT_RESOLUTION),
        name=name.strip(SPACES) if colon else None,
    )


def _what_is_meant(text: str) -> str:
    """Return what to write instead of a text that is no limit, such as one in the syntax of another library."""
    if re.fullmatch(_NO_LIMIT, text):
        return f"that is no limit; {COUNT_NONE}"
    no_whole = re.fullmatch(_NO_WHOLE, text)
    if no_whole and text.startswith("-"):
        return f"an amount is 1 or more; {REFUSE_ALL}; {COUNT_NONE}"
    if no_whole:
        return 'an amount is a whole number; make the window longer, such as "1/2s" for one in two seconds'
    no_unit = re.fullmatch(_NO_UNIT, text)
    if no_unit:
        return f'which unit? Write "{no_unit[1]}/{no_unit[2]}s" if seconds are meant'
    for separator in ",|":
        if separator in text and all(re.fullmatch(_LIMIT, part.strip(SPACES)) for part in text.split(separator)):
            return f'several are separated by ";": write {quoted(text.replace(separator, ";"))}'
    return "expected AMOUNT/WINDOW"
