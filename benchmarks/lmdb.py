"""Hits on one host: `LmdbStore` with 1, 2 and 4 processes, and beside it `limits` with Redis on the same machine.

Every process sends `await limiter.hit` from as many tasks as are named, over 64 keys; all are admitted. Hits are those
of all processes over the time in which they ran. The wait is the 99th percentile of single hits, in a run of its own,
in the process where it was longest. Medians over the rounds.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from slidegate import Limiter
from slidegate.stores.lmdb import LmdbStore

from .redis_server import redis_server
from .report.tables import Table

PACKAGES = ("lmdb", "limits", "redis")
KEYS: Final = [f"user:{number}" for number in range(64)]
Hit = Callable[[str], Awaitable[object]]


def in_a_file(place: Path, durability: Any = "fast") -> Hit:
    limiter = Limiter(LmdbStore(f"{place}-{durability}", durability=durability), deadline="10s", on_error="deny")
    return lambda key: limiter.hit(key, "100000000/hour")


def of_limits(url: str, place: Path) -> Hit:
    from limits import parse
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    limit = parse("1000/hour")  # the most that a list of moments stays fast with
    return lambda key: limiter.hit(limit, key)


class Candidate(NamedTuple):
    """One way to send hits: by how many processes and tasks, to which store, how many, and how many are asked for."""

    name: str
    processes: int
    tasks: int
    make: Callable[[Path], Hit]
    share: int = 1
    asked: str = ""


class Seen(NamedTuple):
    """What one process saw: when its hits began and ended, and the 99th percentile of their waits."""

    began_s: float
    ended_s: float
    wait_s: float


async def measure(hit: Hit, tasks: int, hits: int, begin: Callable[[], object]) -> Seen:
    """Send hits as soon as all processes are ready, and then once more, each by the clock."""
    waits_s: list[float] = []

    async def work(number: int) -> None:
        for turn in range(hits // tasks):
            await hit(KEYS[(number + turn) % len(KEYS)])

    async def work_by_the_clock(number: int) -> None:
        for turn in range(hits // tasks):
            started_s = time.perf_counter()
            await hit(KEYS[(number + turn) % len(KEYS)])
            waits_s.append(time.perf_counter() - started_s)

    await asyncio.gather(*(hit(key) for key in KEYS))  # opens files and connections
    begin()
    began_s = time.monotonic()
    await asyncio.gather(*map(work, range(tasks)))
    ended_s = time.monotonic()
    await asyncio.gather(*map(work_by_the_clock, range(tasks)))
    return Seen(began_s, ended_s, sorted(waits_s)[len(waits_s) * 99 // 100])


def run(candidate: Candidate, place: Path, hits: int, ready: Any, results: Any) -> None:
    """Send the hits of one process."""
    results.put(asyncio.run(measure(candidate.make(place), candidate.tasks, hits, ready.wait)))


def play(candidate: Candidate, place: Path, hits: int) -> tuple[float, float]:
    """Return hits a second of all processes, and the longest 99th percentile in microseconds."""
    spawn = get_context("spawn")
    ready, results = spawn.Barrier(candidate.processes), spawn.Queue()
    hits //= candidate.share
    workers = [
        spawn.Process(target=run, args=(candidate, place, hits, ready, results), daemon=True)
        for _ in range(candidate.processes)
    ]
    for worker in workers:
        worker.start()
    seen: list[Seen] = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    span_s = max(one.ended_s for one in seen) - min(one.began_s for one in seen)
    done = hits // candidate.tasks * candidate.tasks * candidate.processes
    return done / span_s, max(one.wait_s for one in seen) * 1e6


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hits", type=int, default=40_000, help="of each process")


def tables(options: Namespace) -> Iterator[Table]:
    """Let all candidates send hits in turn."""
    with redis_server() as url, TemporaryDirectory() as folder:
        theirs = partial(of_limits, url)
        candidates = [
            Candidate("LMDB", 1, 1, in_a_file, asked="≥80,000"),
            Candidate("LMDB", 1, 64, in_a_file, asked="≥150,000"),
            Candidate("LMDB", 2, 64, in_a_file),
            Candidate("LMDB", 4, 64, in_a_file),
            Candidate('LMDB, durability="safe"', 1, 64, partial(in_a_file, durability="safe"), share=10),
            Candidate("limits with Redis", 2, 64, theirs, share=10),
        ]
        taken: dict[Candidate, list[tuple[float, float]]] = {candidate: [] for candidate in candidates}
        for number in range(options.rounds):
            for candidate in candidates:
                taken[candidate].append(play(candidate, Path(folder, str(number)), options.hits))
    columns = {"what": "", "processes": "d", "tasks each": "d", "hits/s": ",.0f", "p99 us": ",.0f", "asked": ""}
    yield Table("", columns, [
        [one.name, one.processes, one.tasks, *map(median, zip(*rows, strict=True)), one.asked]
        for one, rows in taken.items()
    ])  # fmt: skip
