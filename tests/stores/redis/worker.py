"""Processes that hit a limit on a shared Redis, and when their requests were admitted, by the store's time."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Barrier
from typing import Final

BOUND_S: Final = 60
TASKS: Final = 16
"""How many requests of a process wait at the same time."""
SPAWN: Final = get_context("spawn")


@dataclass(frozen=True)
class Orders:
    """The work of one process.

    Attributes:
        url: The store.
        limit: For example ``"777/hour"``.
        hits: How many hits it makes; None for as many as fit into `span_us`.
        span_us: How long it goes on, by the store's time, if `hits` is None.
        skew_s: The error of its clocks.
        key: The key that is counted.
        may_fail: Whether the store may not answer now and then; otherwise it has time that only a hang uses up.
    """

    url: str
    limit: str
    hits: int | None = None
    span_us: int = 0
    skew_s: float = 0.0
    key: str = "key"
    may_fail: bool = False


class Worker:
    def __init__(self, orders: Orders, start: Barrier | None = None) -> None:
        self._times, pipe = SPAWN.Pipe(duplex=False)
        self._process = SPAWN.Process(target=run, args=(orders, start, pipe))
        self._process.start()
        pipe.close()

    def times_us(self) -> list[int]:
        """Return when its requests were admitted, once it has made them all."""
        assert self._times.poll(BOUND_S), "it hangs"
        times: list[int] = self._times.recv()
        return times

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._times.close()


@contextmanager
def at_work(orders: Sequence[Orders]) -> Iterator[list[int]]:
    """Let workers go at the same time; when requests were admitted stands in the list at the end, in order."""
    start, times_us = SPAWN.Barrier(len(orders)), list[int]()
    workers = [Worker(order, start) for order in orders]
    try:
        yield times_us
        times_us += sorted(time_us for worker in workers for time_us in worker.times_us())
    finally:
        for worker in workers:
            worker.kill()


def admitted_by(orders: Sequence[Orders]) -> list[int]:
    with at_work(orders) as times_us:
        pass
    return times_us


def run(orders: Orders, start: Barrier | None, pipe: Connection) -> None:
    skew(orders.skew_s)
    pipe.send(asyncio.run(work(orders, start)))


def skew(by_s: float) -> None:
    """Let the clocks of this process be wrong."""
    assert "slidegate" not in sys.modules, "it has the right clocks already"
    for name, unit in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("monotonic_ns", 10**9)):
        right = getattr(time, name)
        setattr(time, name, partial(_shifted, right, type(right())(by_s * unit)))


def _shifted(clock: Callable[[], float], by: float) -> float:
    return clock() + by


async def work(orders: Orders, start: Barrier | None) -> list[int]:
    from slidegate import Limiter

    times: list[int] = []

    async def hit(limiter: Limiter) -> int:
        decision = await limiter.hit(orders.key, orders.limit)
        assert orders.may_fail or decision.reason != "unavailable"
        if decision.allowed:
            times.append(decision.now_us)
        return decision.now_us

    async def take_turns(limiter: Limiter, hits: int | None, end_us: int) -> None:
        while hits is None or hits > 0:
            if await hit(limiter) >= end_us and hits is None:
                return
            hits = hits if hits is None else hits - 1

    timeout = "" if orders.may_fail else f"{'&' if '?' in orders.url else '?'}timeout=30s"
    async with Limiter.from_url(orders.url + timeout, deadline="30s", on_error="deny") as limiter:
        await limiter.peek(orders.key, orders.limit)
        if start:
            start.wait(BOUND_S)
        share = None if orders.hits is None else orders.hits // TASKS
        end_us = await hit(limiter) + orders.span_us if orders.hits is None else 0
        await asyncio.gather(*(take_turns(limiter, share, end_us) for _ in range(TASKS)))
    return times
