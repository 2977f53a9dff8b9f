"""Spending in a window at rest, without making a ring of it.

A store that keeps windows as bytes (`codec`) asks most of them once in a while: the unit fits, nothing has left since,
and the clock has not stepped back. Then a few numbers of the row change, or the refusal is read from them. Everything
else is left to the rings, so that the arithmetic of leaving and stepping back stands in one place.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ..kinds.any_limit import AnyLimit
from .codec import COUNT, COUNTS, TIME, TIMES
from .theory import Reading

_unpack_counts, _pack_counts = COUNTS.unpack_from, COUNTS.pack
_unpack_times, _pack_times = TIMES.unpack_from, TIMES.pack
_unpack_time, _pack_time = TIME.unpack_from, TIME.pack
_COUNTS_BYTES: Final = COUNTS.size
_COUNT_BYTES: Final = COUNT.size
_TIMES_BYTES: Final = TIMES.size

Spent: TypeAlias = tuple[Reading, bytes]
"""The reading, and the row afterwards."""


def spend_counts(row: bytes, limit: AnyLimit, now_us: int, amount: int, cost: int) -> Spent | None:
    """Do what `CounterWindow.spend` does in a packed ring; None, and nothing done, where that needs the ring.

    Args:
        row: The ring, as `codec` packs it; no bytes for one that is empty.
        limit: A limit with the ring's window and resolution, which needs such a ring.
        now_us: The moment.
        amount: The units that the window may hold.
        cost: Units.
    """
    slice_us = limit.slice_us
    if not row:
        if not 0 < cost <= amount:
            return None
        end_us = now_us - now_us % slice_us + slice_us
        return (cost, end_us + limit.span_us, end_us, 0), _pack_counts(3, end_us, cost, cost)
    _, newest_us, running, spent = _unpack_counts(row)
    units = spent + cost
    if cost == 0 or spent == 0 or units > amount:
        return None
    bare = len(row) == _COUNTS_BYTES  # no older slices
    leaves_us = newest_us + limit.span_us
    if not bare:
        leaves_us -= (len(row) - _COUNTS_BYTES) // _COUNT_BYTES * slice_us
    if now_us < newest_us:
        if now_us < newest_us - slice_us:
            return None  # the clock has stepped back
        changed = _pack_counts(3, newest_us, running + cost, units)
        return (units, leaves_us, newest_us, 0), changed if bare else changed + row[_COUNTS_BYTES:]
    if now_us >= leaves_us:
        return None
    skipped = (now_us - newest_us) // slice_us
    newest_us += (skipped + 1) * slice_us
    older = row[_COUNTS_BYTES:] + COUNT.pack(running) + bytes(_COUNT_BYTES * skipped)
    return (units, leaves_us, newest_us, 0), _pack_counts(3, newest_us, cost, units) + older


def spend_times(row: bytes, limit: AnyLimit, now_us: int, amount: int, cost: int) -> Spent | None:
    """Do what `TimestampWindow.spend` does in a packed ring; see `spend_counts`."""
    if not row:
        if not 0 < cost <= amount:
            return None
        times = _pack_times(1, cost, now_us) + _pack_time(now_us) * (cost - 1)
        return (cost, now_us + limit.span_us, now_us, 0), times
    kind, spent, newest_us = _unpack_times(row)
    if cost != 1 or kind != 1 or not 0 < spent <= amount or now_us < newest_us:
        return None
    leaves_us = limit.span_us + (newest_us if spent == 1 else _unpack_time(row, _TIMES_BYTES)[0])
    if now_us >= leaves_us:
        return None
    if spent == amount:
        return (spent, leaves_us, newest_us, leaves_us - now_us), row
    spent += 1
    changed = _pack_times(1, spent, now_us) + row[_TIMES_BYTES:] + _pack_time(newest_us)
    return (spent, leaves_us, now_us, 0), changed
