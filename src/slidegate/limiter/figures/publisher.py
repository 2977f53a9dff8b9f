"""Publishes the figures of this process now and then, for the workers that share its store.

Every few seconds a worker writes the slices that were counted in since it last did, each as a row of its own, and a row
that says that it is alive::

    5s, 1m, 5m    number of the slice     its counts of all series (`slice_rows`), until it has left the window
    workers       0                       host, process, and when it wrote this, for 45 seconds
    s-NAME        0                       JSON of another part, see `add_section`, for 45 seconds

Rows replace each other, so nothing is counted twice, however often a slice is written. A worker that is killed loses
the counts since it last wrote; its rows go with their slices.

**Time.** Slices here are named by the time of this process, rows by the time of the store: the same for all workers.
The distance between the two is rounded to whole slices, for each length by itself, so a slice moves to the row that
fits it best, whole and within half a slice. It is measured at each writing, and kept unless it is wrong by three
quarters of a slice: then the rows are written again under their new numbers.

Nothing here is on the way of a request. A timer of the event loop writes, from the first request on; a store that does
not answer is asked again at the next turn, when everything that was not written yet goes with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final

import anyio

from ...core.errors import ConfigurationError, StoreError
from ...core.logs import logger
from ...core.store import SharedStats, StatsRow
from ..aio import let_others_run, within
from .series import Series
from .slice_rows import Entry, pack_row
from .statistics import Statistics
from .windows import KEPT, SLICE_US, STEPS_US

INTERVAL_S: Final = 5.0
ALIVE_US: Final = 45_000_000
"""How long a worker that says nothing more is held to be alive."""
DEADLINE_S: Final = 5.0
LAST_S: Final = 2.0
"""How long the last publication may take, when the limiter is closed."""
SHELVES: Final = {5_000_000: "5s", 60_000_000: "1m", 300_000_000: "5m"}
WORKERS: Final = "workers"
MOST_SECTION_BYTES: Final = 32_768
ROWS_AT_ONCE: Final = 32
SERIES_AT_ONCE: Final = 8
SAY_EVERY_S: Final = 600.0
WORKER_BYTES: Final = 8

_LOOK_AGAIN_S: Final = 0.01
_SECTION: Final = "[a-z_]{1,32}"
_WRONG: Final = 0.75
"""A distance between the clocks is measured anew when it is wrong by so many slices."""


class Publisher:
    """Publishes the figures of a limiter.

    Args:
        store: Where; None for a store of this process alone.
        statistics: The figures.

    Attributes:
        interval_s: How long it waits from one time to the next.
        publishes: Whether there is a store to publish to.
    """

    def __init__(self, store: SharedStats | None, statistics: Statistics) -> None:
        self.interval_s = INTERVAL_S
        self.publishes = store is not None
        self._store = store
        self._statistics = statistics
        self._sections: dict[str, Callable[[], Any]] = {}
        self._worker = b""
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = self._writing = False
        self._said_s = float("-inf")
        self._pending: set[int] = set()
        self._shifts: dict[int, int] = {}
        self._away: list[StatsRow] = []
        statistics.started, statistics.published = self.start, store is not None

    @property
    def worker(self) -> bytes:
        """The name of this worker, made anew after `fork`."""
        if self._process != os.getpid():
            self._process, self._worker = os.getpid(), os.urandom(WORKER_BYTES)
            self._loop = self._task = None
            self._writing = False
            self._pending, self._shifts, self._away = set(), {}, []
        return self._worker

    def whoami(self) -> dict[str, Any]:
        """Return what the row that says that this worker is alive holds, but its time."""
        return {"host": socket.gethostname()[:255], "pid": os.getpid()}

    def add_section(self, name: str, read: Callable[[], Any]) -> None:
        """Publish something else with the figures.

        Args:
            name: 1 to 32 characters of ``a-z`` and ``_``. A second section of a name takes the place of the first.
            read: Returns a value that JSON can hold, at most 32 KiB of it; it is called at each writing, on the event
                loop. A larger value is left out, and so is one that raises; the log says so now and then.

        Raises:
            ConfigurationError: The name cannot be used.
        """
        if not isinstance(name, str) or not re.fullmatch(_SECTION, name):
            raise ConfigurationError(f'section: expected a name of a-z and _, for example "refusals", not {name!r}')
        self._sections[name] = read
        self.start()

    def section(self, name: str) -> bytes | None:
        """Return a section of this worker as it is now, as JSON; None if there is none, or it cannot be read."""
        read = self._sections.get(name)
        if read is None:
            return None
        try:
            value = json.dumps(read(), separators=(",", ":")).encode()
        except Exception:
            self._say("section %r cannot be read", name)
            return None
        if len(value) > MOST_SECTION_BYTES:
            self._say("section %r is larger than %d bytes", name, MOST_SECTION_BYTES)
            return None
        return value

    def start(self) -> None:
        """Publish from the running event loop from now on, unless another loop does so."""
        if self._store is None or self._closed:
            return
        if self.worker and self._loop is not None and not self._loop.is_closed():
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._loop = loop
        loop.call_later(self.interval_s, self._next, loop)

    def keep_quiet(self) -> None:
        """Publish nothing from now on: this process only looks on, and is no worker."""
        self._closed = True

    async def close(self) -> None:
        """Publish the last figures, and say that this worker is gone. A store that does not answer is left alone."""
        if not self._closed:
            await self.publish_last()
            self._closed = True

    async def publish_last(self) -> None:
        """Publish the last figures, before the process ends, and say that this worker is gone."""
        if self._store is None or self._closed or self._process != os.getpid():
            return  # it has counted nothing, or its parent has
        problem: object = "the store takes too long"
        with anyio.move_on_after(LAST_S):
            for _ in range(round(LAST_S / _LOOK_AGAIN_S)):
                if not self._writing:
                    break
                await anyio.sleep(_LOOK_AGAIN_S)
            try:
                await self.publish(gone=True)
                return
            except (StoreError, ConfigurationError) as error:
                problem = error
        logger.warning("the last figures of this process were not published: %s", problem)

    async def publish(self, *, gone: bool = False) -> None:
        """Publish what has changed.

        Args:
            gone: Whether this worker says that it is gone.

        Raises:
            StoreError: The store does not answer.
        """
        assert self._store is not None, "there is nobody to publish for"
        worker, self._writing = self.worker, True
        try:
            listed = self._statistics.listed()
            for series in listed:
                self._pending |= series.take_touched()
            pending = set(self._pending)
            store_us = await within(self._store.time(), DEADLINE_S)
            if self._shift_all(store_us):
                self._pending |= {start_us // SLICE_US for series in listed for start_us in series.starts()}
                pending = set(self._pending)
            taken_back = len(self._away)
            rows = [*self._away, *self._signs(store_us, gone)]
            for step_us, number in self._slices(pending):
                row_number = number + self._shifts[step_us]
                kept_us = (row_number + KEPT[step_us] + 1) * step_us - store_us
                if kept_us > 0 and row_number >= 0:
                    value = pack_row(await _entries(listed, number * step_us, step_us))
                    rows.append(StatsRow(SHELVES[step_us], row_number, value, kept_us))
            for first in range(0, len(rows), ROWS_AT_ONCE):
                await within(self._store.write(worker, rows[first : first + ROWS_AT_ONCE]), DEADLINE_S)
            self._pending -= pending
            del self._away[:taken_back]
        finally:
            self._writing = False

    def shift(self, step_us: int, store_us: int) -> int:
        """Return how much higher the number of a slice is in the store than here."""
        exactly = (store_us - self._statistics.now_us()) / step_us
        known = self._shifts.get(step_us)
        if known is None or abs(exactly - known) > _WRONG:
            return round(exactly)
        return known

    def _shift_all(self, store_us: int) -> bool:
        """Measure the distance between the clocks; where it has changed, have rows under the old numbers taken back."""
        changed = False
        for step_us in STEPS_US:
            known, found = self._shifts.get(step_us), self.shift(step_us, store_us)
            self._shifts[step_us] = found
            if known is not None and known != found:
                last = self._statistics.now_us() // step_us + known
                numbers = range(max(last - KEPT[step_us], 0), last + 2)
                self._away += [StatsRow(SHELVES[step_us], number, b"", 0) for number in numbers]
                changed = True
        return changed

    def _signs(self, store_us: int, gone: bool) -> Iterator[StatsRow]:
        """Yield the rows that say that this worker is alive, and its sections."""
        kept_us = 0 if gone else ALIVE_US
        yield StatsRow(WORKERS, 0, json.dumps({**self.whoami(), "at_us": store_us}).encode(), kept_us)
        for name in list(self._sections):
            value = b"" if gone else self.section(name)
            if value is not None:
                yield StatsRow(f"s-{name}", 0, value, kept_us)

    def _slices(self, touched: set[int]) -> Iterator[tuple[int, int]]:
        """Yield length and number of each slice to write: of five seconds, and of the longer ones they are in."""
        for step_us in STEPS_US:
            last = self._statistics.now_us() // step_us
            numbers = {number * SLICE_US // step_us for number in touched}
            yield from ((step_us, number) for number in sorted(numbers) if number > last - KEPT[step_us])

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._closed and self._loop is loop and self._process == os.getpid():
            self._task = loop.create_task(self._publish_and_go_on(loop))

    async def _publish_and_go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if not self._writing and not self._closed:
                await self.publish()
        except StoreError as error:
            self._say("figures were not published, and will be later: %s", error)
        except Exception:
            logger.exception("figures cannot be published")
        finally:
            if not self._closed and not loop.is_closed():
                loop.call_later(self.interval_s, self._next, loop)

    def _say(self, message: str, *args: object) -> None:
        if monotonic() >= self._said_s + SAY_EVERY_S:
            self._said_s = monotonic()
            logger.warning(message, *args)


async def _entries(listed: list[Series], start_us: int, step_us: int) -> list[Entry]:
    """Return what each series holds in a slice. Other tasks go on in between."""
    entries = []
    for place, series in enumerate(listed, 1):
        tally = series.tallies(start_us, step_us, 1).get(0)
        if tally is not None:
            entries.append(Entry(series.rules, series.route, series.costs, tally))
        if not place % SERIES_AT_ONCE:
            await let_others_run()
    return entries
