"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, and others that are installed.

Every round sends hits from as many tasks as are named, over 64 keys; all are admitted. What is measured is the whole of
`await limiter.hit`, deadline and circuit breaker included. `throttled-py` (its sliding window is an estimate from two
counters) and `pyrate-limiter`, which is what fastapi-limiter counts with, are left out where they are not installed.

The server that ``--redis`` names is emptied.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import Redis

from slidegate import Limiter
from slidegate.stores.redis import RedisStore

from .measure import Candidate, rounds, table, versions

AMOUNT = 100_000_000
KEYS = [f"user:{number}" for number in range(64)]
PEER = "limits, moving window"
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
    """Return what sends hits from many tasks and says how many microseconds each took, the waits taken together."""

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


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hits", type=int, default=2_000)
    options = parser.parse_args()
    async with Redis.from_url(options.redis) as client:
        await client.flushall()
    stores: list[RedisStore] = []
    hits = {"slidegate": ours(options.redis, stores), PEER: of_limits(options.redis)}
    if importlib.util.find_spec("throttled"):
        hits["throttled-py, sliding window"] = of_throttled(options.redis)
    if importlib.util.find_spec("pyrate_limiter"):
        hits["pyrate-limiter"] = of_pyrate(options.redis)
    for tasks in (1, 64):
        candidates = {name: candidate(hit, tasks, options.hits) for name, hit in hits.items()}
        taken = await rounds(candidates, options.rounds)
        print(f"\n### {tasks} waiting\n\n{table(taken, {name: PEER for name in hits if name != PEER})}")
    await stores[0].close()
    print(f"\n{versions('redis', 'hiredis', 'limits')}")


if __name__ == "__main__":
    asyncio.run(main())
