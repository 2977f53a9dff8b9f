"""The memory store: the bytes per key, and the pauses with a million keys; and what a remembered client takes.

Bytes are measured by tracemalloc; those of a key exclude its text. Times are CPU times of the thread. The store has a
fake clock: after the windows of the million keys have expired, other keys are hit until all expired ones are dropped.
"""

import asyncio
import gc
import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from starlette.responses import PlainTextResponse

from slidegate import BanPolicy, Limit, Limiter, MemoryStore, RateLimitMiddleware
from slidegate.core import Bucket

from .rounds import show
from .traffic import Client, scope_of

KEYS: Final = 20_000
LATER: Final = 1_000
CLIENTS: Final = 32_768
"""As many clients as a middleware remembers."""
EACH_KEY: Final = {
    "bytes of a key after one hit": (Limit(100, "1m"), 1, "≤120"),
    "bytes of a key after 20 hits over the window, resolution 10": (Limit(100, "1m", resolution=10), 20, "≤240"),
    "bytes of a key after 20 hits over the window, resolution 64": (Limit(100, "1m"), 20, "≤340"),
}
"""Rows by name: the limit, the hits per key, and the target."""


def used_by(work: Callable[[], object]) -> int:
    """Return the bytes that remain of what some code has made."""
    gc.collect()
    tracemalloc.start()
    work()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used


def bytes_per_key(limit: Limit, hits: int) -> float:
    """Return the bytes that a store uses for each of `KEYS` keys after `hits` hits of each."""
    now_us = [10**12]
    store = MemoryStore(max_keys=KEYS, clock=lambda: now_us[0])
    bucket, keys = Bucket("rule", (limit,)), [f"client:{number}" for number in range(KEYS)]

    def hit_all() -> None:
        for _ in range(hits):
            for key in keys:
                store.hit(((bucket, key, 1),))
            now_us[0] += 60_000_000 // hits

    return used_by(hit_all) / KEYS


def collected_ms() -> float:
    """Return the shortest time of three full garbage collections, in milliseconds."""
    taken: list[int] = []
    for _ in range(3):
        began_ns = time.thread_time_ns()
        gc.collect()
        taken.append(time.thread_time_ns() - began_ns)
    return min(taken) / 1_000_000


def longest_hit_ms(store: MemoryStore, bucket: Bucket, keys: Iterable[str]) -> float:
    """Hit each key once; return the longest time in milliseconds."""
    longest_ns = 0
    for key in keys:
        began_ns = time.thread_time_ns()
        store.hit(((bucket, key, 1),))
        longest_ns = max(longest_ns, time.thread_time_ns() - began_ns)
    return longest_ns / 1_000_000


def many_keys(number: int) -> list[list[str]]:
    """Return the rows of a store with many keys: while they are added, while they live, and while they expire."""
    bucket, now_us = Bucket("rule", (Limit(100_000, "10s"),)), [10**12]
    without_ms = collected_ms()
    store = MemoryStore(max_keys=number + LATER, clock=lambda: now_us[0])
    coming_ms = longest_hit_ms(store, bucket, (f"client:{key}" for key in range(number)))
    longer_ms = collected_ms() - without_ms
    going_ms, later = 0.0, [f"later:{key}" for key in range(LATER)]
    while store.key_count() > LATER:
        now_us[0] += 11_000_000
        going_ms = max(going_ms, longest_hit_ms(store, bucket, later))
    return [
        [f"ms that {number:,} keys add to a full garbage collection", f"{longer_ms:.1f}", "≤10"],
        ["ms of the longest hit while they are added", f"{coming_ms:.1f}", "≤5"],
        ["ms of the longest hit while they expire", f"{going_ms:.1f}", "≤5"],
    ]


def remembered(ask: Callable[[str], Awaitable[object]]) -> tuple[float, float]:
    """Return the bytes of each of `CLIENTS` clients, its window included, and the ms that they add to a collection."""
    asyncio.run(asked(ask, range(CLIENTS, CLIENTS + 2_000)))  # so that nothing of the first requests is counted
    without_ms = collected_ms()
    used = used_by(lambda: asyncio.run(asked(ask, range(CLIENTS))))
    return used / CLIENTS, collected_ms() - without_ms


async def asked(ask: Callable[[str], Awaitable[object]], numbers: Iterable[int]) -> None:
    for number in numbers:
        await ask(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")


def through_middleware(**options: Any) -> Callable[[str], Awaitable[object]]:
    """Return a function that sends a request of a client through a middleware."""
    app, sender = RateLimitMiddleware(PlainTextResponse("hi"), limits="100/minute", **options), Client()
    return lambda client: sender.ask(app, scope_of("/", client))


def through_limiter() -> Callable[[str], Awaitable[object]]:
    """Return a function that asks a limiter for a client."""
    limiter = Limiter(MemoryStore())
    return lambda client: limiter.hit(client, "100/minute")


def clients() -> list[list[str]]:
    """Return the rows of clients that are remembered."""
    rows: list[list[str]] = []
    for how, ask, most in (
        ("limiter.hit", through_limiter(), 300),
        ("the middleware", through_middleware(), 300),
        ("the middleware, with a ban policy", through_middleware(bans=BanPolicy("20/10m", "1h")), 350),
    ):
        bytes_each, longer_ms = remembered(ask)
        rows.append([f"bytes of a client through {how}", f"{bytes_each:.0f}", f"≤{most}"])
        rows.append([f"ms that {CLIENTS:,} of these add to a collection", f"{longer_ms:.1f}", "≤12"])
    return rows


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=1_000_000)


def main(options: Namespace) -> None:
    rows = many_keys(options.keys)  # first, while the process contains nothing else
    rows += [[name, f"{bytes_per_key(limit, hits):.1f}", target] for name, (limit, hits, target) in EACH_KEY.items()]
    show("", ["what", "measured", "target"], [*rows, *clients()])
