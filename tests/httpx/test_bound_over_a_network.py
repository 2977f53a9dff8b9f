"""Whatever happens on the way, a server never sees more requests in one of its windows than its limit allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import httpx
import pytest

from slidegate import Limit, Limiter, MemoryStore
from slidegate.httpx import LimitedTransport
from slidegate.testing import FakeClock

from .network import DistantStore, FarServer, simulate, uneven


def random_limits(rng: Random) -> tuple[Limit, ...]:
    window_ms = rng.choice((50, 200, 1_000, 3_000))
    amount = rng.choice((1, 2, 5, 10, 33, 64))
    first = Limit(amount, window_ms / 1_000)
    return (first,) if rng.random() < 0.6 else (first, Limit(rng.randint(amount, 64), 2.5 * window_ms / 1_000))


class Unreliable(FarServer):
    """Loses answers on the way, and requests too."""

    def __init__(self, clock: FakeClock, limits: tuple[Limit, ...], delay_s: Callable[[], float], rng: Random) -> None:
        super().__init__(clock, limits, delay_s)
        self._rng = rng

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._rng.random() < 0.05:
            raise httpx.ConnectError("no way there")
        answer = await super().handle_async_request(request)
        if self._rng.random() < 0.05:
            raise httpx.ReadError("no way back")
        return answer


async def crowd(client: httpx.AsyncClient, rng: Random, tasks: int, requests: int, hasty: float) -> int:
    """Send requests from several tasks at once, some of which are cancelled; return how many were answered."""
    answered = 0

    async def one() -> None:
        nonlocal answered
        for _ in range(requests):
            with suppress(httpx.TransportError, TimeoutError):
                if rng.random() < hasty:
                    async with asyncio.timeout(rng.uniform(0, 0.3)):
                        await client.get("http://api.example.com/")
                else:
                    await client.get("http://api.example.com/")
                answered += 1
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0, 1))

    await asyncio.gather(*(one() for _ in range(tasks)))
    return answered


def hold_the_bound(rng: Random, workers: int, far: bool) -> None:
    clock = FakeClock(10**12)
    limits = random_limits(rng)
    window_s = limits[0].window_us / 1_000_000
    server = Unreliable(clock, limits, uneven(rng, window_s * rng.choice((0.01, 0.2)), 3 * window_s), rng)
    # A question takes 40 ms and a quarter of the window at most. After 50 ms each process would count for itself.
    most_s = min(0.02, window_s / 8)
    distant: Any = DistantStore(clock, lambda: rng.uniform(0, most_s))
    shared = Limiter(distant if far else MemoryStore(clock=clock))

    async def run() -> None:
        transports = [LimitedTransport(limits=limits, limiter=shared, transport=server) for _ in range(workers)]
        clients = [httpx.AsyncClient(transport=transport) for transport in transports]
        await asyncio.gather(*(crowd(client, rng, 8, 10, 0.1) for client in clients))

    simulate(clock, run())
    assert server.refused == 0
    # Where one request may come in 7.5 s, many give up after a minute of waiting, and some 25 of 80 arrive.
    assert len(server.arrived_us) > 15
    assert all(server.most_in_a_window(limit) <= limit.amount for limit in limits)


@pytest.mark.parametrize("far", [False, True], ids=["store here", "store far away"])
@pytest.mark.parametrize(
    ("workers", "plays"),
    [(1, 6), (3, 2), *(pytest.param(workers, 300, marks=pytest.mark.deep) for workers in (1, 2, 5))],
)
def test_delays_losses_and_cancellations_squeeze_no_two_requests_together(
    rng: Random, workers: int, plays: int, far: bool
) -> None:
    for _ in range(plays):
        hold_the_bound(rng, workers, far)
