"""Hits on one host: `LmdbStore` with 1, 2 and 4 processes.

Every process calls `await limiter.hit` from the given number of tasks, over 64 keys; all hits are admitted. The rate is
that of all processes together, the median over the rounds.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from slidegate import Limiter
from slidegate.stores.lmdb import LmdbStore

from .redis import KEYS, hit_us
from .rounds import show

CANDIDATES: Final = ((1, 1), (1, 64), (2, 64), (4, 64))
"""Processes, and tasks in each."""


async def measure(place: Path, tasks: int, hits: int, begin: Callable[[], object]) -> tuple[float, float]:
    """Send hits as soon as all processes are ready; return the start and end time in seconds."""
    async with Limiter(LmdbStore(place), deadline="10s", on_error="deny") as limiter:
        await asyncio.gather(*(limiter.hit(key, "100000000/hour") for key in KEYS))  # opens the file
        begin()
        began_s = time.monotonic()
        await hit_us(lambda key: limiter.hit(key, "100000000/hour"), tasks, hits)
        return began_s, time.monotonic()


def run(place: Path, tasks: int, hits: int, ready: Any, results: Any) -> None:
    """Send the hits of one process."""
    results.put(asyncio.run(measure(place, tasks, hits, ready.wait)))


def hits_a_second(place: Path, processes: int, tasks: int, hits: int) -> float:
    """Return the hits per second of all processes together."""
    spawn = get_context("spawn")
    ready, results = spawn.Barrier(processes), spawn.Queue()
    workers = [spawn.Process(target=run, args=(place, tasks, hits, ready, results)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    began_s, ended_s = zip(*(results.get(timeout=300) for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return hits * processes / (max(ended_s) - min(began_s))


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hits", type=int, default=40_000, help="of each process")


def main(options: Namespace) -> None:
    rates: dict[tuple[int, int], list[float]] = {candidate: [] for candidate in CANDIDATES}
    for _ in range(options.rounds):
        for candidate, taken in rates.items():
            with TemporaryDirectory() as place:
                taken.append(hits_a_second(Path(place), *candidate, options.hits))
    rows = [[str(processes), str(tasks), f"{median(taken):,.0f}"] for (processes, tasks), taken in rates.items()]
    show("", ["processes", "tasks each", "hits/s"], rows)
