"""A request that waits for its turn is counted while it waits, and with its outcome afterwards."""

from __future__ import annotations

import asyncio

from slidegate import Limiter

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
