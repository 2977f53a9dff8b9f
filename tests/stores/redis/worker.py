"""Processes that hit a limit on a shared Redis, and when their requests were admitted, by the store's time."""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from multiprocessing import get_context
from threading import Barrier
from typing import Any, Final

BOUND_S: Final = 60
TASKS: Final = 16
"""How many requests of a process wait at the same time."""
SPAWN: Final = get_context("spawn")
_starts: list[Barrier] = []
"""The barrier of this process, if it has one."""


@contextmanager
def at_work(skews_s: Sequence[float], *given: Any, **options: Any) -> Iterator[list[int]]:
    """Let workers go at the same time, one for each error of its clocks; see `hits` for what is given to them.

    When requests were admitted stands in the list at the end, in order.
    """
    times_us, start = list[int](), SPAWN.Barrier(len(skews_s))
    with ProcessPoolExecutor(len(skews_s), SPAWN, initializer=meet_at, initargs=(start,)) as pool:
        works = [pool.submit(work, skew_s, *given, **options) for skew_s in skews_s]
        yield times_us
        times_us += sorted(chain.from_iterable(each.result(BOUND_S) for each in works))


def meet_at(start: Barrier) -> None:
    _starts.append(start)


def work(skew_s: float, *given: Any, **options: Any) -> list[int]:
    """Do the work of a process that has imported nothing yet; return when its requests were admitted."""
    assert "slidegate" not in sys.modules, "it has the right clocks already"
    for name, unit in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("monotonic_ns", 10**9)):
        right = getattr(time, name)
        setattr(time, name, partial(lambda right, by: right() + by, right, type(right())(skew_s * unit)))
    return asyncio.run(hits(*given, **options))


async def hits(url: str, limit: str, span_us: int, may_fail: bool = False) -> list[int]:
    """Hit a limit for a span of the store's time; if it `may_fail`, the store may not answer now and then."""
    from slidegate import Limiter

    times: list[int] = []

    async def hit() -> int:
        decision = await limiter.hit("key", limit)
        assert may_fail or decision.reason != "unavailable"
        if decision.allowed:
            times.append(decision.now_us)
        return decision.now_us

    async def hit_until(end_us: int) -> None:
        while await hit() < end_us:
            pass

    timeout = "" if may_fail else f"{'&' if '?' in url else '?'}timeout=30s"
    async with Limiter.from_url(url + timeout, deadline="30s", on_error="deny") as limiter:
        await limiter.peek("key", limit)
        for start in _starts:
            start.wait(BOUND_S)
        end_us = await hit() + span_us
        await asyncio.gather(*(hit_until(end_us) for _ in range(TASKS)))
    return times
