"""The ring: the units that one key has spent under one limit, as bytes.

A ring is a list of (moment, units), oldest first. The moment is the last microsecond of the slice in which the units
were spent; for an exact limit, a slice is one microsecond long. So one implementation serves both kinds of limits, and
changing an amount across the resolution converts no data: old entries leave late, never early::

        slice    q        q+1             q+k      q+k+1
                 |--------|-- . . . . . --|--------|--------
        spent    ^ anywhere in here       |        ^ slice q leaves here: k + 1 slices after its start
                         ^ its moment

A window of length W touches at most k + 1 aligned slices (k = ceil(W / s)), so as long as their sum is at most N, no
window of length W contains more than N, wherever it starts. The classic algorithm with k slices admits up to twice as
many: N late in one slice, and N again (1 - 1/k) W later. The price of the extra slice is that a unit counts longer than
W: at most W + s if s divides W, else less than W + 2 s. Under an exact limit a unit leaves W after its own time. The
wait is exact to the microsecond: entries leave in order, oldest first, and the wait ends when enough units have left.

The bytes are the same in memory, in LMDB and in Redis, little-endian:

=====================  ===============================================================================================
head, 24 bytes         total units, units of the newest entry (uint32 each); moments of the newest entry and of the
                       oldest entry (int64 each)
entries, 12 bytes      those before the newest, oldest first: moment (int64), units (uint32)
=====================  ===============================================================================================

An empty ring is ``b""``. A refund takes what is still there under the moment of its charge, at most its units. Methods
that change a ring return new bytes. A caller that charges several limits takes back what the others have spent if one
of them has no room, see `Ring.remove`.

If a clock steps back, moments in the future are moved to the current time. No units are lost, and a key is refused no
longer than a window and a slice, however large the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, TypeAlias, final

NEVER: Final = -1
"""The wait of a cost that exceeds the limit."""
OPEN: Final = -2
"""The wait for a permit: it ends when another request returns one, and it is unknown when."""
MAX_UNITS: Final = 2**32 - 1
"""The most units of one ring, debts included; amounts are less than half of it."""

WindowState: TypeAlias = tuple[int, int, int, int]
"""The state of one window after a question: units spent, when the oldest leave (a time), the moment of the newest, by
which `Ring.remove` finds them, and how long the request has to wait (0, microseconds, `NEVER` or `OPEN`)."""

Terms: TypeAlias = tuple[int, int, int]
"""The most units in a window, the length of a slice (1 for an exact limit), and how long units count after their
moment; both in microseconds."""

Head: TypeAlias = tuple[int, int, int, int]
"""Total units, units of the newest entry, moments of the newest and of the oldest entry."""

_HEAD: Final = Struct("<IIqq")
_COUNTS: Final = Struct("<II")
_ENTRY: Final = Struct("<qI")
HEAD_BYTES: Final = 24
COUNT_BYTES: Final = 8
ENTRY_BYTES: Final = 12

# Packing raises if a number does not fit: units beyond 32 bits, a moment beyond 63.
read_head: Final[Callable[[bytes], Head]] = _HEAD.unpack_from
pack_head: Final[Callable[[int, int, int, int], bytes]] = _HEAD.pack
pack_counts: Final[Callable[[int, int], bytes]] = _COUNTS.pack
pack_entry: Final[Callable[[int, int], bytes]] = _ENTRY.pack
read_entries: Final[Callable[[bytes], Iterator[tuple[int, int]]]] = _ENTRY.iter_unpack

_EMPTY_HEAD: Final[Head] = (0, 0, -1, 2**61)
"""The head of an empty ring: its newest entry is older than any time, and its oldest one never leaves."""


@final
class Ring:
    """Counts the units of a sliding limit.

    Its terms are one tuple, which may be replaced, and which every method reads once: a hit of another thread goes by
    the terms before or after, never by a mixture. The bytes of a ring do not contain them: what was counted stays, and
    counts under the new ones.

    Args:
        terms: Amount, step and span.
        resolution: The number of counters that a window may store.
    """

    __slots__ = ("resolution", "terms")

    def __init__(self, terms: Terms, resolution: int) -> None:
        self.terms = terms
        self.resolution = resolution

    # Copies and pickles of compiled classes are created with their arguments.
    def __getnewargs__(self) -> tuple[Terms, int]:
        return self.terms, self.resolution

    def spend(self, window: bytes, now_us: int, cost: int) -> tuple[bytes, WindowState]:
        """Spend units if there is room for them.

        Args:
            now_us: The store's time, in microseconds.
            cost: Units; 0 spends nothing, and is admitted if there is room for one.

        Returns:
            The ring afterwards, settled, and its state.
        """
        amount, step_us, span_us = self.terms
        spent, units, newest_us, oldest_us = read_head(window) if window else _EMPTY_HEAD
        leaves_us = oldest_us + span_us
        # Units have left, or the clock has stepped back behind the newest slice.
        if now_us >= leaves_us or newest_us - now_us >= step_us:
            window = _settled(window, now_us, step_us, span_us)
            spent, units, newest_us, oldest_us = _head_of(window)
            leaves_us = oldest_us + span_us
        total = spent + cost
        # Nothing to spend, or no room for it.
        if not cost or total > amount:
            wait_us, excess = 0, spent + (cost or 1) - amount
            if excess > spent:  # the cost alone exceeds the amount
                wait_us = NEVER
            elif excess == 1:  # every entry has one: it is enough that the oldest leaves
                wait_us = leaves_us - now_us
            elif excess > 0:
                wait_us = _moment_of_room(window, excess, newest_us) + span_us - now_us
            return window, (spent, leaves_us, newest_us, wait_us) if spent else (0, 0, 0, wait_us)
        if now_us <= newest_us:  # in the newest slice
            return pack_counts(total, units + cost) + window[COUNT_BYTES:], (total, leaves_us, newest_us, 0)
        moment_us = now_us - now_us % step_us + step_us - 1
        if not spent:
            window = pack_head(cost, cost, moment_us, moment_us)
            return window, (cost, moment_us + span_us, moment_us, 0)
        older = window[HEAD_BYTES:] + pack_entry(newest_us, units)
        return pack_head(total, cost, moment_us, oldest_us) + older, (total, leaves_us, moment_us, 0)

    def charge(self, window: bytes, now_us: int, units: int) -> tuple[bytes, int]:
        """Spend units regardless of the limit, as many as a ring can count; return the ring and their number."""
        amount, step_us, span_us = self.terms
        window = _settled(window, now_us, step_us, span_us)
        charged = min(units, MAX_UNITS - _head_of(window)[0])
        if not charged:
            return window, 0
        window, state = Ring((MAX_UNITS, step_us, span_us), self.resolution).spend(window, now_us, charged)
        # Only debts and counted refusals cause so many entries: the oldest is merged into the next one, so that its
        # units leave later. The newest `resolution` entries contain at least the amount of any exact limit, so this
        # changes only the reported count of units, and no decision.
        if state[0] > amount and len(window) > HEAD_BYTES + 2 * self.resolution * ENTRY_BYTES:
            (_, first), (moment_us, second), *newer = entries(window)
            window = _ring_of({moment_us: first + second, **dict(newer)})
        return window, charged

    def remove(self, window: bytes, now_us: int, mark: int, units: int) -> bytes | None:
        """Take back units that were spent, as many of them as are still there.

        Args:
            now_us: The store's time, in microseconds.
            mark: The moment of their entry, which is the mark of the state after they were spent.

        Returns:
            The ring without them; None if none of them is there. Right after `spend`, it is the ring before, settled.
        """
        _, step_us, span_us = self.terms
        window = _settled(window, now_us, step_us, span_us)
        spent, newest_units, newest_us, oldest_us = _head_of(window)
        # Mostly these are the newest units, which are taken back without a look at the other entries.
        if mark == newest_us and units > 0:
            if units < newest_units:
                return pack_counts(spent - units, newest_units - units) + window[COUNT_BYTES:]
            older = window[HEAD_BYTES:]
            if not older:
                return b""
            last_us, last_units = _ENTRY.unpack(older[-ENTRY_BYTES:])
            return pack_head(spent - newest_units, last_units, last_us, oldest_us) + older[:-ENTRY_BYTES]
        units_at = dict(entries(window))
        if units <= 0 or mark not in units_at:
            return None
        units_at[mark] = max(units_at[mark] - units, 0)
        return _ring_of(units_at)


def _settled(window: bytes, now_us: int, step_us: int, span_us: int) -> bytes:
    """Return a ring without the units that have left; those of the future are moved into the slice of now."""
    _, _, newest_us, oldest_us = _head_of(window)
    clock_went_back = newest_us - now_us >= step_us
    if now_us < oldest_us + span_us and not clock_went_back:
        return window
    latest_us = now_us - now_us % step_us + step_us - 1
    units_at: dict[int, int] = {}
    for at_us, units in entries(window):
        if now_us < at_us + span_us:
            moment_us = min(at_us, latest_us)
            units_at[moment_us] = units_at.get(moment_us, 0) + units
    return _ring_of(units_at)


def _moment_of_room(window: bytes, excess: int, newest_us: int) -> int:
    """Return the moment of the last units that have to leave a settled ring, for `excess` units to be gone."""
    for moment_us, units in read_entries(window[HEAD_BYTES:]):
        excess -= units
        if excess <= 0:
            return moment_us
    return newest_us


def expires_us(window: bytes, life_us: int) -> int:
    """Return when a ring becomes empty if nothing is added to it, in microseconds.

    Args:
        life_us: The longest time that a unit counts, whatever the amount of the limit, in microseconds.
    """
    return read_head(window)[2] + life_us if window else 0


def entries(window: bytes) -> Iterator[tuple[int, int]]:
    """Yield the entries of a ring as (moment, units), oldest first."""
    if window:
        _, units, newest_us, _ = _head_of(window)
        yield from read_entries(window[HEAD_BYTES:])
        yield newest_us, units


def _head_of(window: bytes) -> Head:
    return read_head(window) if window else _EMPTY_HEAD


def _ring_of(units_at: dict[int, int]) -> bytes:
    """Return a ring with the given units by their moments, in order; moments without units are left out."""
    pairs = [entry for entry in units_at.items() if entry[1]]
    if not pairs:
        return b""
    newest_us, units = pairs[-1]
    head = pack_head(sum(units_at.values()), units, newest_us, pairs[0][0])
    return head + b"".join([pack_entry(*entry) for entry in pairs[:-1]])
