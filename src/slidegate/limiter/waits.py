"""The requests of this process that wait for their turn, and how long others have waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic_ns
from typing import Final

from ..core.statistics.histogram import ResponseTimes
from ..core.store import Clock

PASSED: Final = "passed"
REFUSED: Final = "refused"
LEFT: Final = "left"
"""The outcome of a request whose client left, or that was cancelled, before its turn came."""
OUTCOMES: Final = (PASSED, REFUSED, LEFT)


class Wait:
    """One request that waits.

    Attributes:
        outcome: One of `OUTCOMES`, set by the waiting code when the turn has come.
    """

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        self.outcome = LEFT


class Waits:
    """Counts waiting requests, for all threads.

    Args:
        clock: Returns microseconds; by default the monotonic clock.

    Attributes:
        timed: Hears the outcome and the microseconds of each wait that ends; None for nobody. It must not raise.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = _monotonic_us if clock is None else clock
        self._lock = Lock()
        self._waiting = 0
        self.timed: Callable[[str, int], None] | None = None
        self._ever = {outcome: ResponseTimes() for outcome in OUTCOMES}

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        return self._waiting

    def ever(self) -> dict[str, ResponseTimes]:
        """Return how long requests have waited, by their outcome."""
        with self._lock:
            return {outcome: ResponseTimes.merged([times]) for outcome, times in self._ever.items()}

    @contextmanager
    def one(self) -> Iterator[Wait]:
        """Count a request as waiting until the block ends."""
        wait = Wait()
        began_us = self._clock()
        with self._lock:
            self._waiting += 1
        try:
            yield wait
        finally:
            took_us = max(self._clock() - began_us, 0)
            with self._lock:
                self._waiting -= 1
                self._ever[wait.outcome].count_one(took_us)
            if self.timed is not None:
                self.timed(wait.outcome, took_us)


def _monotonic_us() -> int:
    return monotonic_ns() // 1_000
