"""A list of 200,000 networks: the time to read it, and to look up an address."""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from timeit import timeit

from slidegate import Networks

from .table import Table


def entries(count: int, chance: random.Random) -> list[str]:
    """Return random entries: half IPv4 addresses, a quarter IPv4 networks, a quarter IPv6 networks."""
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


def lookup_us(find: Callable[[int, int], object], addresses: list[tuple[int, int]]) -> float:
    """Return the microseconds per lookup, including the loop."""
    started_s = time.perf_counter()
    for version, value in addresses:
        find(version, value)
    return (time.perf_counter() - started_s) / len(addresses) * 1_000_000


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200_000, help="networks in the list")
    parser.add_argument("--rounds", type=int, default=7)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure reading and look-ups."""
    chance = random.Random(1)
    with TemporaryDirectory() as folder:
        path = Path(folder, "list.netset")
        path.write_text("\n".join(entries(options.count, chance)))
        addresses = [(4, chance.getrandbits(32)) for _ in range(50_000)]
        addresses += [(6, 0x2001 << 112 | chance.getrandbits(112)) for _ in range(50_000)]
        took_s = median(timeit(lambda: Networks.from_file(path), number=1) for _ in range(options.rounds))
        find = Networks.from_file(path).find
        took_us = median(lookup_us(find, addresses) for _ in range(options.rounds))
    rows = [[f"s to read {options.count:,} networks", took_s, "≤2"], ["us to look up an address", took_us, "≤1.5"]]
    yield Table("", {"what": "", "measured": ".2f", "asked": ""}, [[*row] for row in rows])
