"""Counts of quotas outlive the processes and servers that made them, go by the right clock, and share cells."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slidegate import Decision, Quota
from slidegate.core import LimitSet, StoreUnavailable, parse_limits
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.memory.store import MemoryStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.player import settle

from ..redis_servers import RedisServer, needs_redis

MIDNIGHT_US = 1_735_689_600_000_000  # 2025-01-01T00:00Z
HOUR_US = 3_600_000_000
ASKED = ((LimitSet("plan", parse_limits(Quota("5/day"))), "ann", 1),)


def hit(store: MemoryStore | LmdbStore) -> Decision:
    async def ask() -> Decision:
        return await settle(store.hit(ASKED))

    return asyncio.run(ask())


def test_lmdb_keeps_a_quota_over_a_restart(tmp_path: Path) -> None:
    ticks, wall = FakeClock(7), FakeClock(MIDNIGHT_US + HOUR_US)
    for left in (4, 3, 2):
        store = LmdbStore(tmp_path, clock=ticks, wall_clock=wall)
        assert hit(store).remaining == left
        store.close()
        ticks.advance("1s")
        wall.advance("1h")
    wall.set(MIDNIGHT_US + 24 * HOUR_US)
    store = LmdbStore(tmp_path, clock=ticks, wall_clock=wall)
    assert (hit(store).remaining, hit(store).reset_after_us) == (4, 24 * HOUR_US)
    store.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_sweeping_goes_by_the_clock_of_the_system_and_keeps_a_count_that_is_needed(kind: str, tmp_path: Path) -> None:
    ticks, wall = FakeClock(7), FakeClock(MIDNIGHT_US + 23 * HOUR_US)
    stores: dict[str, Any] = {"memory": MemoryStore, "lmdb": partial(LmdbStore, tmp_path)}
    store = stores[kind](clock=ticks, wall_clock=wall)
    other = ((LimitSet("other", parse_limits("1000/second")), "bob", 1),)

    def live_on() -> None:
        """Let a day pass on the clock of windows, in which other keys ask all the time."""

        async def ask() -> None:
            for _ in range(100):
                ticks.advance(us=HOUR_US)
                await settle(store.hit(other))

        asyncio.run(ask())

    hit(store)
    hit(store)
    wall.advance(us=-20 * HOUR_US)  # the clock of the system was wrong; now the day has 21 hours to come
    live_on()
    assert hit(store).remaining == 2
    wall.set(MIDNIGHT_US + 26 * HOUR_US)  # two hours into the next day, a count of the last is let go of
    live_on()
    assert store.stats().keys <= 1, "only the other key may be left"
    assert hit(store).remaining == 4
    store.close()


@needs_redis
def test_redis_keeps_a_quota_over_restarts_of_workers_and_server(tmp_path: Path) -> None:
    async def ask(server: RedisServer) -> int | None:
        store = RedisStore(server.url, timeout="20s")
        try:
            return (await settle(store.hit(ASKED))).remaining
        finally:
            await store.close()

    with RedisServer() as server:
        assert [asyncio.run(ask(server)) for _ in range(2)] == [4, 3]
        server.command("SAVE")
        server.kill()
        server.start()
        assert asyncio.run(ask(server)) == 2


@needs_redis
def test_the_server_chooses_the_period_of_a_worker_whose_clock_is_off() -> None:
    """The script is asked as a worker asks whose own clock is ahead or behind."""

    async def ask(server: RedisServer, worker_us: int) -> Decision:
        clock = FakeClock(MIDNIGHT_US + 12 * HOUR_US)
        store = RedisStore(server.url, clock=clock, prefix="chosen", timeout="20s")
        store._shared.packing._unix_us = lambda: worker_us
        try:
            return await settle(store.hit(ASKED))
        finally:
            await store.close()

    noon_us = MIDNIGHT_US + 12 * HOUR_US
    with RedisServer() as server:
        for left, off_us in ((4, 0), (3, 20 * HOUR_US), (2, -20 * HOUR_US)):
            decision = asyncio.run(ask(server, noon_us + off_us))
            assert (decision.remaining, decision.reset_after_us) == (left, 12 * HOUR_US)
        with pytest.raises(StoreUnavailable, match="behind the server's by more than a period"):
            asyncio.run(ask(server, noon_us - 60 * HOUR_US))


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_keys_that_find_no_room_are_held_to_a_quota_in_a_shared_cell(kind: str, tmp_path: Path) -> None:
    clock = FakeClock(MIDNIGHT_US)
    stores: dict[str, Any] = {"memory": MemoryStore, "lmdb": partial(LmdbStore, tmp_path)}
    store = stores[kind](clock=clock, max_keys=1)
    bucket = ASKED[0][0]

    async def ask() -> None:
        await settle(store.hit(ASKED))
        bob = ((bucket, "bob", 1),)
        charged = [await settle(store.hit(bob)) for _ in range(6)]
        assert [decision.remaining for decision in charged] == [4, 3, 2, 1, 0, 0]
        assert (charged[5].allowed, charged[5].retry_after_us) == (False, 24 * HOUR_US)
        assert await settle(store.refund(charged[0].take_back())) is True
        assert (await settle(store.hit(bob))).remaining == 0
        clock.advance(us=24 * HOUR_US)
        assert await settle(store.refund(charged[1].take_back())) is False
        assert (await settle(store.hit(bob))).remaining == 4

    asyncio.run(ask())
    store.close()
