"""A window whose records wait in a buffer, and are counted many at once.

A request on its way appends one small tuple and reads the clock, nothing else::

    note ---> noted: [(outcome, began, first, ended), ...] ---> fold ---> MetricWindow
                      at most `MOST_NOTED`                      when full, and before every reading

Counting one by one takes four times as long: the lock, the slice and the place of each event are found once for all
records of a slice, and times are sorted, so that a bucket of the histogram is looked up once for all times in it.

Every record carries its own times and is counted in the order of arrival, so a reading says what it would say if each
had been counted at once: however long it waited, however the clock has jumped, whichever thread noted it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from threading import Lock
from typing import Final, TypeAlias

from .lifetime import Lifetime, LifetimeTotals
from .metrics import MetricWindow
from .shelves import DAY_US, shelves
from .summary import MetricSummary
from .tally import Tally

MOST_NOTED: Final = 256
"""So many records wait at most, and one more for each thread: 50 KB for a window."""


class Outcome:
    """What a record counts. It is made once, kept, and compared by identity.

    Args:
        events: Names, for example ``"pass", "2xx", "success"``.
        rt: Whether the time to the end is a response time.
        first: Whether the time to the first byte is counted.
    """

    __slots__ = ("events", "first", "rt")

    def __init__(self, *events: str, rt: bool = False, first: bool = False) -> None:
        self.events = events
        self.rt = rt
        self.first = first


Noted: TypeAlias = tuple[Outcome, int, int, int]
"""An outcome, and three moments in ticks: the start of the microsecond in which the request began, when its first byte
went out, and when it ended."""


class BufferedWindow:
    """A `MetricWindow` for many records a second, for all threads.

    The path of a request may append to `noted` itself, if it calls `fold` where that has reached `MOST_NOTED`. An
    append is atomic, and takes no lock.

    Args:
        slices: See `MetricWindow`.
        slice_us: See `MetricWindow`.
        ticks_per_us: Ticks of the clock in a microsecond, 1 or more: 1000 for one of nanoseconds.
        ahead_us: How far the time by which slices are named is ahead of the clock of the ticks.

    Attributes:
        noted: The records that are to be counted.
        timed: Hears the response times in microseconds of each fold that has some; None for nobody.
        touched: The slices that were counted in since `take_touched` was last called, of two days at most; None where
            nobody asks for them.

    Raises:
        ConfigurationError: An argument is outside its range.
    """

    __slots__ = ("_ahead_ticks", "_ever", "_lock", "_older", "_ticks_per_us", "_window", "noted", "timed", "touched")

    def __init__(self, slices: int, slice_us: int, ticks_per_us: int = 1, ahead_us: int = 0) -> None:
        self._window = MetricWindow(slices, slice_us)
        self._ticks_per_us = ticks_per_us
        self._ahead_ticks = ahead_us * ticks_per_us
        self._older = shelves()
        self._window.leaves = self._older.put
        self._lock = Lock()
        self._ever = Lifetime()
        self.noted: list[Noted] = []
        self.timed: Callable[[Sequence[int]], None] | None = None
        self.touched: set[int] | None = None

    @property
    def dropped(self) -> int:
        """Records that came when their slice had left the ring already."""
        self.fold()
        return self._window.dropped

    def note(self, outcome: Outcome, began: int, first: int, ended: int) -> None:
        """Record an outcome.

        Args:
            outcome: What is counted.
            began: When the request began, in ticks. Only outcomes with times need this and `first`.
            first: When its first byte went out.
            ended: The moment at which it is counted, and the end of the response time. Where it lies before `began`,
                or `first` does, both times are 0.
        """
        self.noted.append((outcome, began - began % self._ticks_per_us, first, ended))
        if len(self.noted) >= MOST_NOTED:
            self.fold()

    def fold(self) -> None:
        """Count what is noted."""
        with self._lock:
            self._fold()

    def add(self, now_us: int, event: str, amount: int) -> None:
        """Add an amount to an event at once, for records that are rare.

        Args:
            now_us: The moment, by the time that names slices.
            event: Its name.
            amount: A whole number of any sign.
        """
        with self._lock:
            self._touch(now_us)
            self._window.record_many(now_us, 1, {event: amount})
            if amount > 0:
                self._ever.add({event: amount}, [])

    def tallies(self, first_us: int, step_us: int, steps: int) -> dict[int, Tally]:
        """Return the counts of a day at most, by step, those that are empty left out.

        Args:
            first_us: The start of the first step, a multiple of `step_us`.
            step_us: Their length: that of a slice, a minute, or a multiple of five minutes.
            steps: How many.
        """
        found: dict[int, Tally] = {}
        end_us = first_us + steps * step_us
        with self._lock:
            self._fold()
            for held in (self._window.held(first_us, end_us), self._older.held(first_us, end_us)):
                for start_us, tally in held:
                    step = (start_us - first_us) // step_us
                    if step in found:
                        found[step].add(tally)
                    else:
                        found[step] = tally
        return found

    def starts(self) -> list[int]:
        """Return when the slices began that hold anything, also those of minutes and of five minutes."""
        with self._lock:
            self._fold()
            held = [*self._window.held(-(2**62), 2**62), *self._older.held(-(2**62), 2**62)]
        return [start_us for start_us, _ in held]

    def take_touched(self) -> set[int]:
        """Return the numbers of the slices that were counted in since the last call."""
        with self._lock:
            self._fold()
            touched, self.touched = self.touched, set()
        return touched or set()

    def forget(self) -> None:
        """Begin anew in a child of `fork`: the counts belong to its parent."""
        self._lock = Lock()
        self._window = MetricWindow(self._window.slice_count, self._window.slice_us)
        self._older = shelves()
        self._window.leaves = self._older.put
        self._ever = Lifetime()
        self.noted.clear()
        self.touched = None if self.touched is None else set()

    def _touch(self, now_us: int) -> None:
        if self.touched is not None:
            self.touched.add(now_us // self._window.slice_us)
            most = DAY_US // self._window.slice_us
            if len(self.touched) > 2 * most:
                self.touched = set(sorted(self.touched)[-most:])

    def _fold(self) -> None:
        noted = self.noted[:]
        # Another thread may append between these two lines: behind what is taken out.
        del self.noted[: len(noted)]
        if noted:
            self._count(noted)

    def read(self, now_us: int, slices: int | None = None) -> MetricSummary:
        """Return the counts of the last `slices` slices: see `MetricWindow.read`."""
        self.fold()
        return self._window.read(now_us, slices)

    def ever(self) -> LifetimeTotals:
        """Return the totals of everything that was noted so far, also of records that the window holds no more."""
        self.fold()
        with self._lock:
            return self._ever.totals()

    def _count(self, noted: list[Noted]) -> None:
        """Count records in their order, those of one slice together."""
        slice_ticks, ahead = self._window.slice_us * self._ticks_per_us, self._ahead_ticks
        in_order = sorted([record[3] for record in noted])  # they nearly are: it takes half the time of min() and max()
        if (in_order[0] + ahead) // slice_ticks == (in_order[-1] + ahead) // slice_ticks:
            self._count_slice(noted)
            return
        for _, together in groupby(noted, lambda record: (record[3] + ahead) // slice_ticks):
            self._count_slice(list(together))

    def _count_slice(self, noted: list[Noted]) -> None:
        events: dict[str, int] = {}
        rts_us: list[int] = []
        firsts_us: list[int] = []
        different = dict.fromkeys([record[0] for record in noted])
        for outcome in different:
            alike = noted if len(different) == 1 else [record for record in noted if record[0] is outcome]
            for event in outcome.events:
                events[event] = events.get(event, 0) + len(alike)
            if outcome.rt or outcome.first:
                to_end_us, to_first_us = self._times_us(alike)
                if outcome.rt:
                    rts_us += to_end_us
                if outcome.first:
                    firsts_us += to_first_us
        rts_us.sort()  # all who count them sort them, and what is in order is sorted in no time
        self._ever.add(events, rts_us)
        if rts_us and self.timed is not None:
            self.timed(rts_us)
        now_us = (noted[0][3] + self._ahead_ticks) // self._ticks_per_us
        self._touch(now_us)
        self._window.record_many(now_us, len(noted), events, rts_us, firsts_us)

    def _times_us(self, noted: list[Noted]) -> tuple[list[int], list[int]]:
        """Return the times to the end and to the first byte, each ascending."""
        ticks_per_us = self._ticks_per_us
        # The difference comes first, because small numbers are divided in half the time of large ones.
        to_end_us = sorted([(ended - began) // ticks_per_us for _, began, _, ended in noted])
        to_first_us = sorted([(first - began) // ticks_per_us for _, began, first, _ in noted])
        if to_end_us[0] < 0 or to_first_us[0] < 0:
            return self._times_us([_set_right(record) for record in noted])
        return to_end_us, to_first_us


def _set_right(record: Noted) -> Noted:
    """Return a record as it is, or without times where a clock of the user's ran back meanwhile."""
    outcome, began, first, ended = record
    return record if began <= first and began <= ended else (outcome, began, began, began)
