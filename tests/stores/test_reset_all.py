"""Resets while threads count, of shared cells, and of one prefix alone."""

import asyncio
import time

import pytest

from slidegate import Limiter, MemoryStore, Quota, parse_limits
from slidegate.core import AnyLimit, Bucket
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import settle
from ..fault_proxy import FaultProxy
from ..hurry import at_once
from ..redis_servers import BOUND_S, RedisServer, needs_redis
from .conftest import Opened
from .redis.stores import fresh_prefix, store_at


def test_threads_get_no_more_than_the_amount_between_two_resets() -> None:
    """Whatever a reset meets half done, the windows after it hold what was spent after it."""
    store, rules = MemoryStore(), [bucket("50/hour", "timed"), bucket("500/hour", "counted")]
    amounts, keys, at_work = [50, 500], ["ann", "bob"], set(range(4))

    def hammer(number: int) -> list[int]:
        admitted = [0, 0]
        try:
            for turn in range(4_000):
                rule = turn % 2
                admitted[rule] += bool(store.hit(((rules[rule], keys[turn // 2 % 2], 1),)))
                if not turn % 50:
                    store.inspect("ann", rules)
        finally:
            at_work.discard(number)
        return admitted

    def reset_until_they_are_done(resets: int = 0) -> list[int]:
        while at_work:
            store.reset_all()
            resets += 1
            time.sleep(0.0001)  # else a reset comes after every hit
        return [resets]

    *admitted, (resets,) = at_once(lambda number: hammer(number) if number < 4 else reset_until_they_are_done(), 5)
    for rule, amount in enumerate(amounts):
        assert sum(by[rule] for by in admitted) <= amount * len(keys) * (resets + 1)
    store.reset_all()
    assert store.key_count() == 0
    for limited, amount in zip(rules, amounts, strict=True):
        assert sum(bool(store.hit(((limited, "ann", 1),))) for _ in range(amount + 10)) == amount


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
@pytest.mark.parametrize("limit", ["3/hour", "100/hour @5", Quota("3/day")])
async def test_windows_whose_units_have_left_are_none(kind: str, limit: AnyLimit | str, opened_as: Opened) -> None:
    """Redis goes by the end of a hash, and its own time."""
    clock = FakeClock(1_800_000_000_000_000)
    store = opened_as(kind, clock=clock)
    question = ((Bucket("rule", parse_limits(limit)), "ann", 1),)
    found = []
    for passed in ("1us", "59m", "2d"):
        assert await settle(store.hit(question))
        clock.advance(passed)
        found.append(await settle(store.reset_all()))
    assert found == [True, True, False]


@needs_redis
@pytest.mark.parametrize("where", ["server", "cluster"])
async def test_windows_of_another_prefix_stay(where: str, request: pytest.FixtureRequest) -> None:
    running = request.getfixturevalue(where)
    async with store_at(running) as here, store_at(running) as there:
        checks = ((bucket("3/hour"), "ann", 1),)
        for store in (here, there):
            await settle(store.hit(checks))
        assert await here.reset_all() is True
        assert [(await settle(store.hit(checks))).remaining for store in (here, there)] == [2, 1]


@needs_redis
async def test_thousands_of_keys_far_away_are_forgotten_long_before_the_deadline(server: RedisServer) -> None:
    """One round trip for each would take a minute here, and a command may take half of one."""
    rule = bucket("3/hour")
    async with FaultProxy(server.port) as proxy:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}", prefix=fresh_prefix(), timeout=f"{BOUND_S}s")
        async with Limiter(store) as limiter:
            questions = [((rule, f"key-{number}", 1),) for number in range(3_000)]
            await asyncio.gather(*(settle(store.hit(checks)) for checks in questions))
            proxy.delay_s = 0.02
            server.command("CONFIG", "RESETSTAT")
            assert await limiter.reset_all() is True
            calls = server.calls()
            assert calls["scan"] < 300
            assert calls["evalsha"] < 300, "one for many keys, not one for each"
            proxy.delay_s = 0.0
            left = await asyncio.gather(*(settle(store.peek(checks)) for checks in questions))
            assert {decision.remaining for decision in left} == {2}
