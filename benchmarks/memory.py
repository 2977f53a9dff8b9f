"""Memory: the bytes of a key, and a flood of one-hit keys that has to stay within `max_keys`."""

from __future__ import annotations

import argparse
import gc
import resource
import time
import tracemalloc

from slidegate import Limit, MemoryStore
from slidegate.core import Bucket

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


def flood(count: int) -> None:
    """Send `count` keys through a store that soon is full, and between them 100 keys that ask more than they may.

    Half of the watched keys come first and have windows of their own; half come when the store is full.
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
    print(f"| one-hit keys | {count:,} in {time.perf_counter() - started_s:.0f} s |")
    print(f"| peak resident memory of the process | {peak_mib:.0f} MiB |")
    print(f"| windows held at the end | {store.stats().keys:,} |")
    print(f"| hits counted in shared cells | {store.stats().shared_hits:,} |")
    print(f"| slowest single hit | {slowest_s * 1000:.2f} ms |")
    print(f"| most admitted of any watched key, 100 allowed a minute, {minutes} minutes | {max(watched.values())} |")
    if max(watched.values()) > 100 * minutes or peak_mib > 250:
        raise SystemExit("a bound was passed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    options = parser.parse_args()
    print("| what | |\n| --- | --- |")
    flood(options.keys)
    for text, limit, hits, step_us in (
        ("one hit, resolution 64", Limit(100, "1m"), 1, 0),
        ("20 hits over the window, 100/minute, resolution 10", Limit(100, "1m", resolution=10), 20, 3_000_000),
        ("20 hits over the window, 1,000,000/minute, resolution 10", Limit(10**6, "1m", resolution=10), 20, 3_000_000),
        ("20 hits, 10/minute, resolution 10 (timestamps)", Limit(10, "1m", resolution=10), 20, 3_000_000),
        ("64 hits over the window, 100/minute, resolution 64", Limit(100, "1m"), 64, 937_500),
    ):
        print(f"| bytes a key: {text} | {bytes_per_key(limit, hits, step_us):.0f} |")


if __name__ == "__main__":
    main()
