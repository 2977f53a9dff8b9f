"""A list of 200,000 networks: the time to read it, and to look up an address."""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from timeit import timeit

from slidegate import Networks

from .rounds import show


def entry(chance: random.Random) -> str:
    """Return a random entry: half are IPv4 addresses, a quarter IPv4 networks, a quarter IPv6 networks."""
    address = IPv4Address(chance.getrandbits(24) << 8)
    six = IPv6Address(0x2001 << 112 | chance.getrandbits(32) << 80)
    return chance.choice((str(address + chance.randrange(256)), str(address + 1), f"{address}/24", f"{six}/48"))


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200_000, help="networks in the list")
    parser.add_argument("--rounds", type=int, default=7)


def main(options: Namespace) -> None:
    chance = random.Random(1)
    addresses = [(4, chance.getrandbits(32)) for _ in range(50_000)]
    addresses += [(6, 0x2001 << 112 | chance.getrandbits(112)) for _ in range(50_000)]
    with TemporaryDirectory() as folder:
        path = Path(folder, "list.netset")
        path.write_text("\n".join(entry(chance) for _ in range(options.count)))
        read_s = median(timeit(lambda: Networks.from_file(path), number=1) for _ in range(options.rounds))
        find = Networks.from_file(path).find
    rounds = [timeit(lambda: [find(*address) for address in addresses], number=1) for _ in range(options.rounds)]
    find_us = median(rounds) / len(addresses) * 1_000_000
    row = [f"{options.count:,}", f"{read_s:.2f}", f"{find_us:.2f}"]
    show("", ["networks", "s to read (≤2)", "us to look up (≤1.5)"], [row])
