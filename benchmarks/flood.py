"""A flood of fresh keys: how many honest requests are refused, minute by minute, before, during and after it.

50,000 honest clients come twice a minute on the average and never more often than they may, sometimes after more than a
minute. In the third minute 60,000 keys come that never come again: more than the store has room for. The clock is a
fake one and every draw has a fixed seed, so two runs differ only in how strangers meet in shared cells.
"""

from __future__ import annotations

import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from slidegate import Limit, MemoryStore
from slidegate.core import Bucket
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

from .report.tables import Cell, Table

MAX_KEYS = 100_000
HONEST = 50_000
FLOOD = 60_000
FLOOD_MINUTE = 2
MINUTE_US = 60_000_000
START_US = 10**15

Store = MemoryStore | LmdbStore


def gap_us(rng: random.Random) -> int:
    """Return how long a client stays away: half a minute on the average, and never so that it exceeds 10 a minute."""
    if rng.random() < 0.6:
        return rng.randrange(7_000_000, 13_000_000)
    return rng.randrange(40_000_000, 80_000_000)


def ipv4() -> Iterator[str]:
    """Return addresses of the network for benchmarks (RFC 2544)."""
    first = int(ip_address("198.18.0.0"))
    return (str(ip_address(first + number)) for number in range(FLOOD))


def ipv6() -> Iterator[str]:
    """Return the networks of 64 bits of one network of 48, each of which is one client."""
    return (f"2001:db8:0:{number:x}::/64" for number in range(FLOOD))


def honest_refusals(store: Store, clock: FakeClock, fresh: Iterable[str], minutes: int) -> Iterator[int]:
    """Return how many honest requests were refused in each minute."""
    rng = random.Random(64)
    bucket = Bucket("rule", (Limit(10, "1m"),))
    coming = [(START_US + rng.randrange(MINUTE_US), f"user:{number}", True) for number in range(HONEST)]
    flood_us = START_US + FLOOD_MINUTE * MINUTE_US
    coming += [(flood_us + rng.randrange(MINUTE_US), key, False) for key in fresh]
    heapify(coming)
    for minute in range(minutes):
        refused = 0
        while coming[0][0] < START_US + (minute + 1) * MINUTE_US:
            at_us, key, honest = coming[0]
            clock.set(at_us)
            passes = bool(store.hit(((bucket, key, 1),)))
            refused += honest and not passes
            heapreplace(coming, (at_us + (gap_us(rng) if honest else 10**15), key, honest))
        yield refused


def run(make: Callable[[FakeClock], Store], fresh: Iterable[str], minutes: int) -> list[int]:
    """Play the traffic to a new store."""
    clock = FakeClock(START_US)
    store = make(clock)
    try:
        return list(honest_refusals(store, clock, fresh, minutes))
    finally:
        store.close()


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--after", type=int, default=30, help="minutes after the flood")


def tables(options: Namespace) -> Iterator[Table]:
    """Play the traffic to each store, and count minute by minute."""
    minutes = FLOOD_MINUTE + 1 + options.after
    with TemporaryDirectory() as place:
        stores: dict[str, Callable[[FakeClock], Store]] = {
            "memory": lambda clock: MemoryStore(max_keys=MAX_KEYS, clock=clock),
            "LMDB": lambda clock: LmdbStore(
                Path(place, str(time.monotonic_ns())), max_keys=MAX_KEYS, clock=clock, map_size=2**27
            ),
        }
        columns = {
            f"{name}, {kind}": run(make, fresh(), minutes)
            for name, make in stores.items()
            for kind, fresh in (("IPv4", ipv4), ("one IPv6 /48", ipv6))
        }
    counted = list(zip(*columns.values(), strict=True))
    rows: list[list[Cell]] = []
    for minute, row in enumerate(counted[: FLOOD_MINUTE + 4]):
        name = f"{minute + 1} (the flood)" if minute == FLOOD_MINUTE else str(minute + 1)
        rows.append([name, *row])
    if minutes > FLOOD_MINUTE + 4:
        later = [sum(column) for column in zip(*counted[FLOOD_MINUTE + 4 :], strict=True)]
        rows.append([f"{FLOOD_MINUTE + 5} to {minutes}, together", *later])
    yield Table("", {"minute": "", **dict.fromkeys(columns, "d")}, rows, f"Of {2 * HONEST:,} honest requests a minute.")
    if any(any(row) for row in counted[FLOOD_MINUTE + 3 :]):
        raise SystemExit("honest clients are still refused two windows after the flood")
