"""Counts of quotas outlive the processes and servers that made them, go by the right clock, and share cells."""

from typing import Any

import pytest

from slidegate.core import Bucket, Decision, Quota, StoreUnavailable, parse_limits
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import settle
from ..redis_servers import RedisServer, needs_redis
from .conftest import Opened
from .redis.stores import store_at

MIDNIGHT_US = 1_735_689_600_000_000  # 2025-01-01T00:00Z
HOUR_US = 3_600_000_000
PLAN = Bucket("plan", parse_limits(Quota("5/day")))


HERE = pytest.mark.parametrize("kind", ["memory", "lmdb"])


async def hit(store: Any, key: str = "ann") -> Decision:
    return await settle(store.hit(((PLAN, key, 1),)))


@HERE
async def test_sweeping_goes_by_the_clock_of_the_system_and_keeps_a_count_that_is_needed(opened: Opened) -> None:
    ticks, wall = FakeClock(7), FakeClock(MIDNIGHT_US + 23 * HOUR_US)
    store = opened(clock=ticks, wall_clock=wall)

    async def live_on() -> None:
        """Let a day pass on the clock of windows, in which other keys ask all the time."""
        for _ in range(100):
            ticks.advance(us=HOUR_US)
            await settle(store.hit(((bucket("1000/second", "other"), "bob", 1),)))

    await hit(store)
    await hit(store)
    wall.advance(us=-20 * HOUR_US)  # the clock of the system was wrong; now the day has 21 hours to come
    await live_on()
    assert (await hit(store)).remaining == 2
    wall.set(MIDNIGHT_US + 26 * HOUR_US)  # two hours into the next day, a count of the last is let go of
    await live_on()
    assert store.stats().keys <= 1, "only the other key may be left"
    assert (await hit(store)).remaining == 4


@needs_redis
async def test_redis_keeps_a_quota_over_restarts_of_workers_and_server() -> None:
    with RedisServer() as server:
        for left in (4, 3, 2):
            async with store_at(server, prefix="kept") as store:
                assert (await hit(store)).remaining == left
            if left == 3:
                server.command("SAVE")
                server.kill()
                server.start()


@needs_redis
async def test_the_server_chooses_the_period_of_a_worker_whose_clock_is_off(server: RedisServer) -> None:
    """The script is asked as a worker asks whose own clock is ahead or behind."""
    noon_us = MIDNIGHT_US + 12 * HOUR_US
    async with store_at(server, clock=FakeClock(noon_us)) as store:
        for left, off_us in ((4, 0), (3, 20 * HOUR_US), (2, -20 * HOUR_US)):
            store._shared.packing._unix_us = lambda off_us=off_us: noon_us + off_us
            decision = await hit(store)
            assert (decision.remaining, decision.reset_after_us) == (left, 12 * HOUR_US)
        store._shared.packing._unix_us = lambda: noon_us - 60 * HOUR_US
        with pytest.raises(StoreUnavailable, match="behind the server's by more than a period"):
            await hit(store)


@HERE
async def test_keys_that_find_no_room_are_held_to_a_quota_in_a_shared_cell(opened: Opened) -> None:
    clock = FakeClock(MIDNIGHT_US)
    store = opened(clock=clock, max_keys=1)
    await hit(store)
    charged = [await hit(store, "bob") for _ in range(6)]
    assert [decision.remaining for decision in charged] == [4, 3, 2, 1, 0, 0]
    assert (charged[5].allowed, charged[5].retry_after_us) == (False, 24 * HOUR_US)
    assert await settle(store.refund(charged[0].take_back())) is True
    assert (await hit(store, "bob")).remaining == 0
    clock.advance(us=24 * HOUR_US)
    assert await settle(store.refund(charged[1].take_back())) is False
    assert (await hit(store, "bob")).remaining == 4
