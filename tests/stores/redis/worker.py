"""A process that hits a limit on a shared Redis: ``python -m tests.stores.redis.worker``.

It reads its orders, a JSON object, from the first line of its input, says "ready", begins with the second line, and
prints the store's times of the requests that were admitted, as a JSON list.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
BOUND_S: Final = 60


@dataclass(frozen=True)
class Orders:
    """The work of one worker.

    Attributes:
        url: The store.
        limit: For example ``"777/hour"``.
        hits: How many hits it makes; None for as many as fit into `span_us`.
        span_us: How long it goes on, by the store's time, if `hits` is None.
        tasks: How many requests wait at the same time.
        skew_s: The error of its clocks.
        key: The key that is counted.
        may_fail: Whether the store may not answer now and then.
    """

    url: str
    limit: str
    hits: int | None = None
    span_us: int = 0
    tasks: int = 16
    skew_s: float = 0.0
    key: str = "key"
    may_fail: bool = False

    @property
    def patient_url(self) -> str:
        """The store, with time that only a hang uses up, unless it may fail."""
        return self.url if self.may_fail else f"{self.url}{'&' if '?' in self.url else '?'}timeout=30s"


class Worker:
    def __init__(self, orders: Orders) -> None:
        command = [sys.executable, "-m", "tests.stores.redis.worker"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._write(json.dumps(asdict(orders)))

    def _write(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_ready(self) -> None:
        line = self.process.stdout.readline()
        assert line == "ready\n", line + self.process.communicate(timeout=BOUND_S)[1]

    def go(self) -> None:
        self._write("go")

    def times_us(self) -> list[int]:
        """Return when its requests were admitted, once it has ended."""
        said, complained = self.process.communicate(timeout=BOUND_S)
        assert self.process.returncode == 0, complained
        times: list[int] = json.loads(said)
        return times

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def at_work(orders: Sequence[Orders]) -> Iterator[list[int]]:
    """Let workers go at the same time; when requests were admitted stands in the list at the end, in order."""
    workers, times_us = [Worker(order) for order in orders], list[int]()
    try:
        for worker in workers:
            worker.wait_ready()
        for worker in workers:
            worker.go()
        yield times_us
        times_us += sorted(time_us for worker in workers for time_us in worker.times_us())
    finally:
        for worker in workers:
            worker.kill()


def admitted_by(orders: Sequence[Orders]) -> list[int]:
    with at_work(orders) as times_us:
        pass
    return times_us


def skew(by_s: float) -> None:
    """Let the clocks of this process be wrong."""
    for name, unit in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("monotonic_ns", 10**9)):
        right = getattr(time, name)
        setattr(time, name, partial(_shifted, right, type(right())(by_s * unit)))


def _shifted(clock: Callable[[], float], by: float) -> float:
    return clock() + by


async def work(orders: Orders) -> list[int]:
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

    async with Limiter.from_url(orders.patient_url, deadline=30, on_error="deny") as limiter:
        await limiter.peek(orders.key, orders.limit)
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        share = None if orders.hits is None else orders.hits // orders.tasks
        end_us = await hit(limiter) + orders.span_us if orders.hits is None else 0
        await asyncio.gather(*(take_turns(limiter, share, end_us) for _ in range(orders.tasks)))
    return times


if __name__ == "__main__":
    given = Orders(**json.loads(sys.stdin.readline()))
    skew(given.skew_s)
    print(json.dumps(asyncio.run(work(given))))  # noqa: T201
