"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, the fastest exact peer.

It measures `await limiter.hit`, including deadline and circuit breaker, from 1 task and from 64, over 64 keys; all hits
are admitted. Both are measured alternately on one redis-server, which this starts. The ratio says how many times as
fast slidegate is: the median of all rounds, and the worst.

`--leases` compares stores with leases and without, and the moving and the fixed window of `limits`: hits a second and
their times, of one hot key, of keys with a Zipf distribution, and of keys that are all new; beside the server, and
through a proxy that delays its replies.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import accumulate, count, cycle
from pathlib import Path
from statistics import median
from typing import Any, Final

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

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


# -- leases ------------------------------------------------------------------------------------------------------------


LIMIT: Final = "6000000/minute"
ZIPF_KEYS: Final = 10_000
DELAYS_MS: Final = (0, 2, 40)
SCENES: Final = (("one hot key", 1), ("one hot key", 64), ("Zipf over 10,000 keys", 64), ("all keys new", 64))
TARGETS_OF_LEASES: Final = {SCENES[0]: "≥20", SCENES[1]: "≥8", SCENES[3]: "≥0.97"}
"""The least gain beside the server."""
_new: Final = count()


def keys_of(scene: str) -> Callable[[], str]:
    """Return a function that returns the next key."""
    if scene == "one hot key":
        return lambda: "hot"
    if scene == "all keys new":
        return lambda: f"new:{next(_new)}"
    weights = list(accumulate(1 / rank for rank in range(1, ZIPF_KEYS + 1)))
    drawn = cycle(random.Random(5).choices(range(ZIPF_KEYS), cum_weights=weights, k=200_000))
    return lambda: f"zipf:{next(drawn)}"


async def speed_of(hit: Hit, next_key: Callable[[], str], tasks: int, seconds: float) -> tuple[float, float, float]:
    """Return hits a second, and the median and the 99th percentile of their times, in milliseconds."""
    taken, began_s = list[float](), time.perf_counter()

    async def work() -> None:
        while (hit_s := time.perf_counter()) < began_s + seconds:
            await hit(next_key())
            taken.append(time.perf_counter() - hit_s)

    await asyncio.gather(*(work() for _ in range(tasks)))
    rate = len(taken) / (time.perf_counter() - began_s)
    ordered = sorted(taken)
    return rate, 1_000 * ordered[len(ordered) // 2], 1_000 * ordered[len(ordered) * 99 // 100]


@asynccontextmanager
async def delayed(url: str, delay_ms: int) -> AsyncIterator[str]:
    """Yield an address at which the replies of the server come so much later."""
    from tests.fault_proxy import FaultProxy

    if not delay_ms:
        yield url
        return
    async with FaultProxy(int(url.rpartition(":")[2].partition("/")[0])) as proxy:
        proxy.delay_s = delay_ms / 1_000
        yield f"redis://127.0.0.1:{proxy.port}/0"


async def compare_leases(url: str, options: Namespace) -> None:
    """Measure all scenes, and print a table for each distance."""
    for delay_ms in DELAYS_MS:
        async with delayed(url, delay_ms) as address:
            limit, storage = parse(LIMIT), RedisStorage(f"async+{address}", implementation="redispy")
            moving, fixed = MovingWindowRateLimiter(storage), FixedWindowRateLimiter(storage)
            ours = {
                on: Limiter(RedisStore(address, prefix=f"leases{on}", timeout="10s", leases=on), deadline="10s")
                for on in (True, False)
            }
            candidates: dict[str, Hit] = {
                "leases": partial(hit_ours, ours[True]),
                "no leases": partial(hit_ours, ours[False]),
                "limits, moving": partial(moving.hit, limit, "moving"),
                "limits, fixed": partial(fixed.hit, limit, "fixed"),
            }
            rows = [await row_of(scene, tasks, candidates, delay_ms, options) for scene, tasks in SCENES]
            for limiter in ours.values():
                await limiter.close()
        head = ["scene", "tasks", *(f"{name}: hits/s, p50, p99 ms" for name in candidates), "gain", "target"]
        show(f"{delay_ms} ms away", head, rows)


async def hit_ours(limiter: Limiter, key: str) -> object:
    return await limiter.hit(key, LIMIT)


async def row_of(scene: str, tasks: int, candidates: dict[str, Hit], delay_ms: int, options: Namespace) -> list[str]:
    """Measure a scene in rounds, of which every other one takes the candidates in reverse; return its row."""
    next_key = keys_of(scene)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in candidates}
    for turn in range(options.rounds):
        order = [*candidates]
        if turn % 2:
            order.reverse()
        for name in order:
            found[name].append(await speed_of(candidates[name], next_key, tasks, options.seconds))
    medians = {name: [median(one) for one in zip(*rounds, strict=True)] for name, rounds in found.items()}
    cells = [f"{rate:,.0f}, {half:.2f}, {late:.2f}" for rate, half, late in medians.values()]
    gain = medians["leases"][0] / medians["no leases"][0]
    target = "" if delay_ms else TARGETS_OF_LEASES.get((scene, tasks), "")
    return [scene, str(tasks), *cells, f"{gain:.2f}", target]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--hits", type=int, default=2_000, help="of each candidate in each round")
    parser.add_argument("--leases", action="store_true", help="compare stores with leases and without")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate in each round, with --leases")


def main(options: Namespace) -> None:
    if options.leases:
        with redis_server() as url:
            asyncio.run(compare_leases(url, options))
        return
    rows = []
    for tasks, target in TARGETS.items():
        with redis_server() as url:
            taken = asyncio.run(run(url, tasks, options))
        own_us, peer_us = map(median, zip(*taken, strict=True))
        ratios = [theirs / own for own, theirs in taken]
        numbers = (f"{own_us:.1f}", f"{peer_us:.1f}", f"{median(ratios):.2f}", f"{min(ratios):.2f}")
        rows.append([str(tasks), *numbers, target])
    show("", ["tasks", "slidegate us", "limits us", "ratio", "worst round", "target"], rows)
