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
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.request import urlopen

from starlette.types import ASGIApp

from . import rounds
from .apps import PLENTY, STORE, candidates
from .redis import free_port, redis_server

SERVERS: Final = {
    "uvicorn": ("uvicorn", "--ws", "none", "--no-access-log", "--log-level", "critical", "--no-proxy-headers"),
    "granian": ("granian", "--interface", "asgi", "--no-ws", "--no-log"),
}
"""Commands of servers; both use uvloop if it is installed."""
APP: Final = "SLIDEGATE_BENCH_APP"
"""The variable with the name of the candidate, because each worker imports the application."""
HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 120
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
HEAD: Final = ("what", "requests/s", "ratio to the peer")
PEERS: Final = {PEER: "", "asgi-ratelimit, once more": PEER, FIVE: ""}
OURS: Final = {"default": PEER, "everything": FIVE}
"""Candidates, each with the peer to which it is compared."""
SHARING: Final = ("slowapi, Redis", "fastapi-limiter, Redis")
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
    make = candidates()[os.environ[APP]].make
    with ThreadPoolExecutor(1) as pool:  # the event loop of the worker may already be running
        return pool.submit(lambda: asyncio.run(make(PLENTY))).result()


@contextmanager
def served(one: Served, server: str, workers: int) -> Iterator[str]:
    """Start the server of a candidate, and yield the address of a page when it answers."""
    port = free_port()
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
            url, until_s = f"http://{HOST}:{port}/items/7", time.monotonic() + PATIENCE_S
            while time.monotonic() < until_s:
                with suppress(OSError), urlopen(url, timeout=PATIENCE_S):
                    break
                time.sleep(0.05)
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


def sharing(options: Namespace, redis: str) -> dict[str, Served]:
    """Return limiters whose workers share one count."""
    versions = rounds.versions(options)
    apps = {name: Served(name, versions["source"], redis) for name in SHARING}
    for (version, folder), (kind, store) in product(versions.items(), (("LMDB", "lmdb://{}"), ("Redis", redis))):
        apps[f"default, {version}, {kind}"] = Served("default", folder, store, SHARING[0])
    return apps


def measure(options: Namespace, apps: Mapping[str, Served], server: str, workers: int) -> Iterator[list[str]]:
    """Measure all candidates behind one server; yield the rows of their table."""
    rates: dict[str, list[float]] = {label: [] for label in apps}
    for number in range(options.rounds):
        print(f"{server}, {workers}: round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            urls = {}
            for label, one in apps.items():
                urls[label] = stack.enter_context(served(one, server, workers))
                load(urls[label], 1)  # warms up
            for label in reversed(urls) if number % 2 else urls:
                rates[label].append(load(urls[label], options.seconds))
    for label, one in apps.items():
        ratios = [own / other for own, other in zip(rates[label], rates.get(one.peer, ()), strict=False)]
        yield [label, f"{median(rates[label]):,.0f}", f"{median(ratios):.2f}" if ratios else ""]


def main(options: Namespace) -> None:
    if not shutil.which("wrk"):
        sys.exit("this needs wrk: sudo apt install wrk")
    for workers, server in product(options.workers or (1, 4), options.server or SERVERS):
        title = f"{server}, {workers} worker{'s' if workers > 1 else ''}"
        rounds.show(title, HEAD, measure(options, in_memory_or_shared(options, workers), server, workers))
    workers = max(options.workers or (4,))
    if workers > 1:
        with redis_server() as redis:
            title = f"uvicorn, {workers} workers that share one count"
            rounds.show(title, HEAD, measure(options, sharing(options, redis), "uvicorn", workers))
