"""Counts and durations of the requests of all workers.

Each worker counts in the slices of five seconds, of a minute and of five minutes that are current by the store's clock,
and writes them as rows every five seconds; a read adds up the rows of all workers::

    request --> pending outcomes --> fresh counts --> current slices --> rows in the store
             1 append             fold in parts     every 5 s, by the store's clock

A request counts in the slice in which it is written, at most five seconds late, and a killed worker loses what it has
not written. A row has everything that its worker has counted in the slice, so a write that failed is simply repeated.
The busiest clients are counted in the same way, in slices of a minute. After a step back of the store's clock a worker
replaces its rows of the slices that are current once more.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
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
from ..core import Check, Reason
from ..core.arguments import check_whole
from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.logs import Throttle, logger
from ..core.memo import MANY, MEMO_SIZE, remember
from ..events import Event, Observer, Outcome, Passed
from .metrics import rules_of
from .traffic import ClientTraffic, LoggedEvent, Series, SeriesName, Stats, Traffic, Worker, decoded, encoded, entry_of

__all__ = ["ClientTraffic", "LoggedEvent", "Statistics", "Stats", "Traffic", "Worker"]

END_S: Final = 5.0
"""How long the end of an application waits for a store that does not answer, in seconds."""
EVERY_S: Final = 5.0
"""The time from the first new count to the write that includes it, in seconds."""
ALIVE_S: Final = 300.0
"""A worker that has written nothing for so many seconds is no longer listed."""
MAX_SERIES: Final = 200
NO_ROUTE: Final = "(no route)"
OTHER: Final = "(other)"
"""The rule and the route of requests beyond `MAX_SERIES` combinations of rules and route."""
TOP_CLIENTS: Final = 100
MAX_EVENTS: Final = 100
MAX_REFUSALS: Final = 50
OF_REFUSALS: Final = ("exceeded", "shadow_refused")
"""The events that come with refusals. Clients cause as many as they like, so they are kept with these."""
PART: Final = 128
"""How many outcomes, or clients of outcomes, are counted in one step, about a millisecond; so many outcomes wait."""
KEPT_US: Final = 86_400_000_000
"""How long the events of a worker are shown, in microseconds."""

# The kinds of rows. Their names change with their format, so that two versions do not read each other's.
CLIENTS, WORKERS, EVENTS = "stats6-clients", "stats7-workers", "stats7-events"
STEPS: Final = {
    "stats6-5s": (5_000_000, 60),
    "stats6-1m": (60_000_000, 60),
    "stats6-5m": (300_000_000, 288),
    CLIENTS: (60_000_000, 5),
}
"""The length of the slices of each kind in microseconds, and how many are kept."""


class _Publishing(asyncio.Task[None]):
    """A task whose event loop may end before it: counts are written later, so neither asyncio nor Python complains."""

    def __del__(self) -> None:
        coroutine = self.get_coro()
        if self.done() or coroutine is None:
            super().__del__()
        else:
            coroutine.close()


class Statistics(Observer):
    """Counts and durations of recent requests of all workers, by rule, route and client.

    Use `Statistics.of`, which attaches one object to a limiter. Calls such as `Limiter.hit` are no requests, and those
    that a rule exempts are not counted: a dashboard does not count itself. A worker without an event loop of asyncio
    writes its counts when they are read, and at its end.

    Args:
        limiter: The limiter whose requests are counted.
    """

    refused_events = False  # refusals are taken from outcomes
    takes_passed = True
    takes_exempt = False

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._everyone = limiter.key_for(everyone.identity)
        self._throttle = Throttle()
        self.forget()

    @classmethod
    def of(cls, limiter: Limiter) -> Statistics:
        """Return the statistics of a limiter; the first call starts them.

        Raises:
            ConfigurationError: `limiter` is not a `Limiter`.
        """
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {quoted(limiter)}")
        statistics = _attached.get(id(limiter))
        if statistics is None:
            statistics = _attached[id(limiter)] = cls(limiter)
            limiter.observe(statistics)
        return statistics

    def forget(self) -> None:
        """Begin anew with nothing counted, as another worker."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ahead_s = 0.0
        self._counting = Lock()
        self._pending = deque[Passed | Outcome]()
        self._room = 0
        self._cache: dict[Sequence[Check], tuple[tuple[str, ...], list[SeriesName]]] = {}
        self._fresh_questions = Counter[Sequence[Check]]()
        self._names = set[SeriesName]()
        self._fresh = Series()
        self._fresh_clients = Series()
        self._current: dict[tuple[str, int], Series] = {}
        self._unwritten: dict[tuple[str, int], Series] = {}
        self._events, self._refusals = deque[Event](maxlen=MAX_EVENTS), deque[Event | Outcome](maxlen=MAX_REFUSALS)
        self._has_events = False

    # -- counting ------------------------------------------------------------------------------------------------------

    def request(self, request: Passed | Outcome, /) -> None:
        """Keep a request until it is counted with others."""
        self._pending.append(request)
        if len(self._pending) > self._room:
            self._arm()
            if len(self._pending) >= PART:
                self._fold()

    def event(self, event: Event, /) -> None:
        """Note an event."""
        (self._refusals if event.kind in OF_REFUSALS else self._events).append(event)
        self._has_events = True
        self._arm()

    def _arm(self) -> None:
        """Write within five seconds, unless that is due already; until then requests need not arm it again."""
        self._room = PART - 1
        if self._loop is None or self._loop.is_closed():
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:  # no event loop of asyncio runs in this thread
                self._room = 0
                return
            # In the middle of a slice, so that each slice gets one write of each worker.
            wait_s = EVERY_S - (monotonic() + self._ahead_s - EVERY_S / 2) % EVERY_S
            self._loop.call_later(wait_s, self._due, self._loop, context=Context())  # not that of the request

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            self._loop = None
            self._task = _Publishing(self._publish_or_retry(), loop=loop)

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
        """Count some of the pending requests, the ordinary ones of a series together, those of a client later."""
        with self._counting:
            was_full = _OTHER in self._names
            times_us, questions = defaultdict[SeriesName, list[int]](list), list[Sequence[Check]]()
            for _ in range(min(PART, len(self._pending))):
                request = self._pending.popleft()
                if isinstance(request, Outcome):
                    self._count(request)
                    continue
                checks, route, time_us = tuple(request[1]), *request[2:]
                rules, _ = self._cache.get(checks) or self._remember(checks)
                times_us[rules, route].append(time_us)
                questions.append(checks)
            for (rules, route), times in times_us.items():
                traffic = self._traffic(rules, route)
                traffic.passed += len(times)
                traffic.times.count_all(times)
            self._fresh_questions.update(questions)
            if len(self._fresh_questions) > MEMO_SIZE:
                self._count_clients(PART)
        if _OTHER in self._names and not was_full:
            message = f"{MAX_SERIES} combinations of rules and routes are counted; further ones count as {OTHER}"
            self._limiter.store.observers.tell(Event("series_full", message, {"max_series": MAX_SERIES}))

    def _remember(self, checks: Sequence[Check]) -> tuple[tuple[str, ...], list[SeriesName]]:
        """Return the rules and clients of some checks, and store them in the cache."""
        of_checks = rules_of(checks), self._clients_of({key for _, key, _ in checks})
        return remember(self._cache, checks, of_checks, MANY)

    def _count_clients(self, questions: int) -> None:
        """Count the clients of some questions, the latest ones. A question is found faster than the counts of clients.

        Args:
            questions: The most questions, `PART` in one step.
        """
        for _ in range(min(questions, len(self._fresh_questions))):
            checks, requests = self._fresh_questions.popitem()
            _, clients = self._cache.get(checks) or self._remember(checks)
            for name in clients:
                self._fresh_clients.of(name).passed += requests
        self._fresh_clients = self._fresh_clients.without_rare()

    def _count(self, outcome: Outcome) -> None:
        passed, is_refused = outcome.allowed, outcome.ended == "refused"
        traffic = self._traffic(outcome.rules, "" if is_refused and outcome.route == NO_ROUTE else outcome.route)
        traffic.count(outcome, passed)
        if passed:
            traffic.times.count_all([outcome.duration_us])
        for rule in outcome.shadow_rules:
            self._traffic((rule,), "").shadow_refused += 1
        clients = self._clients_of({key for one in outcome.decisions for _, key, _ in one.checks})
        if not clients and outcome.reason == Reason.BANNED:
            clients = self._clients_of({one.ban.key for one in outcome.decisions if one.ban is not None})
        for name in clients:
            self._fresh_clients.of(name).count(outcome, passed)
        if is_refused:
            self._refusals.append(outcome)
            self._has_events = True

    def _clients_of(self, keys: set[str]) -> list[SeriesName]:
        """Return the clients that a request with these keys is of."""
        return [((key,), "") for key in keys - {self._everyone}]

    def _traffic(self, rules: tuple[str, ...], route: str) -> Traffic:
        """Return the fresh counts of some rules and a route; beyond `MAX_SERIES`, those shared by all others."""
        name: SeriesName = rules, route
        traffic = self._fresh.get(name)
        if traffic is not None:
            return traffic
        if name not in self._names and len(self._names) >= MAX_SERIES:
            name = _OTHER
        self._names.add(name)
        return self._fresh.of(name)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        """Write what this worker has counted since the last call; a timer does this every five seconds.

        Raises:
            StoreError: The store does not answer. Nothing is lost; the next call writes it.
        """
        self._room = 0
        await self._write()  # what an earlier call has not written
        while self._pending:
            self._fold()
            await _pause()
        for _ in range(len(self._fresh_questions) // PART):
            with self._counting:
                self._count_clients(PART)
            await _pause()
        now_us = await self._limiter.now_us()
        self._ahead_s = now_us / 1_000_000 - monotonic()
        self._add(now_us)
        await self._write()
        await self._keep_worker(now_us, ALIVE_S)

    async def end(self) -> None:
        """Write what is left, when the application ends or the limiter is closed."""
        self._loop = None
        with _bounded():
            task = self._task
            with suppress(RuntimeError):  # no event loop of asyncio runs in this thread
                if task is not None and task.get_loop() is asyncio.get_running_loop():
                    await asyncio.wait([task])  # it may say once more that this worker lives
            await self.publish()
            await self._keep_worker(0, 0)

    def _add(self, now_us: int) -> None:
        """Add the fresh counts to the slices that are current now."""
        with self._counting:
            if not self._fresh:
                return
            self._count_clients(len(self._fresh_questions))
            names = [(kind, now_us // step_us) for kind, (step_us, _) in STEPS.items()]
            # Copies: a call that is writing sees that there is more to write.
            self._current = {name: Series(self._current.get(name, Series()).without_rare()) for name in names}
            for (kind, _), series in self._current.items():
                for name, traffic in (self._fresh_clients if kind == CLIENTS else self._fresh).items():
                    series.of(name).add(traffic)
            self._unwritten |= self._current
            self._fresh, self._fresh_clients = Series(), Series()

    async def _write(self) -> None:
        """Write the rows that have changed."""
        for (kind, number), series in list(self._unwritten.items()):
            step_us, kept = STEPS[kind]
            row = (series.busiest(TOP_CLIENTS) if kind == CLIENTS else series).packed()
            await self._limiter.keep_row(kind, number, row, (kept + 1) * step_us)
            if self._unwritten.get((kind, number)) is series:  # else more was counted during the write
                del self._unwritten[kind, number]
            await _pause()

    async def _keep_worker(self, now_us: int, kept_s: float) -> None:
        """Write who this worker is and when it wrote; and its latest events, if there are new ones."""
        host, pid = socket.gethostname(), os.getpid()
        if self._has_events:
            events = [entry_of(event) for event in (*self._events, *self._refusals)]
            self._has_events = False
            try:
                await self._limiter.keep_row(EVENTS, 0, encoded({"host": host, "pid": pid, "events": events}), KEPT_US)
            except BaseException:
                self._has_events = True
                raise
        who = encoded({"host": host, "pid": pid, "at_us": now_us})
        await self._limiter.keep_row(WORKERS, 0, who, int(kept_s * 1_000_000))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, window: str | timedelta = "5m", *, rule: str | None = None, route: str | None = None) -> Stats:
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
        last = await self._limiter.now_us() // step_us
        first = max(last - count + 1, 0)
        stats = Stats(step_us, first * step_us, Traffic(), {}, {}, [Traffic() for _ in range(count)], [])
        for number, _, row in await self._limiter.rows(kind, first, last):
            for name, traffic in Series.unpacked(row):
                if (rule is None or rule in name[0]) and (route is None or route == name[1]):
                    stats.add(number - first, name, traffic)
            await _pause()
        now_us = await self._limiter.now_us()
        for _, identity, row in await self._limiter.rows(WORKERS):
            who = decoded(row)
            age_s = max(now_us - who["at_us"], 0) / 1_000_000
            stats.workers.append(Worker(_name_of(who, identity), who["host"], who["pid"], age_s))
        stats.workers.sort()
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
        clients = Series()
        for _, _, row in await self._limiter.rows(CLIENTS, max(last - kept + 1, 0), last):
            for name, traffic in Series.unpacked(row):
                clients.of(name).add(traffic)
            await _pause()
        return [
            ClientTraffic(key, one.passed + one.refused, one.refused, one.banned)
            for ((key,), _), one in clients.busiest(limit).items()
        ]

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
        found: list[LoggedEvent] = []
        for _, identity, row in await self._limiter.rows(EVENTS):
            who = decoded(row)
            name = _name_of(who, identity)
            found += [
                LoggedEvent(event["kind"], event["message"], event["time_us"], event["details"], name)
                for event in who["events"]
            ]
            found = nlargest(limit, found, key=lambda event: event.time_us)
            await _pause()
        return found


_OTHER: Final[SeriesName] = ((OTHER,), OTHER)
# By id: the values of a WeakKeyDictionary must not refer to their keys. Attached statistics keep their limiter.
_attached: Final = WeakValueDictionary[int, Statistics]()


def _begin_anew() -> None:
    for statistics in list(_attached.values()):
        statistics.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _bounded() -> AbstractContextManager[object]:
    """Return a bound for the end of an application; without an event loop, only commands of the store have one."""
    try:
        anyio.get_current_task()
    except RuntimeError:
        return nullcontext()
    return anyio.fail_after(END_S)


def _name_of(who: Mapping[str, Any], identity: bytes) -> str:
    """Return the unique name of a worker, given a row of its."""
    return f"{who['host']}:{who['pid']}:{identity[:4].hex()}"


async def _pause() -> None:
    """Let other tasks run, and be cancelled, if an event loop runs in this thread."""
    with suppress(RuntimeError):
        await checkpoint()


def _steps_of(window: str | timedelta) -> tuple[str, int, int]:
    """Return the kind of the slices of a window, their length in microseconds, and their number."""
    window_us = parse_duration_us(window, "window")
    for kind, (step_us, kept) in STEPS.items():
        if window_us <= step_us * kept:
            return kind, step_us, -(-window_us // step_us)
    raise ConfigurationError(
        f'window: {quoted(window)} is longer than the stats kept; expected at most 24h, for example "6h"'
    )
