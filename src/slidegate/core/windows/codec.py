"""Windows as bytes, for stores that keep them outside the process.

A window at rest is a few numbers and a run of them. They are written in the byte order of the machine:

========================  =============================================================================================
kind (one byte)           the bytes behind it
========================  =============================================================================================
1: times                  units (uint16), newest time (int64), the other times, oldest first (int64 each)
2: times and a surplus    surplus units (uint64), their newest time (int64), then as 1
3: counts                 end of the newest slice (int64), its count (uint32), all units (uint64), the counts of the
                          slices before it, oldest first (uint32 each)
4: bookings               last look (int64), how many bookings and waiters (uint32 each), the bookings (moment int64,
                          units uint64), the waiters' moments (int64 each), then the ring as 1 to 3
5: a period               its end in Unix time (int64), units (uint64)
========================  =============================================================================================

The length of a window and its slices are those of its limit, which is given when it is read.
"""

from __future__ import annotations

from datetime import timedelta
from struct import Struct, pack, unpack_from
from typing import Final

from ..limits import AnyLimit, Limit
from ..quotas import KEPT_US
from .bookings import BookedWindow, Entry
from .counters import CounterWindow
from .periods import PeriodCount
from .rings import Resting, Ring, convert
from .timestamps import TimestampWindow

TIMES: Final = Struct("=BHq")
_SURPLUS: Final = Struct("=BQqHq")
COUNTS: Final = Struct("=BqIQ")
_BOOKINGS: Final = Struct("=BqII")
_PERIOD: Final = Struct("=BqQ")
TIME: Final = Struct("=q")
COUNT: Final = Struct("=I")
_PAIR_BYTES: Final = 16
_NEWEST: Final = (0, 2, 4, 1)  # by kind: the place of the newest time among the numbers of the head


def pack_window(window: Entry) -> bytes:
    """Write a window."""
    if isinstance(window, CounterWindow):
        return COUNTS.pack(3, window.newest_us, window.spent - window._before, window.spent) + window._full
    if isinstance(window, BookedWindow):
        if not window._booked and not window._waiting:
            return pack_window(window.ring)
        booked = [number for pair in window._booked for number in pair]
        numbers = f"={'qQ' * len(window._booked)}{len(window._waiting)}q"
        head = _BOOKINGS.pack(4, window._seen_us, len(window._booked), len(window._waiting))
        return head + pack(numbers, *booked, *window._waiting) + pack_window(window.ring)
    if isinstance(window, PeriodCount):
        return _PERIOD.pack(5, window.end_us, window.spent)
    assert isinstance(window, TimestampWindow), "places are kept in rows of another kind"
    if window._surplus is None:
        return TIMES.pack(1, window.spent, window.newest_us) + window._older
    return _SURPLUS.pack(2, *window._surplus, window.spent, window.newest_us) + window._older


def unpack_window(packed: bytes, limit: AnyLimit, now_us: int, at: int = 0) -> Entry:
    """Read a window that begins at a byte, as the kind of ring that `limit` needs now.

    The limit's window and resolution are those of the window that was written; its amount may have crossed the
    resolution since, see `rings.convert`.
    """
    if not isinstance(limit, Limit):
        count = PeriodCount()
        load_ring(count, packed, at)
        return count
    if packed[at] == 4:
        return _unpack_booked(packed, limit, now_us, at)
    ring = _unpack_ring(packed, limit, at)
    return ring if (ring.__class__ is TimestampWindow) is limit.exact else convert(ring, limit, now_us)


def load_ring(ring: Resting, packed: bytes, at: int = 0) -> None:
    """Read a ring without bookings, which begins at a byte, into one that was made for the same limit."""
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
    """Return `newest_us` of a packed ring without bookings."""
    kind = packed[0]
    newest: int = (COUNTS if kind == 3 else TIMES if kind == 1 else _SURPLUS).unpack_from(packed)[_NEWEST[kind]]
    return newest


def keeps_times(packed: bytes, at: int = 0) -> bool:
    """Tell whether a window that begins at a byte was written by a ring of times."""
    if packed[at] == 4:
        _, _, bookings, waiters = _BOOKINGS.unpack_from(packed, at)
        at += _BOOKINGS.size + _PAIR_BYTES * bookings + TIME.size * waiters
    return packed[at] not in (3, 5)


def expires_us(window: Entry, limit: AnyLimit) -> int:
    """Return the moment from which a window holds nothing any more, if nothing is added to it."""
    if isinstance(window, PeriodCount):
        return window.newest_us + KEPT_US
    if window.__class__ is BookedWindow and window._waiting:
        return max(window.newest_us + limit.span_us, window._waiting[-1])
    return window.newest_us + limit.span_us


def _unpack_ring(packed: bytes, limit: Limit, at: int) -> Ring:
    exact = packed[at] != 3
    ring = TimestampWindow(limit.window_us) if exact else CounterWindow(limit.slices, limit.slice_us)
    load_ring(ring, packed, at)
    return ring


def _unpack_booked(packed: bytes, limit: Limit, now_us: int, at: int) -> BookedWindow:
    _, seen_us, bookings, waiters = _BOOKINGS.unpack_from(packed, at)
    numbers = unpack_from(f"={'qQ' * bookings}{waiters}q", packed, at + _BOOKINGS.size)
    ring = _unpack_ring(packed, limit, at + _BOOKINGS.size + _PAIR_BYTES * bookings + TIME.size * waiters)
    exact = ring.__class__ is TimestampWindow
    window = BookedWindow(ring, limit if exact is limit.exact else _other_kind(limit), seen_us)
    window._booked = list(zip(numbers[: 2 * bookings : 2], numbers[1 : 2 * bookings : 2], strict=True))
    window._waiting = list(numbers[2 * bookings :])
    return window if exact is limit.exact else window.converted(limit, now_us)


def _other_kind(limit: Limit) -> Limit:
    """Return a limit with the same window that needs the other ring; its amount does not matter."""
    amount = limit.resolution + 1 if limit.exact else limit.resolution
    return Limit(amount, timedelta(microseconds=limit.window_us), resolution=limit.resolution)
