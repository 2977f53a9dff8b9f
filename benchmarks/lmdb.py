"""Hits on one host: `LmdbStore` with 1, 2 and 4 processes, against memory and against `limits` with Redis.

Every process sends hits from as many tasks as are named, over 64 keys; all are admitted. Hits are those of all
processes over the time in which they ran. The wait is that of single hits, in the process where it was longest; the
turn of the loop is how long other tasks of the application had to wait meanwhile; each is measured in a run of its own.

The peer counts on a redis-server of its own, which starts and ends with the benchmark; ``--alone`` leaves it out.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from slidegate import Decision, Limiter, MemoryStore, parse_limits
from slidegate.core import Bucket
from slidegate.stores.lmdb import LmdbStore

from .report.tables import Table

PACKAGES = ("lmdb", "limits", "redis")

AMOUNT = "100000000/hour"
KEYS = [f"user:{number}" for number in range(64)]
Hit = Callable[[str], Awaitable[object]]


class Candidate(NamedTuple):
    """One way to send hits: by how many processes and tasks, to which store."""

    name: str
    processes: int
    tasks: int
    make: Callable[[str], Hit]


def in_memory(place: str) -> Hit:
    limiter = Limiter(MemoryStore())
    return lambda key: limiter.hit(key, AMOUNT)


def in_a_file(place: str) -> Hit:
    limiter = Limiter(LmdbStore(place), deadline="10s", on_error="deny")
    return lambda key: limiter.hit(key, AMOUNT)


def without_a_limiter(place: str) -> Hit:
    store, asked = LmdbStore(place), Bucket("hit", parse_limits(AMOUNT))

    async def hit(key: str) -> object:
        answer = store.hit(((asked, key, 1),))
        return answer if isinstance(answer, Decision) else await answer

    return hit


def synced(place: str) -> Hit:
    limiter = Limiter(LmdbStore(f"{place}-safe", durability="safe"), deadline="10s", on_error="deny")
    return lambda key: limiter.hit(key, AMOUNT)


def over_redis(url: str) -> Callable[[str], Hit]:
    def make(place: str) -> Hit:
        from limits import parse
        from limits.aio.storage import RedisStorage
        from limits.aio.strategies import MovingWindowRateLimiter

        limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
        limit = parse("1000/hour")  # the most that a list of moments stays fast with
        return lambda key: limiter.hit(limit, key)

    return make


async def measure(hit: Hit, tasks: int, hits: int) -> dict[str, float]:
    """Send hits; return when it began and ended, and the 99th percentiles of waits and of turns of the loop."""
    waits_s: list[float] = []
    turns_s: list[float] = []

    async def work(number: int) -> None:
        for turn in range(hits // tasks):
            await hit(KEYS[(number + turn) % len(KEYS)])

    async def work_by_the_clock(number: int) -> None:
        for turn in range(hits // tasks):
            started_s = time.perf_counter()
            await hit(KEYS[(number + turn) % len(KEYS)])
            waits_s.append(time.perf_counter() - started_s)

    async def watch() -> None:
        while True:
            started_s = time.perf_counter()
            await asyncio.sleep(0)
            turns_s.append(time.perf_counter() - started_s)

    await asyncio.gather(*(hit(key) for key in KEYS))  # opens files and connections
    began_s = time.monotonic()
    await asyncio.gather(*map(work, range(tasks)))
    ended_s = time.monotonic()
    await asyncio.gather(*map(work_by_the_clock, range(tasks)))
    watching = asyncio.create_task(watch())
    await asyncio.gather(*map(work, range(tasks)))
    watching.cancel()
    return {"began": began_s, "ended": ended_s, "wait": percentile(waits_s), "turn": percentile(turns_s)}


def percentile(spans_s: list[float]) -> float:
    """Return the 99th; 0 of none, as where there are fewer hits than tasks."""
    return sorted(spans_s)[int(len(spans_s) * 0.99)] if spans_s else 0.0


@contextmanager
def forked(candidate: Candidate, place: str, hits: int) -> Iterator[list[int]]:
    """Run processes that begin together; yield the ends of their pipes."""
    gate_reading, gate_writing = os.pipe()
    pipes = []
    for _ in range(candidate.processes):
        reading, writing = os.pipe()
        pipes.append(reading)
        if not os.fork():
            try:
                os.close(gate_writing)
                hit = candidate.make(place)
                os.read(gate_reading, 1)
                os.write(writing, json.dumps(asyncio.run(measure(hit, candidate.tasks, hits))).encode())
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        os.close(writing)
    os.close(gate_reading)
    time.sleep(0.2)  # until all stand at the gate
    os.close(gate_writing)
    yield pipes
    for _ in pipes:
        os.wait()


def play(candidate: Candidate, place: str, hits: int) -> tuple[float, float, float]:
    """Return hits a second of all processes, and the 99th percentiles in microseconds."""
    with forked(candidate, place, hits) as pipes:
        seen: list[dict[str, Any]] = []
        for reading in pipes:
            with open(reading, "rb") as pipe:
                seen.append(json.loads(pipe.read()))
    span_s = max(one["ended"] for one in seen) - min(one["began"] for one in seen)
    done = hits // candidate.tasks * candidate.tasks * candidate.processes
    return done / span_s, max(one["wait"] for one in seen) * 1e6, max(one["turn"] for one in seen) * 1e6


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hits", type=int, default=40_000, help="of each process")
    parser.add_argument("--alone", action="store_true", help="without the peer, which needs a redis-server")


def in_turn(
    candidates: list[Candidate], place: str, options: Namespace
) -> dict[Candidate, list[tuple[float, float, float]]]:
    """Play every candidate once in each round."""
    taken: dict[Candidate, list[tuple[float, float, float]]] = {candidate: [] for candidate in candidates}
    for number in range(options.rounds):
        for candidate in candidates:
            slow = candidate.make not in (in_memory, in_a_file, without_a_limiter)
            hits = options.hits // 10 if slow else options.hits
            taken[candidate].append(play(candidate, str(Path(place) / str(number)), hits))
    return taken


def tables(options: Namespace) -> Iterator[Table]:
    """Let all candidates send hits in turn."""
    candidates = [Candidate("memory", 1, tasks, in_memory) for tasks in (1, 64)]
    candidates += [Candidate("LMDB", processes, tasks, in_a_file) for processes in (1, 2, 4) for tasks in (1, 64)]
    candidates += [Candidate("LMDB, the store alone", 1, tasks, without_a_limiter) for tasks in (1, 64)]
    candidates += [Candidate('LMDB, durability="safe"', 1, 64, synced)]
    with ExitStack() as stack:
        if not options.alone:
            from .redis import ready, server

            url, _ = stack.enter_context(server())
            asyncio.run(ready(url))
            candidates += [Candidate("limits with Redis", count, 64, over_redis(url)) for count in (1, 2, 4)]
        place = stack.enter_context(tempfile.TemporaryDirectory())
        taken = in_turn(candidates, place, options)
    columns = {"what": "", "processes": "d", "tasks each": "d", "hits/s": ",.0f"}
    columns |= {"p99 of the wait, us": ",.0f", "p99 of a turn of the loop, us": ",.0f"}
    yield Table("", columns, [
        [candidate.name, candidate.processes, candidate.tasks, *map(median, zip(*rows, strict=True))]
        for candidate, rows in taken.items()
    ])  # fmt: skip
