"""Tracking with a capacity: hot keys are found in fixed memory, and the store knows nothing of them."""

from __future__ import annotations

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ...asgi import PEER, hello, statuses


async def test_a_hot_key_is_told_once_and_again_only_after_it_has_cooled() -> None:
    told: list[str] = []
    clock = FakeClock(10**15)
    store = MemoryStore(clock=clock)
    rule = Rule("*", "10/5s", action="track", capacity=20, on_exceeded=lambda key, decision: told.append(key))
    app = RateLimitMiddleware(hello, rules=[rule], limiter=Limiter(store))
    assert await statuses(app, 10) == [200] * 10
    assert told == []
    assert await statuses(app, 10) == [200] * 10
    assert told == [PEER]
    for number in range(200):
        await statuses(app, 1, client=(f"198.51.100.{number}", 1))
    clock.advance("6s")
    await statuses(app, 11)
    assert told == [PEER, PEER]
    assert store.stats().keys == 0
