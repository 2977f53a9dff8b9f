"""Views of windows for display: the units of each slice, when they leave, and how many are left.

A store returns a `Snapshot` of its windows, from which this module computes the view for each kind of limit::

    counts   |  3  |  0  |  7  |  1  |     slices of equal length, the running one last
    times    |           |    | |          a slice of zero length for each time at which units were spent
    quota    |          11           |     one slice, the period
    permits  no slices: it is unknown when a permit is returned

The units of all slices add up to those in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .limits import AnyLimit, Limit
from .quotas import Quota, QuotaCounter
from .ring import entries


class Snapshot(NamedTuple):
    """The windows of one key at one time."""

    now_us: int
    """The store's time of the snapshot, in microseconds."""
    unix_us: int
    """Its Unix time, in microseconds."""
    windows: Sequence[bytes]
    """One for each limit of each requested bucket, in order."""


class WindowSlice(NamedTuple):
    """A part of a window. All times are microseconds of the store's time."""

    start_us: int
    end_us: int
    """The exclusive end; equal to `start_us` if the time of each unit is stored."""
    leaves_us: int
    """When its units leave the window."""
    units: int


class WindowView(NamedTuple):
    """The window of a key under one limit. All spans are microseconds from the time of the snapshot."""

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
    """How long one more unit is refused: 0 if it is not, None if unknown, because all permits are taken."""
    more_after_us: int
    """How long until the oldest unit leaves; 0 if none is used, and for permits."""
    reset_after_us: int
    """How long until all units have left; 0 if none is used, and for permits."""
    slices: tuple[WindowSlice, ...]
    """The parts of the window, oldest first; their units add up to `used`. Empty if none is used, and for permits."""
    fallback: bool = False
    """Whether the limit is the fallback of a limits function, which may return another one for the key."""


def view_of(rule: str, label: str, name: str, limit: AnyLimit, window: bytes, now_us: int, unix_us: int) -> WindowView:
    """Return the view of a window.

    Args:
        rule: The identity of its rule.
        label: The rule's name in stats.
        name: The limit's name on the wire.
        limit: The limit.
        window: The window.
        now_us: The store's time, in microseconds.
        unix_us: The Unix time, read together with `now_us`.
    """
    counter = limit.counter
    if isinstance(counter, QuotaCounter):
        counter = counter.at(now_us, unix_us)
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
        tuple(_slices(window, limit, leaves_us, now_us)) if used else (),
    )


def _slices(window: bytes, limit: AnyLimit, leaves_us: int, now_us: int) -> Iterator[WindowSlice]:
    if isinstance(limit, Quota):
        ((end_us, units),) = entries(window)
        length_us = end_us - limit.period_at(end_us - 1).start_us
        yield WindowSlice(leaves_us - length_us, leaves_us, leaves_us, units)
    elif isinstance(limit, Limit):
        counts = dict(entries(window))
        if not limit.exact:
            last_us = now_us - now_us % limit.slice_us + limit.slice_us - 1
            for moment_us in range(last_us - limit.slices * limit.slice_us, last_us + 1, limit.slice_us):
                start_us = moment_us - limit.slice_us + 1
                yield WindowSlice(start_us, moment_us + 1, limit.leaves_us(start_us), counts.pop(moment_us, 0))
        for moment_us, units in counts.items():  # those of an exact limit, or spent while the limit was exact
            yield WindowSlice(moment_us, moment_us, moment_us + limit.span_us, units)
