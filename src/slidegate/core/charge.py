"""By what a store finds what a decision charged, and the permits among that which a worker renews.

In a store that several workers share, a permit is held under a lease, so that those of a worker that was killed come
free.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Self

from .durations import format_duration
from .errors import ConfigurationError, quoted
from .limits import parse_duration_us

DEFAULT_PLACE_LEASE: Final = "10s"
RENEWALS: Final = 3
"""How often a worker renews in the length of a lease: so many times less one a renewal may get lost."""

_LEAST_US: Final = 1_000_000
_MOST_US: Final = 600_000_000


class Charge(list[Any]):
    """What a decision charged, limit by limit: the state of the window, or (mark, units) by which the store finds it.

    Copies of a decision share it, however deep, so that it is handed back once. A pickled one is empty: the decision
    comes back as something to read.
    """

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return self.__class__, ()


class HeldPlace:
    """A place that a request of this process holds; a store keeps it among the charges of the decision.

    Attributes:
        ended: Whether the request has ended. Then the place is renewed no more, whether or not the store hears of it.
    """

    __slots__ = ("__weakref__", "ended")

    def __init__(self) -> None:
        self.ended = False


def let_go(charge: Iterable[object]) -> None:
    """Record that a request has ended, with each place among its charges."""
    for note in charge:
        if isinstance(note, HeldPlace):
            note.ended = True


def place_lease_us(value: str | float | timedelta) -> int:
    """Return the length of a lease in microseconds.

    Raises:
        ConfigurationError: The value is no span of time from 1 s to 10 minutes.
    """
    lease_us = parse_duration_us(value, "place_lease")
    if not _LEAST_US <= lease_us <= _MOST_US:
        least, most = format_duration(_LEAST_US), format_duration(_MOST_US)
        raise ConfigurationError(f'place_lease: expected {least} to {most}, for example "10s", not {quoted(value)}')
    return lease_us
