"""Counts of a day in fixed memory: slices that leave the ring of a `MetricWindow` are kept, first by the minute, then
by five minutes.

    MetricWindow      60 slices of 5 seconds    new records
        | a slice whose place is needed
    shelf             60 slices of a minute
        | the same
    shelf            288 slices of 5 minutes

Each count lies in one place only, so a window of any length is the sum of its slices, and nothing is counted twice or
lost at the seams. Moving a slice on costs nothing for each request, and nothing while nobody comes.

A slice is packed when the next one is opened (see `tally`): 222 bytes are usual, so a series that is busy for a day
takes some 160 KB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .tally import Tally

MINUTE_US: Final = 60_000_000
FIVE_MINUTES_US: Final = 5 * MINUTE_US
MINUTES: Final = 60
FIVES: Final = 288
DAY_US: Final = FIVES * FIVE_MINUTES_US

_NEVER: Final = -(2**63)


class Shelf:
    """A ring of packed slices.

    Args:
        slice_us: The length of a slice; a multiple of that of the shelf before.
        slots: How many it holds.
        following: Gets the slices whose place is needed; None where they are forgotten.
    """

    __slots__ = ("_following", "_number", "_numbers", "_packed", "_running", "slice_us")

    def __init__(self, slice_us: int, slots: int, following: Shelf | None = None) -> None:
        self.slice_us = slice_us
        self._following = following
        self._numbers = [_NEVER] * slots
        self._packed = [b""] * slots
        self._number = _NEVER
        self._running = Tally()

    def put(self, start_us: int, tally: Tally) -> None:
        """Add to the slice of a moment."""
        number = start_us // self.slice_us
        if number != self._number:
            place = number % len(self._numbers)
            known = self._numbers[place]
            if known > number:
                self._pass_on(number, tally)  # it is older than everything that has its place
                return
            self._store()
            self._open(number, place, known)
        self._running.add(tally)

    def held(self, first_us: int, end_us: int) -> Iterator[tuple[int, Tally]]:
        """Yield start and counts of each slice that begins in a span, the last moment not included."""
        first, end = -(-first_us // self.slice_us), -(-end_us // self.slice_us)
        for place, number in enumerate(self._numbers):
            if first <= number < end:
                if number == self._number:
                    found = Tally()
                    found.add(self._running)
                else:
                    found = Tally.unpack(self._packed[place])
                yield number * self.slice_us, found
        if self._following is not None:
            yield from self._following.held(first_us, end_us)

    def _open(self, number: int, place: int, known: int) -> None:
        self._number, self._running = number, Tally()
        if self._packed[place]:
            held = Tally.unpack(self._packed[place])
            if known == number:
                self._running = held
            else:
                self._pass_on(known, held)
        self._numbers[place], self._packed[place] = number, b""

    def _store(self) -> None:
        """Pack the slice that is added to."""
        if self._number != _NEVER:
            self._packed[self._number % len(self._numbers)] = self._running.pack()

    def _pass_on(self, number: int, tally: Tally) -> None:
        if self._following is not None:
            self._following.put(number * self.slice_us, tally)


def shelves() -> Shelf:
    """Return the two shelves of a series."""
    return Shelf(MINUTE_US, MINUTES, Shelf(FIVE_MINUTES_US, FIVES))
