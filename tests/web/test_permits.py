"""Never more requests are under way than a limit allows, whatever becomes of them, and every permit comes back."""

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import call, hello, statuses
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis
from ..remote_stores import SickStore
from ..virtual_time import VirtualTime
from .permits_traffic import AMOUNTS, play


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(100, 250))])
async def test_the_bound_holds_over_all_ends_of_requests(seed: int) -> None:
    store = MemoryStore(clock=VirtualTime().clock)
    app = await play(Limiter(store), seed, visits=400)
    assert store.permits_held() == 0, f"seed {seed}: everything has ended"
    assert {rule for rule, most in app.most.items() if most == AMOUNTS[rule]} == set(AMOUNTS), "all were full once"
    assert {"200", "websocket.accept", "CancelledError", "Broken"} <= set(app.outcomes)


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS, pytest.param("cluster", marks=needs_redis)])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 12))])
async def test_the_bound_holds_over_all_ends_of_requests_on_a_shared_store(url: str, seed: int) -> None:
    async with Limiter.from_url(url, deadline="30s", on_error="deny") as limiter:
        app = await play(limiter, seed, visits=400)
        async with asyncio.timeout(BOUND_S):
            while limiter.store.permits_held():  # noqa: ASYNC110 - hand-backs that are under way end by themselves
                await asyncio.sleep(0.01)
    assert {rule for rule, most in app.most.items() if most == AMOUNTS[rule]}, f"seed {seed}: nothing was full"


def test_permits_come_back_under_trio_too() -> None:
    store, seen = MemoryStore(), list[int]()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await anyio.lowlevel.checkpoint()
        await hello(scope, receive, send)

    middleware = RateLimitMiddleware(later, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="20s")])

    async def come() -> None:
        seen.extend(await statuses(middleware, 1))

    async def main() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(come)
            with anyio.move_on_after(0):
                await call(middleware)

    anyio.run(main, backend="trio")
    assert (seen, store.permits_held()) == ([200] * 5, 0)


async def test_each_store_gets_its_permit_back_where_one_of_two_limits_was_asked_in_an_outage() -> None:
    store = SickStore(FakeClock())
    limiter = Limiter(store)
    local: Any = limiter.engine.failover.local  # type: ignore[union-attr]
    held = []

    @RateLimit(concurrency=1)
    async def page(request: Request) -> PlainTextResponse:
        store.error = None
        held.append((store.permits_held(), local.permits_held()))
        return PlainTextResponse("page")

    async def fails_first(request: Request) -> PlainTextResponse:
        store.error = StoreUnavailable("gone")
        return await page(request)

    site = Starlette(routes=[Route("/", fails_first)])
    app = RateLimitMiddleware(site, rules=[Rule("*", concurrency=1)], limiter=limiter)
    assert await statuses(app, 3) == [200] * 3
    assert [*held, (store.permits_held(), local.permits_held())] == [(1, 1)] * 3 + [(0, 0)]
