"""Defaults, events and checks that several stores share."""

from __future__ import annotations

from threading import Lock
from typing import Final

from ..core.bans.rules import NonDecreasingClock
from ..core.errors import ConfigurationError, quoted
from ..core.store import Clock, Event
from .forks import hold_over_fork

# nginx stores 160,000 addresses in the 10 MB of its manual's example; ours take 200 to 900 bytes each, 20 to 90 MB.
DEFAULT_MAX_KEYS: Final = 100_000
DEFAULT_MAX_BANS: Final = 100_000
SHARED_CELLS: Final = 4_096
SHARED_PAUSE_US: Final = 1_000_000
"""The least time between two events about shared cells; windows may be short, and permits have none."""


def keys_shared(max_keys: int) -> Event:
    """Return the event for keys that are counted in shared cells."""
    message = f"all {max_keys} keys are in use, so others are counted in shared cells; raise max_keys"
    return Event("keys_shared", message, {"max_keys": max_keys})


def check_clock(name: str, given: Clock | None) -> None:
    """Check a user's clock.

    Raises:
        ConfigurationError: It is not callable.
    """
    if given is not None and not callable(given):
        raise ConfigurationError(f"{name}: expected a function that returns microseconds, not {quoted(given)}")


def non_decreasing(clock: Clock) -> Clock:
    """Return a thread-safe clock that never runs backwards: if the given one does, it continues from there."""
    time, lock = NonDecreasingClock(), Lock()
    hold_over_fork(lock)

    def now_us() -> int:
        with lock:
            return time.at(clock())

    return now_us
