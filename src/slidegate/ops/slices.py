"""The rows of statistics: what is counted in slices of time, by rules and route, by client and by key.

A row is what one worker has counted in one slice. The slices of all workers of one length and number are a step of the
counts that are shown. Other tasks run between the reads of two rows.
"""

from __future__ import annotations

import json
import os
import socket
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from datetime import timedelta
from heapq import nlargest
from operator import attrgetter
from threading import Lock
from typing import Any, Final, TypeAlias

import anyio

from .. import Limiter
from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, quoted
from ..core.stored import json_of, read_by_name
from ..limiter import let_others_run
from ..windows import ResponseTimes
from .recent_events import LoggedEvent
from .tasks import together
from .traffic import COUNTS, ClientTraffic, Ranking, SeriesName, Stats, Traffic, Worker, amounts_of

MAX_CLIENTS: Final = 1_000
"""With more clients, those with the fewest requests and refusals are forgotten."""
MOST_EVENTS: Final = 5_000
"""How many events are read: 25 workers keep at most so many."""
TOP_CLIENTS: Final = 100
"""How many of the busiest clients, and how many of those that are refused most, are in a row."""
# The kinds of rows. Their names change with their format, so that two versions do not read each other's.
CLIENTS: Final = "stats9-clients"
KEYS: Final = "stats9-keys"
STEPS: Final = {
    "stats8-5s": (5_000_000, 72),
    "stats8-5m": (300_000_000, 288),
    CLIENTS: (60_000_000, 6),
    KEYS: (60_000_000, 6),
}
"""The length of the slices of each kind in microseconds, and how many are kept.

The shortest come first, because a window takes the first in which it fits. So it never takes those of clients."""
ALIVE_S: Final = 300.0
"""A worker that has written nothing for so many seconds is no longer listed."""
END_S: Final = 5.0
"""How long the end of an application waits for a store that does not answer, in seconds."""
KEPT_US: Final = 86_400_000_000
"""How long the events of a worker are shown, in microseconds."""
MINUTE_US: Final = 60_000_000
FIVE_MINUTES_US: Final = 5 * MINUTE_US
"""A window of so many microseconds has the last five full minutes and the running one, wherever it is shown."""
WORKERS: Final = "stats7-workers"
EVENTS: Final = "stats8-events"
Name: TypeAlias = tuple[str, int]
"""The kind of a slice and its number: the time when it began, by its length."""
_FIELDS: Final = tuple(field.name for field in fields(ClientTraffic) if field.name not in ("keys", "refused_min_ago"))


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON, compressed in the least time."""
    return zlib.compress(json_of(value), zlib.Z_BEST_SPEED)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    return json.loads(zlib.decompress(row))


def _line_of(counts: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an object that are neither 0 nor empty."""
    return {name: value for name in names if (value := getattr(counts, name))}


def _readable(line: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that this version knows, of those that were written."""
    return {name: line[name] for name in names if name in line}


class Series(dict[SeriesName, Traffic]):
    """The traffic of each combination of rules and route.

    Attributes:
        latest: The row that was made last.
    """

    latest = b""

    def __missing__(self, name: SeriesName) -> Traffic:
        traffic = self[name] = Traffic()
        return traffic

    def add(self, other: Series) -> None:
        """Add what was counted since."""
        for name, traffic in other.items():
            self[name].add(traffic)

    def packed(self) -> bytes:
        """Return the row of a slice."""
        lines = list[Any]()
        for (rules, route), traffic in self.items():
            times = traffic.times
            line = {"rules": rules, "route": route, "sum_us": times.sum_us, "min_us": times.min_us}
            line["buckets"] = list(times.buckets.items())
            lines.append(line | _line_of(traffic, (*COUNTS, "statuses")))
        return encoded(lines)

    @staticmethod
    def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
        """Yield what is in the row of a slice."""
        for line in decoded(row):
            traffic = Traffic(**_readable(line, COUNTS), statuses=Counter(line.get("statuses", {})))
            traffic.times = ResponseTimes(line["sum_us"], line["min_us"], Counter(dict(line["buckets"])))
            yield (tuple(line["rules"]), line["route"]), traffic


class Clients(dict[str, ClientTraffic]):
    """The traffic of each client; or of each key of another kind.

    Attributes:
        admitted: Admitted requests by group and client, until `ranking` puts them into the traffic: most never rank.
        totals: The same by client.
        latest: The row that was made last.
    """

    latest = b""

    def __init__(self) -> None:
        super().__init__()
        self.admitted = defaultdict[Any, Any](Counter)
        self.totals = Counter[str]()

    def __missing__(self, key: str) -> ClientTraffic:
        client = self[key] = ClientTraffic(key=key)
        return client

    def __bool__(self) -> bool:
        """Whether anything was counted; `len` is of the traffic that was made."""
        return bool(len(self) or self.totals)

    def count(self, group: Any, keys: Iterable[str]) -> None:
        """Count admitted requests of a group, each by its client or key."""
        self.admitted[group].update(keys)
        self.totals.update(keys)

    def add(self, other: Clients) -> None:
        """Add what was counted since."""
        for key, client in other.items():
            self[key].add(client)
        for group, requests in other.admitted.items():
            self.admitted[group].update(requests)
        self.totals.update(other.totals)
        self.forget_rare()

    def forget_rare(self) -> None:
        """If there are too many, forget those that are neither among the busiest nor among the most refused."""
        if max(len(self), len(self.totals)) > MAX_CLIENTS:
            ranked = self.ranking(MAX_CLIENTS // 4).each()
            self.admitted.clear()
            self.totals.clear()
            self.clear()
            for client in ranked:
                self[client.key] = client

    def ranking(self, most: int) -> Ranking:
        """Return the busiest and those that are refused most, with what was admitted of them in their traffic."""
        requests = self.totals + Counter({key: client.requests for key, client in self.items()})
        busiest = [key for key, _ in requests.most_common(most)]
        refused = [client for client in self.values() if client.refused]
        refused = nlargest(most, refused, attrgetter("refused"))
        ranking = Ranking([self[key] for key in busiest], refused)
        keys = {client.key for client in ranking.each()}
        for (route, _, *buckets), admitted in self.admitted.items():
            amounts = amounts_of(*buckets)
            for key in sorted(keys & admitted.keys()):
                self.totals[key] -= admitted[key]
                self[key].count_passed(route, amounts, admitted.pop(key))
        return ranking

    def packed(self) -> bytes:
        """Return the row of a slice."""
        return encoded([_line_of(client, _FIELDS) for client in self.ranking(TOP_CLIENTS).each()])

    def add_row(self, row: bytes, minutes_ago: int) -> None:
        """Add what is in the row of a slice, a later one than those before."""
        for line in decoded(row):
            later = ClientTraffic(**_readable(line, _FIELDS))
            client = self[later.key]
            client.add(later)
            if later.refused:
                client.refused_min_ago = minutes_ago


class Slices:
    """The slices of a worker. A row has all that it has counted in its slice, so that a write may be repeated.

    Args:
        limiter: The limiter that keeps the rows.

    Attributes:
        current: What was counted in the slices that were not over when something was added.
    """

    def __init__(self, limiter: Limiter) -> None:
        self.current: dict[Name, Series | Clients] = {}
        self._unwritten: dict[Name, Series | Clients] = {}
        self._limiter = limiter
        # Held while a slice changes, or its row is made: event loops in several threads may write.
        self._lock = Lock()

    def add(self, series: Series, clients: Clients, keys: Clients, now_us: int) -> None:
        """Add what was counted since the last call to the slices that are current now."""
        current: dict[Name, Series | Clients] = {}
        of_clients = {CLIENTS: clients, KEYS: keys}
        for kind, (step_us, _) in STEPS.items():
            name = kind, now_us // step_us
            counts: Any = of_clients.get(kind, series)
            current[name] = self.current.get(name, type(counts)())
            if counts:
                with self._lock:
                    current[name].add(counts)
                self._unwritten[name] = current[name]
        self.current = current

    async def write(self) -> None:
        """Write the rows that have changed.

        Raises:
            StoreError: The store does not answer; the next call writes them.
        """
        await together(*map(self._write, self._unwritten.copy()))  # other threads may write and add some

    async def _write(self, name: Name) -> None:
        slice_ = self._unwritten.pop(name, None)
        if slice_ is None:  # another call has written it meanwhile
            return
        kind, number = name
        step_us, slice_count = STEPS[kind]
        row = None
        while row != slice_.latest:  # again, if another thread has made a later row, which this one may have replaced
            with self._lock:
                row = slice_.latest = slice_.packed()
            try:
                await self._limiter.keep_row(kind, number, row, (slice_count + 1) * step_us)
            except BaseException:  # a cancellation, too
                self._unwritten.setdefault(name, slice_)
                raise


# -- reading -----------------------------------------------------------------------------------------------------------


def steps_of(window: str | timedelta, now_us: int) -> tuple[str, int, int]:
    """Return the kind of the slices of a window up to now, their length in microseconds, and their number.

    Raises:
        ConfigurationError: The window is not a duration, or longer than 24 hours.
    """
    window_us = parse_duration_us(window, "window")
    if window_us == FIVE_MINUTES_US:  # and the running minute, as clients are counted
        window_us += now_us % MINUTE_US + 1
    for kind, (step_us, slice_count) in STEPS.items():
        if window_us <= step_us * slice_count:
            return kind, step_us, -(-window_us // step_us)
    raise ConfigurationError(
        f'window: {quoted(window)} is longer than the stats kept; expected at most 24h, for example "6h"'
    )


def worker_fields() -> dict[str, Any]:
    """Return the host and process of this worker, for its rows."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def _name_of(row: Mapping[str, Any], identity: bytes) -> str:
    """Return the unique name of a worker, given one of its rows: after a fork a process has another identity."""
    return f"{row['host']}:{row['pid']}:{identity[:4].hex()}"


def bounded() -> AbstractContextManager[object]:
    """Return a bound for the end of an application; without an event loop, only commands of the store have one."""
    try:
        anyio.get_current_task()
    except RuntimeError:
        return nullcontext()
    return anyio.fail_after(END_S)


async def read_stats(
    limiter: Limiter, window: str | timedelta, rule: str | None, route: str | None, now_us: int
) -> Stats:
    """Return the counts of all workers in the slices of a window up to now; see `Statistics.read`."""
    kind, step_us, number_of_steps = steps_of(window, now_us)
    last = now_us // step_us
    first = max(last - number_of_steps + 1, 0)
    rows, workers = await together(limiter.rows(kind, first, last), _read_workers(limiter, now_us))
    stats = Stats(step_us, first * step_us, Traffic(), {}, {}, [Traffic() for _ in range(number_of_steps)], workers)
    earliest = last
    for number, _, row in rows:
        earliest = min(earliest, number)
        for (rules, of_route), traffic in Series.unpacked(row):
            if rule and rule not in rules:
                continue
            if route and route != of_route:
                continue
            stats.add(number - first, rules, of_route, traffic)
        await let_others_run()
    # The counts begin with the window, or when the first worker began or the first request came.
    counting_s = max((worker.counting_s for worker in stats.workers), default=0)
    from_us = min(now_us - int(counting_s * 1_000_000), earliest * step_us)
    return stats._replace(seen_us=now_us - max(from_us, stats.start_us))


async def _read_workers(limiter: Limiter, now_us: int) -> list[Worker]:
    """Return the workers that have written in the last five minutes."""
    workers = list[Worker]()
    for _, identity, value in await limiter.rows(WORKERS):
        row = decoded(value)
        age_s = max(now_us - row["at_us"], 0) / 1_000_000
        counting_s = max(now_us - row["from_us"], 0) / 1_000_000
        workers.append(Worker(_name_of(row, identity), row["host"], row["pid"], age_s, counting_s))
    return sorted(workers)


async def read_ranking(limiter: Limiter, kind: str, now_us: int, limit: int = MAX_CLIENTS) -> Ranking:
    """Return the busiest and the most refused clients, or keys, of all workers in the slices up to now."""
    step_us, slice_count = STEPS[kind]
    last = now_us // step_us
    clients = Clients()
    # In order, because a later row has a later request.
    for number, _, row in sorted(await limiter.rows(kind, max(last - slice_count + 1, 0), last)):
        clients.add_row(row, last - number)
        await let_others_run()
    return clients.ranking(limit)


async def read_events(limiter: Limiter, limit: int = MOST_EVENTS) -> list[LoggedEvent]:
    """Return the latest events of all workers, the newest first."""
    latest = list[LoggedEvent]()
    for _, identity, value in await limiter.rows(EVENTS):
        row = decoded(value)
        name = _name_of(row, identity)
        for event in row["events"]:
            latest.append(read_by_name(LoggedEvent, {**event, "worker": name}))
        # At each worker, so that the list does not grow with their number.
        latest = nlargest(limit, latest, key=attrgetter("time_us"))
        await let_others_run()
    return latest
