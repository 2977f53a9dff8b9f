"""One hit in memory, without HTTP: `await limiter.hit` against the exact moving window of `limits`.

64 keys in turn, 100 in an hour for each; every round starts with empty stores, so its first 100 turns are admitted and
the next 100 refused.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from slidegate import Limiter

from .measure import compared, rounds
from .report.tables import Table

PACKAGES = ("limits",)

KEYS = [f"user:{number}" for number in range(64)]
Hit = Callable[[str], Awaitable[object]]


def ours(limit: str) -> Callable[[], Hit]:
    def fresh() -> Hit:
        limiter = Limiter()
        return lambda key: limiter.hit(key, limit)

    return fresh


def theirs() -> Hit:
    limiter, limit = MovingWindowRateLimiter(MemoryStorage()), parse("100/hour")
    return lambda key: limiter.hit(limit, key)


def candidate(fresh: Callable[[], Hit], refused: bool) -> Callable[[], Awaitable[float]]:
    async def run() -> float:
        hit = fresh()
        taken_s = 0.0
        for half in (False, True):
            started_s = time.perf_counter()
            for _ in range(100):
                for key in KEYS:
                    answer = await hit(key)
                    if bool(answer) is half:
                        raise RuntimeError("the wrong answer")
            if half is refused:
                taken_s = time.perf_counter() - started_s
        return taken_s / (100 * len(KEYS)) * 1_000_000

    return run


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both outcomes."""
    peer = "limits, moving window"
    for outcome, refused in (("admitted", False), ("refused", True)):
        candidates = {
            "slidegate, counters (resolution 64)": candidate(ours("100/hour"), refused),
            "slidegate, timestamps (resolution 100)": candidate(ours("100/hour @100"), refused),
            peer: candidate(theirs, refused),
        }
        taken = asyncio.run(rounds(candidates, options.rounds))
        yield compared(f"One hit, {outcome}", taken, dict.fromkeys(list(candidates)[:-1], peer))
