"""The circuit breaker of a store: counts its calls, and decides when they amount to an outage.

A *call* is what one iteration of an event loop asks: a store that batches sends it together, so 64 questions that one
late answer leaves open are one late call. An outage begins with

* `FAILURES_TO_OPEN` calls in a row, each asked after the one before it had failed, and no answer since the first was
  asked: with a deadline of 50 ms that is a silence of 150 ms, which no pause of a busy machine is taken for;
* a refused connection; or
* half of at least `MIN_CALLS` calls that ended within a second.

During an outage the store is not asked, but for one probe a second::

    closed ---- outage ----> open ---- 1 s ----> half open: one probe ---- answered ----> closed
                              ^                     |
                              +------ failed -------+
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

FAILURES_TO_OPEN: Final = 3
MIN_CALLS: Final = 10
OPEN_US: Final = 1_000_000
SLOT_US: Final = 100_000
SLOTS_PER_S: Final = 10
SLOTS_PER_MINUTE: Final = 600


class Call:
    """A call of the store: the questions of one iteration of an event loop.

    Args:
        asked_us: When its first question was asked.
        ends: How many calls had ended by then.
        is_probe: Whether it was asked during an outage.

    Attributes:
        answered: Whether one of its questions was answered.
        failed: Whether one of its questions failed.
    """

    __slots__ = ("answered", "asked_us", "ends", "failed", "is_probe")

    def __init__(self, asked_us: int, ends: int, *, is_probe: bool) -> None:
        self.asked_us = asked_us
        self.ends = ends
        self.is_probe = is_probe
        self.answered = self.failed = False


class _Slot:
    """The calls that ended in a tenth of a second, and how long the first answer among them took; None if none."""

    __slots__ = ("calls", "failed", "number", "took_us")

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = self.failed = 0
        self.took_us: int | None = None


class Breaker:
    """Counts the calls of a store, and is open during an outage. All times are microseconds of a monotonic clock.

    Args:
        deadline_us: How long a call may take.

    Attributes:
        failures: How many calls have failed.
        open_until_us: During an outage, until when the store is not asked; else 0.
    """

    def __init__(self, deadline_us: int) -> None:
        self.failures = self.open_until_us = 0
        self._deadline_us = deadline_us
        self._ends = self._in_a_row = 0
        self._current: tuple[asyncio.AbstractEventLoop, Call] | None = None
        self._slots: deque[_Slot] = deque(maxlen=SLOTS_PER_MINUTE)

    def may_ask(self, now_us: int) -> bool:
        """Return whether the store may be asked. During an outage, the first question after the pause is the probe."""
        if not self.open_until_us:
            return True
        if now_us < self.open_until_us:
            return False
        self.open_until_us = now_us + max(OPEN_US, self._deadline_us)  # nobody else asks while the probe runs
        return True

    def call(self, now_us: int) -> Call:
        """Return the call that a question belongs to which is asked now."""
        current, is_probe = self._current, bool(self.open_until_us)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # in a thread, where each question is a call
            return Call(now_us, self._ends, is_probe=is_probe)
        if current is not None and current[0] is loop and not is_probe:
            call = current[1]
            if not (call.answered or call.failed):
                return call
        call = Call(now_us, self._ends, is_probe=is_probe)
        self._current = loop, call
        loop.call_soon(self._end_iteration)
        return call

    def answered(self, call: Call | None, now_us: int) -> bool:
        """Count an answer; return whether it ends an outage.

        Args:
            call: The call; None if it was answered at once.
            now_us: The time.
        """
        took_us = 0
        if call is not None:
            if call.answered:
                return False
            call.answered = True
            took_us = now_us - call.asked_us
        slot = self._slot(now_us)
        slot.calls += 1
        if slot.took_us is None:
            slot.took_us = took_us
        self._ends += 1
        self._in_a_row = 0
        if not self.open_until_us or (call is not None and not call.is_probe):
            return False
        self.open_until_us = 0
        self._slots = deque(maxlen=SLOTS_PER_MINUTE)  # not emptied: other threads may be in `_slot`
        return True

    def answered_late(self, took_us: int, now_us: int) -> None:
        """Record how long an answer took that came after the deadline."""
        slot = self._slot(now_us)
        if slot.took_us is None:
            slot.took_us = took_us

    def failed(self, call: Call, now_us: int, *, is_refused: bool) -> bool:
        """Count a failure; return whether an outage begins with it.

        Args:
            call: The call; a second question of it that fails is not counted.
            now_us: The time.
            is_refused: Whether the server refused a connection.
        """
        if call.failed:
            return False
        call.failed = True
        self.failures += 1
        slot = self._slot(now_us)
        slot.calls += 1
        slot.failed += 1
        if call.ends == self._ends:  # else another call has ended since it was asked
            self._ends += 1
            self._in_a_row += 1
        if self.open_until_us:
            if call.is_probe:
                self.open_until_us = now_us + OPEN_US
            return False
        calls, failed, _ = self.recent(SLOTS_PER_S, now_us)
        if is_refused or self._in_a_row >= FAILURES_TO_OPEN or (calls >= MIN_CALLS and 2 * failed >= calls):
            self.open_until_us = now_us + OPEN_US
            return True
        return False

    def forget(self, call: Call | None, now_us: int) -> None:
        """Drop a call that says nothing about the server. If it was the probe, the next question is."""
        if self.open_until_us and (call is None or call.is_probe):
            self.open_until_us = max(min(self.open_until_us, now_us), 1)

    def recent(self, slots: int, now_us: int) -> tuple[int, int, int | None]:
        """Return how many calls ended lately, how many of them failed, and the median answer time; None if unknown.

        Args:
            slots: The span, in tenths of a second.
            now_us: The time.
        """
        recent = [slot for slot in self._slots.copy() if slot.number > now_us // SLOT_US - slots]
        took_us = sorted(slot.took_us for slot in recent if slot.took_us is not None)
        calls, failed = sum(slot.calls for slot in recent), sum(slot.failed for slot in recent)
        return calls, failed, took_us[len(took_us) // 2] if took_us else None

    def _slot(self, now_us: int) -> _Slot:
        number = now_us // SLOT_US
        slots = self._slots
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
        return slots[-1]

    def _end_iteration(self) -> None:
        self._current = None
