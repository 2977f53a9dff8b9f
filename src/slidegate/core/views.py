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

from .decision import Bucket, LimitState, WindowSlice, state_of
from .limits import AnyLimit, Limit
from .quotas import Quota
from .ring import entries


class Snapshot(NamedTuple):
    """The windows of one key at one time."""

    now_us: int
    """The store's time of the snapshot, in microseconds."""
    unix_us: int
    """Its Unix time, in microseconds."""
    windows: Sequence[bytes]
    """One for each limit of each requested bucket, in order."""


def view_of(bucket: Bucket, key: str, at: int, window: bytes, now_us: int, unix_us: int) -> LimitState:
    """Return the state of a window, with its slices, for one more unit.

    Args:
        bucket: The bucket.
        key: The key.
        at: The index of the limit in the bucket.
        window: The window.
        now_us: The store's time, in microseconds.
        unix_us: The Unix time, read together with `now_us`.
    """
    limit = bucket.limits[at]
    window, reading = limit.counter_by(lambda: unix_us).spend(window, now_us, 0)
    slices = _slices(window, limit, reading[1], now_us) if reading[0] else ()
    return state_of(bucket, key, 1, at, reading, now_us)._replace(slices=tuple(slices))


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
