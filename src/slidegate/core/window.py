"""The two rings that remember what was spent.

Both answer one question: *how long until at most `room` units are left in the window?* A request of
cost c passes under a limit of N when that wait is 0 for ``room = N - c``. Neither knows N, so a changed
amount keeps its counts. Time is an integer of microseconds and always an argument.

``TimestampWindow`` keeps the time of every unit and is exact: a unit spent at t has left at ``t + W``.

``CounterWindow`` keeps k + 1 counts, of the newest slice and the k before it::

        slice    q        q+1             q+k      q+k+1
                 |--------|-- . . . . . --|--------|--------
        spent    ^ anywhere in here                ^ slice q leaves here: k + 1 slices after its start

A window of length W touches at most k + 1 aligned slices (k = ceil(W / s)), so as long as the sum over
them stays within N, no window of length W holds more than N, wherever it starts. The classic reading of k
slices lets twice as many through: N late in one slice, and N again (1 - 1/k) W later. The price of the extra
slice is a wait at most one slice longer than needed, and it is known to the microsecond: the oldest slices
leave one after the other, and the first moment when enough have left is the answer.

What both hold, at rest, is three numbers and the rest packed into bytes, because a store may hold a
million of them:

* ``spent``      units in the window, as of the last look;
* ``newest_us``  the time of the newest unit (timestamps) or the end of its slice (counters);
* ``leaves_us``  when the oldest units leave; in between, nothing changes by itself.

A clock that runs back: what is stored ahead of now is moved back to now. Nothing spent comes back, and a
key is held no longer than a window and a slice, however far the clock stepped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from copy import copy
from itertools import accumulate
from struct import Struct, pack, unpack
from typing import Final, Protocol, TypeAlias

from .limits import MAX_RESOLUTION, Limit

NEVER: Final = -1
"""The wait of a cost that is larger than the limit."""

Reading: TypeAlias = tuple[int, int, int, int]
"""What was seen in one window, after charging: units spent, when the oldest leave (a moment), the newest unit's time or
slice end (a moment), and how long the request has to wait here (0, microseconds, or `NEVER`)."""

MAX_SLICE_COUNT: Final = 2**32 - 1
_COUNT: Final = Struct("=I")
_COUNT_BYTES: Final = 4
_TIME_BYTES: Final = 8


class Window(Protocol):
    """What a store needs of a ring."""

    @property
    def spent(self) -> int:
        """Units in the window, as of the last `wait_us` or `add`."""

    @property
    def newest_us(self) -> int:
        """The newest unit's time or slice end; it leaves `Limit.span_us` later."""

    @property
    def leaves_us(self) -> int:
        """When the oldest units leave; 0 while nothing was ever spent."""

    def wait_us(self, now_us: int, room: int) -> int:
        """Return the microseconds until at most `room` units are left: 0 now, `NEVER` for a room below 0."""

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """Spend `cost` units if that leaves at most `amount` in the window, and say what was seen, all in one step."""

    def add(self, now_us: int, units: int = 1) -> None:
        """Spend units now, whatever the limit."""

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """Hand back units spent at `spent_us`; False, and nothing changed, where they have left already."""

    def total(self, now_us: int) -> int:
        """Return the units in the window at `now_us` without changing anything."""


class TimestampWindow:
    """The times of the units spent in the last `window_us` microseconds.

    One entry per unit, at most 3600: the bound of a limit that uses this ring never needs older ones.

    Args:
        window_us: Length of the window, in microseconds.
    """

    __slots__ = ("_older", "_surplus", "leaves_us", "newest_us", "spent", "window_us")

    def __init__(self, window_us: int) -> None:
        _positive(window_us, "window_us")
        self.window_us = window_us
        self.spent = 0
        self.newest_us = 0
        self.leaves_us = 0
        self._older = b""  # all times but the newest, oldest first
        self._surplus: tuple[int, int] | None = None  # (units, newest time) dropped when an amount was lowered

    def wait_us(self, now_us: int, room: int) -> int:
        """See `Window.wait_us`."""
        if now_us >= self.leaves_us and self.spent:
            self._expire(now_us)
        if now_us < self.newest_us and self.spent:
            self._step_back(now_us)
        excess = self.spent - room
        if excess <= 0:
            return 0
        if room < 0:
            return NEVER
        if excess == 1:
            return self.leaves_us - now_us
        return self._times()[excess - 1] + self.window_us - now_us

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """See `Window.spend`."""
        wait_us = self.wait_us(now_us, amount - (cost or 1))
        if wait_us == 0:
            self.add(now_us, cost)
        return self.spent, self.leaves_us, self.newest_us, wait_us

    def add(self, now_us: int, units: int = 1) -> None:
        """See `Window.add`."""
        if units <= 0:
            _refuse_negative(units)
            return
        if self.spent:
            if now_us >= self.leaves_us:
                self._expire(now_us)
            if now_us < self.newest_us:
                self._step_back(now_us)
        kept = min(units, MAX_RESOLUTION)
        if self.spent:
            self._older += pack("=q", self.newest_us) + pack("=q", now_us) * (kept - 1)
        else:
            self._older = pack("=q", now_us) * (kept - 1)
            self.leaves_us = now_us + self.window_us
        self.newest_us = now_us
        self.spent += kept
        if self.spent > MAX_RESOLUTION:
            self._load(self._times())

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """See `Window.remove`."""
        self.wait_us(now_us, 0)
        times = self._times()
        if units <= 0 or times.count(spent_us) < units:
            return False
        first = times.index(spent_us)
        self._load(times[:first] + times[first + units :])
        return True

    def total(self, now_us: int) -> int:
        """See `Window.total`."""
        return self.spent - bisect_right(self._times(), now_us - self.window_us)

    def _times(self) -> tuple[int, ...]:
        if not self.spent:
            return ()
        return (*unpack(f"={self.spent - 1}q", self._older), self.newest_us)

    def _load(self, times: tuple[int, ...]) -> None:
        times = times[-MAX_RESOLUTION:]
        self.spent = len(times)
        self._older = pack(f"={len(times) - 1}q", *times[:-1]) if times else b""
        self.newest_us = times[-1] if times else 0
        self.leaves_us = times[0] + self.window_us if times else 0

    def _expire(self, now_us: int) -> None:
        gone = bisect_right(self._times(), now_us - self.window_us)
        self.spent -= gone
        self._older = self._older[gone * _TIME_BYTES :]
        if self.spent > 1:
            self.leaves_us = int(unpack("=q", self._older[:_TIME_BYTES])[0]) + self.window_us
        elif self.spent:
            self.leaves_us = self.newest_us + self.window_us

    def _step_back(self, now_us: int) -> None:
        self._load(tuple(min(time_us, now_us) for time_us in self._times()))
        if self._surplus is not None:
            units, newest_us = self._surplus
            self._surplus = units, min(newest_us, now_us)


class CounterWindow:
    """Counts of the newest slice and the k before it, whatever the number of units.

    Args:
        slices: k, the number of slices that make up the window.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.

    Raises:
        ConfigurationError: An argument is not a whole number above 0.
    """

    __slots__ = (
        "_blocked_room",
        "_full",
        "_running",
        "blocked_until_us",
        "leaves_us",
        "newest_us",
        "slice_count",
        "slice_us",
        "spent",
    )

    def __init__(self, slices: int, slice_us: int) -> None:
        _positive(slices, "slices")
        _positive(slice_us, "slice_us")
        self.slice_count = slices
        self.slice_us = slice_us
        self.spent = 0
        self.newest_us = 0
        self.leaves_us = 0
        self.blocked_until_us = 0  # until then more than _blocked_room units are left
        self._blocked_room = 0
        self._running = 0  # the count of the newest slice; never 0 while anything is spent
        self._full = b""  # the counts of the slices before it, oldest first; the first is never 0

    def wait_us(self, now_us: int, room: int) -> int:
        """See `Window.wait_us`."""
        if now_us >= self.leaves_us and self.spent:
            self._expire(now_us)
        if now_us < self.newest_us - self.slice_us:
            self._step_back(now_us)
        excess = self.spent - room
        if excess <= 0:
            return 0
        if room < 0:
            return NEVER
        if room != self._blocked_room or now_us >= self.blocked_until_us:
            places = 0 if excess == 1 else bisect_left(tuple(accumulate(self._counts())), excess)
            self.blocked_until_us = self.leaves_us + places * self.slice_us
            self._blocked_room = room
        return self.blocked_until_us - now_us

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """See `Window.spend`."""
        newest_us = self.newest_us
        if newest_us - self.slice_us <= now_us < newest_us and now_us < self.leaves_us and cost:
            # The newest slice runs and nothing has left: most hits end here.
            spent = self.spent + cost
            if spent <= amount:
                self._running += cost
                self.spent = spent
                self.blocked_until_us = 0
                return spent, self.leaves_us, newest_us, 0
        wait_us = self.wait_us(now_us, amount - (cost or 1))
        if wait_us == 0:
            self.add(now_us, cost)
        return self.spent, self.leaves_us, self.newest_us, wait_us

    def add(self, now_us: int, units: int = 1) -> None:
        """See `Window.add`.

        Raises:
            ValueError: `units` is negative, or a slice would count more than 2**32 - 1.
        """
        if units <= 0:
            _refuse_negative(units)
            return
        if now_us >= self.newest_us:
            running = 0
        else:
            if now_us < self.newest_us - self.slice_us:
                self._step_back(now_us)
            running = self._running
        if running + units > MAX_SLICE_COUNT:
            raise ValueError(f"a slice counts at most {MAX_SLICE_COUNT} units, not {running + units}")
        if now_us >= self.newest_us:
            self._advance(now_us)
        self._running += units
        self.spent += units
        self.blocked_until_us = 0

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """See `Window.remove`."""
        self.wait_us(now_us, 0)
        pairs = self._pairs()
        start_us = spent_us - spent_us % self.slice_us
        for place, (slice_start_us, count) in enumerate(pairs):
            if slice_start_us == start_us and 0 < units <= count:
                pairs[place] = (start_us, count - units)
                self._load(pairs)
                return True
        return False

    def total(self, now_us: int) -> int:
        """Return the units in the k + 1 slots that end with the slice of `now_us`: what the gate holds to N."""
        return self.spent if now_us < self.leaves_us else self._sum(now_us, 0, self.slice_count)

    def classic(self, now_us: int) -> int:
        """Return the units in the last k slices, the running one included: the reading of most libraries."""
        return self._sum(now_us, 0, self.slice_count - 1)

    def completed(self, now_us: int) -> int:
        """Return the units in the k full slices before the running one."""
        return self._sum(now_us, 1, self.slice_count)

    def slices(self, now_us: int | None = None) -> list[tuple[int, int]]:
        """Return (start in microseconds, count) of all k + 1 slots, oldest first.

        Args:
            now_us: The moment to look at; by default the newest slice that counted something.
        """
        newest_us = max(self.newest_us - self.slice_us, 0)
        running_us = newest_us if now_us is None else max(now_us - now_us % self.slice_us, newest_us)
        counts = dict(self._pairs())
        starts = range(running_us - self.slice_count * self.slice_us, running_us + 1, self.slice_us)
        return [(start_us, counts.get(start_us, 0)) for start_us in starts]

    def _sum(self, now_us: int, youngest: int, oldest: int) -> int:
        """Sum the slots from `youngest` to `oldest` slices before the running one."""
        return sum(
            count for _, count in self.slices(now_us)[self.slice_count - oldest : self.slice_count + 1 - youngest]
        )

    def _counts(self) -> tuple[int, ...]:
        return (*unpack(f"={len(self._full) // _COUNT_BYTES}I", self._full), self._running)

    def _pairs(self) -> list[tuple[int, int]]:
        if not self.spent:
            return []
        counts = self._counts()
        oldest_us = self.newest_us - len(counts) * self.slice_us
        return [(oldest_us + place * self.slice_us, count) for place, count in enumerate(counts)]

    def _load(self, pairs: list[tuple[int, int]]) -> None:
        """Take over (slice start, count) pairs: aligned, oldest first, none of them missing in between."""
        while pairs and not pairs[-1][1]:
            pairs.pop()
        counts = [min(count, MAX_SLICE_COUNT) for _, count in pairs]
        self.spent = sum(counts)
        self._running = counts[-1] if counts else 0
        self.newest_us = pairs[-1][0] + self.slice_us if pairs else 0
        self._full = pack(f"={len(counts) - 1}I", *counts[:-1]) if counts else b""
        self._trim()

    def _trim(self) -> None:
        """Drop empty slots at the old end, and say when the oldest one leaves."""
        full = self._full
        if full:
            zeros = len(full) - len(full.lstrip(b"\0"))
            self._full = full = full[zeros - zeros % _COUNT_BYTES :]
        held = self.slice_count - len(full) // _COUNT_BYTES
        self.leaves_us = self.newest_us + held * self.slice_us if self.spent else 0
        self.blocked_until_us = 0

    def _expire(self, now_us: int) -> None:
        if now_us >= self.newest_us + self.slice_count * self.slice_us:
            self.spent = self._running = self.newest_us = 0
            self._full = b""
        else:
            cut = ((now_us - self.leaves_us) // self.slice_us + 1) * _COUNT_BYTES
            self.spent -= sum(unpack(f"={cut // _COUNT_BYTES}I", self._full[:cut]))
            self._full = self._full[cut:]
        self._trim()

    def _advance(self, now_us: int) -> None:
        """Open the slice of `now_us`, which lies behind the newest one."""
        if self.spent and now_us >= self.leaves_us:
            self._expire(now_us)
        end_us = now_us - now_us % self.slice_us + self.slice_us
        if self.spent:
            skipped = (end_us - self.newest_us) // self.slice_us - 1
            self._full += _COUNT.pack(self._running) + bytes(_COUNT_BYTES * skipped)
        else:
            self.leaves_us = end_us + self.slice_count * self.slice_us
        self._running = 0
        self.newest_us = end_us

    def _step_back(self, now_us: int) -> None:
        """Move what lies ahead of the slice of `now_us` back into it."""
        running_us = now_us - now_us % self.slice_us
        pairs = self._pairs()
        kept = [pair for pair in pairs if pair[0] < running_us]
        ahead = sum(count for start_us, count in pairs if start_us >= running_us)
        self._load([*kept, (running_us, ahead)])


def new_window(limit: Limit) -> TimestampWindow | CounterWindow:
    """Return an empty ring of the kind that `limit` needs."""
    if limit.exact:
        return TimestampWindow(limit.window_us)
    return CounterWindow(limit.slices, limit.slice_us)


def convert(window: TimestampWindow | CounterWindow, limit: Limit, now_us: int) -> TimestampWindow | CounterWindow:
    """Return the ring that `limit` needs, holding what `window` holds.

    For an amount that crosses the resolution while the window and the resolution stay: counters become
    timestamps at the last microsecond of their slice, timestamps become counts in their slice.
    Neither direction frees a unit early.
    """
    window = copy(window)
    window.wait_us(now_us, 0)  # what has left does not come along
    fresh = new_window(limit)
    if isinstance(fresh, TimestampWindow) and isinstance(window, CounterWindow):
        _to_timestamps(window, fresh, limit, now_us)
        return fresh
    if isinstance(fresh, CounterWindow) and isinstance(window, TimestampWindow):
        if window._surplus is not None and window._surplus[1] > now_us - window.window_us:
            units, newest_us = window._surplus
            fresh.add(newest_us, min(units, MAX_SLICE_COUNT))
        for time_us in window._times():
            fresh.add(time_us)
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


def _positive(value: int, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what}: expected a whole number above 0, for example 10, not {value!r}")


def _refuse_negative(units: int) -> None:
    if units < 0:
        raise ValueError(f"units: expected 0 or more, not {units!r}")
