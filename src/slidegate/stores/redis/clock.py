"""Steps of a server's clock, seen from here."""

from __future__ import annotations

from time import monotonic_ns
from typing import Final

STEP_US: Final = 1_000_000
"""A difference of clocks that a network does not explain."""


class ServerClock:
    """The time of one server.

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
        least_us, most_us = now_us - monotonic_ns() // 1_000, now_us - sent_us
        forward_us, back_us = least_us - self._most_ahead_us, self._least_ahead_us - most_us
        is_first = not self._most_ahead_us
        self._least_ahead_us, self._most_ahead_us = least_us, most_us
        if is_first:
            return 0
        return forward_us if forward_us > STEP_US else -back_us if back_us > STEP_US else 0
