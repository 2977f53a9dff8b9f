"""The time of a server, worked out here.

An answer carries the server's time, which was read at some moment between sending and receiving. So since then the
server's clock has gone on by at least the time since the answer came, and by at most the time since the question went:
`least_us` and `most_us`.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Final

from ...core.store import Clock

STEP_US: Final = 1_000_000
"""A difference of clocks that a network does not explain."""


class ServerClock:
    """The time of one server.

    Args:
        clock: The clock of a test, which is the server's then.

    Attributes:
        steps: How often its clock was seen to step.
    """

    __slots__ = ("_clock", "_latest_us", "_least_ahead_us", "_most_ahead_us", "steps")

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._least_ahead_us = self._most_ahead_us = self._latest_us = 0
        self.steps = 0

    def saw(self, now_us: int, sent_us: int) -> int:
        """Record the server's time in an answer to a question that was sent at `sent_us` (monotonic).

        Returns:
            By how many microseconds the server's clock was set meanwhile; 0 where it was not.
        """
        if self._clock is not None:
            self._ask(self._clock)
            return 0
        least_us, most_us = now_us - monotonic_ns() // 1_000, now_us - sent_us
        forward_us, back_us = least_us - self._most_ahead_us, self._least_ahead_us - most_us
        step_us = forward_us if forward_us > STEP_US else -back_us if back_us > STEP_US else 0
        first = not self._most_ahead_us
        self._least_ahead_us, self._most_ahead_us = least_us, most_us
        if first or not step_us:
            return 0
        self.steps += 1
        return step_us

    def least_us(self) -> int:
        """Return a moment that has come on the server for certain."""
        return monotonic_ns() // 1_000 + self._least_ahead_us if self._clock is None else self._ask(self._clock)

    def most_us(self) -> int:
        """Return a moment that the server has not passed."""
        return monotonic_ns() // 1_000 + self._most_ahead_us if self._clock is None else self._ask(self._clock)

    def _ask(self, clock: Clock) -> int:
        now_us = clock()
        self.steps += now_us < self._latest_us
        self._latest_us = now_us
        return now_us
