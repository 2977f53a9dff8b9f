"""A window as people look at it: slice by slice, with the units that are left, and when the others leave.

A store gives its windows and the moment of the look, a `Snapshot`; everything else is worked out here, for each kind of
limit alike::

    counts   |  3  |  0  |  7  |  1  |     slices of one length, the running one last
    times    |           |    | |          a slice of no length for each moment at which units were spent
    quota    |          11           |     one slice, the period
    permits  no slices: nobody knows when one is given back

The units of all slices are those that are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .limits import AnyLimit, Limit
from .quotas import Quota, end_us
from .ring import entries


class Snapshot(NamedTuple):
    """The windows of one key at one moment."""

    now_us: int
    """The store's time of the look."""
    windows: Sequence[bytes]
    """One for each limit of each bucket that was asked for, in turn; those of quotas are in the period of now."""


class WindowSlice(NamedTuple):
    """A part of a window. All moments are microseconds of the store's time."""

    start_us: int
    end_us: int
    """The first moment after it; equal to `start_us` if the moment of each unit is known."""
    leaves_us: int
    """When its units leave the window."""
    units: int


class WindowView(NamedTuple):
    """One limit's window of a key. All spans are microseconds from the moment of the look."""

    rule: str
    """The identity of the rule that the window belongs to."""
    label: str
    """The rule's name in stats."""
    name: str
    """The limit's name on the wire."""
    limit: AnyLimit
    used: int
    """Units that count now."""
    remaining: int
    """Units left, never below 0."""
    retry_after_us: int | None
    """How long one more unit is refused: 0 if it is not, None if nobody knows, because it takes a permit."""
    more_after_us: int
    """How long until the oldest unit leaves: 0 if nothing is used, or if it is a permit."""
    reset_after_us: int
    """How long until everything has left: 0 if nothing is used, or if these are permits."""
    slices: tuple[WindowSlice, ...]
    """The parts of the window, the oldest first; their units add up to `used`. Empty for permits, and for nothing."""
    fallback: bool = False
    """Whether the limit is the fall-back of a limits function, because the key's own is not known here."""


def view_of(rule: str, label: str, name: str, limit: AnyLimit, window: bytes, now_us: int) -> WindowView:
    """Return the view of a window.

    Args:
        rule: The identity of its rule.
        label: The rule's name in stats.
        name: The limit's name on the wire.
        limit: The limit.
        window: The window. A quota's is in the period of now.
        now_us: The store's time.
    """
    counter = limit.counter
    window = counter.settle(window, now_us)
    used, leaves_us, newest_us, _ = counter.state(window)
    wait_us = counter.spend(window, now_us, 1)[1][3]
    return WindowView(
        rule,
        label,
        name,
        limit,
        used,
        max(limit.amount - used, 0),
        None if wait_us < 0 else wait_us,
        max(leaves_us - now_us, 0) if used else 0,
        max(newest_us + limit.span_us - now_us, 0) if used else 0,
        tuple(_slices(window, limit, now_us)) if used else (),
    )


def _slices(window: bytes, limit: AnyLimit, now_us: int) -> Iterator[WindowSlice]:
    if isinstance(limit, Quota):
        used, leaves_us, _, _ = limit.state(window)
        until_us = end_us(window)
        start_us = limit.period_at(until_us - 1).start_us + leaves_us - until_us
        yield WindowSlice(start_us, leaves_us, leaves_us, used)
    elif isinstance(limit, Limit):
        counts = dict(entries(window))
        if not limit.exact:
            last_us = now_us - now_us % limit.slice_us + limit.slice_us - 1
            for moment_us in range(last_us - limit.slices * limit.slice_us, last_us + 1, limit.slice_us):
                start_us = moment_us - limit.slice_us + 1
                yield WindowSlice(start_us, moment_us + 1, limit.leaves_us(start_us), counts.pop(moment_us, 0))
        for moment_us, units in counts.items():  # of an exact limit, or spent while the limit was exact
            yield WindowSlice(moment_us, moment_us, moment_us + limit.span_us, units)
