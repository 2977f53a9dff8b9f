"""Counts and times that are kept for long, or sent: an event that never came takes no bytes.

A packed tally is one string of bytes, of a size that fits its counts::

    events, buckets   sum of times   shortest   which events   counts   which buckets   counts
    1 + 1 byte        8              8          1 each         8 each   1 each          4 each

So a slice with six kinds of events and times in thirty buckets takes 222 bytes, and none takes more than 1,070. The
buckets are those of `histogram`, so tallies are put together exactly: by adding up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import calcsize, error, pack, unpack_from
from typing import Final

from .histogram import BUCKETS
from .summary import ResponseTimes

NAMES: Final = (
    "other",
    *("pass", "block", "exception", "success", "occupied_pass", "cancelled"),
    *("1xx", "2xx", "3xx", "4xx", "5xx"),
    *("banned", "blocked", "shed", "unavailable", "shadow_refused", "extra_units"),
)
"""The events that have a place of their own, by their number; any other is counted under the first. Numbers stand in
stores, so new names go to the end."""

_NUMBERS: Final = {name: number for number, name in enumerate(NAMES)}
_HEAD: Final = "<BBQQ"
_HEAD_BYTES: Final = calcsize(_HEAD)
_MOST: Final = 2**32 - 1
_LONGEST: Final = 2**63


class Tally:
    """Events and response times of some slices, to add to.

    Attributes:
        events: Counts by name; a count of units may be below 0.
        buckets: How many times lie in each bucket of the histogram that has any.
        sum_us: The sum of the times.
        min_us: The shortest time; 2**63 where there is none.
    """

    __slots__ = ("buckets", "events", "min_us", "sum_us")

    def __init__(self) -> None:
        self.events: dict[str, int] = {}
        self.buckets: dict[int, int] = {}
        self.sum_us = 0
        self.min_us = _LONGEST

    def count(self, events: Iterable[tuple[str, int]]) -> None:
        """Add counts of events; a name without a place of its own counts as ``other``."""
        for name, many in events:
            if many:
                known = name if name in _NUMBERS else NAMES[0]
                self.events[known] = self.events.get(known, 0) + many

    def time(self, histogram: Iterable[int], sum_us: int, min_us: int) -> None:
        """Add times, as a slot of a `MetricWindow` holds them."""
        for place, many in enumerate(histogram):
            if many:
                self.buckets[place] = self.buckets.get(place, 0) + many
        self.sum_us += sum_us
        self.min_us = min(self.min_us, min_us)

    def add(self, other: Tally) -> None:
        """Add everything of another one."""
        for name, many in other.events.items():
            self.events[name] = self.events.get(name, 0) + many
        for place, many in other.buckets.items():
            self.buckets[place] = self.buckets.get(place, 0) + many
        self.sum_us += other.sum_us
        self.min_us = min(self.min_us, other.min_us)

    @classmethod
    def unpack(cls, packed: bytes) -> Tally:
        """Return the tally that `pack` has packed.

        Raises:
            ValueError: These bytes are not of this version's making.
        """
        try:
            kinds, places, sum_us, min_us = unpack_from(_HEAD, packed)
            form = _form(kinds, places)
            if len(packed) != _HEAD_BYTES + calcsize(form):
                raise ValueError(f"tally: {len(packed)} bytes")
            which, *rest = unpack_from(form, packed, _HEAD_BYTES)
            found, where = rest[:kinds], rest[kinds]
        except error as wrong:
            raise ValueError(f"tally: {wrong}") from None
        if (kinds and max(which) >= len(NAMES)) or (places and max(where) >= BUCKETS):
            raise ValueError("tally: a place beyond the last")
        packed_in = Tally()
        packed_in.events = dict(zip([NAMES[number] for number in which], found, strict=True))
        packed_in.buckets = dict(zip(where, rest[kinds + 1 :], strict=True))
        packed_in.sum_us, packed_in.min_us = sum_us, min_us
        return packed_in

    def pack(self) -> bytes:
        """Return it as bytes. A bucket counts up to 2**32 - 1 times, in 5 minutes 14 million a second."""
        events = [(_NUMBERS[name], many) for name, many in self.events.items()]
        places = list(self.buckets.items())
        return pack(_HEAD, len(events), len(places), self.sum_us, self.min_us) + pack(
            _form(len(events), len(places)),
            bytes([number for number, _ in events]),
            *[many for _, many in events],
            bytes([place for place, _ in places]),
            *[min(many, _MOST) for _, many in places],
        )

    def times(self) -> ResponseTimes:
        """Return the response times."""
        counted = sum(self.buckets.values())
        if not counted:
            return ResponseTimes()
        return ResponseTimes.of(counted, self.sum_us, self.min_us, _spread(self.buckets))


def _form(events: int, places: int) -> str:
    return f"<{events}s{events}q{places}s{places}I"


def _spread(buckets: Mapping[int, int]) -> tuple[int, ...]:
    counts = [0] * BUCKETS
    for place, many in buckets.items():
        counts[place] = many
    return tuple(counts)
