"""A request that waits for its turn is counted while it waits, and with its outcome afterwards."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.events import Observer, Outcome
from slidegate.testing import FakeClock

from ..asgi import call, hello
from ..virtual_time import VirtualTime
from .test_waiting import middleware, some_turns, virtual

__all__ = ["virtual"]


class Waits(Observer):
    """Keeps whether the requests that have waited were let in, and how many seconds they have waited."""

    def __init__(self, limiter: Limiter) -> None:
        self.heard: list[tuple[bool, float]] = []
        limiter.observe(self)

    def request(self, outcome: Outcome, /) -> None:
        if outcome.waited_us is not None:
            self.heard.append((outcome.allowed, outcome.waited_us / 1_000_000))


async def test_a_wait_is_counted(virtual: VirtualTime) -> None:
    app = middleware(hello, virtual)
    waits = Waits(app.limiter)
    assert [(await call(app)).status for _ in range(3)] == [200, 200, 429]
    assert waits.heard == [], "who is refused at once has not waited"
    virtual.clock.advance("500ms")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(call(app))
        await some_turns()
        assert app.limiter.engine.queues.waiting == 1
        assert waits.heard == []
    assert waiting.result().status == 200
    assert app.limiter.engine.queues.waiting == 0
    assert waits.heard == [(True, 0.5)]


@pytest.mark.parametrize("frees", [True, False])
async def test_a_place_that_is_waited_for_is_counted_with_what_came_of_it(frees: bool) -> None:
    held, free = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        held.set()
        await free.wait()
        await hello(scope, receive, send)

    wait = "60s" if frees else "100ms"
    limiter = Limiter(MemoryStore(clock=FakeClock(10**9)))
    waits = Waits(limiter)
    app = RateLimitMiddleware(slow, limiter=limiter, rules=[Rule("*", concurrency=1, wait=wait, name="one")])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(call(app))
        await held.wait()
        second = tasks.create_task(call(app))
        await some_turns()
        if frees:
            assert limiter.engine.queues.waiting == 1
        else:
            await asyncio.wait([second])
        free.set()
    assert second.result().status == (200 if frees else 429)
    assert waits.heard == [(frees, 0.0)]
