"""A request that waits for its turn is counted while it waits, and with its outcome afterwards."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import call, hello
from ..virtual_time import VirtualTime
from .test_waiting import middleware, some_turns, virtual

__all__ = ["virtual"]


def waited(limiter: Limiter) -> dict[str, tuple[int, float]]:
    """Return how many requests have waited, and how many seconds together, by outcome."""
    ever = limiter.engine.waits.ever()
    return {outcome: (times.count, times.sum_us / 1_000_000) for outcome, times in ever.items() if times.count}


async def test_a_wait_is_counted(virtual: VirtualTime) -> None:
    app = middleware(hello, virtual)
    assert [(await call(app)).status for _ in range(3)] == [200, 200, 429]
    assert waited(app.limiter) == {}, "who is refused at once has not waited"
    virtual.clock.advance("500ms")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(call(app))
        await some_turns()
        assert app.limiter.engine.waits.waiting == 1
        assert waited(app.limiter) == {}
    assert waiting.result().status == 200
    assert app.limiter.engine.waits.waiting == 0
    assert waited(app.limiter) == {"passed": (1, 0.5)}


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
