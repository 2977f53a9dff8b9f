"""The rows of statistics: their kinds, how long they are kept, and how those of all workers are read.

A row is what one worker has counted in one slice of time. The slices of all workers of one length and number are a step
of the counts that are shown. `slices` packs and unpacks them. Other tasks run between the reads of two rows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from heapq import nlargest
from typing import Any, Final, NamedTuple

import anyio

from .. import Limiter
from ..core.durations import parse_duration_us
from ..core.errors import ConfigurationError, quoted
from .recent_events import LoggedEvent
from .slices import STEPS, Clients, Series, decoded
from .tasks import pause
from .traffic import Ranking, Stats, Traffic, Worker

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


class Steps(NamedTuple):
    """The slices of a window: their kind, their length in microseconds, and their number."""

    kind: str
    step_us: int
    number: int


def steps_of(window: str | timedelta, now_us: int) -> Steps:
    """Return the slices of a window up to now.

    Raises:
        ConfigurationError: The window is not a duration, or longer than 24 hours.
    """
    window_us = parse_duration_us(window, "window")
    if window_us == FIVE_MINUTES_US:  # and the running minute, as clients are counted
        window_us += now_us % MINUTE_US + 1
    for kind, (step_us, slice_count) in STEPS.items():
        if window_us <= step_us * slice_count:
            return Steps(kind, step_us, -(-window_us // step_us))
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


async def read_stats(limiter: Limiter, steps: Steps, rule: str | None, route: str | None, now_us: int) -> Stats:
    """Return the counts of all workers in the slices up to now; see `Statistics.read`."""
    kind, step_us, number_of_steps = steps
    last = now_us // step_us
    first = max(last - number_of_steps + 1, 0)
    stats = Stats(step_us, first * step_us, Traffic(), {}, {}, [Traffic() for _ in range(number_of_steps)], [])
    earliest = last
    for number, _, row in await limiter.rows(kind, first, last):
        earliest = min(earliest, number)
        for (rules, of_route), traffic in Series.unpacked(row):
            if rule is not None and rule not in rules:
                continue
            if route is not None and route != of_route:
                continue
            stats.add(number - first, rules, of_route, traffic)
        await pause()
    stats.workers.extend(await _read_workers(limiter, now_us))
    # The counts begin with the window, or when the first worker began or the first request came.
    counting_s = max((worker.counting_s for worker in stats.workers), default=0)
    from_us = min(now_us - int(counting_s * 1_000_000), earliest * step_us)
    return stats._replace(seen_us=now_us - max(from_us, stats.start_us))


async def _read_workers(limiter: Limiter, now_us: int) -> list[Worker]:
    """Return the workers that have written in the last five minutes."""
    workers: list[Worker] = []
    for _, identity, value in await limiter.rows(WORKERS):
        row = decoded(value)
        age_s = max(now_us - row["at_us"], 0) / 1_000_000
        counting_s = max(now_us - row.get("from_us", now_us), 0) / 1_000_000
        workers.append(Worker(_name_of(row, identity), row["host"], row["pid"], age_s, counting_s))
    return sorted(workers)


async def read_ranking(limiter: Limiter, kind: str, limit: int, now_us: int) -> Ranking:
    """Return the busiest and the most refused clients, or keys, of all workers in the slices up to now."""
    step_us, slice_count = STEPS[kind]
    last = now_us // step_us
    clients = Clients()
    # In order, because a later row has a later request.
    for _, _, row in sorted(await limiter.rows(kind, max(last - slice_count + 1, 0), last)):
        clients.add_row(row)
        await pause()
    return clients.ranking(limit)


async def read_events(limiter: Limiter, limit: int) -> list[LoggedEvent]:
    """Return the latest events of all workers, the newest first."""
    latest: list[LoggedEvent] = []
    for _, identity, value in await limiter.rows(EVENTS):
        row = decoded(value)
        name = _name_of(row, identity)
        for event in row["events"]:
            latest.append(LoggedEvent(event["kind"], event["message"], event["time_us"], event["details"], name))
        # At each worker, so that the list does not grow with their number.
        latest = nlargest(limit, latest, key=lambda event: event.time_us)
        await pause()
    return latest
