"""A window as people look at it: slice by slice, with the units that are left, and when the others leave.

A store gives copies of its windows and the moment of the look, a `Snapshot`; everything else is worked out here, for
each kind of count alike::

    counts   |  3  |  0  |  7  |  1  |     slices of one length, the running one last
    times    |           |    | |          a slice of no length for each moment at which units were spent
    quota    |          11           |     one slice, the period
    places   no slices: nobody knows when a place is handed back

The units of all slices are those that are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import NamedTuple

from ..limits import AnyLimit
from ..quotas import Quota
from .counters import CounterWindow
from .periods import PeriodCount
from .places import Places
from .rings import Entry, Ring


class Snapshot(NamedTuple):
    """The windows of one key at one moment: copies, which belong to whoever asked."""

    now_us: int
    """The store's time of the look."""
    windows: Sequence[Entry]
    """One for each limit of each bucket that was asked for, in turn."""


class WindowSlice(NamedTuple):
    """A part of a window. All moments are microseconds of the store's time."""

    start_us: int
    end_us: int
    """The first moment behind it; the start, where the moment of each unit is known."""
    leaves_us: int
    """When its units leave the window."""
    units: int


class WindowView(NamedTuple):
    """One limit's window of a key. All spans are microseconds from the moment of the look."""

    rule: str
    """The identity of the rule that the window belongs to."""
    label: str
    """The rule's name in figures."""
    name: str
    """The limit's name on the wire."""
    limit: AnyLimit
    used: int
    """Units that count now."""
    remaining: int
    """Units left, never below 0."""
    retry_after_us: int | None
    """How long one more unit is refused: 0 if it is not, None if nobody knows, because it takes a place."""
    more_after_us: int
    """How long until the oldest unit leaves: 0 if nothing is used, or if it is a place."""
    reset_after_us: int
    """How long until everything has left: 0 if nothing is used, or if these are places."""
    slices: tuple[WindowSlice, ...]
    """The parts of the window, the oldest first; their units add up to `used`. Empty for places, and for nothing."""


def view_of(rule: str, label: str, name: str, limit: AnyLimit, window: Entry, now_us: int) -> WindowView:
    """Return the view of a window.

    Args:
        rule: The identity of its rule.
        label: The rule's name in figures.
        name: The limit's name on the wire.
        limit: The limit, of the kind that the window counts for.
        window: The window, which is looked at: expired units leave it. A quota's is in the period of now.
        now_us: The store's time.
    """
    window.wait_us(now_us, window.spent)  # drops expired units
    used = window.spent
    wait_us = copy(window).spend(now_us, limit.amount, 1)[3]
    return WindowView(
        rule,
        label,
        name,
        limit,
        used,
        max(limit.amount - used, 0),
        None if wait_us < 0 else wait_us,
        max(window.leaves_us - now_us, 0) if used else 0,
        max(window.newest_us + limit.span_us - now_us, 0) if used else 0,
        tuple(_slices(window, limit, now_us)) if used else (),
    )


def _slices(window: Entry, limit: AnyLimit, now_us: int) -> Iterator[WindowSlice]:
    if isinstance(window, Places):
        return
    if isinstance(window, PeriodCount):
        assert isinstance(limit, Quota), "a count of periods belongs to a quota"
        start_us = limit.period_at(window.end_us - 1).start_us + window.ahead_us
        yield WindowSlice(start_us, window.newest_us, window.leaves_us, window.spent)
        return
    length_us = window.slice_us if isinstance(window, CounterWindow) else 0
    for start_us, count in _of_ring(window, now_us):
        yield WindowSlice(start_us, start_us + length_us, limit.leaves_us(start_us), count)


def _of_ring(ring: Ring, now_us: int) -> Iterator[tuple[int, int]]:
    """Yield (start, units) of each slice of a ring, or of each moment."""
    if isinstance(ring, CounterWindow):
        yield from ring.slices(now_us)
        return
    for time_us, together in groupby(ring._times()):
        yield time_us, len(list(together))
