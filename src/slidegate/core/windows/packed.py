"""Spending in a window at rest, without making a ring of it.

A store that keeps windows as bytes (`codec`) asks most of them once in a while: the unit fits, nothing has left since,
and the clock has not stepped back. Then a few numbers of the row change, or the refusal is read from them. Everything
else is left to the rings, so that the arithmetic of leaving and stepping back stands in one place.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ..limits import Limit
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


def spend_packed(row: bytes, limit: Limit, now_us: int, amount: int, cost: int) -> Spent | None:
    """Do what `Window.spend` does in a packed ring; None, and nothing done, where that needs the ring.

    Args:
        row: The ring, as `codec` packs it; no bytes for one that is empty.
        limit: A limit with the ring's window, resolution and kind.
        now_us: The moment.
        amount: The units that the window may hold.
        cost: Units.
    """
    if not row:
        return _spend_first(limit, now_us, cost) if 0 < cost <= amount else None
    if row[0] == 3:
        return _spend_counts(row, limit, now_us, amount, cost)
    return _spend_time(row, limit, now_us, amount) if row[0] == cost == 1 else None


def _spend_first(limit: Limit, now_us: int, cost: int) -> Spent:
    if limit.exact:
        row = _pack_times(1, cost, now_us) + _pack_time(now_us) * (cost - 1)
        return (cost, now_us + limit.window_us, now_us, 0), row
    slice_us = limit.slice_us
    end_us = now_us - now_us % slice_us + slice_us
    return (cost, end_us + limit.slices * slice_us, end_us, 0), _pack_counts(3, end_us, cost, cost)


def _spend_counts(row: bytes, limit: Limit, now_us: int, amount: int, cost: int) -> Spent | None:
    _, newest_us, running, spent = _unpack_counts(row)
    slice_us = limit.slice_us
    held_us = (limit.slices - (len(row) - _COUNTS_BYTES) // _COUNT_BYTES) * slice_us
    since_us = now_us - newest_us
    if not -slice_us <= since_us < held_us or not 0 < spent <= amount - cost or not cost:
        return None
    spent += cost
    leaves_us = newest_us + held_us
    if since_us < 0:
        changed = _pack_counts(3, newest_us, running + cost, spent)
        if len(row) > _COUNTS_BYTES:
            changed += row[_COUNTS_BYTES:]
        return (spent, leaves_us, newest_us, 0), changed
    skipped = since_us // slice_us
    newest_us += (skipped + 1) * slice_us
    older = row[_COUNTS_BYTES:] + COUNT.pack(running) + bytes(_COUNT_BYTES * skipped)
    return (spent, leaves_us, newest_us, 0), _pack_counts(3, newest_us, cost, spent) + older


def _spend_time(row: bytes, limit: Limit, now_us: int, amount: int) -> Spent | None:
    _, spent, newest_us = _unpack_times(row)
    if not 0 < spent <= amount or now_us < newest_us:
        return None
    leaves_us = limit.window_us + (newest_us if spent == 1 else _unpack_time(row, _TIMES_BYTES)[0])
    if now_us >= leaves_us:
        return None
    if spent == amount:
        return (spent, leaves_us, newest_us, leaves_us - now_us), row
    spent += 1
    changed = _pack_times(1, spent, now_us) + row[_TIMES_BYTES:] + _pack_time(newest_us)
    return (spent, leaves_us, now_us, 0), changed
