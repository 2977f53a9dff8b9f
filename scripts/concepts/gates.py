"""Six ways to hold a client to N units in a window, and a client that takes each unit as soon as it can.

Three of them read the rings of slidegate: the log of times, the k + 1 slots of the gate, and the k slots of the classic
reading. The other three are written down here, as short as they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, TypeAlias

from slidegate.core import CounterWindow, TimestampWindow

AMOUNT: Final = 100
SLICES: Final = 10
TICK_US: Final = 300_000
TICKS: Final = 200
"""Ticks of a window: a minute."""
WINDOW_US: Final = TICKS * TICK_US
SLICE_US: Final = WINDOW_US // SLICES


class Gate(Protocol):
    """One way to count."""

    def room(self, now_us: int) -> int:
        """Return how many units it lets through at a moment."""

    def add(self, now_us: int, units: int) -> None:
        """Count units that it has let through."""


class FixedWindow:
    """A count that starts anew at multiples of the window."""

    def __init__(self) -> None:
        self.period, self.units = 0, 0

    def room(self, now_us: int) -> int:
        if now_us // WINDOW_US > self.period:
            self.period, self.units = now_us // WINDOW_US, 0
        return AMOUNT - self.units

    def add(self, now_us: int, units: int) -> None:
        self.units += units


class TwoBuckets:
    """The count of the running window, and the part of the one before that a sliding window would still hold.

    The units of the window before are taken to be spread evenly over it.
    """

    def __init__(self) -> None:
        self.period, self.before, self.units = 0, 0, 0

    def room(self, now_us: int) -> int:
        period, into_us = divmod(now_us, WINDOW_US)
        if period > self.period:
            self.before = self.units if period == self.period + 1 else 0
            self.period, self.units = period, 0
        return (AMOUNT * WINDOW_US - self.before * (WINDOW_US - into_us)) // WINDOW_US - self.units

    def add(self, now_us: int, units: int) -> None:
        self.units += units


class TokenBucket:
    """N tokens at most, and N new ones in each window, evenly. GCRA with a burst of N lets the same through."""

    def __init__(self) -> None:
        self.parts, self.at_us = AMOUNT * WINDOW_US, 0  # of a token: one for each of N * W

    def room(self, now_us: int) -> int:
        self.parts = min(self.parts + (now_us - self.at_us) * AMOUNT, AMOUNT * WINDOW_US)
        self.at_us = now_us
        return self.parts // WINDOW_US

    def add(self, now_us: int, units: int) -> None:
        self.parts -= units * WINDOW_US


class Log:
    """The times of the units: `TimestampWindow`."""

    def __init__(self) -> None:
        self.ring = TimestampWindow(WINDOW_US)

    def room(self, now_us: int) -> int:
        return AMOUNT - self.ring.total(now_us)

    def add(self, now_us: int, units: int) -> None:
        self.ring.add(now_us, units)


class Slots:
    """Counts of slices: a reading of `CounterWindow`."""

    def __init__(self, reading: Callable[[CounterWindow, int], int], slices: int, slice_us: int) -> None:
        self.reading, self.ring = reading, CounterWindow(slices, slice_us)

    def room(self, now_us: int) -> int:
        return AMOUNT - self.reading(self.ring, now_us)

    def add(self, now_us: int, units: int) -> None:
        self.ring.add(now_us, units)


def classic_slots(slices: int = SLICES) -> Slots:
    """Return the gate that adds up the newest k slices."""
    return Slots(CounterWindow.classic, slices, WINDOW_US // slices)


def all_slots(slices: int = SLICES) -> Slots:
    """Return the gate that adds up k + 1 slices."""
    return Slots(CounterWindow.total, slices, WINDOW_US // slices)


GATES: Final[dict[str, Callable[[], Gate]]] = {
    "Fixed window": FixedWindow,
    "k slots": classic_slots,
    "Two buckets": TwoBuckets,
    "Token bucket": TokenBucket,
    "Log of times": Log,
    "k + 1 slots": all_slots,
}
OURS: Final = ("Log of times", "k + 1 slots")


class Taken(NamedTuple):
    """Units that a client got in one tick."""

    tick: int
    units: int


Takes: TypeAlias = tuple[Taken, ...]


def greedy(gate: Gate, first_tick: int, ticks: int) -> Takes:
    """Return the units of a client that comes at a tick and from then on takes each as soon as it is there."""
    takes: list[Taken] = []
    for tick in range(first_tick, first_tick + ticks):
        units = gate.room(tick * TICK_US)
        if units > 0:
            gate.add(tick * TICK_US, units)
            takes.append(Taken(tick, units))
    return tuple(takes)


def most_in_spans(courses: Iterable[Takes], longest: int) -> list[int]:
    """Return the most units in any half-open span of 0, 1, 2 ... `longest` ticks."""
    most = [0] * (longest + 1)
    for takes in courses:
        before = [0, *accumulate(units for _, units in takes)]
        for first, (start, _) in enumerate(takes):
            for last in range(first, len(takes)):
                length = takes[last].tick - start + 1
                if length > longest:
                    break
                most[length] = max(most[length], before[last + 1] - before[first])
    return list(accumulate(most, max))


@cache
def worst_bursts(name: str) -> list[int]:
    """Return the most units that a gate lets through in spans of up to 2 windows, whenever the client comes."""
    courses: set[Takes] = set()
    for first_tick in range(TICKS + TICKS - 1, TICKS - 1, -5):  # the last tick of each slice is among them
        takes = greedy(GATES[name](), first_tick, 2 * TICKS + 1)
        courses.add(tuple(Taken(tick - first_tick, units) for tick, units in takes))
    return most_in_spans(courses, 2 * TICKS)
