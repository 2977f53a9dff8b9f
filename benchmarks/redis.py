"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, the fastest exact peer.

It measures `await limiter.hit`, including deadline and circuit breaker, from 1 task and from 64, over 64 keys, on one
redis-server, which this starts. All hits are admitted. The ratio says how many times as fast the first candidate is as
the second: the median of all rounds, and the worst.

`--leases` compares stores with leases and without, and `limits`, on one hot key, on keys with a Zipf distribution, and
on keys that are all new; beside the server, and through a proxy that delays its replies.
"""

import asyncio
import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate, count, cycle
from statistics import median
from typing import Any, Final, NamedTuple

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter

from slidegate import Limiter
from slidegate.stores.redis import RedisStore
from tests.fault_proxy import FaultProxy
from tests.redis_servers import MISSING, REDIS, RedisServer

from .rounds import order_of, show

LIMIT: Final = "100000000/minute"
ZIPF_KEYS: Final = 10_000
DELAYS_MS: Final = (0, 2, 40)
Hit = Callable[[str], Awaitable[Any]]
_new: Final = count()


class Scene(NamedTuple):
    """What is hit, from how many tasks, and the target of the ratio beside the server."""

    keys: str
    tasks: int
    target: str = ""


SCENES: Final = (Scene("64 keys", 1, "≥0.72"), Scene("64 keys", 64, "≥4, no round below 3"))
SCENES_OF_LEASES: Final = (
    Scene("one hot key", 1, "≥20"),
    Scene("one hot key", 64, "≥8"),
    Scene("Zipf over 10,000 keys", 64),
    Scene("all keys new", 64, "≥0.97"),
)


def keys_of(keys: str) -> Callable[[], str]:
    """Return a function that returns the next key."""
    if keys == "64 keys":
        numbers = cycle(range(64))
        return lambda: f"user:{next(numbers)}"
    if keys == "one hot key":
        return lambda: "hot"
    if keys == "all keys new":
        return lambda: f"new:{next(_new)}"
    weights = list(accumulate(1 / rank for rank in range(1, ZIPF_KEYS + 1)))
    drawn = cycle(random.Random(5).choices(range(ZIPF_KEYS), cum_weights=weights, k=200_000))
    return lambda: f"zipf:{next(drawn)}"


async def speed_of(hit: Hit, next_key: Callable[[], str], tasks: int, seconds: float) -> float:
    """Send hits from several tasks; return the hits a second.

    Raises:
        RuntimeError: A hit was refused.
    """
    began_s = time.perf_counter()

    async def work() -> int:
        hits = 0
        while time.perf_counter() < began_s + seconds:
            if not await hit(next_key()):
                raise RuntimeError("a refusal")
            hits += 1
        return hits

    hits = sum(await asyncio.gather(*(work() for _ in range(tasks))))
    return hits / (time.perf_counter() - began_s)


@asynccontextmanager
async def delayed(server: RedisServer, delay_ms: int) -> AsyncIterator[str]:
    """Yield an address at which the replies of the server come so much later."""
    if not delay_ms:
        yield server.url
        return
    async with FaultProxy(server.port) as proxy:
        proxy.delay_s = delay_ms / 1_000
        yield f"redis://127.0.0.1:{proxy.port}/0"


def limiters(address: str, leases: bool) -> dict[str, Limiter]:
    """Return what is measured of slidegate; the first is compared with the next candidate."""
    stores = {"slidegate": RedisStore(address, timeout="10s")}
    if leases:
        stores = {
            "leases": RedisStore(address, timeout="10s", prefix="leases", leases=True),
            "no leases": RedisStore(address, timeout="10s"),
        }
    return {name: Limiter(store, deadline="10s", on_error="deny") for name, store in stores.items()}


async def compare(server: RedisServer, delay_ms: int, options: Namespace) -> None:
    """Measure all scenes at one distance, and print their table."""
    async with delayed(server, delay_ms) as address:
        ours = limiters(address, options.leases)
        candidates: dict[str, Hit] = {name: partial(hit_ours, limiter) for name, limiter in ours.items()}
        peer = MovingWindowRateLimiter(RedisStorage(f"async+{address}", implementation="redispy"))
        candidates["limits"] = partial(peer.hit, parse(LIMIT))
        scenes, title = SCENES, ""
        if options.leases:
            scenes, title = SCENES_OF_LEASES, f"{delay_ms} ms away"
        rows = [await row_of(scene, candidates, delay_ms, options) for scene in scenes]
        for limiter in ours.values():
            await limiter.close()
    head = ["what", "tasks", *(f"{name}: hits/s" for name in candidates), "ratio", "worst round", "target"]
    show(title, head, rows)


async def hit_ours(limiter: Limiter, key: str) -> object:
    return await limiter.hit(key, LIMIT)


async def row_of(scene: Scene, candidates: dict[str, Hit], delay_ms: int, options: Namespace) -> list[str]:
    """Measure a scene in rounds, after a warm-up; return its row."""
    next_key = keys_of(scene.keys)
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(options.rounds + 1):
        for name in order_of(candidates, turn):
            found[name].append(await speed_of(candidates[name], next_key, scene.tasks, options.seconds))
    cells = [f"{median(rates[1:]):,.0f}" for rates in found.values()]
    first, second, *_ = found.values()
    ratios = [one / other for one, other in zip(first[1:], second[1:], strict=True)]
    target = "" if delay_ms else scene.target
    return [scene.keys, str(scene.tasks), *cells, f"{median(ratios):.2f}", f"{min(ratios):.2f}", target]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate in each round")
    parser.add_argument("--leases", action="store_true", help="compare stores with leases and without")


def main(options: Namespace) -> None:
    if REDIS is None:
        sys.exit(f"this needs a redis-server: {MISSING}")
    with RedisServer() as server:
        delays_ms: tuple[int, ...] = (0,)
        if options.leases:
            delays_ms = DELAYS_MS
        for delay_ms in delays_ms:
            asyncio.run(compare(server, delay_ms, options))
