"""Windows as bytes, for stores that keep them outside the process.

A window at rest is a few numbers and a run of them. They are written in the byte order of the machine:

========================  =============================================================================================
kind (one byte)           the bytes behind it
========================  =============================================================================================
1: times                  units (uint16), newest time (int64), the other times, oldest first (int64 each)
2: times and a surplus    surplus units (uint64), their newest time (int64), then as 1
3: counts                 end of the newest slice (int64), its count (uint32), all units (uint64), the counts of the
                          slices before it, oldest first (uint32 each)
5: a period               its end in Unix time (int64), units (uint64)
========================  =============================================================================================

The length of a window and its slices are those of its limit, which is given when it is read.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ..limits import AnyLimit, Limit
from ..quotas import KEPT_US
from .counters import CounterWindow
from .periods import PeriodCount
from .rings import Entry, Resting, Ring, convert
from .timestamps import TimestampWindow

TIMES: Final = Struct("=BHq")
_SURPLUS: Final = Struct("=BQqHq")
COUNTS: Final = Struct("=BqIQ")
_PERIOD: Final = Struct("=BqQ")
TIME: Final = Struct("=q")
COUNT: Final = Struct("=I")
_NEWEST: Final = (0, 2, 4, 1)  # by kind: the place of the newest time among the numbers of the head


def pack_window(window: Entry) -> bytes:
    """Write a window."""
    if isinstance(window, CounterWindow):
        return COUNTS.pack(3, window.newest_us, window.spent - window._before, window.spent) + window._full
    if isinstance(window, PeriodCount):
        return _PERIOD.pack(5, window.end_us, window.spent)
    assert isinstance(window, TimestampWindow), "places are kept in rows of another kind"
    if window._surplus is None:
        return TIMES.pack(1, window.spent, window.newest_us) + window._older
    return _SURPLUS.pack(2, *window._surplus, window.spent, window.newest_us) + window._older


def unpack_window(packed: bytes, limit: AnyLimit, now_us: int, at: int = 0) -> Resting:
    """Read a window that begins at a byte, as the kind of ring that `limit` needs now.

    The limit's window and resolution are those of the window that was written; its amount may have crossed the
    resolution since, see `rings.convert`.
    """
    if not isinstance(limit, Limit):
        count = PeriodCount()
        load_ring(count, packed, at)
        return count
    ring = _unpack_ring(packed, limit, at)
    return ring if (ring.__class__ is TimestampWindow) is limit.exact else convert(ring, limit, now_us)


def load_ring(ring: Resting, packed: bytes, at: int = 0) -> None:
    """Read a window that begins at a byte into one that was made for the same limit."""
    if isinstance(ring, PeriodCount):
        _, ring.end_us, ring.spent = _PERIOD.unpack_from(packed, at)
        return
    if isinstance(ring, CounterWindow):
        _, ring.newest_us, running, ring.spent = COUNTS.unpack_from(packed, at)
        ring._before = ring.spent - running
        ring._full = packed[at + COUNTS.size :]
        ring._trim()
        return
    ring.refusal = None
    if packed[at] == 1:
        _, ring.spent, ring.newest_us = TIMES.unpack_from(packed, at)
        ring._older = older = packed[at + TIMES.size :]
        ring._surplus = None
    else:
        _, units, surplus_us, ring.spent, ring.newest_us = _SURPLUS.unpack_from(packed, at)
        ring._surplus = units, surplus_us
        ring._older = older = packed[at + _SURPLUS.size :]
    oldest_us = TIME.unpack_from(older)[0] if older else ring.newest_us
    ring.leaves_us = oldest_us + ring.window_us if ring.spent else 0


def end_us(packed: bytes, at: int = 0) -> int:
    """Return when a packed period ends, in Unix time; 0 for a ring."""
    return int(_PERIOD.unpack_from(packed, at)[1]) if packed[at : at + 1] == b"\5" else 0


def newest_us(packed: bytes) -> int:
    """Return `newest_us` of a packed ring."""
    kind = packed[0]
    newest: int = (COUNTS if kind == 3 else TIMES if kind == 1 else _SURPLUS).unpack_from(packed)[_NEWEST[kind]]
    return newest


def keeps_times(packed: bytes, at: int = 0) -> bool:
    """Tell whether a window that begins at a byte was written by a ring of times."""
    return packed[at] not in (3, 5)


def expires_us(window: Entry, limit: AnyLimit) -> int:
    """Return the moment from which a window holds nothing any more, if nothing is added to it."""
    if isinstance(window, PeriodCount):
        return window.newest_us + KEPT_US
    return window.newest_us + limit.span_us


def _unpack_ring(packed: bytes, limit: Limit, at: int) -> Ring:
    exact = packed[at] != 3
    ring = TimestampWindow(limit.window_us) if exact else CounterWindow(limit.slices, limit.slice_us)
    load_ring(ring, packed, at)
    return ring
