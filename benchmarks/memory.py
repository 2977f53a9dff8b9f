"""The memory store: the bytes per key, and the pauses with a million keys.

Bytes exclude the text of the key, and are measured by tracemalloc. Times are CPU times of the thread. The store has a
fake clock: after the windows of the million keys have expired, other keys are hit until all expired ones are dropped.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Final

from slidegate import Limit, MemoryStore
from slidegate.core import LimitSet

from .table import Cell, Table

KEYS: Final = 20_000
START_US: Final = 10**12
LATER: Final = 1_000
EACH_KEY: Final = {
    "bytes of a key after one hit": (Limit(100, "1m"), 1, "≤120"),
    "bytes of a key after 20 hits over the window, resolution 10": (Limit(100, "1m", resolution=10), 20, "≤240"),
    "bytes of a key after 20 hits over the window, resolution 64": (Limit(100, "1m"), 20, "≤340"),
}
"""Rows by name: the limit, the hits per key, and the target."""


def bytes_per_key(limit: Limit, hits: int) -> float:
    """Return the bytes that a store uses for each of `KEYS` keys after `hits` hits of each."""
    now_us = [START_US]
    store = MemoryStore(max_keys=KEYS, clock=lambda: now_us[0])
    bucket = LimitSet("rule", (limit,))
    keys = [f"client:{number}" for number in range(KEYS)]
    gc.collect()
    tracemalloc.start()
    for _ in range(hits):
        for key in keys:
            store.hit(((bucket, key, 1),))
        now_us[0] += 60_000_000 // hits
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / KEYS


def collected_ms() -> float:
    """Return the shortest time of three full garbage collections, in milliseconds."""
    taken: list[int] = []
    for _ in range(3):
        began_ns = time.thread_time_ns()
        gc.collect()
        taken.append(time.thread_time_ns() - began_ns)
    return min(taken) / 1_000_000


def timed_hit_ms(store: MemoryStore, bucket: LimitSet, key: str) -> float:
    """Hit a key once; return the time in milliseconds."""
    checks = ((bucket, key, 1),)
    began_ns = time.thread_time_ns()
    store.hit(checks)
    return (time.thread_time_ns() - began_ns) / 1_000_000


def many_keys(number: int) -> list[list[Cell]]:
    """Return the rows of a store with many keys: while they are added, while they live, and while they expire."""
    bucket = LimitSet("rule", (Limit(100_000, "10s"),))
    without_ms = collected_ms()
    store = MemoryStore(max_keys=number + LATER)
    coming_ms = max(timed_hit_ms(store, bucket, f"client:{key}") for key in range(number))
    longer_ms = collected_ms() - without_ms
    going_ms = 0.0
    while store.stats().keys > LATER:
        going_ms = max(going_ms, *(timed_hit_ms(store, bucket, f"later:{key}") for key in range(LATER)))
    return [
        [f"ms that {number:,} keys add to a full garbage collection", longer_ms, "≤10"],
        ["ms of the longest hit while they are added", coming_ms, "≤5"],
        ["ms of the longest hit while they expire", going_ms, "≤5"],
    ]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=1_000_000)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure the many keys first, while the process contains nothing else."""
    rows = many_keys(options.keys)
    rows += [[name, bytes_per_key(limit, hits), asked] for name, (limit, hits, asked) in EACH_KEY.items()]
    yield Table("", {"what": "", "measured": ",.1f", "asked": ""}, rows)
