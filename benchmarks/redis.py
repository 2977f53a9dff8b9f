"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, the fastest exact peer.

It measures `await limiter.hit`, including deadline and circuit breaker, from 1 task and from 64, over 64 keys; all hits
are admitted. Every run starts its own redis-server, on which the candidates are measured alternately.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter

from slidegate import Limiter
from slidegate.stores.redis import RedisStore

from .table import Cell, Table

PACKAGES = ("redis", "hiredis", "limits")
AMOUNT: Final = 100_000_000
KEYS: Final = [f"user:{number}" for number in range(64)]
PEER: Final = "limits, moving window"
TASKS: Final = {1: "≥0.9", 64: "≥4"}
"""Tasks, and the target speed relative to the peer in every run."""
START_S: Final = 30
Hit = Callable[[str], Awaitable[Any]]


def of_limits(url: str) -> Hit:
    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    limit = parse("60000/hour")
    return lambda key: limiter.hit(limit, key)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def redis_server() -> Iterator[str]:
    """Start the server on PATH, or the one installed with this Python, and yield its address when it answers."""
    program = shutil.which("redis-server") or shutil.which("redis-server", path=str(Path(sys.executable).parent))
    if program is None:
        sys.exit("this needs a redis-server: sudo apt install redis-server")
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
        try:
            until_s = time.monotonic() + START_S
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if process.poll() is not None or time.monotonic() > until_s:
                    sys.exit("redis-server does not answer")
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


async def hits_us(hit: Hit, tasks: int, count: int) -> float:
    """Send hits from several tasks; return the total time divided by the number of hits, in microseconds."""
    keys, left = cycle(KEYS), iter(range(count))

    async def work() -> None:
        for _ in left:
            if not await hit(next(keys)):
                raise RuntimeError("a refusal")

    started_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return (time.perf_counter() - started_s) / count * 1_000_000


Times = dict[int, dict[str, list[float]]]
"""Tasks -> candidate -> microseconds per hit, in each round."""


async def run_once(url: str, rounds: int, count: int) -> Times:
    """Measure every candidate on one server, after a warm-up round."""
    store = RedisStore(url, prefix="bench")
    limiter = Limiter(store, deadline="10s", on_error="deny")
    hits: dict[str, Hit] = {
        "slidegate": lambda key: limiter.hit(key, f"{AMOUNT}/hour"),
        PEER: of_limits(url),
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
    """Return the cells of a candidate: its time, its speed relative to the peer, and that of the worst run."""
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
    """Measure all runs."""
    runs: list[Times] = []
    for _ in range(options.runs):
        with redis_server() as url:
            runs.append(asyncio.run(run_once(url, options.rounds, options.hits)))
    columns = {"what": ""}
    for tasks in TASKS:
        columns |= {
            f"{tasks} waiting, us": ".1f",
            f"times {tasks}": ".2f",
            f"worst {tasks}": ".2f",
            f"asked {tasks}": "",
        }
    yield Table("", columns, [row_of(name, runs) for name in runs[0][1]])
