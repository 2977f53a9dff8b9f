"""The system clock, which gives the time to every limiter without a clock of its own.

No other module reads the time for that, so a test replaces it here for the whole process: see `SystemClock.use`.
Others call the functions below, or, where every nanosecond counts, the methods of `SYSTEM`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..core.store import Clock
from .shared import non_decreasing


class SystemClock:
    """The functions that return the time: those of the operating system, or those of a test.

    Attributes:
        monotonic_ns: Returns the monotonic time in nanoseconds.
        time_ns: Returns Unix time in nanoseconds.
    """

    __slots__ = ("_latest_ns", "monotonic_ns", "time_ns")

    def __init__(self) -> None:
        self._latest_ns = 0
        self.monotonic_ns: Callable[[], int] = time.monotonic_ns
        self.time_ns: Callable[[], int] = time.time_ns

    def use(self, clock: Clock | None) -> None:
        """Read a test's clock instead of that of the system; or, with None, that of the system again.

        Stores rely on a monotonic time that never runs backwards. So it continues from its present value, whatever the
        new clock says: it passes as that clock advances, and stands still while that is set back.

        Args:
            clock: Returns Unix time in microseconds; may step back.
        """
        steady_ns, unix_ns = time.monotonic_ns, time.time_ns
        if clock is not None:
            steady_ns, unix_ns = _nanoseconds(non_decreasing(clock)), _nanoseconds(clock)
        start_ns = steady_ns()
        try:
            now_ns = self.monotonic_ns()
        except Exception:  # the test's clock fails: time goes on from when it was read last
            now_ns = self._latest_ns
        self._latest_ns, ahead_ns = now_ns, now_ns - start_ns

        def monotonic_ns() -> int:
            self._latest_ns = steady_ns() + ahead_ns
            return self._latest_ns

        self.monotonic_ns, self.time_ns = monotonic_ns, unix_ns


def _nanoseconds(clock: Clock) -> Callable[[], int]:
    return lambda: clock() * 1_000


SYSTEM: Final = SystemClock()
"""The system clock of this process."""


def monotonic_us() -> int:
    """Return the monotonic time in microseconds."""
    return SYSTEM.monotonic_ns() // 1_000


def system_us() -> int:
    """Return Unix time in microseconds."""
    return SYSTEM.time_ns() // 1_000
