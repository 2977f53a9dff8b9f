"""Bans and quotas go by the wall clock in every store, and windows by a clock of their own."""

import random

import pytest

from slidegate.core import Bucket, Quota, parse_limits
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import settle
from ..redis_servers import AT_REDIS
from .conftest import Opened

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
NOW_US = 4_102_444_800_000_000
KINDS = ("memory", "lmdb", AT_REDIS)


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_a_ban_ends_by_the_wall_clock_alone(opened: Opened) -> None:
    """That it is the same in any store that imports it is in the random bans of the contract."""
    clock, wall = FakeClock(7), FakeClock(NOW_US)
    store = opened(clock=clock, wall_clock=wall)
    await settle(store.bans.ban("user:eve", HOUR_US, "why", "ann"))
    for left_us in (HOUR_US, 1, 0):
        wall.set(NOW_US + HOUR_US - left_us)
        clock.advance("2h")
        decision = await settle(store.hit(((bucket("100/hour"), "user:eve", 1),)))
        assert (decision.allowed, decision.retry_after_us) == (not left_us, left_us)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_step_of_the_wall_clock_moves_the_end_of_a_quota_and_never_what_was_spent(
    opened: Opened, rng: random.Random
) -> None:
    quota, wall = Quota("50/year"), FakeClock(NOW_US + 100 * DAY_US)
    store, limited = opened(clock=FakeClock(7), wall_clock=wall), Bucket("plan", parse_limits(quota))
    end_us = quota.period_at(wall.now_us).end_us
    for spent in range(1, 51):
        decision = await settle(store.hit(((limited, "ann", 1),)))
        assert (decision.remaining, decision.reset_after_us) == (50 - spent, end_us - wall.now_us)
        wall.set(end_us - rng.choice((1, HOUR_US, rng.randrange(1, 1_000 * DAY_US))))
    refused = await settle(store.hit(((limited, "ann", 1),)))
    assert refused.retry_after_us == end_us - wall.now_us
    wall.set(end_us)
    assert (await settle(store.hit(((limited, "ann", 1),)))).remaining == 49


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_a_step_of_the_wall_clock_moves_no_window(opened: Opened, rng: random.Random) -> None:
    clocks = [FakeClock(), FakeClock()]
    walls = [FakeClock(NOW_US), FakeClock(NOW_US)]
    stores = [opened(f"store-{at}", clock=clocks[at], wall_clock=walls[at]) for at in range(2)]
    checks = ((bucket("5/minute"), "ann", 1), (bucket("100/10m", "other"), "ann", 7))
    for _ in range(100):
        span_us = rng.choice((1, SECOND_US, 20 * SECOND_US))
        for clock, wall in zip(clocks, walls, strict=True):
            clock.advance(us=span_us)
            wall.advance(us=span_us)
        walls[1].advance(us=rng.choice((-DAY_US, -1, 0, HOUR_US, DAY_US)))
        steady, stepped = [await settle(store.hit(checks)) for store in stores]
        assert (steady.reason, steady.states) == (stepped.reason, stepped.states)
