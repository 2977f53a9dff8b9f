"""The memory store: the bytes per key, and the pauses with a million keys; and the time of `import slidegate`.

Bytes are measured by tracemalloc; those of a key exclude its text. Times are CPU times of the thread. The store has a
fake clock: after the windows of the million keys have expired, other keys are hit until all expired ones are dropped.

Imports are compared with `import starlette.applications`, a part of which slidegate imports too, by the processor time
of fresh interpreters. Other programs can only increase that, so the minimum of all rounds counts. `-I` ignores the
environment, and the bytecode of every module is already cached.
"""

import gc
import resource
import subprocess
import sys
import time
import timeit
import tracemalloc
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Final

from slidegate import Limit, MemoryStore
from slidegate.core import Bucket

from .rounds import ROOT, show

KEYS: Final = 20_000
LATER: Final = 1_000


def bytes_per_key(name: str, limit: Limit, hits: int, target: str) -> list[str]:
    """Return the row of the bytes that a store uses for each of `KEYS` keys after `hits` hits of each."""
    now_us = [10**12]
    store = MemoryStore(max_keys=KEYS, clock=lambda: now_us[0])
    bucket, keys = Bucket("rule", (limit,)), [f"client:{number}" for number in range(KEYS)]
    gc.collect()
    tracemalloc.start()
    for _ in range(hits):
        for key in keys:
            store.hit(((bucket, key, 1),))
        now_us[0] += 60_000_000 // hits
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [f"bytes of a key after {name}", f"{used / KEYS:.1f}", target]


def collected_ms() -> float:
    """Return the shortest time of three full garbage collections, in milliseconds."""
    return min(timeit.repeat(gc.collect, timer=time.thread_time, number=1, repeat=3)) * 1_000


def longest_hit_ms(store: MemoryStore, bucket: Bucket, keys: Iterable[str]) -> float:
    """Hit each key once; return the longest time in milliseconds."""
    longest_ns = 0
    for key in keys:
        began_ns = time.thread_time_ns()
        store.hit(((bucket, key, 1),))
        longest_ns = max(longest_ns, time.thread_time_ns() - began_ns)
    return longest_ns / 1_000_000


def many_keys(number: int) -> list[list[str]]:
    """Return the rows of a store with many keys: while they are added, while they live, and while they expire."""
    bucket, now_us = Bucket("rule", (Limit(100_000, "10s"),)), [10**12]
    without_ms = collected_ms()
    store = MemoryStore(max_keys=number + LATER, clock=lambda: now_us[0])
    coming_ms = longest_hit_ms(store, bucket, (f"client:{key}" for key in range(number)))
    longer_ms = collected_ms() - without_ms
    going_ms, later = 0.0, [f"later:{key}" for key in range(LATER)]
    while store.key_count() > LATER:
        now_us[0] += 11_000_000
        going_ms = max(going_ms, longest_hit_ms(store, bucket, later))
    return [
        [f"ms that {number:,} keys add to a full garbage collection", f"{longer_ms:.1f}", "≤10"],
        ["ms of the longest hit while they are added", f"{coming_ms:.1f}", "≤5"],
        ["ms of the longest hit while they expire", f"{going_ms:.1f}", "≤5"],
    ]


def spent_ms(code: str) -> float:
    """Return the processor time of a new interpreter that runs some code, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); "
    subprocess.run([sys.executable, "-I", "-c", path + code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1_000


def importing(rounds: int) -> list[str]:
    """Return the row of the imports, which are measured alternately."""
    codes = ("pass", "import starlette.applications", "import slidegate")
    taken = [[spent_ms(code) for code in codes] for _ in range(rounds + 1)]
    nothing, starlette, ours = map(min, zip(*taken[1:], strict=True))
    return ["importing slidegate, relative to Starlette", f"{(ours - nothing) / (starlette - nothing):.2f}", "≤1.35"]


def main(parser: ArgumentParser) -> None:
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30, help="of the imports")
    options = parser.parse_args()
    usual = Limit(100, "1m")
    rows = [
        *many_keys(options.keys),  # first, while the process contains nothing else
        bytes_per_key("one hit", usual, 1, "≤120"),
        bytes_per_key("20 hits over the window, resolution 10", Limit(100, "1m", resolution=10), 20, "≤240"),
        bytes_per_key("20 hits over the window, resolution 64", usual, 20, "≤340"),
        importing(options.rounds),
    ]
    show("", ["what", "measured", "target"], rows)
