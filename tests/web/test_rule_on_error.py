"""A rule's own `on_error` decides about it when the store fails, beside what the limiter was made with."""

from typing import Any

import pytest

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core.errors import StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import call, hello
from ..remote_stores import SickStore


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("own", ["local", "deny"])
async def test_who_exceeds_a_limit_is_told_of_once_for_each_window_whichever_store_decides(
    own: Any, shadow: bool
) -> None:
    told: list[str] = []
    clock = FakeClock(1_800_000_000_000_000)
    store = SickStore(clock)
    limiter = Limiter(store, deadline="60s")
    limiter.engine.now_us = limiter.engine.failover._clock = clock  # type: ignore[union-attr]
    local = MemoryStore(clock=lambda: clock() % 86_400_000_000)
    limiter.engine.failover.local = local  # type: ignore[union-attr]
    limiter.observe(lambda event: told.append(event.kind) if event.kind == "exceeded" else None)
    rule = Rule("*", "2/minute", on_error=own, shadow=shadow)
    app = RateLimitMiddleware(hello, rules=[rule], limiter=limiter)
    expected = 0
    for error in (None, StoreUnavailable("gone"), None, StoreUnavailable("gone")):
        store.error = error
        clock.advance("1h")
        for pause, is_news in (("1s", True), ("30s", False), ("2m", False), ("1s", True)):
            for _ in range(5):
                await call(app)
            expected += is_news and (error is None or own == "local")
            assert len(told) == expected, (error, pause)
            clock.advance(pause)
