"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, the fastest exact peer.

It measures `await limiter.hit`, including deadline and circuit breaker, from 1 task and from 64, over 64 keys; all hits
are admitted. Both are measured alternately on one redis-server, which this starts. The ratio says how many times as
fast slidegate is: the median of all rounds, and the worst.
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

from .rounds import show

KEYS: Final = [f"user:{number}" for number in range(64)]
TARGETS: Final = {1: "≥0.7", 64: "≥4, no run below 3"}
"""Targets by the number of tasks."""
START_S: Final = 30
Hit = Callable[[str], Awaitable[Any]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@contextmanager
def redis_server() -> Iterator[str]:
    """Start the server on PATH, or the one installed with this Python, and yield its address when it answers."""
    program = shutil.which("redis-server") or shutil.which("redis-server", path=str(Path(sys.executable).parent))
    if program is None:
        sys.exit("this needs a redis-server: sudo apt install redis-server")
    port, until_s = free_port(), time.monotonic() + START_S
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
        try:
            while time.monotonic() < until_s:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()


async def hit_us(hit: Hit, tasks: int, count: int) -> float:
    """Send hits from several tasks; return the total time divided by the number of hits, in microseconds."""
    keys, left = cycle(KEYS), iter(range(count))

    async def work() -> None:
        for _ in left:
            if not await hit(next(keys)):
                raise RuntimeError("a refusal")

    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(tasks)))
    return (time.perf_counter() - began_s) / count * 1_000_000


async def run(url: str, tasks: int, options: Namespace) -> list[tuple[float, float]]:
    """Return the times of slidegate and of its peer in each round, after a warm-up."""
    limiter = Limiter(RedisStore(url), deadline="10s", on_error="deny")
    peer, limit = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy")), parse("60000/hour")
    taken = []
    for _ in range(options.rounds + 1):
        own_us = await hit_us(lambda key: limiter.hit(key, "100000000/hour"), tasks, options.hits)
        taken.append((own_us, await hit_us(lambda key: peer.hit(limit, key), tasks, options.hits)))
    await limiter.close()
    return taken[1:]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--hits", type=int, default=2_000, help="of each candidate in each round")


def main(options: Namespace) -> None:
    rows = []
    for tasks, target in TARGETS.items():
        with redis_server() as url:
            taken = asyncio.run(run(url, tasks, options))
        own_us, peer_us = map(median, zip(*taken, strict=True))
        ratios = [theirs / own for own, theirs in taken]
        numbers = (f"{own_us:.1f}", f"{peer_us:.1f}", f"{median(ratios):.2f}", f"{min(ratios):.2f}")
        rows.append([str(tasks), *numbers, target])
    show("", ["tasks", "slidegate us", "limits us", "ratio", "worst round", "target"], rows)
