"""Those who look on are shown every decision once, and nobody pays before somebody looks on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
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


@pytest.mark.parametrize("gate_first", [True, False])
async def test_requests_on_the_short_way_are_seen_whoever_comes_first(gate_first: bool) -> None:
    limiter, reader = Limiter(), Reader()
    gate = RateLimitMiddleware(hello, limits="200/minute", limiter=limiter) if gate_first else None
    if gate is not None:
        await statuses(gate, 150)  # from here on requests take the short way
    notes = limiter.internals.look_on(reader)
    gate = gate or RateLimitMiddleware(hello, limits="200/minute", limiter=limiter)
    assert (await statuses(gate, 150)).count(200) == (50 if gate_first else 150)
    notes.fold()
    assert len(reader.read) == 150
    assert sum(decision.allowed for decision in reader.read) == (50 if gate_first else 150)


@pytest.mark.parametrize("ready", [True, False])
async def test_a_store_that_has_to_be_waited_for_is_seen_too(tmp_path: Path, ready: bool) -> None:
    reader = Reader()
    async with Limiter(LmdbStore(tmp_path), deadline="60s") as limiter:
        if ready:
            await limiter.prepare()
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


async def test_limits_at_endpoints_and_of_routes_are_found_once_they_are_met() -> None:
    @RateLimit("5/second", name="there")
    async def there(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hi")

    limiter = Limiter()
    gate = RateLimitMiddleware(Starlette(routes=[Route("/there", there)]), limiter=limiter, per_route="9/minute")
    assert gate.bound() == []
    await statuses(gate, 2, "/there")
    assert [(bound.rule.label, str(bound.rule.limits[0])) for bound in gate.bound()] == [
        ("per-route GET /there", "9/1m"),
        ("there", "5/1s"),
    ]
