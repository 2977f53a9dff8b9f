"""The time of a store in Redis, and steps of a server's clock, seen from here."""

from __future__ import annotations

from time import monotonic_ns
from typing import Final

from ...core.store import Clock
from ..system_clock import system_us

STEP_US: Final = 1_000_000
"""A difference of clocks that a network does not explain."""
SLACK_MS: Final = 1_000
"""A key lives this much longer than anything in it counts, so that its end need not be moved with every hit."""
TEST_SLACK_MS: Final = 86_400_000
_SERVER_TIME: Final = -1


def monotonic_us() -> int:
    """Return the time of a clock that never runs back, in microseconds."""
    return monotonic_ns() // 1_000


class StoreTime:
    """The time of a store: that of its server, or that of a test's clock.

    Args:
        clock: The clock of a test.

    Attributes:
        is_real: Whether it is the server's.
        local_us: Returns the time of a clock that nobody has to be asked for.
        unix_us: Returns Unix time, as this process sees it.
        slack_ms: How much longer keys live than anything in them counts.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._ahead_us = 0
        self.is_real = clock is None
        self.local_us: Clock = clock or monotonic_us
        self.unix_us: Clock = clock or system_us
        self.slack_ms = SLACK_MS if clock is None else TEST_SLACK_MS

    def for_script(self) -> int:
        """Return the time that a script is told; -1 has it ask the server."""
        return _SERVER_TIME if self._clock is None else self._clock()

    def now_us(self) -> int:
        """Return the server's time, as far as it is known here."""
        return self.local_us() + self._ahead_us

    def saw(self, now_us: int) -> None:
        """Note the time of the server."""
        if self.is_real:
            self._ahead_us = now_us - monotonic_us()


class ServerClock:
    """The clock of one server.

    An answer carries the server's time, which was read at some moment between sending and receiving. So the server's
    clock is ahead of the one here by no less than at the receipt, and by no more than at the sending.
    """

    __slots__ = ("_least_ahead_us", "_most_ahead_us")

    def __init__(self) -> None:
        self._least_ahead_us = self._most_ahead_us = 0

    def saw(self, now_us: int, sent_us: int) -> int:
        """Record the server's time in an answer to a question that was sent at `sent_us` (monotonic).

        Returns:
            By how many microseconds the server's clock was set meanwhile; 0 where it was not.
        """
        least_us, most_us = now_us - monotonic_us(), now_us - sent_us
        forward_us, back_us = least_us - self._most_ahead_us, self._least_ahead_us - most_us
        is_first = not self._most_ahead_us
        self._least_ahead_us, self._most_ahead_us = least_us, most_us
        if is_first:
            return 0
        return forward_us if forward_us > STEP_US else -back_us if back_us > STEP_US else 0
