"""Which ring a limit needs, and moving from one to the other."""

from __future__ import annotations

from copy import copy
from itertools import accumulate
from typing import TypeAlias, overload

from ..limits import AnyLimit, Concurrency, Limit
from .counters import CounterWindow
from .periods import PeriodCount
from .places import Places
from .timestamps import TimestampWindow

Ring: TypeAlias = TimestampWindow | CounterWindow
"""Either of the two rings."""

Resting: TypeAlias = Ring | PeriodCount
"""The count that a store keeps for a key under a limit or a quota."""

Entry: TypeAlias = Resting | Places
"""The count of one key under one limit, as a store holds it."""


@overload
def new_count(limit: Concurrency) -> Places: ...  # type: ignore[overload-overlap]


@overload
def new_count(limit: AnyLimit) -> Resting: ...


def new_count(limit: AnyLimit) -> Entry:
    """Return an empty count of the kind that `limit` needs."""
    if isinstance(limit, Limit):
        return Places() if isinstance(limit, Concurrency) else new_window(limit)
    return PeriodCount()


def new_window(limit: Limit) -> Ring:
    """Return an empty ring of the kind that `limit` needs."""
    if limit.exact:
        return TimestampWindow(limit.window_us)
    return CounterWindow(limit.slices, limit.slice_us)


def convert(window: Ring, limit: Limit, now_us: int) -> Ring:
    """Return the ring that `limit` needs, holding what `window` holds.

    For an amount that crosses the resolution while the window and the resolution stay: counters become
    timestamps at the last microsecond of their slice, timestamps become counts in their slice.
    Neither direction frees a unit early.
    """
    window = copy(window)
    window.wait_us(now_us, 0)  # expired units do not come along
    fresh = new_window(limit)
    if isinstance(fresh, TimestampWindow) and isinstance(window, CounterWindow):
        _to_timestamps(window, fresh, limit, now_us)
        return fresh
    if isinstance(fresh, CounterWindow) and isinstance(window, TimestampWindow):
        if window._surplus is not None and window._surplus[1] > now_us - window.window_us:
            units, newest_us = window._surplus
            fresh.charge(newest_us, units, limit.resolution)
        for time_us in window._times():
            fresh.charge(time_us, 1, limit.resolution)
        return fresh
    return window


def _to_timestamps(counters: CounterWindow, fresh: TimestampWindow, limit: Limit, now_us: int) -> None:
    pairs = [(min(start_us + counters.slice_us - 1, now_us), count) for start_us, count in counters._pairs() if count]
    behind = [0, *accumulate(count for _, count in reversed(pairs))][:-1]
    for (time_us, count), newer in zip(pairs, reversed(behind), strict=True):
        # The newest `resolution` units bind every amount that this ring serves; the older ones matter again only
        # when the amount is raised beyond it, so they are carried as one number.
        kept = min(count, max(limit.resolution - newer, 0))
        if kept < count:
            fresh._surplus = ((fresh._surplus or (0, 0))[0] + count - kept, time_us)
        if kept:
            fresh.add(time_us, kept)
