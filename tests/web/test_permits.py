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
from starlette.types import Message, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import call, hello, scope_of, send_scope, statuses
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis
from ..remote_stores import SickStore
from .permits_traffic import AMOUNTS, play


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(100, 250))])
async def test_the_bound_holds_over_all_ends_of_requests(seed: int) -> None:
    store = MemoryStore()
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
    trio = pytest.importorskip("trio")
    store, seen = MemoryStore(), []

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await anyio.lowlevel.checkpoint()
        await hello(scope, receive, send)

    middleware = RateLimitMiddleware(later, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="20s")])

    async def come() -> None:
        seen.extend(await statuses(middleware, 1))

    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(come)
            with trio.move_on_after(0):
                await call(middleware)

    trio.run(main)
    assert (seen, store.permits_held()) == ([200] * 5, 0)


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
ENDS: dict[str, tuple[list[Message], list[int]]] = {
    "a body": ([START, {"type": "http.response.body", "body": b"hi"}], [1, 0]),
    "a file that the server sends": ([START, {"type": "http.response.pathsend", "path": "/dev/null"}], [1, 0]),
    "a websocket": ([{"type": f"websocket.{kind}"} for kind in ("accept", "send", "close")], [1, 1, 0]),
    "a handshake that is denied": ([{"type": "websocket.close"}], [0]),
}
"""What an application sends, and the permits that are held behind each message."""


@pytest.mark.parametrize("end", ENDS)
async def test_a_permit_is_held_until_the_last_byte(end: str) -> None:
    store, seen = MemoryStore(), list[int]()
    messages, held = ENDS[end]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
            seen.append(store.permits_held())

    middleware = RateLimitMiddleware(app, limiter=Limiter(store), rules=[Rule("*", concurrency=1)])
    await send_scope(middleware, scope_of(type=messages[0]["type"].partition(".")[0]))
    assert seen == held


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
