"""Publishes the statistics of this process to the shared store, and aggregates those of all workers.

Every few seconds a worker writes one row for each slice that has changed since its last write, and a heartbeat row::

    rollup        number                  value
    5s, 1m, 5m    number of the slice     its counts of all series; expires when the slice leaves the window
    workers       0                       host, process and time of the write; expires after 45 seconds
    s-NAME        0                       JSON of a section, see `add_section`; expires after 45 seconds

A row replaces the previous one of the same number, so no slice is counted twice. A worker that is killed loses
the counts since its last write; its rows expire with their slices.

**Time.** A process numbers its slices by its own clock; rows are numbered by the clock of the store, which all workers
share. The offset between the two clocks is rounded to whole slices, separately for each slice length, so a slice is
written whole to the nearest row, at most half a slice off. The offset is measured at each write and kept until it is
wrong by three quarters of a slice; then the rows are rewritten under their new numbers.

Publishing is off the request path. The first request starts a timer on the event loop, which writes in steps of less
than a millisecond and yields to other tasks between them. If the store does not answer, the next write includes
everything that is still unwritten.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any, Final, NamedTuple

import anyio

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import Throttle, logger
from ..core.store import Clock, SharedStats, StatsRow
from ..core.windows.histogram import BUCKETS, ResponseTimes
from ..core.windows.slices import Slice
from ..limiter.aio import let_others_run, on_loop, within
from ..stores.forks import begin_anew_in_child
from .recorder import Recorder
from .report import Parts, RecentStats, Span, Worker
from .series import KEPT, Series, SeriesName

INTERVAL_S: Final = 5.0
ALIVE_US: Final = 45_000_000
"""A worker without a heartbeat for this long is considered dead."""
DEADLINE_S: Final = 5.0
LAST_S: Final = 2.0
"""How long the final write may take when the limiter is closed."""
ROLLUPS: Final = {5_000_000: "5s", 60_000_000: "1m", 300_000_000: "5m"}
WORKERS: Final = "workers"
MAX_SECTION_BYTES: Final = 32_768
ROWS_AT_ONCE: Final = 32
LOG_EVERY_S: Final = 600.0
WORKER_BYTES: Final = 8
VERSION: Final = 4
MAX_ROW_BYTES: Final = 8 * 2**20
"""A row of 200 series takes 200 KB uncompressed, unless the names of rules and routes are very long."""

_POLL_S: Final = 0.01
_WRONG: Final = 0.75
"""The offset between the clocks is measured again when it is wrong by this many slices."""


class Section(NamedTuple):
    """A section of one worker, see `Publisher.add_section`.

    Attributes:
        worker: The worker.
        value: The value, decoded from JSON.
    """

    worker: Worker
    value: Any


class Publisher:
    """Publishes the statistics of one limiter periodically.

    Args:
        store: The store to publish to; None for one that only this process uses.
        recorder: The source of the statistics.
        now_us: Returns the time of the recorder in microseconds.

    Attributes:
        interval_s: The pause between two writes, in seconds.
    """

    def __init__(self, store: SharedStats | None, recorder: Recorder, now_us: Clock) -> None:
        self.interval_s = INTERVAL_S
        self._store = store
        self._recorder = recorder
        self._now_us = now_us
        self._sections: dict[str, Callable[[], Any]] = {}
        self._throttle = Throttle(LOG_EVERY_S)
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)

    def begin_anew(self) -> None:
        """Become a new worker with nothing pending, as in a child of `fork`."""
        self._worker = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing = False
        self._pending: set[tuple[int, int]] = set()
        self._shifts: dict[int, int] = {}
        self._misplaced: list[StatsRow] = []

    @property
    def worker(self) -> bytes:
        """The random identifier of this worker, generated on first use."""
        self._worker = self._worker or os.urandom(WORKER_BYTES)
        return self._worker

    def whoami(self) -> dict[str, Any]:
        """Return the heartbeat of this worker, without its time."""
        return {"host": socket.gethostname()[:255], "pid": os.getpid()}

    def add_section(self, name: str, read: Callable[[], Any]) -> None:
        """Publish another value together with the stats.

        Args:
            name: The name of the section. A second section of the same name replaces the first.
            read: Returns the value, at most 32 KiB as JSON; called on the event loop at each write. If it raises, or
                the value is larger, the section is skipped and a warning logged, at most every 10 minutes.
        """
        self._sections[name] = read
        self.start()

    def _section(self, name: str, read: Callable[[], Any]) -> bytes | None:
        """Return a section as JSON; None if it cannot be read, or is too large."""
        try:
            value = json.dumps(read(), separators=(",", ":")).encode()
        except Exception:
            self._log("section %r cannot be read", name)
            return None
        if len(value) > MAX_SECTION_BYTES:
            self._log("section %r is larger than %d bytes", name, MAX_SECTION_BYTES)
            return None
        return value

    def start(self) -> None:
        """Publish periodically from the running event loop, unless another loop already does."""
        if self._store is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._loop, self._worker = loop, self.worker
        loop.call_later(self.interval_s, self._next, loop)

    async def end(self) -> None:
        """Publish what is pending and remove this worker's heartbeat; the next request starts publishing again.

        A store that does not answer in time is logged, not retried.
        """
        if self._store is None or not self._worker:
            return  # nothing was recorded here, or only by the parent process
        self._loop = None
        if not on_loop():
            logger.warning("the last stats of this process were not published: the event loop has stopped")
            return
        problem: object = f"the store did not answer within {LAST_S:g} seconds"
        with anyio.move_on_after(LAST_S):
            while self._writing:  # noqa: ASYNC110 - another event loop may be writing
                await anyio.sleep(_POLL_S)
            try:
                await self.publish(gone=True)
                return
            except (StoreError, ConfigurationError) as error:
                problem = error
        logger.warning("the last stats of this process were not published: %s", problem)

    async def publish(self, *, gone: bool = False) -> None:
        """Publish all slices that have changed since the last write.

        Args:
            gone: Whether to remove the heartbeat and sections of this worker.

        Raises:
            StoreError: The store does not answer.
        """
        assert self._store is not None, "a store of one process has no other workers"
        worker, self._writing = self.worker, True
        try:
            store_us = await within(self._store.time(), DEADLINE_S)
            moved = self._shift_all(store_us)
            listed = self._recorder.listed()
            for series in listed:
                self._pending |= series.take_changed(every=moved)
                await let_others_run()
            pending, misplaced = set(self._pending), len(self._misplaced)
            rows = [*self._misplaced, *self._heartbeat(store_us, gone)]
            for step_us, number in sorted(pending):
                row_number = number + self._shifts[step_us]
                kept_us = (row_number + KEPT[step_us] + 1) * step_us - store_us
                if kept_us > 0 and row_number >= 0:
                    row = await _packed(listed, step_us, number)
                    rows.append(StatsRow(ROLLUPS[step_us], row_number, row, kept_us))
            for first in range(0, len(rows), ROWS_AT_ONCE):
                await within(self._store.write(worker, rows[first : first + ROWS_AT_ONCE]), DEADLINE_S)
            self._pending -= pending
            del self._misplaced[:misplaced]
        finally:
            self._writing = False

    def shift(self, step_us: int, store_us: int) -> int:
        """Return the offset from the number of a slice here to its number in the store."""
        exactly = (store_us - self._now_us()) / step_us
        before = self._shifts.get(step_us)
        if before is None or abs(exactly - before) > _WRONG:
            return round(exactly)
        return before

    def _shift_all(self, store_us: int) -> bool:
        """Measure the clock offsets; if one changed, mark the rows under the old numbers for deletion."""
        changed = False
        for step_us in KEPT:
            before, shift = self._shifts.get(step_us), self.shift(step_us, store_us)
            self._shifts[step_us] = shift
            if before is not None and before != shift:
                last = self._now_us() // step_us + before
                numbers = range(max(last - KEPT[step_us], 0), last + 2)
                self._misplaced += [StatsRow(ROLLUPS[step_us], number, b"", 0) for number in numbers]
                changed = True
        return changed

    def _heartbeat(self, store_us: int, gone: bool) -> Iterator[StatsRow]:
        """Yield the heartbeat of this worker and its sections."""
        kept_us = 0 if gone else ALIVE_US
        yield StatsRow(WORKERS, 0, json.dumps({**self.whoami(), "at_us": store_us}).encode(), kept_us)
        for name, read in list(self._sections.items()):
            value = b"" if gone else self._section(name, read)
            if value is not None:
                yield StatsRow(f"s-{name}", 0, value, kept_us)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._task = loop.create_task(self._publish_and_reschedule(loop))

    async def _publish_and_reschedule(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._loop is loop and not self._writing:
                await self.publish()
        except StoreError as error:
            self._log("stats were not published and will be retried: %s", error)
        except Exception:
            logger.exception("stats could not be published")
        finally:
            if self._loop is loop and not loop.is_closed():
                loop.call_later(self.interval_s, self._next, loop)

    def _log(self, message: str, *args: object) -> None:
        if self._throttle.left_out(None, monotonic()) is not None:
            logger.warning(message, *args)


class AllWorkers:
    """Reads and sums the stats of all workers.

    Args:
        store: The store that the workers publish to; None for one that only this process uses.
        recorder: The statistics of this process.
        now_us: Returns the time of the recorder in microseconds.
        publisher: The publisher of this process.
        here: Whether this process is a worker itself; if not, it only reads.
    """

    def __init__(
        self, store: SharedStats | None, recorder: Recorder, now_us: Clock, publisher: Publisher, *, here: bool = True
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._now_us = now_us
        self._publisher = publisher
        self._is_worker = here

    def here(self) -> Worker:
        """Return this worker."""
        return _worker(self._publisher.worker, self._publisher.whoami(), 0.0, here=True)

    async def workers(self) -> tuple[Worker, ...]:
        """Return the live workers that record statistics, this one first."""
        others = sorted((await self._others()).values(), key=lambda worker: worker.name)
        return (*((self.here(),) if self._is_worker else ()), *others)

    async def sections(self, name: str) -> list[Section]:
        """Return the section of each live worker as last published; an empty list if no store is shared."""
        if self._store is None:
            return []
        self._publisher.start()
        workers = {self._publisher.worker: self.here(), **await self._others()}
        rows = await within(self._store.read(f"s-{name}", 0, 0))
        read = [(workers[worker], _read(value)) for _, worker, value in rows if worker in workers]
        return [Section(worker, value) for worker, value in read if value is not None]

    async def recent(self, window: str | float | timedelta) -> RecentStats:
        """Return the slices of all workers by their numbers in the store."""
        span, now_us = Span.of(window), self._now_us()
        if self._store is None:
            first = span.first(now_us)
            return RecentStats(span, first, first * span.step_us, await self._own(span, first))
        self._publisher.start()
        store_us = await within(self._store.time())
        first = span.first(store_us)
        last = first + span.steps - 1
        parts: Parts = {}

        def add(name: SeriesName, number: int, some: Slice) -> None:
            # Rounding the clock offset can move a slice to the row after the current one.
            parts.setdefault(name, {}).setdefault(min(number, last), Slice()).add(some)

        shift = self._publisher.shift(span.step_us, store_us)
        for name, slices in (await self._own(Span(span.step_us, span.steps + 1), first - shift)).items():
            for number, some in slices.items():
                add(name, number + shift, some)
        rows = await within(self._store.read(ROLLUPS[span.step_us], max(first, 0), last + 1))
        for number, worker, value in rows:
            for name, some in unpacked(value) if worker != self._publisher.worker else ():
                add(name, number, some)
                await let_others_run()
        return RecentStats(span, first, first * span.step_us + now_us - store_us, parts)

    async def _own(self, span: Span, first: int) -> Parts:
        """Return the slices of this worker; yields to other tasks between two series."""
        parts: Parts = {}
        for series in self._recorder.listed():
            if slices := series.read(span.step_us, first, span.steps):
                parts[series.name] = slices
            await let_others_run()
        return parts

    async def _others(self) -> dict[bytes, Worker]:
        """Return the other live workers."""
        if self._store is None:
            return {}
        store_us = await within(self._store.time())
        others = {}
        for _, worker, value in await within(self._store.read(WORKERS, 0, 0)):
            other = None if worker == self._publisher.worker else _read_worker(worker, value, store_us)
            if other is not None:
                others[worker] = other
        return others


async def _packed(listed: Sequence[Series], step_us: int, number: int) -> bytes:
    """Return the row of a slice: a version byte, then compressed JSON, one line per series.

    Yields to other tasks between two series. Readers skip rows of another version: during a rolling upgrade workers
    of two versions share a store.
    """
    compressor, packed = zlib.compressobj(1), bytearray((VERSION,))
    for series in listed:
        for some in series.read(step_us, number, 1).values():
            line = json.dumps((*series.name, some.events, _flat(some.rt)), separators=(",", ":"))
            packed += compressor.compress(line.encode() + b"\n")
        await let_others_run()
    return bytes(packed + compressor.flush())


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


def _worker(worker: bytes, row: dict[str, Any], age_s: float, *, here: bool) -> Worker:
    host, pid = str(row.get("host", ""))[:255], int(row.get("pid", 0))
    return Worker(f"{host}:{pid}:{worker[:4].hex()}", host, pid, age_s, here)


def _read_worker(worker: bytes, value: bytes, store_us: int) -> Worker | None:
    """Return a worker from its heartbeat row; None if the row cannot be decoded."""
    try:
        row = json.loads(value)
        return _worker(worker, row, max(store_us - int(row.get("at_us", 0)), 0) / 1_000_000, here=False)
    except Exception:  # not written by this version
        return None


def _read(value: bytes) -> Any:
    """Return the decoded JSON; None if it is invalid."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
