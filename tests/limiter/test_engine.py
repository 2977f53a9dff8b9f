"""Those who listen hear every decision once, nobody pays before somebody listens, and callers are listed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from pathlib import Path

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core import Decision
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.testing import FakeClock

from ..asgi import hello


def allowed(heard: Iterable[Decision]) -> list[bool]:
    """Say of each decision whether it let its request pass."""
    return [decision.allowed for decision in heard]


async def test_every_listener_hears_every_decision_once_in_its_order() -> None:
    limiter, first, second = Limiter(MemoryStore(clock=FakeClock())), list[Decision](), list[Decision]()
    limiter.engine.listen(first.append)
    decisions = [await limiter.hit("a", "3/minute") for _ in range(5)]
    limiter.engine.listen(second.append)
    decisions.append(await limiter.hit("a", "3/minute"))
    assert len(first) == len(decisions)
    assert all(heard is decision for heard, decision in zip(first, decisions, strict=True))
    assert second == decisions[-1:]
    assert allowed(first) == [True] * 3 + [False] * 3


async def test_decisions_of_a_store_that_has_to_be_waited_for_are_heard_too(tmp_path: Path) -> None:
    heard: list[Decision] = []
    async with Limiter(LmdbStore(tmp_path), deadline="60s") as limiter:
        limiter.engine.listen(heard.append)
        answers = await asyncio.gather(*(limiter.hit("a", "3/minute") for _ in range(5)))
        await limiter.hit_all(())
    assert sum(allowed(answers)) == 3
    assert len(heard) == 6


async def test_callers_are_listed_in_their_order_as_long_as_they_live() -> None:
    limiter = Limiter()
    first = RateLimitMiddleware(hello, limits="1/s", limiter=limiter)
    second = RateLimitMiddleware(first, rules=[Rule("/a", "1/s", name="a")], limiter=limiter)
    RateLimitMiddleware(hello, limits="1/s")  # on a limiter of its own
    limited = limiter.limited("2/s", key="b", rule="function")(hello)
    assert limiter.engine.callers.listed()[:2] == [first, second]
    assert [bucket.rule for bucket in limiter.engine.callers.listed()[2].buckets()] == ["function"]
    assert [bound.rule.label for bound in second.bound()] == ["a"]
    del first, second, limited
    gc.collect()
    assert limiter.engine.callers.listed() == []
