"""Hits on one host: `LmdbStore` with 1, 2 and 4 processes.

Every process calls `await limiter.hit` from the given number of tasks, over 64 keys; all hits are admitted. The rate is
that of all processes together, the median over the rounds.
"""

import asyncio
from argparse import ArgumentParser
from multiprocessing import get_context
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from slidegate.stores.lmdb import LmdbStore

from .redis import ours, speed_of
from .rounds import order_of, show

CANDIDATES: Final = ((1, 1), (1, 64), (2, 64), (4, 64))  # processes, and tasks in each


async def measure(place: str, tasks: int, seconds: float, ready: Any) -> float:
    """Send hits as soon as all processes are ready; return the hits a second of this one."""
    async with ours(LmdbStore(place)) as hit:
        await speed_of(hit, "64 keys", tasks, 0.1)  # opens the file
        ready.wait(60)
        return await speed_of(hit, "64 keys", tasks, seconds)


def run(*arguments: Any) -> float:
    return asyncio.run(measure(*arguments))


def hits_a_second(processes: int, tasks: int, seconds: float) -> float:
    """Return the hits per second of all processes together, on a new file."""
    spawn = get_context("spawn")
    with TemporaryDirectory() as place, spawn.Manager() as manager, spawn.Pool(processes) as pool:
        each = (place, tasks, seconds, manager.Barrier(processes))
        return sum(pool.starmap(run, [each] * processes, chunksize=1))


def main(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each candidate in each round")
    options = parser.parse_args()
    found: dict[tuple[int, int], list[float]] = {candidate: [] for candidate in CANDIDATES}
    for turn in range(options.rounds):
        for candidate in order_of(CANDIDATES, turn):
            found[candidate].append(hits_a_second(*candidate, options.seconds))
    rows = [[str(processes), str(tasks), f"{median(rates):,.0f}"] for (processes, tasks), rates in found.items()]
    show("", ["processes", "tasks each", "hits/s"], rows)
