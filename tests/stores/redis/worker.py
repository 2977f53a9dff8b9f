"""Processes that hit a limit on a shared Redis, and when their requests were admitted, by the store's time."""

import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from threading import Barrier
from typing import Final

BOUND_S: Final = 60
TASKS: Final = 16
"""How many requests of a process wait at the same time."""
SPAWN: Final = get_context("spawn")
_starts: list[Barrier] = []
"""The barrier of this process, if it has one."""


@dataclass(frozen=True)
class Orders:
    """The work of one process.

    Attributes:
        url: The store.
        limit: For example ``"777/hour"``.
        span_us: How long it goes on, by the store's time.
        skew_s: The error of its clocks.
        may_fail: Whether the store may not answer now and then; otherwise it has time that only a hang uses up.
    """

    url: str
    limit: str
    span_us: int
    skew_s: float = 0.0
    may_fail: bool = False


@contextmanager
def at_work(*orders: Orders) -> Iterator[list[int]]:
    """Let workers go at the same time; when requests were admitted stands in the list at the end, in order."""
    times_us, start = list[int](), SPAWN.Barrier(len(orders))
    with ProcessPoolExecutor(len(orders), SPAWN, initializer=meet_at, initargs=(start,)) as pool:
        works = [pool.submit(work, each) for each in orders]
        yield times_us
        times_us += sorted(chain.from_iterable(each.result(BOUND_S) for each in works))


def meet_at(start: Barrier) -> None:
    _starts.append(start)


def work(orders: Orders) -> list[int]:
    """Do the work of a process that has imported nothing yet; return when its requests were admitted."""
    assert "slidegate" not in sys.modules, "it has the right clocks already"
    for name, unit in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("monotonic_ns", 10**9)):
        right = getattr(time, name)
        setattr(time, name, partial(lambda right, by: right() + by, right, type(right())(orders.skew_s * unit)))
    return asyncio.run(hits(orders))


async def hits(orders: Orders) -> list[int]:
    from slidegate import Limiter

    times: list[int] = []

    async def hit() -> int:
        decision = await limiter.hit("key", orders.limit)
        assert orders.may_fail or decision.reason != "unavailable"
        if decision.allowed:
            times.append(decision.now_us)
        return decision.now_us

    async def hit_until(end_us: int) -> None:
        while await hit() < end_us:
            pass

    timeout = "" if orders.may_fail else f"{'&' if '?' in orders.url else '?'}timeout=30s"
    async with Limiter.from_url(orders.url + timeout, deadline="30s", on_error="deny") as limiter:
        await limiter.peek("key", orders.limit)
        for start in _starts:
            start.wait(BOUND_S)
        end_us = await hit() + orders.span_us
        await asyncio.gather(*(hit_until(end_us) for _ in range(TASKS)))
    return times
