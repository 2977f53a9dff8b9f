"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, the fastest exact peer, and others.

Measured is the whole of `await limiter.hit`, deadline and circuit breaker included, from 1 task and from 64, over 64
keys; all are admitted. `throttled-py`'s sliding window is an estimate from two counters; `pyrate-limiter` is what
fastapi-limiter counts with. Every run has a redis-server of its own; in it all candidates take turns for some rounds.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from itertools import cycle
from statistics import median
from typing import Any, Final

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from pyrate_limiter import Duration, Rate, RedisBucket
from pyrate_limiter import Limiter as PyrateLimiter
from redis.asyncio import Redis
from throttled.asyncio import RateLimiterType, Throttled, per_hour
from throttled.asyncio import RedisStore as ThrottledStore

from slidegate import Limiter
from slidegate.stores.redis import RedisStore

from .redis_server import redis_server
from .report.tables import Cell, Table

PACKAGES = ("redis", "hiredis", "limits", "throttled-py", "pyrate-limiter")
AMOUNT: Final = 100_000_000
KEYS: Final = [f"user:{number}" for number in range(64)]
PEER: Final = "limits, moving window"
TASKS: Final = {1: "≥0.8", 64: "≥4"}
"""Tasks, and how many times as fast as the peer hits are to be in every run."""
REFUSED_HITS: Final = 1_000
Hit = Callable[[str], Awaitable[Any]]


def of_limits(url: str) -> Hit:
    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    limit = parse("60000/hour")
    return lambda key: limiter.hit(limit, key)


def of_throttled(url: str) -> Hit:
    store = ThrottledStore(server=url)
    limiter = Throttled(using=RateLimiterType.SLIDING_WINDOW.value, quota=per_hour(AMOUNT), store=store)

    async def hit(key: str) -> bool:
        return not (await limiter.limit(key)).limited

    return hit


def of_pyrate(url: str) -> Hit:
    client = Redis.from_url(url)

    @cache
    def limiter(key: str) -> asyncio.Task[Any]:
        return asyncio.ensure_future(make(key))

    async def make(key: str) -> Any:
        return PyrateLimiter(await RedisBucket.init([Rate(AMOUNT, Duration.HOUR)], client, f"pyrate:{key}"))

    async def hit(key: str) -> bool:
        return bool(await (await limiter(key)).try_acquire_async(key, blocking=False))

    return hit


async def hits_us(hit: Hit, tasks: int, count: int) -> float:
    """Send hits from many tasks; return the time of all of them divided by their number."""
    keys, left = cycle(KEYS), iter(range(count))

    async def work() -> None:
        for _ in left:
            if not await hit(next(keys)):
                raise RuntimeError("a refusal")

    started_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return (time.perf_counter() - started_s) / count * 1_000_000


async def commands_of_refusals(url: str) -> int:
    """Return how many commands reach the server for hits of keys that are known to be refused."""
    store = RedisStore(url, prefix="refused")
    limiter = Limiter(store, deadline="10s", on_error="deny")
    for key in [*KEYS, *KEYS]:
        await limiter.hit(key, "1/hour")

    async with Redis.from_url(url) as client:

        async def scripts() -> int:
            said = await client.info("commandstats")
            return sum(value["calls"] for name, value in said.items() if "eval" in name or "fcall" in name)

        before = await scripts()
        for number in range(REFUSED_HITS):
            await limiter.hit(KEYS[number % len(KEYS)], "1/hour")
        after = await scripts()
    await store.close()
    return after - before


Times = dict[int, dict[str, list[float]]]
"""Tasks -> candidate -> microseconds of one hit, in each round."""


async def run_once(url: str, rounds: int, count: int) -> Times:
    """Measure every candidate on one server, after a round that is thrown away."""
    store = RedisStore(url, prefix="bench")
    limiter = Limiter(store, deadline="10s", on_error="deny")
    hits: dict[str, Hit] = {
        "slidegate": lambda key: limiter.hit(key, f"{AMOUNT}/hour"),
        PEER: of_limits(url),
        "throttled-py, sliding window": of_throttled(url),
        "pyrate-limiter": of_pyrate(url),
    }
    taken: Times = {tasks: {name: [] for name in hits} for tasks in TASKS}
    for tasks, of_tasks in taken.items():
        for number in range(rounds + 1):
            for name, hit in hits.items():
                took_us = await hits_us(hit, tasks, count)
                if number:
                    of_tasks[name].append(took_us)
    await store.close()
    return taken


def row_of(name: str, runs: list[Times]) -> list[Cell]:
    """Return the cells of a candidate: its time, how many times as fast as the peer it is, and the worst run."""
    cells: list[Cell] = [name]
    for tasks, asked in TASKS.items():
        cells.append(median(median(run[tasks][name]) for run in runs))
        times = [
            median(theirs / own for own, theirs in zip(run[tasks][name], run[tasks][PEER], strict=True)) for run in runs
        ]
        cells += [None, None] if name == PEER else [median(times), min(times)]
        cells.append(asked if name == "slidegate" else None)
    return cells


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="in each run")
    parser.add_argument("--hits", type=int, default=2_000, help="of each candidate in each round")


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all runs, and what refusals send."""
    runs: list[Times] = []
    for _ in range(options.runs):
        with redis_server() as url:
            runs.append(asyncio.run(run_once(url, options.rounds, options.hits)))
    with redis_server() as url:
        commands = asyncio.run(commands_of_refusals(url))
    columns = {"what": ""}
    for tasks in TASKS:
        columns |= {
            f"{tasks} waiting, us": ".1f",
            f"times {tasks}": ".2f",
            f"worst {tasks}": ".2f",
            f"asked {tasks}": "",
        }
    note = f"{REFUSED_HITS:,} hits of refused keys made {commands} calls of a script."
    yield Table("", columns, [row_of(name, runs) for name in runs[0][1]], note)
