"""A rule's own `on_error` decides about it when the store fails, beside what the limiter was made with."""

from __future__ import annotations

from itertools import product
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core.errors import StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import Slow, call, hello
from ..remote_stores import SickStore

WORDS = ("local", "allow", "deny")
AMOUNTS = (2, 3)


def site(whole: Any, own: tuple[Any, ...], **more: Any) -> tuple[RateLimitMiddleware, SickStore]:
    """Return a middleware with a rule for each `on_error`, and the store that its limiter asks."""
    store = SickStore(FakeClock(1_000_000_000))
    rules = [
        Rule("*", f"{amount}/hour", on_error=one, name=f"rule{amount}", **more)
        for amount, one in zip(AMOUNTS, own, strict=False)
    ]
    limiter = Limiter(store, deadline="60s", on_error=whole)
    return RateLimitMiddleware(hello, rules=rules, limiter=limiter), store


@pytest.mark.parametrize(("whole", "first", "second"), list(product(WORDS, (None, *WORDS), (None, *WORDS))))
async def test_the_strictest_of_the_rules_of_one_request_decides(whole: Any, first: Any, second: Any) -> None:
    app, store = site(whole, (first, second))
    store.error = StoreUnavailable("gone")
    choices = [first or whole, second or whole]
    passing = min(AMOUNTS) if "local" in choices else 4
    expected = [503] * 4 if "deny" in choices else [200] * passing + [429] * (4 - passing)
    assert [(await call(app)).status for _ in range(4)] == expected


@pytest.mark.parametrize("first", [True, False])
async def test_who_begins_to_wait_in_an_outage_is_counted_by_all_rules_after_it(first: bool) -> None:
    """Also by those that let requests pass uncounted in the outage."""
    clock, slow = FakeClock(1_000_000_000), Slow()
    store = SickStore(clock)
    store.error = StoreUnavailable("gone")
    permits = Rule("*", concurrency=1, wait="20s", name="permits", on_error="local")
    units = Rule("*", "2/hour", name="units", on_error="allow")
    limiter = Limiter(store, deadline="60s")
    limiter.engine.failover._clock = clock  # type: ignore[union-attr]
    app = RateLimitMiddleware(slow, rules=[permits, units] if first else [units, permits], limiter=limiter)
    answers: list[int] = []

    async def visit() -> None:
        answers.append((await call(app)).status)

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(visit)
        while limiter.engine.queues.waiting < 5:
            await anyio.lowlevel.checkpoint()
        store.error = None
        clock.advance("2s")
        slow.goes_on.set()
    assert sorted(answers) == [200] * 3 + [429] * 3, "one was let in while the store was away, and two after that"


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
