"""Hits on Redis: `RedisStore` against the exact moving window of `limits`, the fastest exact peer.

It measures `await limiter.hit`, including deadline and circuit breaker, from 1 task and from 64, over 64 keys, on one
redis-server, which this starts. All hits are admitted. The ratio says how many times as fast the first candidate is as
the second: the median of all rounds, and the worst.

`--leases` compares a store with leases and one without, on one hot key, on keys with a Zipf distribution, and on keys
that are all new; beside the server, and through a proxy that delays its replies.
"""

import asyncio
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate, count, cycle, repeat
from statistics import median
from typing import Any, Final

from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter

from slidegate import Limiter
from slidegate.core import Store
from slidegate.stores.redis import RedisStore
from tests.fault_proxy import FaultProxy
from tests.redis_servers import RedisServer

from .rounds import order_of, show

LIMIT: Final = "100000000/minute"
Hit = Callable[[str], Awaitable[Any]]
Rows = Sequence[tuple[str, int, str]]
"""What is hit, from how many tasks, and the target of the ratio."""


def zipf() -> Iterator[str]:
    """Yield keys of which each is hit as often as its rank says."""
    weights = list(accumulate(1 / rank for rank in range(1, 10_001)))
    for number in cycle(random.Random(5).choices(range(10_000), cum_weights=weights, k=200_000)):
        yield f"zipf:{number}"


KEYS: Final[dict[str, Iterator[str]]] = {
    "64 keys": (f"user:{number}" for number in cycle(range(64))),
    "one hot key": repeat("hot"),
    "Zipf over 10,000 keys": zipf(),
    "all keys new": (f"new:{number}" for number in count()),
}
ROWS: Final[Rows] = (("64 keys", 1, ""), ("64 keys", 64, ""))
ROWS_OF_LEASES: Final[Rows] = (
    ("one hot key", 1, "beside ≥20, 2 ms ≥100"),
    ("one hot key", 64, ""),
    ("Zipf over 10,000 keys", 64, ""),
    ("all keys new", 64, "beside ≥0.97"),
)


async def speed_of(hit: Hit, keys: str, tasks: int, seconds: float) -> float:
    """Send hits from several tasks; return the hits a second."""
    began_s, next_key = time.perf_counter(), KEYS[keys].__next__

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


@asynccontextmanager
async def ours(store: Store) -> AsyncIterator[Hit]:
    """Yield what hits a key in a store."""

    async def hit(key: str) -> object:
        return await limiter.hit(key, LIMIT)

    async with Limiter(store, deadline="10s", on_error="deny") as limiter:
        yield hit


async def without_leases(server: RedisServer, options: Namespace) -> None:
    async with ours(RedisStore(server.url, timeout="10s")) as hit:
        peer = MovingWindowRateLimiter(RedisStorage(f"async+{server.url}", implementation="redispy"))
        candidates = {"slidegate": hit, "limits": partial(peer.hit, parse(LIMIT))}
        await compare("", ROWS, candidates, options)


async def with_leases(server: RedisServer, delay_ms: int, options: Namespace) -> None:
    async with (
        delayed(server, delay_ms) as address,
        ours(RedisStore(address, timeout="10s", prefix="leases", leases=True)) as leasing,
        ours(RedisStore(address, timeout="10s")) as plain,
    ):
        await compare(f"{delay_ms} ms away", ROWS_OF_LEASES, {"leases": leasing, "no leases": plain}, options)


async def compare(title: str, rows: Rows, candidates: dict[str, Hit], options: Namespace) -> None:
    """Measure each row in rounds, after a warm-up, and print the table."""
    shown = []
    for keys, tasks, target in rows:
        found: dict[str, list[float]] = {name: [] for name in candidates}
        for turn in range(options.rounds + 1):
            for name in order_of(candidates, turn):
                found[name].append(await speed_of(candidates[name], keys, tasks, options.seconds))
        first, second = (rates[1:] for rates in found.values())
        ratios = [one / other for one, other in zip(first, second, strict=True)]
        speeds = [f"{median(rates):,.0f}" for rates in (first, second)]
        shown.append([keys, str(tasks), *speeds, f"{median(ratios):.2f}", f"{min(ratios):.2f}", target])
    head = ["what", "tasks", *(f"{name}: hits/s" for name in candidates), "ratio", "worst round", "target"]
    show(title, head, shown)


def main(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate in each round")
    parser.add_argument("--leases", action="store_true", help="compare stores with leases and without")
    options = parser.parse_args()
    with RedisServer() as server:
        if not options.leases:
            asyncio.run(without_leases(server, options))
            return
        for delay_ms in (0, 2, 40):
            asyncio.run(with_leases(server, delay_ms, options))
