"""Lists of networks: how long 200,000 take to read, what an address costs to look up, and what they hold in memory."""

from __future__ import annotations

import gc
import random
import tempfile
import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from slidegate import NetworkFiles, Networks
from slidegate.stats import NetworkFile

from .report.tables import Cell, Table

COUNT = 200_000

Find = Callable[[int, int], object]


def entries(count: int, pick: random.Random) -> list[str]:
    """Return addresses and networks: half IPv4 addresses, a quarter IPv4 networks, a quarter IPv6 networks."""
    made = []
    for _ in range(count):
        kind = pick.random()
        if kind < 0.5:
            made.append(".".join(str(pick.randrange(256)) for _ in range(4)))
        elif kind < 0.75:
            made.append(f"{pick.randrange(256)}.{pick.randrange(256)}.{pick.randrange(256)}.0/24")
        else:
            made.append(f"2001:{pick.randrange(65_536):x}:{pick.randrange(65_536):x}::/48")
    return made


def probes(count: int, pick: random.Random) -> list[tuple[int, int]]:
    """Return addresses to look up, most of which are in no list, as most clients are in none."""
    ipv4 = [(4, pick.getrandbits(32)) for _ in range(count // 2)]
    return ipv4 + [(6, 0x2001 << 112 | pick.getrandbits(112)) for _ in range(count - len(ipv4))]


def lookup_us(find: Find, asked: list[tuple[int, int]], rounds: int) -> float:
    """Return the median over rounds of the microseconds of one lookup, the loop around it taken off."""

    def nothing(version: int, value: int) -> None:
        return None

    def run(called: Find) -> float:
        started_s = time.perf_counter()
        for version, value in asked:
            called(version, value)
        return (time.perf_counter() - started_s) / len(asked) * 1_000_000

    return median(run(find) - run(nothing) for _ in range(rounds))


def read_s(path: Path, rounds: int, **options: str) -> float:
    """Return the median of the seconds that it takes to read a file."""
    taken = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        NetworkFile(path, **options).read()
        taken.append(time.perf_counter() - started_s)
    return median(taken)


def held_mib(path: Path) -> tuple[float, float]:
    """Return the MiB that a set read from a file holds, and the peak while reading."""
    gc.collect()
    tracemalloc.start()
    networks = Networks.from_file(path)
    gc.collect()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(networks) > 0
    return held / 2**20, peak / 2**20


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=COUNT, help="networks in a list")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of which the median is shown")
    parser.add_argument("--seed", type=int, default=1)


def tables(options: Namespace) -> Iterator[Table]:
    """Read, look up, and weigh."""
    pick = random.Random(options.seed)
    listed = entries(options.count, pick)
    asked = probes(100_000, pick)
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as directory:
        plain, table, hundred = (Path(directory, name) for name in ("plain.netset", "table.csv", "hundred.netset"))
        plain.write_text("\n".join(listed))
        hundred.write_text("\n".join(listed[:100_000]))
        table.write_text("seen,ip\n" + "".join(f"2026-01-31,{text}\n" for text in listed))
        rows.append([f"{options.count:,} networks read, plain", read_s(plain, options.rounds), "s"])
        rows.append(["the same, a column of CSV", read_s(table, options.rounds, column="ip"), "s"])
        networks = Networks.from_file(plain)
        finders: dict[str, Find] = {
            "`Networks.covers`": networks.covers,
            "`NetworkFiles.find`, one file": NetworkFiles([plain]).find,
            "`NetworkFiles.find`, three files": NetworkFiles([plain, NetworkFile(table, column="ip"), hundred]).find,
        }
        for name, find in finders.items():
            rows.append([f"{name}, an address", lookup_us(find, asked, options.rounds), "us"])
        held, peak = held_mib(hundred)
        many = f"{min(options.count, 100_000):,} networks"
        rows += [[f"memory of {many}", held, "MiB"], [f"memory of {many}, peak while reading", peak, "MiB"]]
    yield Table("", {"what": "", "measured": ".2f", "unit": ""}, rows)
