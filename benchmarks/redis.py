"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, and others that are installed.

Every round sends hits from as many tasks as are named, over 64 keys; all are admitted. Measured is the whole of
`await limiter.hit`, deadline and circuit breaker included. `throttled-py`'s sliding window is an estimate from two
counters; `pyrate-limiter` is what fastapi-limiter counts with.

The server is one of its own: `redis-server` on a free port of 127.0.0.1, with nothing kept. It is looked for on PATH,
then beside this Python. The two that the aim is about are compared in five runs besides, each with another server.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from slidegate import Limiter
from slidegate.stores.redis import RedisStore

from .measure import Candidate, compared, rounds
from .report.tables import Cell, Table

PACKAGES = ("redis", "hiredis", "limits", "throttled-py", "pyrate-limiter")

AMOUNT = 100_000_000
KEYS = [f"user:{number}" for number in range(64)]
PEER = "limits, moving window"
DEADLINE_S = 0.05
PAUSED_HITS = 60_000
RUNS = 5
Hit = Callable[[str], Awaitable[Any]]


def ours(url: str, stores: list[RedisStore]) -> Hit:
    stores.append(RedisStore(url, prefix="bench"))
    limiter = Limiter(stores[-1], deadline="10s", on_error="deny")
    return lambda key: limiter.hit(key, f"{AMOUNT}/hour")


def of_limits(url: str) -> Hit:
    limiter, limit = (
        MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy")),
        parse("60000/hour"),
    )
    return lambda key: limiter.hit(limit, key)


def of_throttled(url: str) -> Hit:
    from throttled.asyncio import RateLimiterType, Throttled, per_hour
    from throttled.asyncio import RedisStore as Theirs

    limiter = Throttled(using=RateLimiterType.SLIDING_WINDOW.value, quota=per_hour(AMOUNT), store=Theirs(server=url))

    async def hit(key: str) -> bool:
        return not (await limiter.limit(key)).limited

    return hit


def of_pyrate(url: str) -> Hit:
    from pyrate_limiter import Duration, Rate, RedisBucket
    from pyrate_limiter import Limiter as Theirs

    client = Redis.from_url(url)

    @cache
    def limiter(key: str) -> asyncio.Task[Any]:
        return asyncio.ensure_future(make(key))

    async def make(key: str) -> Any:
        return Theirs(await RedisBucket.init([Rate(AMOUNT, Duration.HOUR)], client, f"pyrate:{key}"))

    async def hit(key: str) -> bool:
        return bool(await (await limiter(key)).try_acquire_async(key, blocking=False))

    return hit


def candidate(hit: Hit, tasks: int, hits: int) -> Candidate:
    """Return a candidate that sends hits from many tasks; it returns the time of a round divided by its hits."""

    async def run() -> float:
        numbers = itertools.cycle(KEYS)
        left = iter(range(hits))

        async def work() -> None:
            for _ in left:
                if not await hit(next(numbers)):
                    raise RuntimeError("a refusal")

        started_s = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(tasks)))
        return (time.perf_counter() - started_s) / hits * 1_000_000

    return run


@contextmanager
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server, and yield its address and process; it ends with the benchmark."""
    beside = Path(sys.executable).parent
    program = shutil.which("redis-server") or shutil.which("redis-server", path=str(beside))
    if program is None:
        sys.exit("this needs a redis-server: sudo apt install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
        try:
            yield f"redis://127.0.0.1:{port}/0", process
        finally:
            process.kill()


async def ready(url: str) -> None:
    """Wait until the server answers."""
    async with Redis.from_url(url) as client:
        for _ in range(100):
            try:
                await client.ping()
                return
            except ConnectionError:
                await asyncio.sleep(0.05)
    sys.exit("redis-server does not answer")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hits", type=int, default=2_000)


def tables(options: Namespace) -> list[Table]:
    """Measure hits, and then a server that stops."""
    return asyncio.run(measured(options))


async def measured(options: Namespace) -> list[Table]:
    with server() as (url, process):
        await ready(url)
        found = [*await compare(url, options), await stop_midway(url, process)]
    return [*found[:2], await run_by_run(options), found[2]]


async def run_by_run(options: Namespace) -> Table:
    """Measure how many times as fast as the exact peer hits are, in several runs, each with a server of its own."""
    rows: list[list[Cell]] = []
    for number in range(1, RUNS + 1):
        stores: list[RedisStore] = []
        row: list[Cell] = [str(number)]
        with server() as (url, _):
            await ready(url)
            hits = {"slidegate": ours(url, stores), PEER: of_limits(url)}
            for tasks in (1, 64):
                candidates = {name: candidate(hit, tasks, options.hits) for name, hit in hits.items()}
                taken = await rounds(candidates, options.rounds)
                row.append(median(theirs / own for own, theirs in zip(*taken.values(), strict=True)))
            await stores[0].close()
        rows.append(row)
    title = f"Times as fast as {PEER}, in {RUNS} runs"
    return Table(title, {"run": "", "1 waiting": ".2f", "64 waiting": ".2f"}, rows)


async def compare(url: str, options: Namespace) -> list[Table]:
    """Measure every candidate alone and with 64 tasks."""
    stores: list[RedisStore] = []
    hits = {
        "slidegate": ours(url, stores),
        PEER: of_limits(url),
        "throttled-py, sliding window": of_throttled(url),
        "pyrate-limiter": of_pyrate(url),
    }
    found = []
    for tasks in (1, 64):
        candidates = {name: candidate(hit, tasks, options.hits) for name, hit in hits.items()}
        taken = await rounds(candidates, options.rounds)
        found.append(compared(f"{tasks} waiting", taken, {name: PEER for name in hits if name != PEER}))
    await stores[0].close()
    return found


async def stop_midway(url: str, process: subprocess.Popen[bytes]) -> Table:
    """Measure how long hits take when the server stops in their middle (SIGSTOP), and goes on later."""
    store = RedisStore(url, prefix="paused")
    limiter = Limiter(store, deadline=DEADLINE_S, on_error="local")
    waits_s: list[float] = []

    async def work() -> None:
        for number in itertools.count():
            if process.returncode is not None or len(waits_s) >= PAUSED_HITS:
                return
            started_s = time.perf_counter()
            await limiter.hit(KEYS[number % len(KEYS)], f"{AMOUNT}/hour")
            waits_s.append(time.perf_counter() - started_s)
            await asyncio.sleep(0.001)

    asyncio.get_running_loop().call_later(0.5, process.send_signal, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(2.5, process.send_signal, signal.SIGCONT)
    await asyncio.gather(*(work() for _ in range(64)))
    await store.close()
    waits_s.sort()
    row: list[Cell] = [len(waits_s), waits_s[len(waits_s) * 99 // 100] * 1000, waits_s[-1] * 1000]
    what = f'64 tasks, `deadline="{DEADLINE_S * 1000:g}ms"`, `on_error="local"`'
    return Table(
        "A server that stops for two seconds (SIGSTOP)",
        {"what": "", "hits": ",d", "p99 ms": ".1f", "longest ms": ".1f"},
        [[what, *row]],
    )
