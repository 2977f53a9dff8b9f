"""Counts and durations of the requests of all workers.

Each worker counts in the slices of five seconds and of five minutes that are current by the store's clock, and writes
them as rows every five seconds; a read adds up the rows of all workers.

A request counts in the slice in which it is written, at most five seconds late, and a killed worker loses what it has
not written. A row has everything that its worker has counted in the slice, so a write that failed is simply repeated.
Clients are counted in the same way, in slices of a minute. After a step back of the store's clock a worker replaces its
rows of the slices that are current once more.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from threading import Lock
from time import monotonic
from typing import Final
from weakref import WeakValueDictionary

from .. import Limiter, everyone
from ..core.arguments import check_whole
from ..core.errors import StoreError
from ..core.logs import Throttle, logger, net
from ..events import Event, Observer, Outcome, Passed
from ..limiter import let_others_run
from .metrics import PART
from .recent_events import LoggedEvent, RecentEvents
from .rows import time_of
from .slices import (
    ALIVE_S,
    CLIENTS,
    EVENTS,
    KEPT_US,
    KEYS,
    WORKERS,
    Slices,
    bounded,
    encoded,
    read_events,
    read_ranking,
    read_stats,
    worker_fields,
)
from .tally import MAX_SERIES, OTHERS, Tally
from .tasks import together
from .traffic import ClientTraffic, Ranking, RequestCounts, Stats, Traffic, Worker

__all__ = ["ClientTraffic", "LoggedEvent", "Ranking", "RequestCounts", "Statistics", "Stats", "Traffic", "Worker"]

EVERY_S: Final = 5.0
"""The time from the first new count to the write that includes it, in seconds."""


class Statistics(Observer):
    """Counts and durations of recent requests of all workers, by rule, route and client.

    Use `Statistics.of`, which attaches one object to a limiter. Calls such as `Limiter.hit` are no requests, and those
    that a rule exempts are not counted: a dashboard does not count itself. A worker without an event loop of asyncio
    writes its counts when they are read, and at its end.

    Args:
        limiter: The limiter whose requests are counted.

    Attributes:
        outage: When and why the latest outage of the store began, in words; empty if it is not known.
    """

    refused_events = False  # refusals are taken from outcomes
    takes_passed = True
    outage = ""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._throttle = Throttle()
        self.forget()

    @classmethod
    def of(cls, limiter: Limiter) -> Statistics:
        """Return the statistics of a limiter; the first call starts them."""
        statistics = _attached.get(id(limiter))
        if statistics is None:
            statistics = _attached[id(limiter)] = cls(limiter)
            limiter.observe(statistics)
        return statistics

    def forget(self) -> None:
        """Drop all counts, and continue as another worker."""
        self._pending = deque[Passed | Outcome]()
        # How many requests may be pending before `request` does more than to keep one: none until a write is due.
        self._room = 0
        # Held by a thread that counts, or moves counts to slices. A child of `fork` gets another one.
        self._counting = Lock()
        self._tally = Tally(self._limiter.key_for(everyone.identity))
        self._slices = Slices(self._limiter)
        self._events = RecentEvents()
        # The event loop in which a write is due, and the latest write.
        self._due_in: asyncio.AbstractEventLoop | None = None
        self._writing: asyncio.Task[None] | None = None
        # By how much the store's clock is ahead of that of this process.
        self._ahead_s = 0.0
        # When this worker first wrote, by the store's clock: a request counts in the slice in which it is written.
        self._from_us: int | None = None

    # -- counting ------------------------------------------------------------------------------------------------------

    def request(self, request: Passed | Outcome, /) -> None:
        """Keep a request until it is counted with others."""
        self._pending.append(request)
        if len(self._pending) <= self._room:
            return
        self._write_soon()
        if len(self._pending) >= PART:
            self._count()

    def event(self, event: Event, /) -> None:
        """Note an event."""
        if event.kind == "store_failed":
            self.outage = f" since {time_of(event.time_us / 1_000_000)} ({event.details['error']})"
        self._events.add(event)
        self._write_soon()

    def _count(self) -> None:
        """Count some of the pending requests."""
        with self._counting:
            was_full = self._tally.is_full
            requests = [self._pending.popleft() for _ in range(min(PART, len(self._pending)))]
            self._events.add_refusals(self._tally.count(requests))
            has_filled = self._tally.is_full and not was_full  # of threads that count, one alone tells
        if has_filled:
            message = f"{MAX_SERIES} combinations of rules and routes are counted; further ones count as {OTHERS[1]}"
            self._limiter.store.observers.tell(Event("series_full", message, {"max_series": MAX_SERIES}))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        """Write within five seconds, unless that is due already. Until then, requests need not ask for it."""
        self._room = PART - 1  # first: a write that begins meanwhile sets it to 0 again
        due_in = self._due_in  # once: another thread may write now
        # A loop that has closed never calls what was due in it.
        if due_in is None or due_in.is_closed():
            try:
                loop = self._due_in = asyncio.get_running_loop()
            except RuntimeError:  # no event loop of asyncio runs in this thread
                self._room = 0
                return
            # In the middle of a slice of the store's time, so that each slice gets one write of each worker.
            since_middle_s = (monotonic() + self._ahead_s - EVERY_S / 2) % EVERY_S
            context = Context()  # not that of the request
            loop.call_later(EVERY_S - since_middle_s, self._write_now, loop, context=context)

    def _write_now(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._due_in is not loop:  # it has ended or was reset, or uses another loop now
            return
        self._due_in = None
        self._writing = loop.create_task(self._publish_or_retry())
        _running.add(self._writing)
        self._writing.add_done_callback(_running.discard)

    async def _publish_or_retry(self) -> None:
        with net("writing statistics failed, and goes on", monotonic):
            try:
                await self.publish()
            except StoreError as error:
                if self._limiter.store.closed:
                    return
                self._write_soon()
                if self._throttle.left_out(None, monotonic()) is not None:
                    logger.warning("statistics were not written and will be retried: %s", error)

    async def publish(self) -> int:
        """Write what this worker has counted since the last call; a timer does this every five seconds.

        Returns:
            The store's time, in whose slices it counts.

        Raises:
            StoreError: The store does not answer. Nothing is lost; the next call writes it.
        """
        self._room = 0  # the next request sets the timer
        await self._slices.write()  # what an earlier call has not written
        while self._pending:
            self._count()
            await let_others_run()
        now_us = await self._limiter.now_us()
        self._ahead_s = now_us / 1_000_000 - monotonic()
        with self._counting:
            self._slices.add(self._tally.series, self._tally.clients, self._tally.keys, now_us)
            self._tally.restart()
        await together(self._slices.write(), self._keep_events(), self._keep_worker(now_us, ALIVE_S))
        return now_us

    async def _keep_events(self) -> None:
        """Write the latest events, if there are new ones."""
        if not self._events.has_unwritten:
            return
        self._events.has_unwritten = False
        try:
            row = {**worker_fields(), "events": self._events.entries()}
            await self._limiter.keep_row(EVENTS, 0, encoded(row), KEPT_US)
        except BaseException:  # a cancellation, too
            self._events.has_unwritten = True
            raise

    async def _keep_worker(self, now_us: int, kept_s: float) -> None:
        """Write the name of this worker, and when it wrote."""
        if self._from_us is None:
            self._from_us = now_us
        row = {**worker_fields(), "at_us": now_us, "from_us": self._from_us}
        await self._limiter.keep_row(WORKERS, 0, encoded(row), int(kept_s * 1_000_000))

    async def end(self) -> None:
        """Write what is left, when the application ends or the limiter is closed."""
        self._due_in = None
        with bounded():
            writing = self._writing  # which may renew the row of this worker
            with suppress(RuntimeError):  # no event loop of asyncio runs in this thread
                if writing is not None and writing.get_loop() is asyncio.get_running_loop():
                    await asyncio.wait([writing])
            await self.publish()
            await self._keep_worker(now_us=0, kept_s=0)  # which is no longer listed

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, window: str | timedelta = "5m", *, rule: str | None = None, route: str | None = None) -> Stats:
        """Return the counts of all workers; those of this worker are written first.

        Args:
            window: How far back, up to 24 hours; rounded up to 5 seconds, beyond 6 minutes to 5 minutes. Five minutes
                are the last five full minutes and the running one, as for `clients`.
            rule: The name of a rule, to include only the requests that it counted or refused.
            route: A route as `Stats.routes` names it, to include only the requests to it.

        Raises:
            ConfigurationError: The window is not a duration, or longer than 24 hours.
            StoreError: The store does not answer.
        """
        now_us = await self.publish()
        return await read_stats(self._limiter, window, rule, route, now_us)

    async def clients(self, limit: int = 50) -> Ranking:
        """Return the clients of the last five minutes with the most requests, and those with the most refused ones.

        Args:
            limit: At most how many of each, 1 to 1,000. Each worker contributes its 100 first of each minute.

        Raises:
            ConfigurationError: `limit` is out of range.
            StoreError: The store does not answer.
        """
        return await self._ranking(CLIENTS, limit)

    async def keys(self, limit: int = 50) -> Ranking:
        """Return the same of keys that stand for no client, such as the values of a header or users; see `clients`."""
        return await self._ranking(KEYS, limit)

    async def _ranking(self, kind: str, limit: int) -> Ranking:
        check_whole(limit, 1, 1_000, "clients: limit", "for example 50")
        return await read_ranking(self._limiter, kind, await self.publish(), limit)

    async def events(self, limit: int = 100) -> list[LoggedEvent]:
        """Return the latest events of all workers, the newest first; refusals are among them.

        Args:
            limit: At most how many, 1 to 1,000. Each worker contributes some dozens of its latest refusals, and as many
                of shadows, exceeded limits, bans and others.

        Raises:
            ConfigurationError: `limit` is out of range.
            StoreError: The store does not answer.
        """
        check_whole(limit, 1, 1_000, "events: limit", "for example 100")
        await self.publish()
        return await read_events(self._limiter, limit)


_running: Final = set[asyncio.Task[None]]()
"""The writes in progress: an event loop keeps only weak references, and complains of what ends before it."""
# By id: the values of a WeakKeyDictionary must not refer to their keys. Attached statistics keep their limiter.
_attached: Final = WeakValueDictionary[int, Statistics]()


def _forget_all() -> None:
    """Drop, in a child of `fork`, what its parent has counted and writes itself."""
    for statistics in list(_attached.values()):
        statistics.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
