"""Publishes the statistics of this process to the shared store, for the other workers.

Every few seconds a worker writes one row for each slice that has changed since its last write, and a heartbeat row; see
`rows`. A worker that is killed loses the counts since its last write; its rows expire with their slices.

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
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any, Final

import anyio

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import Throttle, logger
from ..core.store import Clock, SharedStats, StatsRow
from ..limiter.aio import in_background, let_others_run, on_loop, within
from ..stores.forks import begin_anew_in_child
from .recorder import Recorder
from .report import Worker
from .rows import ROLLUPS, WORKERS, packed, worker_of
from .series import KEPT

INTERVAL_S: Final = 5.0
ALIVE_US: Final = 45_000_000
"""A worker without a heartbeat for this long is considered dead."""
DEADLINE_S: Final = 5.0
LAST_S: Final = 2.0
"""How long the final write may take when the limiter is closed."""
ROWS_AT_ONCE: Final = 32
LOG_EVERY_S: Final = 600.0
WORKER_BYTES: Final = 8

_POLL_S: Final = 0.01
_WRONG: Final = 0.75
"""The offset between the clocks is measured again when it is wrong by this many slices."""

ReadSection = Callable[[], Awaitable[Any]]


class Publisher:
    """Publishes the statistics of one limiter periodically.

    Args:
        store: The store to publish to; None for one that only this process uses.
        recorder: The source of the statistics.
        now_us: Returns the time of the recorder in microseconds.

    Attributes:
        store: The store.
        recorder: The source.
        now_us: Returns the time of the recorder.
        interval_s: The pause between two writes, in seconds.
    """

    def __init__(self, store: SharedStats | None, recorder: Recorder, now_us: Clock) -> None:
        self.interval_s = INTERVAL_S
        self.store = store
        self.recorder = recorder
        self.now_us = now_us
        self._sections: dict[str, tuple[ReadSection, Callable[[], object]]] = {}
        self._throttle = Throttle(LOG_EVERY_S)
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)

    def begin_anew(self) -> None:
        """Become a new worker with nothing pending, as in a child of `fork`."""
        for _, discard in self._sections.values():
            discard()
        self._worker = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing = False
        self._pending: set[tuple[int, int]] = set()
        self._shifts: dict[int, int] = {}
        self._misplaced: list[StatsRow] = []

    @property
    def worker(self) -> bytes:
        """The random identifier of this worker, generated on first use."""
        self._worker = self._worker or os.urandom(WORKER_BYTES)
        return self._worker

    def here(self) -> Worker:
        """Return this worker."""
        return worker_of(self.worker, socket.gethostname(), os.getpid(), 0.0, here=True)

    def add_section(self, name: str, read: ReadSection, discard: Callable[[], object]) -> None:
        """Publish another value together with the stats.

        Args:
            name: The name of the section. A second section of the same name replaces the first.
            read: Returns the value, which becomes JSON; it is awaited at each write, and bounds its own size. If it
                raises, the section is skipped and a warning logged, at most every 10 minutes.
            discard: Discards what the value is made of, in a child of `fork`. It must not acquire locks.
        """
        self._sections[name] = read, discard
        self.start()

    async def _section(self, name: str, read: ReadSection) -> bytes | None:
        """Return a section as JSON; None if it cannot be read."""
        try:
            return json.dumps(await read(), separators=(",", ":")).encode()
        except Exception:
            self._log("section %r cannot be read", name)
            return None

    def start(self) -> None:
        """Publish periodically from the running event loop, unless another loop already does."""
        if self.store is None:
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
        if self.store is None or not self._worker:
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
        assert self.store is not None, "a store of one process has no other workers"
        worker, self._writing = self.worker, True
        try:
            store_us = await within(self.store.time(), DEADLINE_S)
            moved = self._shift_all(store_us)
            listed = self.recorder.listed()
            for series in listed:
                self._pending |= series.take_changed(every=moved)
                await let_others_run()
            pending, misplaced = set(self._pending), len(self._misplaced)
            rows = [*self._misplaced, *[row async for row in self._heartbeat(store_us, gone)]]
            for step_us, number in sorted(pending):
                row_number = number + self._shifts[step_us]
                kept_us = (row_number + KEPT[step_us] + 1) * step_us - store_us
                if kept_us > 0 and row_number >= 0:
                    row = await packed(listed, step_us, number)
                    rows.append(StatsRow(ROLLUPS[step_us], row_number, row, kept_us))
            for first in range(0, len(rows), ROWS_AT_ONCE):
                await within(self.store.write(worker, rows[first : first + ROWS_AT_ONCE]), DEADLINE_S)
            self._pending -= pending
            del self._misplaced[:misplaced]
        finally:
            self._writing = False

    def shift(self, step_us: int, store_us: int) -> int:
        """Return the offset from the number of a slice here to its number in the store."""
        exactly = (store_us - self.now_us()) / step_us
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
                last = self.now_us() // step_us + before
                numbers = range(max(last - KEPT[step_us], 0), last + 2)
                self._misplaced += [StatsRow(ROLLUPS[step_us], number, b"", 0) for number in numbers]
                changed = True
        return changed

    async def _heartbeat(self, store_us: int, gone: bool) -> AsyncIterator[StatsRow]:
        """Yield the heartbeat of this worker and its sections."""
        here, kept_us = self.here(), 0 if gone else ALIVE_US
        heartbeat = {"host": here.host, "pid": here.pid, "at_us": store_us}
        yield StatsRow(WORKERS, 0, json.dumps(heartbeat).encode(), kept_us)
        for name, (read, _) in list(self._sections.items()):
            value = b"" if gone else await self._section(name, read)
            if value is not None:
                yield StatsRow(f"s-{name}", 0, value, kept_us)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            in_background(self._publish_and_reschedule(loop))

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
