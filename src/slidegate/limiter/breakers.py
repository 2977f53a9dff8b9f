"""The circuit breakers: one for each part of a store.

A store can be several servers, and one of them can be dead while the others answer. So failures are counted for each
part by itself. After `FAILURES_TO_OPEN` in a row a part is left alone for `OPEN_US`. Then one question goes to it as a
probe, and the others do not wait for the probe::

    answers ---- 3 failures ----> left alone ---- 1 s ----> one probe ---- answered ----> answers
                                       ^                        |
                                       +------- failed ---------+

`Store.part_of` names the part that a question goes to; most stores are a single part. An error that concerns one key or
one slot (`StoreError.concerns`) says nothing about its server, and is not counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from ..core.decision import Check
from ..core.store import Clock, Store

FAILURES_TO_OPEN: Final = 3
OPEN_US: Final = 1_000_000
FORGET_US: Final = 60_000_000
"""A part that nobody has asked for so long may be gone, like a node that a cluster has replaced."""
WHOLE: Final = None
"""The part that is the whole store."""


class Breaker:
    """The failures of a part that did not answer its last question.

    Attributes:
        failures: How many questions in a row the part has not answered.
        failed_us: When the last one failed.
        open_until_us: The part is left alone until then; 0 if it is not left alone.
    """

    __slots__ = ("failed_us", "failures", "open_until_us")

    def __init__(self) -> None:
        self.failures = self.failed_us = self.open_until_us = 0


class Breakers:
    """Decides whether a question goes to the store.

    Args:
        store: The store.
        probe_us: How long a probe may last.
        clock: Returns microseconds that never run back.

    Attributes:
        troubled: The parts that did not answer their last question.
    """

    def __init__(self, store: Store, probe_us: int, clock: Clock) -> None:
        self.part_of = store.part_of
        self._probe_us = probe_us
        self._clock = clock
        self.troubled: dict[Hashable, Breaker] = {}

    def left_alone(self, checks: Sequence[Check]) -> bool:
        """Return True while the circuit is open.

        The first caller after the pause gets False: its question is the probe.
        """
        now_us, due = self._clock(), list[Breaker]()
        for breaker in self._about(checks):
            if now_us < breaker.open_until_us:
                return True
            if breaker.open_until_us:
                due.append(breaker)
        for breaker in due:
            # The probe takes the place of the others for as long as it may last.
            breaker.open_until_us = now_us + max(OPEN_US, self._probe_us)
        return False

    def left_us(self, checks: Sequence[Check]) -> int:
        """Return how long the circuit stays open; 0 if a question may be asked now."""
        now_us = self._clock()
        return max([breaker.open_until_us - now_us for breaker in self._about(checks)], default=0)

    def probe_again(self, checks: Sequence[Check]) -> None:
        """Let the next question be the probe, if this one was: its caller has left, and nothing was learnt."""
        for breaker in self._about(checks):
            breaker.open_until_us = min(breaker.open_until_us, self._clock())

    def failed(self, checks: Sequence[Check]) -> Hashable:
        """Record that a question was not answered; return the part that failed."""
        part, now_us = self.part_of(checks), self._clock()
        breaker = self.troubled.setdefault(part, Breaker())
        breaker.failures += 1
        breaker.failed_us = now_us
        if breaker.failures >= FAILURES_TO_OPEN:
            breaker.open_until_us = now_us + OPEN_US
        return part

    def answered(self, checks: Sequence[Check]) -> dict[Hashable, int]:
        """Record that a question was answered; return the parts that are well again, with their failures."""
        part, now_us = self.part_of(checks), self._clock()
        for other in [other for other, it in self.troubled.copy().items() if now_us - it.failed_us >= FORGET_US]:
            if other not in (part, WHOLE):
                self.troubled.pop(other, None)  # another thread may be faster
        gone = {well: self.troubled.pop(well, None) for well in {part, WHOLE}}
        return {well: breaker.failures for well, breaker in gone.items() if breaker is not None}

    def _about(self, checks: Sequence[Check]) -> list[Breaker]:
        """Return the breakers that a question depends on: that of its part, and that of the whole store."""
        found = [self.troubled.get(part) for part in {self.part_of(checks), WHOLE}]
        return [breaker for breaker in found if breaker is not None]
