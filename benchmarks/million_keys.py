"""A million keys in a memory store: what the garbage collector, the longest hit and a walk over all of them cost.

Times are CPU times of the thread. Ratios are medians over rounds, in which 64 keys of a store of their own take turns
with 10,000 keys of the million, then with parts of a walk over all keys.
"""

from __future__ import annotations

import gc
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from statistics import median

from slidegate import Limit, MemoryStore
from slidegate.core import Bucket

from .report.tables import Table

HITS = 50_000
BUCKET = Bucket("rule", (Limit(100_000, "1h"),))


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)


def collected_ms() -> float:
    """Return the least time of three full garbage collections."""
    taken: list[int] = []
    for _ in range(3):
        began_ns = time.thread_time_ns()
        gc.collect()
        taken.append(time.thread_time_ns() - began_ns)
    return min(taken) / 1_000_000


def fill(store: MemoryStore, keys: int) -> float:
    """Hit each key once; return the milliseconds of the longest hit."""
    longest_ns = 0
    for number in range(keys):
        checks = ((BUCKET, f"client:{number}", 1),)
        began_ns = time.thread_time_ns()
        store.hit(checks)
        longest_ns = max(longest_ns, time.thread_time_ns() - began_ns)
    return longest_ns / 1_000_000


def hit_ns(store: MemoryStore, keys: Sequence[str], hits: int = HITS) -> float:
    """Return the time of one hit, in turn over the keys."""
    turns = max(hits // len(keys), 1)
    began_ns = time.thread_time_ns()
    for _ in range(turns):
        for key in keys:
            store.hit(((BUCKET, key, 1),))
    return (time.thread_time_ns() - began_ns) / (turns * len(keys))


def together_s(stores: Sequence[MemoryStore]) -> float:
    """Return how long threads take that hit a key each, every one in the store at its place."""
    threads = [threading.Thread(target=hit_ns, args=(store, [f"thread:{place}"])) for place, store in enumerate(stores)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


def tables(options: Namespace) -> Iterator[Table]:
    count, rounds = options.keys, options.rounds
    without_ms = collected_ms()
    store, small = MemoryStore(max_keys=count + 64), MemoryStore()
    longest_ms = fill(store, count)
    cold_ms = collected_ms()
    keys = [f"client:{number}" for number in range(count)]
    hot, few, part = keys[:10_000], keys[:64], max(count // rounds, 1)
    hit_ns(store, hot, 4 * HITS)  # they come up
    gc.freeze()  # the list of keys is not the store's
    hot_ratios, walk_ratios, lock_ratios = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        hot_ratios.append(hit_ns(store, hot) / hit_ns(small, few))
        lock_ratios.append(together_s([small, small]) / together_s([MemoryStore(), MemoryStore()]))
    for number in range(rounds):
        few_ns = hit_ns(small, few)
        walk_ratios.append(hit_ns(store, keys[number * part :][:part], part) / few_ns)
    yield Table(
        "",
        {"what": "", "measured": ".2f", "at most": ".2f"},
        [
            [f"a full garbage collection beside {count:,} keys takes longer by, ms", cold_ms - without_ms, 10.0],
            ["the longest first hit while they come, ms", longest_ms, 5.0],
            ["10,000 of them in turn, to 64 keys alone", median(hot_ratios), 1.3],
            ["a walk over all of them, to 64 keys alone", median(walk_ratios), 3.0],
            ["two threads on one store, to two on a store each", median(lock_ratios), None],
        ],
    )
