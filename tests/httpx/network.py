"""A network of which nothing is real: servers behind delays, in the time of a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import httpx

from slidegate import Limit, Limiter, MemoryStore
from slidegate.core import StoreUnavailable
from slidegate.testing import FakeClock

from ..remote_stores import RemoteStore
from ..virtual_time import VirtualTime

T = TypeVar("T")


def simulate(clock: FakeClock, work: Coroutine[Any, Any, T]) -> T:
    """Run some work in the time of `clock`."""

    async def run() -> T:
        VirtualTime(clock)
        return await work

    return asyncio.run(run())


class FarServer(httpx.AsyncBaseTransport):
    """A server with an exact limit of its own, and random delays on the way there and back."""

    def __init__(self, clock: FakeClock, limits: tuple[Limit, ...], delay_s: Callable[[], float]) -> None:
        self.clock = clock
        self.limits = limits
        self.limiter = Limiter(MemoryStore(clock=clock))
        self.arrived_us: list[int] = []
        self.refused = 0
        self._delay_s = delay_s

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._delay_s())
        self.arrived_us.append(self.clock.now_us)
        decision = await self.limiter.hit("client", self.limits)
        self.refused += not decision
        await asyncio.sleep(self._delay_s())
        if decision:
            return httpx.Response(200)
        return httpx.Response(429, headers={"Retry-After": str(decision.retry_after)})

    def most_in_a_window(self, limit: Limit) -> int:
        """Return the largest number of requests that arrived within one window, counted without our arithmetic."""
        most, first = 0, 0
        for last, at_us in enumerate(self.arrived_us):
            while self.arrived_us[first] <= at_us - limit.window_us:
                first += 1
            most = max(most, last - first + 1)
        return most


class DistantStore(RemoteStore):
    """A store in memory to which the way takes time, there and back: its limiter treats it as one of other machines."""

    def __init__(self, clock: FakeClock, delay_s: Callable[[], float]) -> None:
        super().__init__(clock)
        self.delay_s = delay_s
        self.broken = False

    async def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(self.delay_s())
        if self.broken:
            raise StoreUnavailable("the wire is cut")
        answer = question(*arguments)
        await asyncio.sleep(self.delay_s())
        return answer


def uneven(rng: Random, usual_s: float, rare_s: float) -> Callable[[], float]:
    """Return delays that are mostly short and now and then long."""
    return lambda: rng.uniform(0, usual_s if rng.random() < 0.9 else rare_s)


class Answers(httpx.AsyncBaseTransport):
    """Answers from a list, the last one for ever, and notes when it was asked, in seconds."""

    def __init__(self, *answers: tuple[int, Mapping[str, str]]) -> None:
        self._answers = list(answers)
        self.asked_s: list[float] = []
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.bodies.append(b"".join([part async for part in request.stream]))
        self.asked_s.append(asyncio.get_running_loop().time())
        status, headers = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return httpx.Response(status, headers=dict(headers))

    @property
    def gaps_s(self) -> list[float]:
        return [round(later - earlier, 6) for earlier, later in pairwise(self.asked_s)]
