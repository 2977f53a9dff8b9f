"""Records of several files in the order of time.

Each file is more or less in order already: servers write a line when the answer is complete, and some note the time at
which the request began. So a file's records pass through a buffer of fixed size, which is sorted whenever it is full
and gives away its earlier half. The files are then merged. One whose first line lies ahead of all that is being read is
not opened before its time comes, so a year of rotated files costs no more memory than two of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from .access_record import AccessRecord

_time_us: Final = itemgetter(0)
AHEAD_US: Final = 3_600_000_000
"""A file is opened when the merge is an hour short of its first line, because that line need not be its earliest."""


class Part(NamedTuple):
    """One of the sequences that are merged."""

    first_us: int | None
    """The time of its first record; None where it has to be opened at once."""
    records: Callable[[], Iterator[AccessRecord]]
    """Begins to read it."""


def in_order(records: Iterable[AccessRecord], hold: int) -> Iterator[AccessRecord]:
    """Yield records in the order of their times, of equal times in their own order.

    A record that comes more than `hold` records late is yielded late.

    Args:
        records: The records.
        hold: How many records are held back at least, while there are more.
    """
    held: list[AccessRecord] = []
    for record in records:
        held.append(record)
        if len(held) > 2 * hold:
            held.sort(key=_time_us)
            yield from held[: len(held) - hold]
            del held[: len(held) - hold]
    held.sort(key=_time_us)
    yield from held


def merged(parts: Iterable[Part]) -> Iterator[AccessRecord]:
    """Yield the records of all parts in the order of their times; of equal times in the order of the parts."""
    waiting = sorted(
        ((part.first_us if part.first_us is not None else 0, place, part) for place, part in enumerate(parts)),
        key=itemgetter(0, 1),
        reverse=True,
    )
    heads: list[tuple[int, int, AccessRecord, Iterator[AccessRecord]]] = []
    while heads or waiting:
        while waiting and (not heads or waiting[-1][0] - AHEAD_US <= heads[0][0]):
            _, place, part = waiting.pop()
            records = part.records()
            head = next(records, None)
            if head is not None:
                heapq.heappush(heads, (head.time_us, place, head, records))
        if not heads:
            continue
        _, place, head, records = heads[0]
        yield head
        following = next(records, None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.time_us, place, following, records))
