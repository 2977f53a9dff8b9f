"""A request that waits for its turn is counted while it waits, and with its outcome afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import call, hello, scope_of
from ..virtual_time import VirtualTime
from .test_waiting import channel, gate, send_nothing, some_turns, virtual

__all__ = ["virtual"]


def waited(limiter: Limiter) -> dict[str, tuple[int, float]]:
    """Return how many requests have waited, and how many seconds together, by outcome."""
    ever = limiter.engine.waits.ever()
    return {outcome: (times.count, times.sum_us / 1_000_000) for outcome, times in ever.items() if times.count}


async def test_a_wait_is_counted(virtual: VirtualTime) -> None:
    app = gate(hello, virtual)
    for _ in range(2):
        await call(app)
    virtual.clock.advance("500ms")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(call(app))
        await some_turns()
        assert app.limiter.engine.waits.waiting == 1
        assert waited(app.limiter) == {}
    assert waiting.result().status == 200
    assert app.limiter.engine.waits.waiting == 0
    assert waited(app.limiter) == {"passed": (1, 0.5)}


async def test_a_client_that_leaves_while_it_waits_is_counted_as_one_that_left(virtual: VirtualTime) -> None:
    app = gate(hello, virtual)
    for _ in range(2):
        await call(app)
    virtual.clock.advance("500ms")
    await app(scope_of(), channel({"type": "http.disconnect"}), send_nothing)
    assert waited(app.limiter) == {"left": (1, 0.0)}
    assert app.limiter.engine.waits.waiting == 0


async def test_who_is_refused_at_once_has_not_waited(virtual: VirtualTime) -> None:
    app = gate(hello, virtual)
    assert [(await call(app)).status for _ in range(3)] == [200, 200, 429]
    assert waited(app.limiter) == {}


@pytest.mark.parametrize("frees", [True, False])
async def test_a_place_that_is_waited_for_is_counted_with_what_came_of_it(frees: bool) -> None:
    held, free = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        held.set()
        await free.wait()
        await hello(scope, receive, send)

    wait = "60s" if frees else "100ms"
    limiter = Limiter(MemoryStore(clock=FakeClock(10**9)))
    app = RateLimitMiddleware(slow, limiter=limiter, rules=[Rule("*", concurrency=1, wait=wait, name="one")])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(call(app))
        await held.wait()
        second = tasks.create_task(call(app))
        await some_turns()
        if frees:
            assert limiter.engine.waits.waiting == 1
        else:
            await asyncio.wait([second])
        free.set()
    assert second.result().status == (200 if frees else 429)
    assert waited(limiter) == {"passed" if frees else "refused": (1, 0.0)}


async def test_a_wait_at_an_endpoint_is_counted(virtual: VirtualTime) -> None:
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    app: Any = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("2/s", wait="600ms"))])
    async def root() -> str:
        return "hello"

    app.add_middleware(RateLimitMiddleware, limiter=limiter, limits="100/s")
    for _ in range(2):
        await call(app)
    virtual.clock.advance("500ms")
    assert (await call(app)).status == 200
    assert waited(limiter) == {"passed": (1, 0.5)}
