"""Bans are in Unix time in every store: they move with the wall clock, from store to store, and outlive a reboot."""

import json
import random
from typing import Any

import pytest

from slidegate import BanPolicy
from slidegate.core import Ban, Bucket, Quota, parse_limits
from slidegate.core.bans.rows import to_rows
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
POLICY = BanPolicy("2/minute", "1h", factor=2, forgive="10d")
EVE, NET = "user:eve", "192.0.2.0/24"


async def bans_of(store: Any) -> list[Ban]:
    return sorted(await settle(store.bans.active()))


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
async def test_a_ban_is_the_same_in_the_store_that_imports_it_and_ends_at_the_same_moment(
    source: str, target: str, opened_as: Opened, rng: random.Random
) -> None:
    wall = FakeClock(NOW_US)
    before = opened_as(source, "before", clock=FakeClock(7), wall_clock=wall)
    after = opened_as(target, "after", clock=FakeClock(10**9), wall_clock=wall)
    for key, length_us in ((EVE, HOUR_US), (NET, rng.randrange(DAY_US, 400 * DAY_US)), ("user:ever", None)):
        await settle(before.bans.ban(key, length_us, 'by request: "why"', "ann"))
        wall.advance(us=rng.randrange(SECOND_US))
    for key in ("user:ann", "user:ann", "user:bob"):
        await settle(before.bans.strike(POLICY, key, 1, "refused"))
        wall.advance(us=rng.randrange(SECOND_US))
    rows = [*to_rows(await settle(before.bans.active()))]
    wall.advance(us=rng.randrange(HOUR_US // 2))
    assert await settle(after.bans.load(json.loads(json.dumps(rows)))) == 4
    assert await bans_of(after) == await bans_of(before)
    assert {ban.key for ban in await bans_of(after)} == {EVE, NET, "user:ever", "user:ann"}
    for until_us, key in sorted((ban.until_us, ban.key) for ban in await bans_of(before) if ban.until_us is not None):
        for moment_us in (until_us - 1, until_us):
            wall.set(moment_us)
            in_force = [{ban.key for ban in await bans_of(store)} for store in (before, after)]
            assert in_force[0] == in_force[1]
            assert (key in in_force[0]) == (moment_us < until_us)
            answers = [await settle(store.hit(((bucket("100/hour"), key, 1),))) for store in (before, after)]
            assert [answer.retry_after_us for answer in answers] == [until_us - moment_us] * 2


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
