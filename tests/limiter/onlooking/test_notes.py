"""Those who look on are shown every decision once, and nobody pays before somebody looks on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core import Decision
from slidegate.limiter.onlooking.notes import MOST_NOTED
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.testing import FakeClock

from ...asgi import hello, statuses


class Reader:
    """Keeps what it reads."""

    def __init__(self) -> None:
        self.read: list[Decision] = []

    def __call__(self, decisions: Sequence[Decision]) -> None:
        self.read += decisions


async def test_every_decision_is_read_once_in_its_order() -> None:
    limiter, reader = Limiter(MemoryStore(clock=FakeClock())), Reader()
    notes = limiter.internals.look_on(reader)
    decisions = [await limiter.hit("a", "3/minute") for _ in range(3 * MOST_NOTED + 7)]
    assert len(reader.read) == 3 * MOST_NOTED
    assert len(notes) == 7
    notes.fold()
    assert all(read is decision for read, decision in zip(reader.read, decisions, strict=True))
    assert [decision.allowed for decision in reader.read[:4]] == [True, True, True, False]


async def test_an_onlooker_that_comes_after_the_first_requests_sees_the_others() -> None:
    limiter, reader = Limiter(), Reader()
    gate = RateLimitMiddleware(hello, limits="200/minute", limiter=limiter)
    await statuses(gate, 150)
    notes = limiter.internals.look_on(reader)
    assert (await statuses(gate, 150)).count(200) == 50
    notes.fold()
    assert [decision.allowed for decision in reader.read] == [True] * 50 + [False] * 100


async def test_a_store_that_has_to_be_waited_for_is_seen_too(tmp_path: Path) -> None:
    reader = Reader()
    async with Limiter(LmdbStore(tmp_path), deadline="60s") as limiter:
        notes = limiter.internals.look_on(reader)
        answers = await asyncio.gather(*(limiter.hit("a", "3/minute") for _ in range(5)))
        await limiter.hit_all(())
        notes.fold()
    assert sum(decision.allowed for decision in answers) == 3
    assert len(reader.read) == 6


def test_threads_lose_no_decision_and_read_none_twice() -> None:
    limiter, reader = Limiter(), Reader()
    notes = limiter.internals.look_on(reader)

    def hits() -> None:
        for _ in range(2_000):
            limiter.sync.hit("a", "5/minute")

    threads = [Thread(target=hits) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    notes.fold()
    assert len(reader.read) == len({id(decision) for decision in reader.read}) == 8_000


def test_one_limiter_has_one_onlooker() -> None:
    limiter = Limiter()
    limiter.internals.look_on(Reader())
    with pytest.raises(ConfigurationError, match="one limiter has one onlooker"):
        limiter.internals.look_on(Reader())


# -- gates ---------------------------------------------------------------------------------------------------------


async def test_gates_are_listed_in_their_order_as_long_as_they_live() -> None:
    limiter = Limiter()
    first = RateLimitMiddleware(hello, limits="1/s", limiter=limiter)
    second = RateLimitMiddleware(first, rules=[Rule("/a", "1/s", name="a")], limiter=limiter)
    RateLimitMiddleware(hello, limits="1/s")  # on a limiter of its own
    assert limiter.internals.gates.listed() == [first, second]
    assert [bound.rule.label for bound in second.bound()] == ["a"]
    del first, second
    gc.collect()
    assert limiter.internals.gates.listed() == []
