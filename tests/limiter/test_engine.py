"""Those who listen hear every decision once, nobody pays before somebody listens, and callers are listed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from pathlib import Path
from threading import Thread

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core import Decision
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.testing import FakeClock

from ..asgi import hello, statuses


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


async def test_before_somebody_listens_nothing_stands_between_a_limiter_and_its_store() -> None:
    limiter = Limiter()
    assert limiter.engine.decide == limiter.store.hit


async def test_a_listener_that_comes_after_the_first_requests_hears_the_others() -> None:
    limiter, heard = Limiter(), list[Decision]()
    gate = RateLimitMiddleware(hello, limits="200/minute", limiter=limiter)
    await statuses(gate, 150)
    limiter.engine.listen(heard.append)
    assert (await statuses(gate, 150)).count(200) == 50
    assert allowed(heard) == [True] * 50 + [False] * 100


async def test_decisions_of_a_store_that_has_to_be_waited_for_are_heard_too(tmp_path: Path) -> None:
    heard: list[Decision] = []
    async with Limiter(LmdbStore(tmp_path), deadline="60s") as limiter:
        limiter.engine.listen(heard.append)
        answers = await asyncio.gather(*(limiter.hit("a", "3/minute") for _ in range(5)))
        await limiter.hit_all(())
    assert sum(allowed(answers)) == 3
    assert len(heard) == 6


def test_the_decisions_of_all_threads_are_heard() -> None:
    limiter, heard = Limiter(), list[Decision]()
    limiter.engine.listen(heard.append)

    def hits() -> None:
        for _ in range(2_000):
            limiter.sync.hit("a", "5/minute")

    threads = [Thread(target=hits) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == len({id(decision) for decision in heard}) == 8_000


# -- callers ---------------------------------------------------------------------------------------------------------


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
