"""Requests per second behind a real server: uvicorn and granian, one worker and four, 32 connections over loopback.

The servers of all candidates run at the same time, and wrk sends requests to one after the other. Every round starts
new servers, because speed varies by a few percent with the memory layout of a process. The ratio is to the rate of the
peer in the same round, the median over the rounds. Several workers of slidegate share a store, by default LMDB; those
of the peer share nothing, and admit their limit each. A last table compares limiters that share one count.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import redis.asyncio
from fastapi import Depends
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter import Rate
from pyrate_limiter.buckets.redis_bucket import RedisBucket
from slowapi import Limiter as SlowApi
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette.types import ASGIApp

from tests.redis_servers import RedisServer, free_port, until
from tests.workers import PATIENCE_S, ask

from . import rounds
from .apps import PLENTY, STORE, Allowed, App, bare, bare_fastapi
from .real import APPS, FIVE, PEER

SERVERS: Final = {
    "uvicorn": ("uvicorn", "--ws", "none", "--no-access-log", "--log-level", "critical", "--no-proxy-headers"),
    "granian": ("granian", "--interface", "asgi", "--no-ws", "--no-log"),
}
"""Commands of servers; both use uvloop if it is installed."""
APP: Final = "SLIDEGATE_BENCH_APP"
"""The variable with the name of the candidate, because each worker imports the application."""
HOST: Final = "127.0.0.1"
PEERS: Final = {PEER: "", "asgi-ratelimit, once more": PEER, FIVE: ""}
OURS: Final = {"default": PEER, "everything": FIVE}
"""Candidates, each with the peer to which it is compared."""


async def slowapi(allowed: Allowed) -> ASGIApp:
    """Return the application behind slowapi's faster middleware, with its default, a fixed window."""
    app, store = await bare(allowed), os.environ[STORE]
    app.state.limiter = SlowApi(key_func=get_remote_address, application_limits=[str(allowed)], storage_uri=store)
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


async def fastapi_limiter(allowed: Allowed) -> ASGIApp:
    """Return a FastAPI application whose routes depend on fastapi-limiter, with one bucket for all workers."""
    client = redis.asyncio.Redis.from_url(os.environ[STORE])
    limiter = PyrateLimiter(await RedisBucket.init([Rate(allowed.amount, 60_000)], client, "everybody"))
    return bare_fastapi(lambda: [Depends(RateLimiter(limiter=limiter))])


SHARING: Final = {"slowapi, Redis": App(slowapi), "fastapi-limiter, Redis": App(fastapi_limiter)}
"""Peers whose workers share a count on Redis."""


class Served(NamedTuple):
    """One candidate behind a server.

    Attributes:
        name: The name of its application.
        folder: The directory from which slidegate is imported.
        store: The address of the store that its workers share; ``{}`` is a new directory. Empty for memory.
        peer: The label of the candidate to which it is compared; empty for none.
    """

    name: str
    folder: Path
    store: str = ""
    peer: str = ""


def app() -> ASGIApp:
    """Return the application of one worker."""
    logging.disable()
    make = {**APPS, **SHARING}[os.environ[APP]].make
    with ThreadPoolExecutor(1) as pool:  # the event loop of the worker may already be running
        return pool.submit(lambda: asyncio.run(make(PLENTY))).result()


@contextmanager
def served(one: Served, server: str, workers: int) -> Iterator[str]:
    """Start the server of a candidate, and yield the address of a page when it answers."""
    port = free_port()
    url = f"http://{HOST}:{port}/items/7"
    command = [*SERVERS[server], "--host", HOST, "--port", str(port), "--workers", str(workers)]
    with TemporaryDirectory() as place:
        variables = {APP: one.name, "PYTHONPATH": f"{one.folder}{os.pathsep}{rounds.ROOT}"}
        variables |= {STORE: one.store.format(place)} if one.store else {}
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--factory", "benchmarks.server:app"],
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            until(lambda: ask(url), f"{server} answers")
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with all its workers
            process.wait()


def load(url: str, seconds: int) -> float:
    """Send requests for some seconds; return the responses per second.

    Raises:
        RuntimeError: A request failed, or got a status other than 200.
    """
    command = ["wrk", "-t1", "-c32", f"-d{seconds}s", "-H", "X-Forwarded-For: 203.0.113.9", url]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S + seconds).stdout
    rate = re.search(r"Requests/sec: +([\d.]+)", said)
    if rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"expected 200 only, got:\n{said}")
    return float(rate[1])


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=int, default=1, help="of each candidate in each round")
    parser.add_argument("--server", action="append", choices=[*SERVERS], help="repeatable; by default both")
    parser.add_argument("--workers", action="append", type=int, help="repeatable; by default 1 and 4")
    parser.add_argument("--store", default="lmdb://{}", help="that several workers share; {} is a new directory")
    rounds.other_argument(parser)


def in_memory_or_shared(options: Namespace, workers: int) -> dict[str, Served]:
    """Return slidegate, whose workers share a store if there are several, and the peer, whose workers share nothing."""
    versions = rounds.versions(options)
    apps = {name: Served(name, versions["source"], peer=peer) for name, peer in PEERS.items()}
    for (name, peer), (version, folder) in product(OURS.items(), versions.items()):
        apps[f"{name}, {version}"] = Served(name, folder, options.store if workers > 1 else "", peer)
    return apps


def sharing(options: Namespace, url: str) -> dict[str, Served]:
    """Return limiters whose workers share one count."""
    versions = rounds.versions(options)
    apps = {name: Served(name, versions["source"], url) for name in SHARING}
    for (version, folder), (kind, store) in product(versions.items(), (("LMDB", "lmdb://{}"), ("Redis", url))):
        apps[f"default, {version}, {kind}"] = Served("default", folder, store, next(iter(SHARING)))
    return apps


def measure(options: Namespace, title: str, apps: Mapping[str, Served], server: str, workers: int) -> None:
    """Measure all candidates behind one server, and print their table."""
    rates: dict[str, list[float]] = {label: [] for label in apps}
    for number in range(options.rounds):
        print(f"{title}: round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            urls = {label: stack.enter_context(served(one, server, workers)) for label, one in apps.items()}
            for url in urls.values():
                load(url, 1)  # warms up
            for label in rounds.order_of(urls, number):
                rates[label].append(load(urls[label], options.seconds))
    rows = []
    for label, one in apps.items():
        ratios = [own / other for own, other in zip(rates[label], rates.get(one.peer, ()), strict=False)]
        rows.append([label, f"{median(rates[label]):,.0f}", f"{median(ratios):.2f}" if ratios else ""])
    rounds.show(title, ["what", "requests/s", "ratio to the peer"], rows)


def main(options: Namespace) -> None:
    if not shutil.which("wrk"):
        sys.exit("this needs wrk: sudo apt install wrk")
    for workers, server in product(options.workers or (1, 4), options.server or SERVERS):
        title = f"{server}, {workers} worker{'s' if workers > 1 else ''}"
        measure(options, title, in_memory_or_shared(options, workers), server, workers)
    workers = max(options.workers or (4,))
    if workers > 1:
        with RedisServer() as shared:
            title = f"uvicorn, {workers} workers that share one count"
            measure(options, title, sharing(options, shared.url), "uvicorn", workers)
