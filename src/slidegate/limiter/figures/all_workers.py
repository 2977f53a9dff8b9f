"""Adds up what the workers of a store have published, and what this one has counted."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar

from ...core.statistics.tally import Tally
from ...core.store import SharedStats
from ..aio import let_others_run, within
from .publisher import SHELVES, WORKERS, Publisher
from .slice_rows import unpack_row
from .statistics import Statistics
from .stats import AllStats, Chart, Part, Worker, chart_of, stats_of
from .windows import Span, span_of

ROWS_AT_ONCE: Final = 16

T = TypeVar("T")


class Section(NamedTuple):
    """A section of one worker, see `Publisher.add_section`.

    Attributes:
        worker: The worker.
        value: The value, as JSON gave it back.
    """

    worker: Worker
    value: Any


class AllWorkers:
    """Reads the figures of all workers.

    Args:
        store: Where they publish; None for a store of this process alone.
        statistics: The figures of this process.
        publisher: Publishes them.
    """

    def __init__(self, store: SharedStats | None, statistics: Statistics, publisher: Publisher) -> None:
        self._store = store
        self._statistics = statistics
        self._publisher = publisher

    async def stats(self, window: str | float | timedelta) -> AllStats:
        """Return the figures of a window; see `Limiter.stats_all`."""
        span = span_of(window)
        parts, start_us, store_us = await self._parts(span)
        found = stats_of(parts, start_us, span.step_us * span.steps)
        return AllStats(found.rules, found.routes, found.total, tuple(await self._workers(store_us)))

    async def chart(self, window: str | float | timedelta, rule: str | None, route: str | None) -> Chart:
        """Return the figures of a window step by step; see `Limiter.chart_all`."""
        span = span_of(window)
        parts, start_us, _ = await self._parts(span)
        return chart_of(parts, start_us, *span, rule, route)

    async def sections(self, name: str) -> list[Section]:
        """Return a section of each worker that is alive, this one first."""
        own = self._publisher.section(name)
        found = [] if own is None else [Section(self._here(), json.loads(own))]
        if self._store is None:
            return found
        self._publisher.start()
        workers = await self._others(await within(self._store.time()))
        for _, worker, value in await within(self._store.read(f"s-{name}", 0, 0)):
            if worker in workers and (read := _read(value)) is not None:
                found.append(Section(workers[worker], read))
        return found

    async def _parts(self, span: Span) -> tuple[list[Part], int, int]:
        """Return the figures by step, the start of the first step, and the time of the store."""
        now_us = self._statistics.now_us()
        if self._store is None:
            first_us = span.first(now_us) * span.step_us
            return await self._own(first_us, span), first_us, now_us
        self._publisher.start()
        store_us = await within(self._store.time())
        first = span.first(store_us)
        # A slice moves to the row that fits it best, which may be the one after the running one.
        wider = Span(span.step_us, span.steps + 1)
        shift = self._publisher.shift(span.step_us, store_us)
        own = await self._own((first - shift) * span.step_us, wider)
        parts = [part._replace(tallies=_clamped(part.tallies, span.steps)) for part in own]
        rows = await within(self._store.read(SHELVES[span.step_us], max(first, 0), first + span.steps))
        here = self._publisher.worker
        together: dict[tuple[tuple[str, ...], str, tuple[int, ...]], dict[int, Tally]] = {}
        for place, (number, worker, value) in enumerate(rows):
            if worker != here:
                step = min(number - first, span.steps - 1)
                for rules, route, costs, tally in unpack_row(value):
                    together.setdefault((rules, route, costs), {}).setdefault(step, Tally()).add(tally)
            if not place % ROWS_AT_ONCE:
                await let_others_run()
        parts += [Part(*series, tallies) for series, tallies in together.items()]
        return parts, first * span.step_us + now_us - store_us, store_us

    async def _own(self, first_us: int, span: Span) -> list[Part]:
        """Return the counts of this worker. Other tasks go on between two series."""
        parts = []
        for part in self._statistics.parts(first_us, span):
            parts.append(part)
            await let_others_run()
        return parts

    async def _workers(self, store_us: int) -> list[Worker]:
        others = {} if self._store is None else await self._others(store_us)
        return [self._here(), *sorted(others.values(), key=lambda worker: worker.name)]

    async def _others(self, store_us: int) -> dict[bytes, Worker]:
        assert self._store is not None
        here, found = self._publisher.worker, {}
        for _, worker, value in await within(self._store.read(WORKERS, 0, 0)):
            known = _read(value)
            if worker != here and isinstance(known, dict):
                age_s = max(store_us - int(known.get("at_us", 0)), 0) / 1_000_000
                found[worker] = _worker(worker, known, age_s, here=False)
        return found

    def _here(self) -> Worker:
        return _worker(self._publisher.worker, self._publisher.whoami(), 0.0, here=True)


def _worker(worker: bytes, known: dict[str, Any], age_s: float, *, here: bool) -> Worker:
    host, pid = str(known.get("host", ""))[:255], int(known.get("pid", 0))
    return Worker(f"{host}:{pid}:{worker[:4].hex()}", host, pid, age_s, here)


def _clamped(tallies: Any, steps: int) -> dict[int, Tally]:
    """Return tallies by step, those of the step after the last one added to the last."""
    found = {step: tally for step, tally in tallies.items() if step < steps}
    if steps in tallies:
        found.setdefault(steps - 1, Tally()).add(tallies[steps])
    return found


def _read(value: bytes) -> Any:
    """Return what JSON says; None where it cannot be read."""
    try:
        return json.loads(value)
    except ValueError:
        return None
