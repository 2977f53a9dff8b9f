"""Counts of the last k slices: events, response times, custom events.

A ring of k slices; the slice of a moment is ``now_us // slice_us``, its place that number modulo k, so finding it is
O(1)::

        slice    q-k+1                      q-1       q
                 |---------|-- . . . . --|---------|----x           q holds now_us
        place    (q+1) % k                (q-1) % k  q % k

A slot knows the number of its slice. It is made anew by the first record of a newer slice and never by a reading, which
takes only slots whose number lies among the last k: a slot that is out of date is skipped, wherever the clock has
jumped to.

Every record goes to the slice of its own moment, as long as the ring still holds it: a thread that was held up for a
slice loses nothing. A record older than that, from a clock that ran back, is written nowhere and counted in
`dropped`.

One lock for each window. Without it two threads that meet the first moment of a slice both make its slot, and what the
first of them has counted is lost.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Final

from ..errors import Whole
from ..limits import check_whole
from .histogram import BOUNDS_US, BUCKETS
from .summary import MetricSummary, ResponseTimes
from .tally import Tally

EVENTS: Final = ("pass", "block", "exception", "success", "occupied_pass")
OVERFLOW: Final = "other"
MAX_SLICES: Final = 3_600
MAX_NAMES: Final = 1_000
MAX_NAME_LENGTH: Final = 64

_FIXED: Final = (*EVENTS, OVERFLOW)
_BEFORE_ALL: Final = -(2**63)
_AFTER_ALL: Final = 2**63
_NO_TIMES: Final = bytes(8 * BUCKETS)


class MetricWindow:
    """Events, response times and custom events of the last k slices, for all threads.

    The events ``pass``, ``block``, ``exception``, ``success`` and ``occupied_pass`` (admitted by waiting) always have a
    place. Other names get one as they first come, up to `max_names`; a name that comes later, or is longer than 64
    characters, is counted as ``other``. So memory is bounded whatever names are made of: 1.8 KB for each slice
    in which something was timed (3.3 KB with times to the first byte), 0.3 KB for one in which something was only
    counted.

    Args:
        slices: k, 1 to 3600.
        slice_us: Length of a slice, in microseconds. Slices start at multiples of it.
        max_names: How many custom names have a count of their own, 0 to 1000.

    Attributes:
        dropped: Records that came when their slice had left the ring already.
        leaves: Gets the start of a slice and its counts when its place is needed; None where nobody keeps them.

    Raises:
        ConfigurationError: An argument is outside its range.
    """

    __slots__ = (
        "_lock",
        "_newest",
        "_places",
        "_ring",
        "_running",
        "_size",
        "dropped",
        "leaves",
        "slice_count",
        "slice_us",
    )

    def __init__(self, slices: Whole, slice_us: Whole, *, max_names: Whole = 16) -> None:
        example = "for example MetricWindow(slices=60, slice_us=1_000_000)"
        self.slice_count = check_whole(slices, 1, MAX_SLICES, "slices", example)
        self.slice_us = check_whole(slice_us, 1, 2**62, "slice_us", example)
        self._size = len(_FIXED) + check_whole(max_names, 0, MAX_NAMES, "max_names", "for example 16")
        self.dropped = 0
        self.leaves: Callable[[int, Tally], None] | None = None
        self._lock = Lock()
        self._places = {name: place for place, name in enumerate(_FIXED)}
        self._newest = _BEFORE_ALL
        self._running = _Slot(_BEFORE_ALL, 0)
        self._ring = [self._running] * self.slice_count

    def record(self, now_us: int, *events: str, rt_us: int | None = None, first_us: int | None = None) -> None:
        """Count events, each once, and times: all or, where their slice has left the ring, nothing.

        Args:
            now_us: When it happened, in microseconds.
            events: Names, for example ``"pass", "success"``.
            rt_us: A response time in microseconds, 0 or more.
            first_us: A time to the first byte, 0 or more.

        Raises:
            ValueError: A time is negative.
        """
        if (rt_us is not None and rt_us < 0) or (first_us is not None and first_us < 0):
            raise ValueError(f"times: expected 0 microseconds or more, not rt_us={rt_us!r}, first_us={first_us!r}")
        number = now_us // self.slice_us
        with self._lock:
            slot = self._running
            if slot.number != number:
                if number <= self._newest - self.slice_count:
                    self.dropped += 1
                    return
                slot = self._slot(number)
            counts, places = slot.counts, self._places
            for event in events:
                place = places.get(event)
                counts[self._new_place(event) if place is None else place] += 1
            # Twice the same, because a call is as long as all of it.
            if rt_us is not None:
                times = slot.rt or slot.time_rt()
                times.sum_us += rt_us
                if rt_us < times.min_us:
                    times.min_us = rt_us
                times.histogram[bisect_left(BOUNDS_US, rt_us)] += 1
            if first_us is not None:
                times = slot.first or slot.time_first()
                times.sum_us += first_us
                if first_us < times.min_us:
                    times.min_us = first_us
                times.histogram[bisect_left(BOUNDS_US, first_us)] += 1

    def record_many(
        self,
        now_us: int,
        records: int,
        events: Mapping[str, int],
        rts_us: Sequence[int] = (),
        firsts_us: Sequence[int] = (),
    ) -> None:
        """Count several records of one slice at once, as `record` would one after the other.

        Args:
            now_us: Any moment of the slice in which they happened, in microseconds.
            records: How many they are: so many are counted in `dropped` where their slice has left the ring.
            events: How often each name came, in the order in which the names first came.
            rts_us: All response times in microseconds, 0 or more each, in any order.
            firsts_us: All times to the first byte, 0 or more each, in any order.

        Raises:
            ValueError: A time is negative.
        """
        rts_us, firsts_us = sorted(rts_us), sorted(firsts_us)
        if (rts_us and rts_us[0] < 0) or (firsts_us and firsts_us[0] < 0):
            raise ValueError(f"times: expected 0 microseconds or more, not {min(rts_us[:1] + firsts_us[:1])!r}")
        number = now_us // self.slice_us
        with self._lock:
            if number <= self._newest - self.slice_count:
                self.dropped += records
                return
            slot = self._slot(number)
            for event, times in events.items():
                place = self._places.get(event)
                slot.counts[self._new_place(event) if place is None else place] += times
            if rts_us:
                (slot.rt or slot.time_rt()).add(rts_us)
            if firsts_us:
                (slot.first or slot.time_first()).add(firsts_us)

    def read(self, now_us: int, slices: int | None = None) -> MetricSummary:
        """Return the counts of the last `slices` slices, the running one included, all seen at one moment.

        Args:
            now_us: The moment to look at.
            slices: 1 to k; by default all k.

        Raises:
            ValueError: `slices` is outside its range.
        """
        wanted = self.slice_count if slices is None else slices
        check_whole(wanted, 1, self.slice_count, "slices", "no more than the window has")
        with self._lock:
            last = now_us // self.slice_us
            return self._summary(last - wanted + 1, [slot for slot in self._live(last - wanted, last) if slot], wanted)

    def slices(self, now_us: int) -> list[MetricSummary]:
        """Return the k slices that end with the running one, oldest first, empty ones included."""
        with self._lock:
            last = now_us // self.slice_us
            first = last - self.slice_count
            return [
                self._summary(number, [slot] if slot else [], 1)
                for number, slot in enumerate(self._live(first, last), first + 1)
            ]

    def held(self, first_us: int, end_us: int) -> list[tuple[int, Tally]]:
        """Return start and counts of the slices that begin in a span, however old, whose place was not needed yet."""
        first, end = -(-first_us // self.slice_us), -(-end_us // self.slice_us)
        with self._lock:
            slots = [slot for slot in self._ring if first <= slot.number < end]
            return [(slot.number * self.slice_us, self._tally(slot)) for slot in slots]

    def count(self, event: str, now_us: int) -> int:
        """Return how often an event happened in the k slices."""
        return self.read(now_us).count(event)

    def qps(self, now_us: int, event: str = "pass") -> float:
        """Return events a second over k slices; the running one counts as if it were over."""
        return self.read(now_us).qps(event)

    def average_rt(self, now_us: int) -> float | None:
        """Return the mean response time in microseconds, None where there is none."""
        return self.read(now_us).rt.average()

    def min_rt(self, now_us: int) -> int | None:
        """Return the shortest response time in microseconds, None where there is none."""
        return self.read(now_us).rt.min_us

    def quantile(self, share: float, now_us: int) -> float | None:
        """Return the response time in microseconds that `share` of them do not exceed: see `ResponseTimes.quantile`."""
        return self.read(now_us).rt.quantile(share)

    def _slot(self, number: int) -> _Slot:
        """Return the slot of a slice that the ring can hold, made anew if an older slice has it."""
        place = number % self.slice_count
        slot = self._ring[place]
        if slot.number != number:
            if self.leaves is not None and slot.number != _BEFORE_ALL:
                self.leaves(slot.number * self.slice_us, self._tally(slot))
            slot = self._ring[place] = _Slot(number, self._size)
        if number > self._newest:
            self._newest = number
            self._running = slot
        return slot

    def _tally(self, slot: _Slot) -> Tally:
        """Return the counts of a slot; times to the first byte are not among them."""
        tally = Tally()
        tally.count(zip(self._places, slot.counts, strict=False))
        if slot.rt is not None:
            tally.time(slot.rt.histogram, slot.rt.sum_us, slot.rt.min_us)
        return tally

    def _new_place(self, event: str) -> int:
        if len(self._places) == self._size or len(event) > MAX_NAME_LENGTH:
            return self._places[OVERFLOW]
        return self._places.setdefault(event, len(self._places))

    def _live(self, after: int, last: int) -> list[_Slot | None]:
        """Return the slots of the slices after `after` up to `last`, None for those that are not in the ring."""
        held = ((number, self._ring[number % self.slice_count]) for number in range(after + 1, last + 1))
        # A slot is made anew only when its slice comes round again: until then it may hold what left long ago.
        oldest = self._newest - self.slice_count
        return [slot if slot.number == number > oldest else None for number, slot in held]

    def _summary(self, first: int, slots: list[_Slot], slices: int) -> MetricSummary:
        sums = [sum(counts) for counts in zip(*(slot.counts for slot in slots), strict=True)]
        return MetricSummary(
            first * self.slice_us,
            slices * self.slice_us,
            {name: sums[place] for name, place in self._places.items() if sums and sums[place]},
            ResponseTimes.merged(slot.rt.seen() for slot in slots if slot.rt is not None),
            ResponseTimes.merged(slot.first.seen() for slot in slots if slot.first is not None),
        )


class _Times:
    """The times of one slice."""

    __slots__ = ("histogram", "min_us", "sum_us")

    def __init__(self) -> None:
        self.histogram = array("Q", _NO_TIMES)
        self.min_us = _AFTER_ALL
        self.sum_us = 0

    def add(self, times_us: list[int]) -> None:
        """Count sorted times: those of one bucket stand together, and are looked up once."""
        self.sum_us += sum(times_us)
        self.min_us = min(self.min_us, times_us[0])
        at, end = 0, len(times_us)
        while at < end:
            place = bisect_left(BOUNDS_US, times_us[at])
            following = bisect_right(times_us, BOUNDS_US[place], at) if place < len(BOUNDS_US) else end
            self.histogram[place] += following - at
            at = following

    def seen(self) -> ResponseTimes:
        return ResponseTimes(sum(self.histogram), self.sum_us, self.min_us, tuple(self.histogram))


class _Slot:
    """The counts of one slice."""

    __slots__ = ("counts", "first", "number", "rt")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.counts = [0] * size
        self.rt: _Times | None = None
        self.first: _Times | None = None

    def time_rt(self) -> _Times:
        self.rt = _Times()
        return self.rt

    def time_first(self) -> _Times:
        self.first = _Times()
        return self.first
