"""A list of 200,000 networks: how long it takes to read, and what an address costs to look up."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from slidegate import Networks

from .report.tables import Table

Find = Callable[[int, int], object]


def entries(count: int, chance: random.Random) -> list[str]:
    """Return addresses and networks: half IPv4 addresses, a quarter IPv4 networks, a quarter IPv6 networks."""
    made = []
    for _ in range(count):
        kind = chance.random()
        if kind < 0.5:
            made.append(".".join(str(chance.randrange(256)) for _ in range(4)))
        elif kind < 0.75:
            made.append(f"{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}.0/24")
        else:
            made.append(f"2001:{chance.randrange(65_536):x}:{chance.randrange(65_536):x}::/48")
    return made


def probes(count: int, chance: random.Random) -> list[tuple[int, int]]:
    """Return addresses to look up, most of which are in no list, as most clients are in none."""
    ipv4 = [(4, chance.getrandbits(32)) for _ in range(count // 2)]
    return ipv4 + [(6, 0x2001 << 112 | chance.getrandbits(112)) for _ in range(count - len(ipv4))]


def lookup_us(find: Find, addresses: list[tuple[int, int]], rounds: int) -> float:
    """Return the median over rounds of the microseconds of one lookup, the loop around it taken off."""

    def nothing(version: int, value: int) -> None:
        return None

    def run(called: Find) -> float:
        started_s = time.perf_counter()
        for version, value in addresses:
            called(version, value)
        return (time.perf_counter() - started_s) / len(addresses) * 1_000_000

    return median(run(find) - run(nothing) for _ in range(rounds))


def read_s(path: Path) -> float:
    """Return the seconds that it takes to read a file."""
    started_s = time.perf_counter()
    Networks.from_file(path)
    return time.perf_counter() - started_s


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200_000, help="networks in the list")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)


def tables(options: Namespace) -> Iterator[Table]:
    """Read, and look up."""
    chance = random.Random(options.seed)
    with TemporaryDirectory() as folder:
        path = Path(folder, "list.netset")
        path.write_text("\n".join(entries(options.count, chance)))
        addresses = probes(100_000, chance)
        took_s = median(read_s(path) for _ in range(options.rounds))
        took_us = lookup_us(Networks.from_file(path).find, addresses, options.rounds)
    rows = [[f"s to read {options.count:,} networks", took_s, "≤2"], ["us to look up an address", took_us, "≤1.5"]]
    yield Table("", {"what": "", "measured": ".2f", "asked": ""}, [[*row] for row in rows])
