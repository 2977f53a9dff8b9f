"""Memory: the bytes of a key, and a flood of one-hit keys that has to stay within `max_keys`."""

from __future__ import annotations

import gc
import resource
import time
import tracemalloc
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from slidegate import Limit, MemoryStore
from slidegate.core import Bucket

from .report.tables import Cell, Table

KEYS = 100_000


def bytes_per_key(limit: Limit, hits: int, step_us: int) -> float:
    """Return the bytes beyond the key's text that a store holds for each of `KEYS` keys after `hits` hits each."""
    now_us = [10**12]
    store = MemoryStore(max_keys=KEYS, clock=lambda: now_us[0])
    bucket = Bucket("rule", (limit,))
    keys = [f"client:{number}" for number in range(KEYS)]
    gc.collect()
    tracemalloc.start()
    for _ in range(hits):
        for key in keys:
            store.hit(((bucket, key, 1),))
        now_us[0] += step_us
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / KEYS


def flood(count: int) -> list[list[Cell]]:
    """Send `count` keys through a store that soon is full, and between them 100 keys that ask more than they may.

    Half of the watched keys come first and have windows of their own; half come when the store is full. Return the rows
    of the table.
    """
    now_us = [10**12]
    store = MemoryStore(max_keys=KEYS, clock=lambda: now_us[0])
    bucket = Bucket("rule", (Limit(100, "1m", resolution=10),))
    watched = {f"watched:{number}": 0 for number in range(100)}
    started_s = time.perf_counter()
    slowest_s = 0.0
    for number in range(count):
        before_s = time.perf_counter()
        store.hit(((bucket, f"one-hit:{number}", 1),))
        slowest_s = max(slowest_s, time.perf_counter() - before_s)
        if number % 1_000 == 0:
            now_us[0] += 1_000
            late = number >= count // 2
            for key in list(watched)[: 100 if late else 50]:
                watched[key] += store.hit(((bucket, key, 1),)).allowed
    minutes = (now_us[0] - 10**12) // 60_000_000 + 1
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if max(watched.values()) > 100 * minutes or peak_mib > 250:
        raise SystemExit(f"a bound was passed: {max(watched.values())} admitted, {peak_mib:.0f} MiB")
    return [
        [f"{count:,} one-hit keys", time.perf_counter() - started_s, "s"],
        ["peak resident memory of the process", round(peak_mib), "MiB"],
        ["windows held at the end", store.stats().keys, ""],
        ["hits counted in shared cells", store.stats().shared_hits, ""],
        ["slowest single hit", slowest_s * 1000, "ms"],
        [f"most admitted of any watched key, 100 allowed a minute, {minutes} minutes", max(watched.values()), ""],
    ]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=10_000_000)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure the flood first, so that the peak is its own."""
    rows = flood(options.keys)
    for text, limit, hits, step_us in (
        ("one hit, resolution 64", Limit(100, "1m"), 1, 0),
        ("20 hits over the window, 100/minute, resolution 10", Limit(100, "1m", resolution=10), 20, 3_000_000),
        ("20 hits over the window, 1,000,000/minute, resolution 10", Limit(10**6, "1m", resolution=10), 20, 3_000_000),
        ("20 hits, 10/minute, resolution 10 (timestamps)", Limit(10, "1m", resolution=10), 20, 3_000_000),
        ("64 hits over the window, 100/minute, resolution 64", Limit(100, "1m"), 64, 937_500),
    ):
        rows.append([f"a key: {text}", round(bytes_per_key(limit, hits, step_us)), "bytes"])
    yield Table("", {"what": "", "measured": ",.2f", "unit": ""}, rows)
