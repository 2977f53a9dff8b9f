"""A call of a store, and how the latest ones have ended.

A *call* is what one iteration of an event loop asks: a store that batches sends it together, so 64 questions that one
late answer leaves open are one late call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from operator import methodcaller
from typing import Any, Final, NamedTuple

from ..core.errors import StoreTimeout

FAILURES_TO_OPEN: Final = 3
MIN_CALLS: Final = 10
SECOND_US: Final = 1_000_000
KEPT_CALLS: Final = 1_000
PARTS: Final = 5
"""How many parts a deadline has. However long the event loop is busy with other work at a time, which reads no answer,
it is one part: a request is sent in one iteration, and in the next ones its answer is read and delivered."""
_is_done = methodcaller("done")


class Call:
    """A call of the store: the questions of one iteration of an event loop. It ends with the first of them.

    One timer is the deadline of all its questions: one for each takes a third of the time of a hit on a store that
    batches.

    Args:
        loop: The event loop; None in a thread without one, where each question is a call.
        asked_us: When its first question was asked.
    """

    __slots__ = ("_futures", "_timer", "asked_us", "has_ended", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None, asked_us: int) -> None:
        self.loop = loop
        self.asked_us = asked_us
        self.has_ended = False
        self._futures: list[asyncio.Future[Any]] = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, future: asyncio.Future[Any], deadline_s: float, late: str) -> None:
        """Set a StoreTimeout with the text `late` on a future, which is no task, if it is not done in time."""
        if not self._futures:
            parts = min(PARTS, int(deadline_s * 1_000))  # timers are exact to a millisecond
            self._wait(deadline_s / parts, parts, future.get_loop().time(), late)
        self._futures.append(future)

    def end(self) -> None:
        """Record that it has ended; if all of it was answered, nothing of it is kept until the deadline."""
        self.has_ended = True
        if self._timer is not None and all(map(_is_done, self._futures)):
            self._timer.cancel()
            self._futures = []

    def _wait(self, part_s: float, parts: int, now_s: float, late: str) -> None:
        """Give up when so many parts of the deadline have passed since `now_s`."""
        if parts:
            loop = asyncio.get_running_loop()
            due_s = max(now_s + part_s, loop.time() + part_s / 2)
            self._timer = loop.call_at(due_s, self._wait, part_s, parts - 1, due_s, late)
            return
        for future in self._futures:
            if not future.done():
                future.set_exception(StoreTimeout(late))


class _End(Enum):
    """How a call has ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    LATE = "late"
    """It has failed, because there was no answer in time."""


class LateShare(NamedTuple):
    """How many of some calls were late, and how many these are."""

    late: int
    calls: int


class LatestCalls:
    """How the latest calls have ended, and how long their answers took; several threads may add some.

    Attributes:
        failures: How many calls have failed, of all.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._ended: deque[tuple[int, _End]] = deque(maxlen=KEPT_CALLS)
        """When and how each has ended."""
        self._took_us: deque[int] = deque(maxlen=KEPT_CALLS)
        self._failed_in_a_row = 0
        self._last_ended_us = 0

    def add_answer(self, now_us: int, took_us: int) -> None:
        """Count a call that was answered."""
        self._last_ended_us = now_us
        self._failed_in_a_row = 0
        self._ended.append((now_us, _End.ANSWERED))
        self._took_us.append(took_us)

    def add_late_answer(self, took_us: int) -> None:
        """Record how long an answer took for which nobody waited any more; its call has ended before."""
        self._took_us.append(took_us)

    def add_failure(self, now_us: int, asked_us: int, is_late: bool) -> None:
        """Count a call that has failed, perhaps because its answer is late."""
        self.failures += 1
        self._ended.append((now_us, _End.LATE if is_late else _End.FAILED))
        if asked_us >= self._last_ended_us:  # else another call has ended since it was asked
            self._last_ended_us = now_us
            self._failed_in_a_row += 1

    def are_outage(self, now_us: int) -> bool:
        """Return whether they amount to an outage: three failures in a row, or half of the calls of a second."""
        if self._failed_in_a_row >= FAILURES_TO_OPEN:
            return True
        lately = [end for at_us, end in self._ended.copy() if at_us > now_us - SECOND_US]
        return len(lately) >= MIN_CALLS and 2 * lately.count(_End.ANSWERED) <= len(lately)

    def late_share(self) -> LateShare:
        """Return how many of the latest calls were late."""
        ends = [end for _, end in self._ended.copy()]
        return LateShare(ends.count(_End.LATE), len(ends))

    def median_us(self) -> int | None:
        """Return how long the median answer took; None without any."""
        took_us = sorted(self._took_us.copy())
        if not took_us:
            return None
        return took_us[len(took_us) // 2]
