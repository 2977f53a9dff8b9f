"""Bans on Redis, for those who are not banned: requests beside many changes of bans, and a start with many bans.

Innocent clients ask while another process bans and unbans addresses, and every answer of the server is late by as much
as `--delay` says. The benchmark counts the clients that got an answer of the store within the limiter's deadline of a
second. Then a worker starts while there are as many bans as `--bans` says, and the benchmark takes the most processor
time that its event loop spent on anything in one go.

The server is one of its own: `redis-server` on a free port of 127.0.0.1, with nothing kept.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import multiprocessing
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from slidegate import Limiter
from slidegate.stores.redis import RedisStore

from .redis import ready, server
from .report.tables import Cell, Table

PACKAGES = ("redis", "hiredis")

PREFIX = "bans"
CHUNK = 65_536


@asynccontextmanager
async def slowed(port: int, delay_s: float) -> AsyncIterator[int]:
    """Yield a port where the same server answers later."""
    loop = asyncio.get_running_loop()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        while piece := await reader.read(CHUNK):
            loop.call_later(delay_s, writer.write, piece)
        loop.call_later(delay_s, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, onward, 0.0), carry(answers, writer, delay_s), return_exceptions=True)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


def change(url: str, per_second: int) -> None:
    """Ban and unban addresses for ever, so often."""

    async def run() -> None:
        store = RedisStore(url, prefix=PREFIX)
        started_s, done = time.perf_counter(), 0
        for number in itertools.count():
            due = int((time.perf_counter() - started_s) * per_second) - done
            tasks = [
                store.bans.ban(f"198.18.{n // 256 % 256}.{n % 256}", 60_000_000, "", "bench")
                for n in range(done, done + due)
            ]
            await asyncio.gather(*tasks)
            done += due
            if number % 50 == 49:
                await store.bans.unban("198.18.0.0", "bench")
            await asyncio.sleep(0.005)

    logging.disable()
    asyncio.run(run())


async def beside_changes(url: str, options: Namespace) -> Table:
    """Count the requests that the store answers while bans change."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    rows: list[list[Cell]] = []
    async with slowed(port, options.delay / 1000) as late:
        for per_second in (0, 200, 1_000):
            changing = multiprocessing.get_context("spawn").Process(target=change, args=(url, per_second), daemon=True)
            changing.start()
            store = RedisStore(f"redis://127.0.0.1:{late}/0", prefix=PREFIX)
            limiter = Limiter(store, deadline="1s", on_error="deny")
            await store.bans.active()
            await asyncio.sleep(2.0)
            waits_s, without = await ask(limiter, options.seconds)
            changing.kill()
            changing.join()
            await store.close()
            waits_s.sort()
            share = 100 * (1 - without / len(waits_s))
            middle, late_s = waits_s[len(waits_s) // 2] * 1000, waits_s[len(waits_s) * 99 // 100] * 1000
            rows.append([per_second, len(waits_s), share, middle, late_s])
    columns = {
        "changes a second": "d",
        "requests": ",d",
        "% answered by the store": ".2f",
        "p50 ms": ".1f",
        "p99 ms": ".1f",
    }
    return Table("", columns, rows)


async def ask(limiter: Limiter, seconds: float) -> tuple[list[float], int]:
    """Send 500 requests a second of clients who are not banned; return how long each took, and how many failed."""
    waits_s: list[float] = []
    without = 0

    async def one(number: int) -> None:
        nonlocal without
        started_s = time.perf_counter()
        decision = await limiter.hit(f"203.0.113.{number % 250}", "1000000/hour")
        waits_s.append(time.perf_counter() - started_s)
        without += not decision.allowed

    tasks = []
    started_s = time.perf_counter()
    for number in range(int(seconds * 500)):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(max(started_s + number / 500 - time.perf_counter(), 0))
    await asyncio.gather(*tasks)
    return waits_s, without


async def longest_ms(work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Return how long some work takes, and the most processor time that was spent on it in one turn of the loop."""
    longest_s, over = 0.0, False

    async def watch() -> None:
        nonlocal longest_s
        before_s = time.thread_time()
        while not over:
            await asyncio.sleep(0)
            longest_s, before_s = max(longest_s, time.thread_time() - before_s), time.thread_time()

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    started_s = time.perf_counter()
    await work()
    taken_s = time.perf_counter() - started_s
    over = True
    await watching
    return taken_s * 1000, longest_s * 1000


async def many(url: str, bans: int) -> Table:
    """Measure what a worker that starts with many bans costs its event loop."""
    store = RedisStore(url, prefix="many", max_bans=10 * bans)
    for first in range(0, bans, 500):
        keys = [f"198.{18 + n // 65536}.{n // 256 % 256}.{n % 256}" for n in range(first, min(first + 500, bans))]
        await asyncio.gather(*(store.bans.ban(key, 3_600_000_000, "scanner", "bench") for key in keys))
    await store.close()
    store = RedisStore(url, prefix="many", max_bans=10 * bans)
    limiter = Limiter(store, deadline="10s", on_error="deny")

    async def drain(found: Any) -> None:
        async for _ in found:
            pass

    rows: list[list[Cell]] = []
    gc.collect()
    for what, work in (
        ("first request", lambda: limiter.hit("203.0.113.7", "1000000/hour")),
        ("all bans are held", store.bans.active),
        ("`history()`", lambda: drain(limiter.history())),
        ("`export_bans()`", lambda: drain(limiter.export_bans())),
    ):
        rows.append([what, *await longest_ms(work)])
    await store.close()
    return Table("", {f"with {bans:,} bans": "", "ms": ".1f", "longest step ms": ".1f"}, rows)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--delay", type=float, default=3.0, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--bans", type=int, default=100_000)


def tables(options: Namespace) -> list[Table]:
    """Measure requests beside changes, then a start."""
    logging.disable()  # a line for each ban
    return asyncio.run(measured(options))


async def measured(options: Namespace) -> list[Table]:
    with server() as (url, _):
        await ready(url)
        return [await beside_changes(url, options), await many(url, options.bans)]
