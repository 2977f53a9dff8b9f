"""Counts and durations of the requests of all workers.

Each worker counts in the slices of five seconds, of a minute and of five minutes that are current by the store's clock,
and writes them as rows every five seconds; a read adds up the rows of all workers::

    request --> pending outcomes --> fresh counts --> current slices --> rows in the store
             1 append             fold in parts     every 5 s, by the store's clock

A request counts in the slice in which it is written, at most five seconds late, and a killed worker loses what it has
not written. A row has everything that its worker has counted in the slice, so a write that failed is simply repeated.
The busiest clients are counted in the same way, in slices of a minute.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import zlib
from collections import deque
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from heapq import nlargest
from threading import Lock
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import checkpoint

from .. import Limiter, everyone
from ..core import Reason
from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.limits import check_whole, parse_duration_us
from ..core.logs import Throttle, logger
from ..events import Event, Observer, Outcome
from .traffic import (
    IDENTITY_BYTES,
    PART,
    ClientTraffic,
    LoggedEvent,
    SeriesName,
    Stats,
    Traffic,
    Worker,
    decompressed,
    entry_of,
    include,
    packed,
    traffic_of,
    unpacked,
)

__all__ = ["ClientTraffic", "LoggedEvent", "Statistics", "Stats", "Traffic", "Worker"]

EVERY_S: Final = 5.0
"""The time from the first new count to the write that includes it, in seconds."""
ALIVE_US: Final = 300_000_000
"""A worker that has written nothing for this long is no longer listed."""
MAX_SERIES: Final = 200
NO_ROUTE: Final = "(no route)"
OTHER: Final = "(other)"
"""The rule and the route of requests beyond `MAX_SERIES` combinations of rules and route."""
MAX_CLIENTS: Final = 1_000
TOP_CLIENTS: Final = 100
MAX_EVENTS: Final = 100
MAX_REFUSALS: Final = 50
MAX_PENDING: Final = 4_096

_CHECK_EVERY: Final = 64
_POLL_S: Final = 0.005
_END_S: Final = 5.0
_KEPT_US: Final = 86_400_000_000
"""How long the events of a worker are shown, in microseconds."""

_OTHER: Final[SeriesName] = ((OTHER,), OTHER)

# The kinds of rows. Their names change with their format, so that two versions do not read each other's.
CLIENTS, WORKERS = "stats5-clients", "stats5-workers"
STEPS: Final = {
    "stats5-5s": (5_000_000, 60),
    "stats5-1m": (60_000_000, 60),
    "stats5-5m": (300_000_000, 288),
    CLIENTS: (60_000_000, 5),
}
"""The length of the slices of each kind in microseconds, and how many are kept."""


class _Slice:
    """What this worker has counted in the current slice of one kind.

    Attributes:
        kind: The kind of its rows.
        step_us: The length of a slice, in microseconds.
        kept: How many slices are kept.
        number: Its number by the store's clock; -1 before the first.
        newest: The highest number so far: the clock of a store may step back.
        series: The counts.
        is_written: Whether its row has all of them.
    """

    def __init__(self, kind: str, step_us: int, kept: int) -> None:
        self.kind, self.step_us, self.kept = kind, step_us, kept
        self.number = self.newest = -1
        self.series: dict[SeriesName, Traffic] = {}
        self.is_written = True


class Statistics(Observer):
    """Counts and durations of recent requests, by rule, by route and by client: the sums of all workers of the store.

    Use `Statistics.of`, which attaches one object to a limiter. Requests without HTTP, such as `Limiter.hit`, are not
    counted. A worker without an event loop of asyncio writes its counts when they are read, and at its end.

    Args:
        limiter: The limiter whose requests are counted.
    """

    refused_events = False  # refusals are taken from outcomes

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._everyone = limiter.key_for(everyone.of())
        self._throttle = Throttle()
        self._tasks = set[asyncio.Task[None]]()
        self.forget()

    @classmethod
    def of(cls, limiter: Limiter) -> Statistics:
        """Return the statistics of a limiter; the first call starts them.

        Raises:
            ConfigurationError: `limiter` is not a `Limiter`.
        """
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {quoted(limiter)}")
        with _attaching:
            statistics = _attached.get(id(limiter))
            if statistics is None:
                statistics = _attached[id(limiter)] = cls(limiter)
                limiter.observe(statistics)
            return statistics

    def forget(self) -> None:
        """Begin anew with nothing counted, as another worker."""
        self._identity = os.urandom(IDENTITY_BYTES // 2).hex().encode()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._folding, self._publishing = Lock(), Lock()
        self._pending = deque[Outcome]()
        self._names = set[SeriesName]()
        self._fresh: dict[SeriesName, Traffic] = {}
        self._fresh_clients: dict[SeriesName, Traffic] = {}
        self._slices = [_Slice(kind, step_us, kept) for kind, (step_us, kept) in STEPS.items()]
        self._events, self._refusals = deque[Event](maxlen=MAX_EVENTS), deque[Event | Outcome](maxlen=MAX_REFUSALS)
        self._is_active = False

    # -- counting ------------------------------------------------------------------------------------------------------

    def request(self, outcome: Outcome, /) -> None:
        """Note the outcome of a request."""
        if outcome.route is None:
            return
        pending = self._pending
        if not len(pending) % _CHECK_EVERY:
            self._arm()
            if len(pending) >= MAX_PENDING:
                self._fold()
        pending.append(outcome)

    def event(self, event: Event, /) -> None:
        """Note an event."""
        (self._refusals if event.kind == "shadow_refused" else self._events).append(event)
        self._is_active = True
        self._arm()

    def _arm(self) -> None:
        """Write in five seconds, unless that is due already."""
        if self._loop is None or self._loop.is_closed():
            with suppress(RuntimeError):  # no event loop of asyncio runs in this thread
                self._loop = asyncio.get_running_loop()
                self._loop.call_later(EVERY_S, self._due, self._loop, context=Context())  # not that of the request

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._loop = None
            task = loop.create_task(self._publish_or_retry())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _publish_or_retry(self) -> None:
        try:
            await self.publish()
        except StoreError as error:
            if self._limiter.store.closed:
                return
            self._arm()
            if self._throttle.left_out(None, monotonic()) is not None:
                logger.warning("statistics were not written and will be retried: %s", error)

    def _fold(self) -> None:
        """Count some of the pending outcomes."""
        alike: dict[tuple[Any, ...], tuple[Outcome, list[int]]] = {}
        with self._folding:
            was_full = _OTHER in self._names
            for _ in range(min(PART, len(self._pending))):
                outcome = self._pending.popleft()
                allowed, reason, rules, shadow_rules, route, _, ended, *_ = outcome
                kind = allowed, reason, rules, shadow_rules, route, ended
                alike.setdefault(kind, (outcome, []))[1].append(outcome.duration_us)
                for key in self._keys(outcome):
                    traffic_of(self._fresh_clients, ((key,), "")).count(outcome, 1)
                if ended == "refused":
                    self._refusals.append(outcome)
            for outcome, durations_us in alike.values():
                is_unrouted = outcome.ended == "refused" and outcome.route == NO_ROUTE
                traffic = self._series(outcome.rules, "" if is_unrouted else outcome.route or "")
                traffic.count(outcome, len(durations_us))
                if outcome.allowed:
                    traffic.times.count_all(sorted(durations_us))
                for rule in outcome.shadow_rules:
                    self._series((rule,), "").shadow_refused += len(durations_us)
            _keep_busiest(self._fresh_clients)
        if _OTHER in self._names and not was_full:
            message = f"{MAX_SERIES} combinations of rules and routes are counted; further ones count as {OTHER}"
            self._limiter.store.observers.tell(Event("series_full", message, {"max_series": MAX_SERIES}))

    def _series(self, rules: tuple[str, ...], route: str) -> Traffic:
        """Return the fresh counts of some rules and a route; beyond `MAX_SERIES`, those shared by all others."""
        name: SeriesName = rules, route
        if name not in self._names:
            if len(self._names) >= MAX_SERIES:
                name = _OTHER
            self._names.add(name)
        return traffic_of(self._fresh, name)

    def _keys(self, outcome: Outcome) -> set[str]:
        """Return the keys of the clients of a request."""
        keys = {check[1] for decision in outcome.decisions for check in decision.checks}
        keys.discard(self._everyone)
        if not keys and outcome.reason == Reason.BANNED:
            keys = {decision.ban.key for decision in outcome.decisions if decision.ban is not None}
        return keys

    # -- writing -------------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        """Write what this worker has counted since the last call; a timer does this every five seconds.

        Raises:
            StoreError: The store does not answer. Nothing is lost; the next call writes it.
        """
        lock = self._publishing
        while not lock.acquire(blocking=False):  # noqa: ASYNC110 - another thread or event loop may be writing
            await anyio.sleep(_POLL_S)
        self._is_active = True
        try:
            await self._write()  # what an earlier call has not written
            now_us = await self._limiter.now_us()
            for _ in range(-(-len(self._pending) // PART)):
                self._fold()
                await checkpoint()
            if self._fresh:
                for piece in self._slices:
                    await self._open(piece, now_us // piece.step_us)
                self._add()
            await self._write()
            await self._keep_worker(now_us)
        finally:
            lock.release()

    async def end(self) -> None:
        """Write what is left, when the application ends or the limiter is closed."""
        if not (self._is_active or self._pending):
            return
        self._loop = None
        try:
            anyio.get_current_task()
        except RuntimeError:  # a thread without an event loop closes the limiter
            asyncio.run(self._end())
        else:
            await self._end()

    async def _end(self) -> None:
        with anyio.fail_after(_END_S):
            await self.publish()
            await self._keep_worker(0)
        self._is_active = False

    async def _open(self, piece: _Slice, number: int) -> None:
        """Make a slice the current one; after a step back of the clock, with what this worker has written in it."""
        if number == piece.number:
            return
        series: dict[SeriesName, Traffic] = {}
        if number <= piece.newest:
            for _, _, row in await self._limiter.rows(piece.kind, number, number):
                if row.startswith(self._identity):
                    series = dict(unpacked(row))
        piece.number, piece.newest, piece.series = number, max(number, piece.newest), series

    def _add(self) -> None:
        """Add the fresh counts to the current slices, in one step: a call that is cancelled must not count twice."""
        with self._folding:
            fresh, self._fresh = self._fresh, {}
            clients, self._fresh_clients = self._fresh_clients, {}
        for piece in self._slices:
            piece.is_written = False
            for name, traffic in (clients if piece.kind == CLIENTS else fresh).items():
                traffic_of(piece.series, name).add(traffic)
            if piece.kind == CLIENTS:
                _keep_busiest(piece.series)

    async def _write(self) -> None:
        """Write the rows of the current slices that have changed."""
        for piece in self._slices:
            if not piece.is_written:
                series = piece.series.items()
                top = nlargest(TOP_CLIENTS, series, key=_requests) if piece.kind == CLIENTS else series
                row = await packed(self._identity, top)
                await self._limiter.keep_row(piece.kind, piece.number, row, (piece.kept + 1) * piece.step_us)
                piece.is_written = True

    async def _keep_worker(self, now_us: int) -> None:
        """Write the row of this worker: who it is, when it wrote, 0 at its end, and its latest events."""
        events = [entry_of(event) for event in (*self._events, *self._refusals)]
        here = socket.gethostname(), os.getpid(), self._identity.decode(), now_us, events
        row = zlib.compress(json.dumps(here, separators=(",", ":")).encode(), 1)
        await self._limiter.keep_row(WORKERS, 0, row, _KEPT_US)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(
        self, window: str | float | timedelta = "5m", *, rule: str | None = None, route: str | None = None
    ) -> Stats:
        """Return the counts of all workers; those of this worker are written first.

        Args:
            window: How far back, up to 24 hours; rounded up to 5 seconds, beyond 5 minutes to whole minutes, and beyond
                an hour to 5 minutes.
            rule: The name of a rule, to include only the requests that it counted or refused.
            route: A route as `Stats.routes` names it, to include only the requests to it.

        Raises:
            ConfigurationError: The window is not a duration, or longer than 24 hours.
            StoreError: The store does not answer.
        """
        kind, step_us, count = _steps_of(window)
        await self.publish()
        now_us = await self._limiter.now_us()
        last = now_us // step_us
        first = last - count + 1
        stats = Stats(step_us, first * step_us, Traffic(), {}, {}, [Traffic() for _ in range(count)], [], {}, {})
        # A slice after the current one was written before the clock stepped back.
        for number, _, row in await self._limiter.rows(kind, max(first, 0), last + count):
            for at, (name, traffic) in enumerate(unpacked(row)):
                if (rule is None or rule in name[0]) and (route is None or route == name[1]):
                    include(stats, min(number, last) - first, name, traffic)
                if not at % PART:
                    await checkpoint()
        alive = [worker for worker, _ in await self._workers() if worker.age_s * 1_000_000 < ALIVE_US]
        stats.workers.extend(sorted(alive))
        return stats

    async def clients(self, limit: int = 50) -> list[ClientTraffic]:
        """Return the busiest clients of the last five minutes, the busiest first.

        Args:
            limit: At most how many, 1 to 1,000. Each worker contributes its 100 busiest of each minute.

        Raises:
            ConfigurationError: `limit` is out of range.
            StoreError: The store does not answer.
        """
        check_whole(limit, 1, 1_000, "clients: limit", "for example 50")
        await self.publish()
        step_us, kept = STEPS[CLIENTS]
        last = await self._limiter.now_us() // step_us
        clients: dict[SeriesName, Traffic] = {}
        for _, _, row in await self._limiter.rows(CLIENTS, max(last - kept + 1, 0), last + 1):
            for name, traffic in unpacked(row):
                traffic_of(clients, name).add(traffic)
            await checkpoint()
        busiest = nlargest(limit, clients.items(), key=_requests)
        return [ClientTraffic(key, one.passed + one.refused, one.refused, one.banned) for ((key,), _), one in busiest]

    async def events(self, limit: int = 100) -> list[LoggedEvent]:
        """Return the latest events of all workers, the newest first; refusals are among them.

        Args:
            limit: At most how many, 1 to 1,000. Each worker contributes its last 100 events and its last 50 refusals.

        Raises:
            ConfigurationError: `limit` is out of range.
            StoreError: The store does not answer.
        """
        check_whole(limit, 1, 1_000, "events: limit", "for example 100")
        await self.publish()
        found = [event for _, events in await self._workers() for event in events]
        return nlargest(limit, found, key=lambda event: event.time_us)

    async def _workers(self) -> list[tuple[Worker, list[LoggedEvent]]]:
        """Return all workers, those that have ended included, and the latest events of each."""
        now_us, workers = await self._limiter.now_us(), []
        for _, _, row in await self._limiter.rows(WORKERS):
            with suppress(Exception):  # not a row of this version
                host, pid, identity, at_us, events = json.loads(decompressed(row))
                worker = Worker(f"{host}:{pid}:{identity}", host, pid, max(now_us - at_us, 0) / 1_000_000)
                workers.append((worker, [LoggedEvent._make((*event, worker.name)) for event in events]))
            await checkpoint()
        return workers


_attaching: Final = Lock()
# By id: the values of a WeakKeyDictionary must not refer to their keys. Attached statistics keep their limiter.
_attached: Final = WeakValueDictionary[int, Statistics]()


def _begin_anew() -> None:
    for statistics in list(_attached.values()):
        statistics.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _requests(entry: tuple[SeriesName, Traffic]) -> int:
    return entry[1].passed + entry[1].refused


def _keep_busiest(clients: dict[SeriesName, Traffic]) -> None:
    """Drop the clients with the fewest requests if there are too many."""
    if len(clients) > MAX_CLIENTS:
        busiest = sorted(clients.items(), key=_requests, reverse=True)[: MAX_CLIENTS // 2]
        clients.clear()
        clients.update(busiest)


def _steps_of(window: str | float | timedelta) -> tuple[str, int, int]:
    """Return the kind of the slices of a window, their length in microseconds, and their number."""
    window_us = parse_duration_us(window, "window")
    for kind, (step_us, kept) in STEPS.items():
        if window_us <= step_us * kept:
            return kind, step_us, -(-window_us // step_us)
    raise ConfigurationError(
        f'window: {quoted(window)} is longer than the stats kept; expected at most 24h, for example "6h"'
    )
