"""Reads and sums the statistics of all workers that publish to one store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from anyio.to_thread import run_sync

from ..core.store import SharedStats
from ..core.windows.slices import Slice
from ..limiter.aio import let_others_run, within
from .publisher import Publisher
from .report import Chart, Parts, RecentStats, Span, Stats, Worker
from .rows import ROLLUPS, WORKERS, read_section, read_worker, unpacked
from .series import SeriesName


class AllWorkers:
    """Reads and sums the stats of all workers.

    Args:
        publisher: The publisher of this process.
        here: Whether this process is a worker itself; if not, it only reads.
    """

    def __init__(self, publisher: Publisher, *, here: bool = True) -> None:
        self._publisher = publisher
        self._store = publisher.store
        self._is_worker = here

    async def workers(self) -> tuple[Worker, ...]:
        """Return the live workers that record statistics, this one first."""
        others = sorted((await self._others()).values(), key=lambda worker: worker.name)
        return (*((self._publisher.here(),) if self._is_worker else ()), *others)

    async def sections(self, name: str) -> list[tuple[Worker, Any]]:
        """Return the section of each other live worker, decoded from JSON as last published."""
        if self._store is None:
            return []
        workers = await self._others()
        rows = await within(self._store.read(f"s-{name}", 0, 0))
        read = [(workers[worker], read_section(value)) for _, worker, value in rows if worker in workers]
        return [(worker, value) for worker, value in read if value is not None]

    async def stats(self, window: str | float | timedelta) -> Stats:
        """Return the stats of all workers; see `Statistics.stats_all`."""
        recent, workers = await self.recent(window), await self.workers()
        return await run_sync(recent.stats, workers)  # sums of a day take 0.2 seconds

    async def chart(self, window: str | float | timedelta, rule: str | None, route: str | None) -> Chart:
        """Return the stats of all workers as a time series; see `Statistics.chart_all`."""
        recent = await self.recent(window)
        return await run_sync(recent.chart, rule, route)

    async def recent(self, window: str | float | timedelta) -> RecentStats:
        """Return the slices of all workers by their numbers in the store."""
        span, now_us = Span.of(window), self._publisher.now_us()
        if self._store is None:
            first = span.first(now_us)
            return RecentStats(span, first, first * span.step_us, await self._own(span, first))
        store_us = await self._time(self._store)
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
        for series in self._publisher.recorder.listed():
            if slices := series.read(span.step_us, first, span.steps):
                parts[series.name] = slices
            await let_others_run()
        return parts

    async def _others(self) -> dict[bytes, Worker]:
        """Return the other live workers."""
        if self._store is None:
            return {}
        store_us = await self._time(self._store)
        others = {}
        for _, worker, value in await within(self._store.read(WORKERS, 0, 0)):
            other = None if worker == self._publisher.worker else read_worker(worker, value, store_us)
            if other is not None:
                others[worker] = other
        return others

    async def _time(self, store: SharedStats) -> int:
        """Return the time of the store. A worker that reads publishes too, so that the others list it."""
        if self._is_worker:
            self._publisher.start()
        return await within(store.time())
