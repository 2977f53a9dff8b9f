"""Windows at rest in a process, and spending in them without making a ring.

A store that keeps very many windows asks most of them once in a while, and most of those hold the units of one slice,
or of one moment. Such a window is one number::

    newest_us * 2**32 + units         0 for an empty one

so one more unit in the slice is an addition. Every other window is bytes, as `codec` writes them: where the unit fits,
nothing has left since, and the clock has not stepped back, a few numbers of the row change, or the refusal is read from
them. Everything else is left to the rings, so that the arithmetic of leaving and stepping back stands in one place.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ..limits import AnyLimit
from .codec import COUNT, COUNTS, TIME, TIMES, load_ring, newest_us, pack_window
from .counters import CounterWindow
from .periods import PeriodCount
from .rings import Entry, Resting
from .theory import Reading
from .timestamps import TimestampWindow

Row: TypeAlias = int | bytes
"""A window at rest; false if it is empty."""

Spent: TypeAlias = tuple[Reading, Row]
"""The reading, and the row afterwards."""

_UNITS_BITS: Final = 32
_UNITS: Final = 2**_UNITS_BITS - 1
_unpack_counts, _pack_counts = COUNTS.unpack_from, COUNTS.pack
_unpack_times, _pack_times = TIMES.unpack_from, TIMES.pack
_unpack_time, _pack_time = TIME.unpack_from, TIME.pack
_COUNTS_BYTES: Final = COUNTS.size
_COUNT_BYTES: Final = COUNT.size
_TIMES_BYTES: Final = TIMES.size


def row_of(window: Entry) -> Row:
    """Return a window as a row."""
    if isinstance(window, CounterWindow):
        if not window._full:
            return window.newest_us << _UNITS_BITS | window.spent
    elif isinstance(window, TimestampWindow) and window._surplus is None and window.spent <= 1:
        return window.newest_us << _UNITS_BITS | 1 if window.spent else 0
    return pack_window(window)


def load_row(ring: Resting, row: Row) -> None:
    """Read a row into a ring that was made for the same limit."""
    if not isinstance(row, int):
        load_ring(ring, row)
        return
    assert not isinstance(ring, PeriodCount), "the count of a period is written as bytes"
    last_us, units = row >> _UNITS_BITS, row & _UNITS
    if isinstance(ring, CounterWindow):
        if units:
            ring._load_slice(last_us, units)
        else:
            ring._load([])
    else:
        ring._load((last_us,) * units)
        ring._surplus = None


def newest_of(row: Row) -> int:
    """Return `newest_us` of a row that is not empty."""
    return row >> _UNITS_BITS if isinstance(row, int) else newest_us(row)


def spend_counts(row: Row, limit: AnyLimit, now_us: int, amount: int, cost: int) -> Spent | None:
    """Do what `CounterWindow.spend` does in a row; None, and nothing done, where that needs the ring.

    Args:
        row: The ring.
        limit: A limit with the ring's window and resolution, which needs such a ring.
        now_us: The moment.
        amount: The units that the window may hold.
        cost: Units.
    """
    slice_us, span_us = limit.slice_us, limit.span_us
    if isinstance(row, int):
        end_us, spent = row >> _UNITS_BITS, row & _UNITS
        if end_us - slice_us <= now_us < end_us and 0 < cost <= amount - spent:
            return (spent + cost, end_us + span_us, end_us, 0), row + cost
        if not spent or now_us >= end_us + span_us:
            if not 0 < cost <= amount:
                return None
            end_us = now_us - now_us % slice_us + slice_us
            return (cost, end_us + span_us, end_us, 0), end_us << _UNITS_BITS | cost
        row = _pack_counts(3, end_us, spent, spent)
    _, end_us, running, spent = _unpack_counts(row)
    leaves_us = end_us + span_us - (len(row) - _COUNTS_BYTES) // _COUNT_BYTES * slice_us
    if not end_us - slice_us <= now_us < leaves_us or not 0 < spent <= amount - cost or not cost:
        return None
    spent += cost
    older = row[_COUNTS_BYTES:]
    if now_us < end_us:
        running += cost
    else:
        skipped = (now_us - end_us) // slice_us
        older += COUNT.pack(running) + bytes(_COUNT_BYTES * skipped)
        running = cost
        end_us += (skipped + 1) * slice_us
    return (spent, leaves_us, end_us, 0), _pack_counts(3, end_us, running, spent) + older


def spend_times(row: Row, limit: AnyLimit, now_us: int, amount: int, cost: int) -> Spent | None:
    """Do what `TimestampWindow.spend` does in a row; see `spend_counts`."""
    span_us = limit.span_us
    if isinstance(row, int):
        last_us, spent = row >> _UNITS_BITS, row & _UNITS
        if not spent or now_us >= last_us + span_us:
            return ((cost, now_us + span_us, now_us, 0), now_us << _UNITS_BITS | cost) if 0 < cost <= amount else None
        row = _pack_times(1, spent, last_us) + _pack_time(last_us) * (spent - 1)
    kind, spent, last_us = _unpack_times(row)
    if cost != 1 or kind != 1 or not 0 < spent <= amount or now_us < last_us:
        return None
    leaves_us = span_us + (last_us if spent == 1 else _unpack_time(row, _TIMES_BYTES)[0])
    if now_us >= leaves_us:
        return None
    if spent == amount:
        return (spent, leaves_us, last_us, leaves_us - now_us), row
    spent += 1
    changed = _pack_times(1, spent, now_us) + row[_TIMES_BYTES:] + _pack_time(last_us)
    return (spent, leaves_us, now_us, 0), changed
