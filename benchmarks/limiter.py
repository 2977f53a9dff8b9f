"""One hit in memory, without HTTP: `await limiter.hit` against the exact moving window of `limits`.

64 keys in turn, 100 in an hour for each; every round starts with empty stores, so its first 100 turns are admitted and
the next 100 refused.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from slidegate import Limiter

from .measure import compared, rounds
from .report.tables import Table

PACKAGES = ("limits",)

KEYS = [f"user:{number}" for number in range(64)]
Turns = Callable[[bool], Awaitable[None]]
"""Asks 100 times for each key, and checks that every answer is the expected one."""


def ours(limit: str) -> Turns:
    """Return the turns of a limiter of ours that is new."""
    return turns_of(Limiter().hit, [(key, limit) for key in KEYS])


def theirs() -> Turns:
    """Return the turns of a moving window of `limits` that is new."""
    limit = parse("100/hour")
    return turns_of(MovingWindowRateLimiter(MemoryStorage()).hit, [(limit, key) for key in KEYS])


def turns_of(hit: Callable[..., Awaitable[object]], questions: Sequence[tuple[object, object]]) -> Turns:
    """Return the turns of one method: it is called as it is, so that no call around it is measured."""

    async def turns(expected: bool) -> None:
        for _ in range(100):
            for first, second in questions:
                if bool(await hit(first, second)) is not expected:
                    raise RuntimeError("the wrong answer")

    return turns


def candidate(fresh: Callable[[], Turns], refused: bool) -> Callable[[], Awaitable[float]]:
    """Return a candidate that measures hits that are admitted, or those that are refused after them."""

    async def run() -> float:
        turns = fresh()
        if refused:
            await turns(True)
        started_s = time.perf_counter()
        await turns(not refused)
        return (time.perf_counter() - started_s) / (100 * len(KEYS)) * 1_000_000

    return run


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure both outcomes."""
    peer = "limits, moving window"
    for outcome, refused in (("admitted", False), ("refused", True)):
        candidates = {
            "slidegate, counters (resolution 64)": candidate(partial(ours, "100/hour"), refused),
            "slidegate, timestamps (resolution 100)": candidate(partial(ours, "100/hour @100"), refused),
            peer: candidate(theirs, refused),
        }
        taken = asyncio.run(rounds(candidates, options.rounds))
        yield compared(f"One hit, {outcome}", taken, dict.fromkeys(list(candidates)[:-1], peer))
