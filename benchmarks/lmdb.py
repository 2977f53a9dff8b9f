"""Hits on one host: `LmdbStore` with 1, 2 and 4 processes.

Every process calls `await limiter.hit` from the given number of tasks, over 64 keys; all hits are admitted. The rate is
that of all processes together, the median over the rounds.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from slidegate import Limiter
from slidegate.stores.lmdb import LmdbStore

from .table import Table

PACKAGES = ("lmdb",)
KEYS: Final = [f"user:{number}" for number in range(64)]


class Candidate(NamedTuple):
    """A configuration: processes, tasks in each, durability, and the target rate."""

    processes: int
    tasks: int
    durability: Any = "fast"
    asked: str = ""


CANDIDATES: Final = (
    Candidate(1, 1, asked="≥90,000"),
    Candidate(1, 64, asked="≥150,000"),
    Candidate(2, 64),
    Candidate(4, 64),
    Candidate(1, 64, "safe", asked="≥100,000"),
)


async def measure(candidate: Candidate, place: Path, hits: int, begin: Callable[[], object]) -> tuple[float, float]:
    """Send hits as soon as all processes are ready; return the start and end time in seconds."""
    limiter = Limiter(LmdbStore(place, durability=candidate.durability), deadline="10s", on_error="deny")

    async def work(number: int) -> None:
        for turn in range(hits // candidate.tasks):
            await limiter.hit(KEYS[(number + turn) % len(KEYS)], "100000000/hour")

    await asyncio.gather(*(limiter.hit(key, "100000000/hour") for key in KEYS))  # opens the file
    begin()
    began_s = time.monotonic()
    await asyncio.gather(*map(work, range(candidate.tasks)))
    return began_s, time.monotonic()


def run(candidate: Candidate, place: Path, hits: int, ready: Any, results: Any) -> None:
    """Send the hits of one process."""
    results.put(asyncio.run(measure(candidate, place, hits, ready.wait)))


def hits_a_second(candidate: Candidate, place: Path, hits: int) -> float:
    """Return the hits per second of all processes together."""
    spawn = get_context("spawn")
    ready, results = spawn.Barrier(candidate.processes), spawn.Queue()
    given = (candidate, place, hits, ready, results)
    workers = [spawn.Process(target=run, args=given, daemon=True) for _ in range(candidate.processes)]
    for worker in workers:
        worker.start()
    began_s, ended_s = zip(*(results.get(timeout=300) for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return hits // candidate.tasks * candidate.tasks * candidate.processes / (max(ended_s) - min(began_s))


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hits", type=int, default=40_000, help="of each process")


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all candidates alternately."""
    taken: dict[Candidate, list[float]] = {candidate: [] for candidate in CANDIDATES}
    with TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for at, candidate in enumerate(CANDIDATES):
                taken[candidate].append(hits_a_second(candidate, Path(folder, f"{number}-{at}"), options.hits))
    columns = {"processes": "d", "tasks each": "d", "durability": "", "hits/s": ",.0f", "asked": ""}
    yield Table("", columns, [[*one[:3], median(rates), one.asked] for one, rates in taken.items()])
