"""What stores keep and for how long: data of earlier versions, rows of stats; what a reset forgets; and the clocks.

A store reads its clock once nobody else can decide: the wall clock for bans and quotas, another one for windows.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Decision, Limiter, MemoryStore, Quota, header, parse_limits
from slidegate.core import AnyLimit, Bucket, SharedRow, StoreUnavailable
from slidegate.stores.redis import RedisStore, protocol
from slidegate.testing import FakeClock

from ..contract.player import settle
from ..contract.programs import DAY_US, HOUR_US, MINUTE_US, SECOND_US, YEAR_2100_US
from ..contract.store_contract import bucket
from ..fault_proxy import FaultProxy
from ..redis_servers import AT_REDIS, BOUND_S, RedisServer, needs_redis
from .conftest import Opened
from .redis.stores import fresh_prefix, store_at, store_of

DATA = Path(__file__).with_name("data")
SECRETS = {"bans.jsonl": None, "bans_with_secret.jsonl": "only for this fixture, no secret"}
API_KEY = header("X-API-Key").of("leaked-key")


FURTHER: list[Any] = [{}, {"scope": "all", "": None, "later": {"é": [1, None]}, "x" * 300: 2**70}]
"""What a later version may add to rows."""


@pytest.mark.parametrize("further", FURTHER)
@pytest.mark.parametrize("name", SECRETS)
async def test_exported_bans_are_imported_as_they_are(name: str, further: dict[str, Any]) -> None:
    lines = (DATA / name).read_text("utf-8").splitlines()
    clock = FakeClock(max(json.loads(line)["since_us"] for line in lines[1:]))
    async with Limiter(MemoryStore(clock=clock), secret=SECRETS[name]) as limiter:
        assert await limiter.import_bans([json.dumps(json.loads(line) | further) for line in lines]) == len(lines) - 1
        for key in ("192.0.2.7", "198.51.100.200", "203.0.113.77", "2001:db8:1:2::9", "2001:db8:ffff::7", "user:42"):
            assert await limiter.banned(key), key
        for key in ("192.0.2.6", "2001:db8:1:3::9", "2001:db8:ffff::8", "user:43"):
            assert not await limiter.banned(key), key
        assert await limiter.banned(API_KEY)
        header, *exported = [line async for line in limiter.export_bans()]
        assert header == lines[0] + "\n"
        assert sorted(exported) == sorted(line + "\n" for line in lines[1:])


# -- in Redis: every later version reads bans, levels and quotas; windows restart in another layout --------------------


NOW_US = 1_900_000_000_000_000
SCANNERS = BanPolicy(after="2/hour", duration="1h", factor=4, longest="7d", name="scanners")
QUOTA = Quota("3/month")
HAND = "198.51.100.0/24"

# As the first version has written them: from its release on, these lines are never changed.
ROWS = {
    "w:user:eve": {
        b"b": b"\x00d\xa6\x0f\x0b\xc0\x06\x00"
        b'{"key":"user:eve","reason":"a reason","by":"ann","level":0,'
        b'"since_us":1900000000000000,"until_us":1900003600000000}'
    },
    "w:user:kim": {
        b"\xc1z\xe1\xa60\xba\xef\xbe": b"\x01\x00\x00\x00\x01\x00\x00\x00"
        b"\x00\xe0\xfe\x11)\xc1\x06\x00\x00\xe0\xfe\x11)\xc1\x06\x00"
    },
    "s:user:bob": {
        b"@\xbc\x97\x89G\xce\xc7\xea": b"\x00\xc4}-\x1f\xc0\x06\x00\x00d\xa6\x0f\x0b\xc0\x06\x00\x01\x00\x00\x00"
    },
}
"""By key without the prefix, and by field: a ban by hand, a quota of which one unit is spent, and a level."""


async def assert_known(limiter: Limiter, clock: FakeClock) -> None:
    """Check what `ROWS` contain: who is banned, the unit of the quota, and that the next ban is the second."""
    ban = await limiter.banned("user:eve")
    assert ban == ("user:eve", "a reason", "ann", 0, NOW_US, NOW_US + 3_600_000_000)
    assert (await limiter.peek("user:kim", QUOTA, 0)).remaining == 2
    clock.advance("90m")
    assert await limiter.store.bans.strike(SCANNERS, "user:bob", 1, "") is None
    second = await limiter.store.bans.strike(SCANNERS, "user:bob", 1, "")
    assert second is not None
    assert second.level == 2


def with_fields(further: dict[str, Any], name: str, stored: bytes) -> bytes:
    if b"{" in stored:
        return stored[:8] + json.dumps(json.loads(stored[8:]) | further).encode()
    if name.startswith("s:") and further:  # a level, which has no names
        return stored + json.dumps(further).encode()
    return stored


@needs_redis
@pytest.mark.parametrize("further", FURTHER)
async def test_rows_of_other_versions_are_read_and_left_there(further: dict[str, Any], server: RedisServer) -> None:
    prefix, clock = fresh_prefix(), FakeClock(NOW_US)
    async with Limiter(store_of(server, prefix=prefix, readable=True, clock=clock)) as limiter:
        await limiter.ban(HAND, "1h", reason="a reason", by="ann")
    networks = f"{{{prefix}}}:bans:networks"
    rows = {(networks, HAND.encode()): server.command("HGET", networks, HAND)}
    rows |= {(f"{{{prefix}}}:{name}", field): row for name, fields in ROWS.items() for field, row in fields.items()}
    for place, row in rows.items():
        rows[place] = with_fields(further, place[0].partition(":")[2], row)
        server.command("HSET", *place, rows[place])
    async with Limiter(store_of(server, prefix=prefix, readable=True, clock=clock), on_error="deny") as limiter:
        for key in ("user:eve", "198.51.100.7"):
            assert (await limiter.hit(key, "9/hour")).reason == "banned", key
        assert [ban.key async for ban in limiter.bans()] == [HAND]
        assert [server.command("HGET", *place) for place in rows] == [*rows.values()]
        await assert_known(limiter, clock)
        assert await limiter.unban("user:bob")


@needs_redis
async def test_another_layout_restarts_windows_alone(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, clock = fresh_prefix(), FakeClock(NOW_US)
    async with Limiter(store_of(server, prefix=prefix, readable=True, clock=clock)) as limiter:
        await limiter.ban("user:eve", "1h", reason="a reason", by="ann")
        await limiter.hit("user:kim", [QUOTA, "9/hour"])
        await limiter.store.bans.strike(SCANNERS, "user:bob", 2, "")
    monkeypatch.setattr(protocol, "LAYOUT", protocol.LAYOUT + 1)
    async with Limiter(store_of(server, prefix=prefix, readable=True, clock=clock)) as limiter:
        await assert_known(limiter, clock)
        assert (await limiter.peek("user:kim", "9/hour", 0)).remaining == 9


# -- quotas outlive their workers, and go by the right clock -----------------------------------------------------------


MIDNIGHT_US = 1_735_689_600_000_000  # 2025-01-01T00:00Z
PLAN = Bucket("plan", parse_limits(Quota("5/day")))


async def hit(store: Any) -> Decision:
    return await settle(store.hit(((PLAN, "ann", 1),)))


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_sweeping_goes_by_the_clock_of_the_system_and_keeps_a_count_that_is_needed(opened: Opened) -> None:
    ticks, wall = FakeClock(7), FakeClock(MIDNIGHT_US + 23 * HOUR_US)
    store = opened(clock=ticks, wall_clock=wall)

    async def live_on() -> None:
        """Let days pass on the clock of windows, in which other keys ask all the time."""
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
        keys = await settle(store._batcher.run(lambda transaction: transaction.windows.count(), needs_room=False))
    assert keys <= 1, "only the other key may be left"
    assert (await hit(store)).remaining == 4


@needs_redis
async def test_redis_keeps_a_quota_over_restarts_of_workers_and_server() -> None:
    with RedisServer() as server:
        for left in (4, 3, 2):
            async with store_at(server, prefix="kept") as store:
                assert (await hit(store)).remaining == left
            server.command("SAVE")
            server.kill()
            server.start()


@needs_redis
async def test_the_server_chooses_the_period_of_a_worker_whose_clock_is_off(server: RedisServer) -> None:
    """The script is asked as a worker asks whose own clock is ahead or behind."""
    noon_us = MIDNIGHT_US + 12 * HOUR_US
    async with store_at(server, clock=FakeClock(noon_us)) as store:
        for left, off_us in ((4, 0), (3, 20 * HOUR_US), (2, -20 * HOUR_US)):
            store.parts.packing._unix_us = lambda off_us=off_us: noon_us + off_us
            decision = await hit(store)
            assert (decision.remaining, decision.reset_after_us) == (left, 12 * HOUR_US)
        store.parts.packing._unix_us = lambda: noon_us - 60 * HOUR_US
        with pytest.raises(StoreUnavailable, match="behind the server's by more than a period"):
            await hit(store)


@needs_redis
async def test_the_list_of_workers_forgets_the_dead_while_others_write(server: RedisServer) -> None:
    clock = FakeClock(1_700_000_000_000_000)
    async with store_at(server, prefix="dead", clock=clock) as store:
        for number in range(50):
            await store.shared_rows.write(b"%08d" % number, SharedRow("workers", 0, b"x", MINUTE_US))
            clock.advance(us=MINUTE_US // 4)
        assert server.command("HLEN", "{dead}:bans:rows:workers:0") == 4
        assert len(await store.shared_rows.read("workers", 0, 0)) == 3


# -- resets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
@pytest.mark.parametrize("limit", ["3/hour", "100/hour @5", Quota("3/day")])
@pytest.mark.parametrize("how", ["reset", "reset_all"])
async def test_windows_whose_units_have_left_are_none(how: str, limit: AnyLimit | str, opened: Opened) -> None:
    """So it is with what lasts longer beside them: a ban, a window whose units were handed back, a longer limit."""
    clock = FakeClock(1_800_000_000_000_000)
    store = opened(clock=clock, wall_clock=clock)
    question = ((Bucket("rule", parse_limits(limit)), "ann", 1),)
    found = []
    for passed in ("1us", "59m", "2d"):
        longer = await settle(store.hit(((Bucket("longer", parse_limits("3/90d")), "ann", 1),)))
        assert await settle(store.hit(question))
        await settle(store.refund(longer.begin_refund()))
        await settle(store.bans.ban("ann", None, "", "bob"))
        clock.advance(passed)
        found.append(await settle(store.reset("ann") if how == "reset" else store.reset_all()))
        await settle(store.bans.unban("ann", "bob"))
        assert not await settle(store.reset("ann"))
    assert found == [True, True, False]


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


# -- the clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_a_step_of_unix_time_moves_quotas_and_bans_alone(opened: Opened, rng: random.Random, kind: str) -> None:
    """That a ban ends so in any store that imports it is in the random bans of the contract."""
    quota, clock, wall = Quota("50/year"), FakeClock(7), FakeClock(YEAR_2100_US + 100 * DAY_US)
    end_us = quota.calendar.period_at(wall.now_us).end_us
    store, steady = opened(clock=clock, wall_clock=wall), MemoryStore(clock=clock)
    plan, windows = Bucket("plan", parse_limits(quota)), ((bucket("5/minute"), "ann", 1), (bucket("100/10m"), "ann", 7))
    await settle(store.bans.ban("user:eve", end_us - wall.now_us, "why", "ann"))
    for spent in range(1, 51):
        decision = await settle(store.hit(((plan, "ann", 1),)))
        assert (decision.remaining, decision.reset_after_us) == (50 - spent, end_us - wall.now_us)
        refused = await settle(store.hit(((bucket("100/hour"), "user:eve", 1),)))
        assert (refused.allowed, refused.retry_after_us) == (False, end_us - wall.now_us)
        if kind != "redis":  # the server has one clock
            assert (await settle(store.hit(windows))).states == steady.hit(windows).states
        clock.advance(us=rng.choice((1, SECOND_US, 20 * SECOND_US)))
        wall.set(end_us - rng.choice((1, HOUR_US, rng.randrange(1, 1_000 * DAY_US))))
    assert (await settle(store.hit(((plan, "ann", 1),)))).retry_after_us == end_us - wall.now_us
    wall.set(end_us)
    assert (await settle(store.hit(((plan, "ann", 1),)))).remaining == 49
    assert await settle(store.hit(((bucket("100/hour"), "user:eve", 1),)))
