"""The time of a Redis store, estimated locally between answers."""

from __future__ import annotations

from time import monotonic_ns

from ...core.store import Clock
from ..system_clock import system_us


def real_monotonic_us() -> int:
    """Return the monotonic time of the system in microseconds, also where a test has set that of limiters."""
    return monotonic_ns() // 1_000


class StoreTime:
    """The time of a store: the server's, or that of a test clock.

    Args:
        clock: The test clock; None to use the server's time.

    Attributes:
        is_real: Whether the server's time is used.
        local_us: Returns the time of a local clock: the monotonic clock, or the test clock.
        unix_us: Returns Unix time, by the clock of this process.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._ahead_us = 0
        self.is_real = clock is None
        self.local_us: Clock = clock or real_monotonic_us
        self.unix_us: Clock = clock or system_us

    def for_script(self) -> int:
        """Return the time argument of a script; -1 makes the script use the server's TIME."""
        return -1 if self._clock is None else self._clock()

    def now_us(self) -> int:
        """Return the server's time, estimated from its last answer."""
        return self.local_us() + self._ahead_us

    def sent_us(self, sent_ns: int) -> int:
        """Return a moment of the monotonic clock by the local one; a test's stands still until an answer comes."""
        if self.is_real:
            return sent_ns // 1_000
        return self.local_us()

    def saw(self, now_us: int) -> None:
        """Record the server's time, in an answer received now."""
        if self.is_real:
            self._ahead_us = now_us - real_monotonic_us()
