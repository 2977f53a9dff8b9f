"""The ring of counts: one number for each slice. The theory of both rings is in `theory`."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from struct import Struct, pack, unpack
from typing import Final

from ..errors import Whole
from .theory import NEVER, Reading, Refusal, check_positive, refuse_negative

MAX_SLICE_COUNT: Final = 2**32 - 1
_COUNT: Final = Struct("=I")
_COUNT_BYTES: Final = 4


class CounterWindow:
    """Counts of the newest slice and the k before it, whatever the number of units.

    Args:
        slices: k, the number of slices that make up the window.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.

    Raises:
        ConfigurationError: An argument is not a whole number above 0.
    """

    __slots__ = (
        "_before",
        "_full",
        "_start_us",
        "leaves_us",
        "newest_us",
        "refusal",
        "slice_count",
        "slice_us",
        "spent",
    )

    def __init__(self, slices: Whole, slice_us: Whole) -> None:
        self.slice_count = check_positive(slices, "slices")
        self.slice_us = check_positive(slice_us, "slice_us")
        self.spent = 0
        self.newest_us = 0
        self._start_us = 0  # the start of the newest slice
        self.leaves_us = 0
        self.refusal: Refusal | None = None
        self._full = b""  # the counts of the slices before it, oldest first; the first is never 0
        self._before = 0  # their sum; less than `spent` while anything is spent

    def __getnewargs__(self) -> tuple[int, ...]:
        return self.slice_count, self.slice_us

    def __copy__(self) -> CounterWindow:
        twin = CounterWindow(self.slice_count, self.slice_us)
        twin.spent, twin.leaves_us = self.spent, self.leaves_us
        twin.newest_us, twin._start_us = self.newest_us, self._start_us
        twin._before, twin._full, twin.refusal = self._before, self._full, self.refusal
        return twin

    def wait_us(self, now_us: int, room: int) -> int:
        """See `Window.wait_us`."""
        if now_us >= self.leaves_us and self.spent:
            self._expire(now_us)
        if now_us < self._start_us:
            self._step_back(now_us)
        excess = self.spent - room
        if excess <= 0:
            return 0
        if room < 0:
            return NEVER
        refusal = self.refusal
        if refusal is None or room != refusal[0]:
            places = 0 if excess == 1 else bisect_left(tuple(accumulate(self._counts())), excess)
            until_us = self.leaves_us + places * self.slice_us
            self.refusal = refusal = room, until_us, self.spent, self.leaves_us, self.newest_us
        return refusal[1] - now_us

    def spend(self, now_us: int, amount: int, cost: int) -> Reading:
        """See `Window.spend`."""
        if self._start_us <= now_us < self.newest_us and cost:
            # Nothing has left, the clock has not stepped back, and the newest slice runs: most hits end here.
            spent = self.spent + cost
            if spent <= amount:
                self.spent = spent
                self.refusal = None
                return spent, self.leaves_us, self.newest_us, 0
        refusal = self.refusal
        if refusal is not None and self._start_us <= now_us < self.leaves_us and amount - (cost or 1) == refusal[0]:
            return self.spent, self.leaves_us, self.newest_us, refusal[1] - now_us
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
            refuse_negative(units)
            return
        if now_us >= self.newest_us:
            running = 0
        else:
            if now_us < self._start_us:
                self._step_back(now_us)
            running = self.spent - self._before
        if running + units > MAX_SLICE_COUNT:
            raise ValueError(f"a slice counts at most {MAX_SLICE_COUNT} units, not {running + units}")
        if now_us >= self.newest_us:
            self._advance(now_us)
        self.spent += units
        self.refusal = None

    def charge(self, now_us: int, units: int, resolution: int) -> int:
        """See `Window.charge`."""
        self.wait_us(now_us, self.spent)  # drops expired units
        running = self.spent - self._before if now_us < self.newest_us else 0
        kept = min(units, MAX_SLICE_COUNT - running)
        self.add(now_us, kept)
        return kept

    def remove(self, now_us: int, spent_us: int, units: int) -> bool:
        """See `Window.remove`."""
        start_us, running = self._start_us, self.spent - self._before
        if start_us <= spent_us < self.newest_us and start_us <= now_us < self.leaves_us and 0 < units <= running:
            # The last charge is the one that is handed back most often: nothing has to be unpacked.
            self.spent -= units
            self.refusal = None
            if units == running:
                self._reopen()
            return True
        self.wait_us(now_us, self.spent)  # drops expired units
        pairs = self._pairs()
        start_us = spent_us - spent_us % self.slice_us
        for place, (slice_start_us, count) in enumerate(pairs):
            if slice_start_us == start_us and 0 < units <= count:
                pairs[place] = (start_us, count - units)
                self._load(pairs)
                return True
        return False

    def lies_ahead(self, now_us: int) -> bool:
        """See `Window.lies_ahead`."""
        return self.spent > 0 and now_us < self._start_us

    def total(self, now_us: int) -> int:
        """Return the units in the k + 1 slots that end with the slice of `now_us`: the sum that the gate holds to N."""
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
        return (*unpack(f"={len(self._full) // _COUNT_BYTES}I", self._full), self.spent - self._before)

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
        self._before = self.spent - counts[-1] if counts else 0
        self.newest_us = pairs[-1][0] + self.slice_us if pairs else 0
        self._full = pack(f"={len(counts) - 1}I", *counts[:-1]) if counts else b""
        self._trim()

    def _load_slice(self, end_us: int, units: int) -> None:
        """Take over the units of one slice, 1 or more, given its end."""
        self.spent = units
        self._before = 0
        self._full = b""
        self.newest_us, self._start_us = end_us, end_us - self.slice_us
        self.leaves_us = end_us + self.slice_count * self.slice_us
        self.refusal = None

    def _trim(self) -> None:
        """Drop empty slots at the old end, and say when the oldest one leaves."""
        full = self._full
        if full:
            zeros = len(full) - len(full.lstrip(b"\0"))
            self._full = full = full[zeros - zeros % _COUNT_BYTES :]
        held = self.slice_count - len(full) // _COUNT_BYTES
        self.leaves_us = self.newest_us + held * self.slice_us if self.spent else 0
        self._start_us = self.newest_us - self.slice_us if self.spent else 0
        self.refusal = None

    def _expire(self, now_us: int) -> None:
        if now_us >= self.newest_us + self.slice_count * self.slice_us:
            self.spent = self._before = self.newest_us = 0
            self._full = b""
        else:
            cut = ((now_us - self.leaves_us) // self.slice_us + 1) * _COUNT_BYTES
            gone = sum(unpack(f"={cut // _COUNT_BYTES}I", self._full[:cut]))
            self.spent -= gone
            self._before -= gone
            self._full = self._full[cut:]
        self._trim()

    def _advance(self, now_us: int) -> None:
        """Open the slice of `now_us`, which lies behind the newest one."""
        if self.spent and now_us >= self.leaves_us:
            self._expire(now_us)
        end_us = now_us - now_us % self.slice_us + self.slice_us
        if self.spent:
            skipped = (end_us - self.newest_us) // self.slice_us - 1
            self._full += _COUNT.pack(self.spent - self._before) + bytes(_COUNT_BYTES * skipped)
        else:
            self.leaves_us = end_us + self.slice_count * self.slice_us
        self._before = self.spent
        self.newest_us, self._start_us = end_us, end_us - self.slice_us

    def _reopen(self) -> None:
        """Make the newest slice that counted something the running one again."""
        kept = len(self._full.rstrip(b"\0"))
        kept += -kept % _COUNT_BYTES
        if not kept:
            self.newest_us = self._start_us = self.leaves_us = 0
            return
        self.newest_us -= ((len(self._full) - kept) // _COUNT_BYTES + 1) * self.slice_us
        self._start_us = self.newest_us - self.slice_us
        (running,) = _COUNT.unpack(self._full[kept - _COUNT_BYTES : kept])
        self._before -= running
        self._full = self._full[: kept - _COUNT_BYTES]

    def _step_back(self, now_us: int) -> None:
        """Move the units of slices after that of `now_us` back into it."""
        running_us = now_us - now_us % self.slice_us
        pairs = self._pairs()
        kept = [pair for pair in pairs if pair[0] < running_us]
        ahead = sum(count for start_us, count in pairs if start_us >= running_us)
        self._load([*kept, (running_us, ahead)])
