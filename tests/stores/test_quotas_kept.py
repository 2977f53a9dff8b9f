"""Quotas and rows of stats outlive those who made them, go by the right clock, and leave nothing behind."""

import os
from typing import Any

import pytest

from slidegate.core import Bucket, Decision, Quota, StatsRow, StoreUnavailable, parse_limits
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.transaction import Transaction
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import settle
from ..redis_servers import RedisServer, needs_redis
from .conftest import Opened
from .redis.stores import store_at

MIDNIGHT_US = 1_735_689_600_000_000  # 2025-01-01T00:00Z
HOUR_US = 3_600_000_000
PLAN = Bucket("plan", parse_limits(Quota("5/day")))


async def hit(store: Any, key: str = "ann") -> Decision:
    return await settle(store.hit(((PLAN, key, 1),)))


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
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
    if hasattr(store, "key_count"):
        keys = store.key_count()
    else:
        keys = await settle(store._batcher.read(lambda transaction: transaction.windows.count()))
    assert keys <= 1, "only the other key may be left"
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
            store.packing._unix_us = lambda off_us=off_us: noon_us + off_us
            decision = await hit(store)
            assert (decision.remaining, decision.reset_after_us) == (left, 12 * HOUR_US)
        store.packing._unix_us = lambda: noon_us - 60 * HOUR_US
        with pytest.raises(StoreUnavailable, match="behind the server's by more than a period"):
            await hit(store)


# -- rows of stats -----------------------------------------------------------------------------------------------------


MINUTE_US = 60_000_000
CHECKS = ((Bucket("rule", parse_limits("1000/hour")), "ann", 1),)
ANN, BOB = b"ann00000", b"bob00000"


def rows(count: int, size: int, first: int = 0, kept_us: int = MINUTE_US) -> list[StatsRow]:
    return [StatsRow("5s", number, bytes(size), kept_us) for number in range(first, first + count)]


async def write(store: Any, *written: StatsRow) -> None:
    for row in written:
        await settle(store.shared_stats.write(ANN, row))


def entries(store: LmdbStore) -> int:
    answers = store._transactions.write(
        [(Transaction.read, (lambda own: own.rows.txn.stat(own.rows.dbs.stats)["entries"],))]
    )
    assert answers is not None
    return int(answers[0])


async def test_rows_that_are_over_go_by_other_writes_alone(opened_as: Opened) -> None:
    clock = FakeClock()
    store = opened_as("lmdb", clock=clock, max_map_size=1 << 28)
    for first in range(0, 300, 100):
        await write(store, *rows(100, 20_000, first))
        clock.advance("10s")
    assert entries(store) == 300
    clock.advance("35s")
    for _ in range(100):
        assert (await settle(store.hit(CHECKS))).allowed
        clock.advance("100ms")
    assert entries(store) == 100, "those of which the minute is over"
    await write(store, *rows(1, 3, 299))
    clock.advance("55s")
    for _ in range(20):
        assert (await settle(store.hit(CHECKS))).allowed
        clock.advance("100ms")
    assert entries(store) == 1, "a row that is written again is kept for longer"


async def test_stats_leave_a_full_file_alone(opened_as: Opened) -> None:
    store = opened_as("lmdb", max_map_size=2**20)
    for number in range(100_000):
        if store._env.counts.fullness:
            break
        await settle(store.hit(((CHECKS[0][0], f"user:{number}", 1),)))
    with pytest.raises(StoreUnavailable, match="no room"):
        await write(store, *rows(1, 4_097))
    await write(store, StatsRow("limits", 0, b"off", MINUTE_US))
    assert await settle(store.shared_stats.read("limits", 0, 0)) == [(0, ANN, b"off")], "an operator's change has room"
    assert (await settle(store.hit(CHECKS))).allowed


async def test_large_rows_take_no_more_than_was_taken_ahead(opened_as: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store, mib = opened_as("lmdb", max_map_size=1 << 26), 1 << 20
    for _ in range(20):  # the room has just been checked
        await settle(store.hit(CHECKS))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreUnavailable, match="no room for 1,048,576 bytes"):
        await write(store, *rows(16, mib))
    assert store._env.counts.used() < 8 * mib, "a process that writes to a hole on a full disk is killed"


@needs_redis
async def test_every_key_of_stats_has_a_time_to_live_and_one_prefix(server: RedisServer) -> None:
    async with store_at(server, prefix="ttl") as store:
        await write(store, *rows(2, 5, 7), StatsRow("workers", 0, b"ann", MINUTE_US))
        assert await store.shared_stats.time() > 1_600_000_000_000_000
        keys = server.command("KEYS", "{ttl}:bans:rows:*")
        assert len(keys) == 3
        for key in keys:
            assert MINUTE_US // 1_000 - 30_000 < server.command("PTTL", key) <= MINUTE_US // 1_000 + 1_002


@needs_redis
async def test_the_list_of_workers_forgets_the_dead_while_others_write(server: RedisServer) -> None:
    clock = FakeClock(1_700_000_000_000_000)
    async with store_at(server, prefix="dead", clock=clock) as store:
        for number in range(50):
            await store.shared_stats.write(b"%08d" % number, StatsRow("workers", 0, b"x", MINUTE_US))
            clock.advance(us=MINUTE_US // 4)
        assert server.command("HLEN", "{dead}:bans:rows:workers:0") == 4
        assert len(await store.shared_stats.read("workers", 0, 0)) == 3
