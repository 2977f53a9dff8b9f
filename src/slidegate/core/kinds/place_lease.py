"""How long the places of a worker that is gone stay taken, in a store that several workers share."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ..durations import format_duration
from ..errors import ConfigurationError, quoted
from ..limits import parse_duration_us

DEFAULT_PLACE_LEASE: Final = "10s"
RENEWALS: Final = 3
"""How often a worker renews in the length of a lease: so many times less one a renewal may get lost."""

_LEAST_US: Final = 1_000_000
_MOST_US: Final = 600_000_000


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
