"""The rows that workers write to the shared store, and how they are encoded::

    rollup        number                  value
    5s, 1m, 5m    number of the slice     its counts of all series; expires when the slice leaves the window
    workers       0                       host, process and time of the write; expires after 45 seconds
    s-NAME        0                       JSON of a section, see `Publisher.add_section`; expires after 45 seconds

A row replaces the previous one of the same number, so no slice is counted twice. Readers skip what they cannot decode:
during a rolling upgrade workers of two versions share a store.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from ..core.windows.histogram import BUCKETS, ResponseTimes
from ..core.windows.slices import Slice
from ..limiter.aio import let_others_run
from .report import Worker
from .series import Series, SeriesName

ROLLUPS: Final = {5_000_000: "5s", 60_000_000: "1m", 300_000_000: "5m"}
WORKERS: Final = "workers"
VERSION: Final = 4
MAX_ROW_BYTES: Final = 8 * 2**20
"""A row of 200 series takes 200 KB uncompressed, unless the names of rules and routes are very long."""


async def packed(listed: Sequence[Series], step_us: int, number: int) -> bytes:
    """Return the row of a slice: a version byte, then compressed JSON, one line per series.

    Yields to other tasks between two series.
    """
    compressor, row = zlib.compressobj(1), bytearray((VERSION,))
    for series in listed:
        for some in series.read(step_us, number, 1).values():
            line = json.dumps((*series.name, some.events, _flat(some.rt)), separators=(",", ":"))
            row += compressor.compress(line.encode() + b"\n")
        await let_others_run()
    return bytes(row + compressor.flush())


def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Slice]]:
    """Yield the counts of each series in a row, up to the first line that cannot be decoded."""
    if row[:1] != bytes((VERSION,)):
        return
    with suppress(Exception):  # not written by this version
        for line in zlib.decompressobj().decompress(row[1:], MAX_ROW_BYTES).splitlines():
            rules, route, events, rt = json.loads(line)
            counts = {str(event): int(times) for event, times in events.items()}
            yield (tuple(map(str, rules)), str(route)), Slice(counts, _times(*rt))


def _flat(times: ResponseTimes) -> tuple[int, int | None, list[tuple[int, int]]]:
    return times.sum_us, times.min_us, list(times.buckets.items())


def _times(sum_us: int, min_us: int | None, buckets: Sequence[tuple[int, int]]) -> ResponseTimes:
    counts = {int(bucket): int(times) for bucket, times in buckets if 0 <= bucket < BUCKETS}
    return ResponseTimes(int(sum_us), None if min_us is None else int(min_us), counts)


def worker_of(worker: bytes, host: str, pid: int, age_s: float, *, here: bool) -> Worker:
    """Return a worker by its random identifier."""
    return Worker(f"{host}:{pid}:{worker[:4].hex()}", host, pid, age_s, here)


def read_worker(worker: bytes, value: bytes, store_us: int) -> Worker | None:
    """Return a worker from its heartbeat row; None if the row cannot be decoded."""
    try:
        row = json.loads(value)
        age_s = max(store_us - int(row.get("at_us", 0)), 0) / 1_000_000
        return worker_of(worker, str(row.get("host", ""))[:255], int(row.get("pid", 0)), age_s, here=False)
    except Exception:  # not written by this version
        return None


def read_section(value: bytes) -> Any:
    """Return the decoded JSON; None if it is invalid."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
