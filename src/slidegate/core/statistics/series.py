"""The stats of the requests that the same rules counted and that went to the same route.

A request on its way appends one small tuple and reads the clock, nothing else. The tuples are counted together::

    note ---> noted: [(outcome, began, ended), ...] ---> recent ---> 60 slices of 5 seconds
                      at most `MAX_NOTED`                        a slice  |--> 60 slices of a minute
                                                                          |--> 288 slices of 5 minutes
                                                                          '--> everything so far
              with each request     when full, and before         when it is over, and before
                                    every reading                 every reading

Counting one by one takes four times as long: the lock and the events are found once for all records of a slice, and
times are sorted, so that a bucket of the histogram is looked up once for all times in it.

Every record carries its own times and is counted in the order of arrival, so a reading says what it would say if each
had been counted at once: however long it waited, however the clock has jumped, whichever thread noted it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from threading import Lock
from typing import Final, TypeAlias

from .slices import Slice, SliceRing

MAX_NOTED: Final = 256
"""So many records wait at most, and one more for each thread: 50 KB for a series."""
SLICE_US: Final = 5_000_000
KEPT: Final[Mapping[int, int]] = {SLICE_US: 60, 60_000_000: 60, 300_000_000: 288}
"""How many slices of each length are kept: five minutes, an hour and a day."""


class Outcome:
    """What a record counts. It is made once, kept, and compared by identity.

    Args:
        events: Names, for example ``"pass", "2xx", "success"``.
        rt: Whether the time to the end is a response time.
    """

    __slots__ = ("events", "rt")

    def __init__(self, *events: str, rt: bool = False) -> None:
        self.events = events
        self.rt = rt


Noted: TypeAlias = tuple[Outcome, int, int]
"""An outcome, and two moments in ticks: when the request began, and when it ended."""


class Series:
    """Counts requests, for all threads.

    The path of a request may append to `noted` itself, if it calls `fold` where that has reached `MAX_NOTED`. An append
    is atomic, and takes no lock.

    Args:
        rules: The rules that counted its requests.
        route: The route that they went to.
        costs: How many units a request costs under each of the rules.
        ticks_per_us: Ticks of the clock in a microsecond, 1 or more: 1000 for one of nanoseconds.
        ahead_us: How far the time by which slices are named is ahead of the clock of the ticks.

    Attributes:
        noted: The records that are to be counted.
        timed: Hears the response times in microseconds of each fold that has some; None for nobody.
    """

    __slots__ = (
        "_ahead_ticks",
        "_ever",
        "_lock",
        "_number",
        "_recent",
        "_rings",
        "_ticks_per_us",
        "costs",
        "noted",
        "route",
        "rules",
        "timed",
    )

    def __init__(
        self,
        rules: tuple[str, ...] = (),
        route: str = "",
        costs: tuple[int, ...] = (),
        ticks_per_us: int = 1,
        ahead_us: int = 0,
    ) -> None:
        self.rules = rules
        self.route = route
        self.costs = costs
        self.noted: list[Noted] = []
        self.timed: Callable[[Sequence[int]], None] | None = None
        self._ticks_per_us = ticks_per_us
        self._ahead_ticks = ahead_us * ticks_per_us
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a child of `fork`: the counts belong to its parent."""
        self._lock = Lock()
        self._rings = {slice_us: SliceRing(slices, slice_us) for slice_us, slices in KEPT.items()}
        self._ever = Slice()
        self._recent = Slice()
        self._number: int | None = None
        self.noted.clear()

    @property
    def name(self) -> tuple[tuple[str, ...], str, tuple[int, ...]]:
        """The rules, the route and the costs."""
        return self.rules, self.route, self.costs

    def note(self, outcome: Outcome, began: int, ended: int) -> None:
        """Record an outcome.

        Args:
            outcome: What is counted.
            began: When the request began, in ticks. Only outcomes with a time need it.
            ended: The moment at which it is counted, and the end of the response time, which is 0 where `began` lies
                behind it.
        """
        noted = self.noted
        noted.append((outcome, began, ended))
        if len(noted) >= MAX_NOTED:
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
        some = Slice({event: amount})
        with self._lock:
            for ring in self._rings.values():
                ring.add(now_us, some)
            if amount > 0:
                self._ever.add(some)

    def read(self, slice_us: int, first: int, slices: int) -> dict[int, Slice]:
        """Return by number the slices of one length, of so many from the first on, that hold anything."""
        with self._lock:
            self._settle()
            return self._rings[slice_us].read(first, slices)

    def ever(self) -> Slice:
        """Return everything that was noted so far, also what has left the rings. It only grows."""
        whole = Slice()
        with self._lock:
            self._settle()
            whole.add(self._ever)
        return whole

    def take_changed(self, *, every: bool = False) -> set[tuple[int, int]]:
        """Return length and number of the slices that were counted in since the last call, or of all."""
        with self._lock:
            self._settle()
            rings = self._rings.items()
            return {(slice_us, number) for slice_us, ring in rings for number in ring.take_changed(every=every)}

    def _settle(self) -> None:
        """Have the rings hold everything that is noted."""
        self._fold()
        self._hand_on()

    def _fold(self) -> None:
        """Count records in their order, those of one slice together."""
        noted = self.noted[:]
        # Another thread may append between these two lines: behind what is taken out.
        del self.noted[: len(noted)]
        if not noted:
            return
        slice_ticks, ahead = SLICE_US * self._ticks_per_us, self._ahead_ticks
        in_order = sorted([record[2] for record in noted])  # they nearly are: it takes half the time of min() and max()
        first, last = (in_order[0] + ahead) // slice_ticks, (in_order[-1] + ahead) // slice_ticks
        if first == last:
            self._count(first, noted)
            return
        for number, together in groupby(noted, lambda record: (record[2] + ahead) // slice_ticks):
            self._count(number, list(together))

    def _count(self, number: int, noted: list[Noted]) -> None:
        """Count records of one slice."""
        if number != self._number:
            self._hand_on()
            self._number = number
        rts_us: list[int] = []
        ticks_per_us, events = self._ticks_per_us, self._recent.events
        different = dict.fromkeys([record[0] for record in noted])
        for outcome in different:
            alike = noted if len(different) == 1 else [record for record in noted if record[0] is outcome]
            for event in outcome.events:
                events[event] = events.get(event, 0) + len(alike)
            if outcome.rt:  # the time begins with the microsecond in which the request came
                rts_us += [ended // ticks_per_us - began // ticks_per_us for _, began, ended in alike]
        if rts_us:
            rts_us.sort()
            if rts_us[0] < 0:  # a clock of the user's ran back meanwhile
                rts_us = [max(rt_us, 0) for rt_us in rts_us]
            self._recent.rt.count_all(rts_us)
            if self.timed is not None:
                self.timed(rts_us)

    def _hand_on(self) -> None:
        """Add what was counted lately to the rings and the totals."""
        if self._number is not None:
            for ring in self._rings.values():
                ring.add(self._number * SLICE_US, self._recent)
            self._ever.add(self._recent)
            self._recent, self._number = Slice(), None
