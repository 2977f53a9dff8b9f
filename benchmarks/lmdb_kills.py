"""How long after a SIGKILL the next ban is acknowledged: `LmdbStore` with 1, 2 and 4 processes.

Every process bans one key after the other, over a file with some thousand bans, and says so in a pipe after each. At a
random moment one of them is killed, and its parent starts another at once by a fork, as a server that watches its
workers does. The benchmark measures the time from the kill to the next word of any process. For one process it also
shows the parts: the end of the old process, the fork, the opening of the files, and the ban.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import select
import signal
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from struct import Struct
from typing import NamedTuple

from slidegate.stores.lmdb import LmdbStore

from .report.tables import Cell, Table

PACKAGES = ("lmdb",)

HOUR_US = 3_600_000_000
WORD = Struct("=iddd")  # process; when it began, when its store was open, when it had banned


class Kill(NamedTuple):
    """The milliseconds that a kill has cost."""

    until_word: float
    until_end: float
    fork: float
    opening: float
    ban: float


def worker(path: str, durability: str, bans: int, writing: int) -> None:
    """Ban and say so until killed."""
    began_s = time.monotonic()
    store = LmdbStore(path, durability=durability)  # type: ignore[arg-type]
    opened_s = time.monotonic()
    pid = os.getpid()
    for number in range(10**9):
        store.bans.ban(f"user:{number % bans}", HOUR_US, "by request", "ann")
        os.write(writing, WORD.pack(pid, began_s, opened_s, time.monotonic()))


def start(path: str, durability: str, bans: int, writing: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            worker(path, durability, bans, writing)
        finally:
            os._exit(1)
    return pid


def drain(reading: int) -> None:
    while select.select([reading], [], [], 0)[0]:
        os.read(reading, 1 << 16)


def play(path: str, durability: str, bans: int, processes: int, kills: int, chance: random.Random) -> list[Kill]:
    """Kill processes and return what each kill cost."""
    reading, writing = os.pipe()
    pids = [start(path, durability, bans, writing) for _ in range(processes)]
    seen: list[Kill] = []
    for _ in range(kills):
        os.read(reading, WORD.size)  # all work
        until_s = time.monotonic() + chance.uniform(0.005, 0.05)
        while time.monotonic() < until_s:
            drain(reading)
        victim = chance.randrange(processes)
        killed_s = time.monotonic()
        os.kill(pids[victim], signal.SIGKILL)
        os.waitpid(pids[victim], 0)
        ended_s = time.monotonic()
        pids[victim] = start(path, durability, bans, writing)
        while True:
            _, began_s, opened_s, banned_s = WORD.unpack(os.read(reading, WORD.size))
            if banned_s > ended_s:
                break
        heard_s = time.monotonic()
        parts = (heard_s - killed_s, ended_s - killed_s, began_s - ended_s, opened_s - began_s, banned_s - opened_s)
        seen.append(Kill(*(part * 1e3 for part in parts)))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    return seen


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=500, help="of each row")
    parser.add_argument("--bans", type=int, default=2_000, help="in the file before")
    parser.add_argument("--seed", type=int, default=1)


def tables(options: Namespace) -> Iterator[Table]:
    """Kill the processes of each row many times."""
    rows: list[list[Cell]] = []
    logging.disable(logging.CRITICAL)
    gc.freeze()
    for durability, processes in (("fast", 1), ("fast", 2), ("fast", 4), ("safe", 1)):
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "lmdb")
            store = LmdbStore(path)
            for number in range(options.bans):
                store.bans.ban(f"user:{number}", HOUR_US, "by request", "ann")
            store.close()
            seen = play(path, durability, options.bans, processes, options.kills, random.Random(options.seed))
        ranks = [quantiles(column, n=100) for column in zip(*seen, strict=True)]
        parts = [rank[98] if processes == 1 else None for rank in ranks[1:]]
        rows.append([durability, processes, ranks[0][49], ranks[0][98], *parts])
    numbers = ("p50 ms", "p99 ms", "p99 of: end", "fork", "opening", "ban")
    columns = {"durability": "", "processes": "d", **dict.fromkeys(numbers, ".1f")}
    yield Table("", columns, rows, f"{options.bans:,} bans in the file, {options.kills} kills a row.")
