"""A client with this transport against our own middleware, with the same limits on both sides, never sees a 429."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import httpx
import pytest
from starlette.types import ASGIApp

from slidegate import Limit, Limiter, MemoryStore, RateLimitMiddleware
from slidegate.httpx import LimitedTransport, TurnTimeout
from slidegate.testing import FakeClock

from ..asgi import hello
from ..redis_servers import RedisServer, needs_redis
from .network import simulate, uneven

TASKS = 16


class Delayed(httpx.AsyncBaseTransport):
    """Calls an application behind delays."""

    def __init__(self, app: ASGIApp, delay_s: Callable[[], float]) -> None:
        self._inner = httpx.ASGITransport(app=app)
        self._delay_s = delay_s

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._delay_s())
        answer = await self._inner.handle_async_request(request)
        await asyncio.sleep(self._delay_s())
        return answer


@pytest.mark.parametrize(
    ("limit", "usual_s", "rare_s", "share"),
    [
        (Limit(10, 1), 0, 0, 0.99),
        (Limit(50, 10), 0.1, 0.4, 0.95),
        (Limit(200, 60), 0.1, 0.4, 0.95),
        (Limit(10, 1), 0.3, 2, 0.4),
    ],
    ids=lambda value: str(value),
)
def test_sixteen_tasks_never_see_a_refusal_and_use_the_limit(
    limit: Limit, usual_s: float, rare_s: float, share: float, rng: Random
) -> None:
    clock = FakeClock(10**12)
    app = RateLimitMiddleware(hello, limits=limit, limiter=Limiter(MemoryStore(clock=clock)))
    windows, statuses = max(3, 100 // limit.amount), Counter[int]()

    async def run() -> None:
        transport = LimitedTransport(
            limits=limit,
            limiter=Limiter(MemoryStore(clock=clock)),
            transport=Delayed(app, uneven(rng, usual_s, rare_s)),
            wait="10m",
        )
        client = httpx.AsyncClient(transport=transport, base_url="http://app.test")

        async def one() -> None:
            while True:
                statuses[(await client.get("/")).status_code] += 1

        with suppress(TimeoutError):
            async with asyncio.timeout(windows * limit.window_us / 1_000_000 - 0.001):
                await asyncio.gather(*(one() for _ in range(TASKS)))

    simulate(clock, run())
    assert set(statuses) == {200}
    assert share * windows * limit.amount <= statuses[200] <= windows * limit.amount


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store that several transports share."""
    with ExitStack() as stack:
        if request.param == "redis":
            yield stack.enter_context(RedisServer()).url
        else:
            yield f"lmdb://{tmp_path}/counts"


async def test_a_pause_reaches_the_workers_that_share_a_store(store_url: str) -> None:
    # On a busy machine no answer of the store may count as late, because each limiter would then pause for itself.
    limiters = [Limiter.from_url(store_url, deadline="5s") for _ in range(2)]
    asked: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(429, headers={"Retry-After": "60"})

    first, second = (
        httpx.AsyncClient(
            transport=LimitedTransport(limits="9/second", limiter=limiter, transport=httpx.MockTransport(refuse))
        )
        for limiter in limiters
    )
    assert (await first.get("http://api.example.com/")).status_code == 429
    with pytest.raises(TurnTimeout):
        await second.get("http://api.example.com/")
    assert len(asked) == 1
    for limiter in limiters:
        await limiter.close()
