"""Bans: the cost that they add to a hit and to a garbage collection, of a banned key, and of a strike."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

from starlette.types import Receive, Scope, Send

from benchmarks.measure import Candidate, compared, rounds
from benchmarks.report.tables import Cell, Table
from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware
from slidegate.core import Bucket, parse_limits
from slidegate.core.addresses import format_network, parse_address
from slidegate.stores.lmdb import LmdbStore
from slidegate.web.bans import Signal

HITS = 20_000
BANS = 100_000
FIRST = 0x20010DB8 << 96
CLIENT = "203.0.113.9"
HOUR_US = 3_600_000_000

NO_BAN = "hit, no ban"
OTHERS = f"hit, {BANS:,} bans in force, none of them the client's"
BANNED = "hit of a banned address"
HELD = "hit of an address in a banned network"
STRIKE = "strike of one key, of 10,000 in 10 minutes"
STRIKE_OF_A_GATE = "the same by a gate"


def with_bans(count: int) -> MemoryStore:
    """Return a store with the bans of `count` /64s, and of a few networks of other lengths."""
    store = MemoryStore(max_bans=BANS)
    for number in range(count):
        store.bans.ban(format_network(6, FIRST + (number << 64), 64), HOUR_US, "benchmark", "benchmark")
    for network in ("198.51.100.0/24", "192.0.2.0/25", "192.0.2.240/28") if count else ():
        store.bans.ban(network, HOUR_US, "benchmark", "benchmark")
    return store


def hits(store: MemoryStore, client: str, *, allowed: bool) -> Candidate:
    """Return a candidate that hits one key, with the client's address beside it."""
    bucket = Bucket("rule", parse_limits("1000000000/minute"))
    address = parse_address(client)
    assert address is not None
    checks, subjects = ((bucket, client, 1),), (address,)

    async def run() -> float:
        passed = 0
        started_s = time.perf_counter()
        for _ in range(HITS):
            passed += store.hit(checks, subjects).allowed
        taken_s = time.perf_counter() - started_s
        if passed != HITS * allowed:
            raise RuntimeError(f"{passed} of {HITS} hits passed")
        return taken_s / HITS * 1_000_000

    return run


def strikes(store: MemoryStore, policy: BanPolicy, key: Callable[[int], str]) -> Candidate:
    """Return a candidate that strikes, under a policy that has made all the bans that it may."""
    store.bans.strike(policy, "user:decoy", 1_000_000, "benchmark")

    async def run() -> float:
        keys = [key(number) for number in range(HITS)]
        started_s = time.perf_counter()
        for struck in keys:
            store.bans.strike(policy, struck, 1, "benchmark")
        return (time.perf_counter() - started_s) / HITS * 1_000_000

    return run


def strikes_of_a_gate(policy: BanPolicy) -> Candidate:
    """Return a candidate that strikes as a gate does, by the address of the client."""
    limiter = Limiter()
    limiter.store.bans.strike(policy, "user:decoy", 1_000_000, "benchmark")
    gate = RateLimitMiddleware(nothing, rules=[], limiter=limiter, bans=policy, statistics=False)
    signals, signal = gate._view.signals, Signal(policy, 1, "benchmark")
    scope: Scope = {"type": "http", "client": (CLIENT, 4711), "headers": []}

    async def run() -> float:
        started_s = time.perf_counter()
        for _ in range(HITS):
            await signals.strike(signal, scope)
        return (time.perf_counter() - started_s) / HITS * 1_000_000

    return run


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand below a gate."""


def bytes_held(fill: Callable[[MemoryStore, int], object], count: int) -> float:
    """Return the bytes that a store holds for each of `count` fillings."""
    store = MemoryStore(max_bans=count)
    for _ in range(11_000):  # so that the history, which is bounded, is full
        store.bans.ban("user:0", HOUR_US, "", "")
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        fill(store, number)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / count


def collection_ms() -> float:
    """Return how long a full run of the garbage collector takes, in CPU time: the shortest of several."""
    taken_s = []
    for _ in range(10):
        started_s = time.process_time()
        gc.collect()
        taken_s.append(time.process_time() - started_s)
    return min(taken_s) * 1_000


def collections(folder: str) -> dict[str, float]:
    """Return how much longer a full run of the garbage collector takes beside a worker's bans, by store, in ms."""
    rows = with_bans(BANS).bans.dump()

    def memory() -> object:
        store = with_bans(BANS)
        for number in range(10_000):
            store.bans.ban("user:0", number, "benchmark", "benchmark")
        return store

    def lmdb() -> object:
        store = LmdbStore(folder, max_bans=2 * BANS)
        store.bans.load(rows)
        return store

    longer_ms = {}
    for name, make in (("memory", memory), ("LMDB", lmdb)):
        before_ms = collection_ms()
        kept = make()
        longer_ms[name] = collection_ms() - before_ms
        del kept
    return longer_ms


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=25)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure hits and strikes, garbage collections, and memory."""
    logging.disable()
    full = with_bans(BANS)
    full.bans.ban(CLIENT, HOUR_US, "benchmark", "benchmark")
    rare, many = BanPolicy("64/10m", max_rate="1/400d"), BanPolicy("10000/10m", max_rate="1/400d")
    candidates = {
        NO_BAN: hits(with_bans(0), "203.0.113.8", allowed=True),
        OTHERS: hits(full, "203.0.113.8", allowed=True),
        BANNED: hits(full, CLIENT, allowed=False),
        HELD: hits(full, "192.0.2.7", allowed=False),
        "strike of one key, 64 remembered": strikes(MemoryStore(), rare, lambda number: CLIENT),
        STRIKE: strikes(MemoryStore(), many, lambda number: CLIENT),
        STRIKE_OF_A_GATE: strikes_of_a_gate(many),
        f"strike of one of {HITS:,} keys": strikes(MemoryStore(), rare, lambda number: f"user:{number}"),
        "strike of a banned key": strikes(full, rare, lambda number: CLIENT),
    }
    taken = asyncio.run(rounds(candidates, options.rounds))
    yield compared("One hit or strike", taken, {OTHERS: NO_BAN, BANNED: NO_BAN, HELD: NO_BAN, STRIKE_OF_A_GATE: STRIKE})
    with TemporaryDirectory() as folder:
        longer: list[list[Cell]] = [[name, longer_ms] for name, longer_ms in collections(folder).items()]
    yield Table("A full garbage collection", {f"beside {BANS:,} bans": "", "ms longer": ".1f"}, longer)
    networks = [format_network(6, FIRST + (number << 64), 64) for number in range(BANS)]
    ban = bytes_held(lambda store, number: store.bans.ban(networks[number], HOUR_US, "why", "abuse"), BANS)
    once = bytes_held(lambda store, number: store.bans.strike(rare, networks[number], 1, "why"), BANS)
    often = bytes_held(lambda store, number: store.bans.strike(rare, networks[number // 63], 1, "why"), 63_000) * 63
    held: list[list[Cell]] = [["a ban of a /64", round(ban)], ["one strike", round(once)], ["63 strikes", round(often)]]
    yield Table("Memory beyond the key", {"what": "", "bytes": "d"}, held)
