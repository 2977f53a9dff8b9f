"""Redis loses its data, or parts of it: workers notice, put their bans back, and count anew."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slidegate import BanPolicy, StoreError
from slidegate.core.addresses import parse_address
from slidegate.core.decision import Decision, Reason
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.bans.ban_refresh import PARTS
from slidegate.testing import RecordingObserver
from slidegate.testing.contract.desk import bucket
from slidegate.testing.contract.player import settle

from ...redis_servers import RedisServer, needs_redis

NUMBER = itertools.count()
BOUND_S = 20
TEN = bucket("10/hour")
ADDRESS = parse_address("192.0.2.7")
POLICY = BanPolicy("3/hour", "1h", name="p")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@asynccontextmanager
async def workers_at(server: RedisServer, many: int, **options: Any) -> AsyncIterator[list[RedisStore]]:
    """Open stores that share a prefix."""
    prefix = f"l{os.getpid()}-{next(NUMBER)}"
    stores = [RedisStore(server.url, **{"prefix": prefix, **options}) for _ in range(many)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


async def hit(store: RedisStore, key: str = "user:ann") -> Decision:
    """Hit until the store answers: the first request after a restart finds a connection that is gone."""
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                return await settle(store.hit(((TEN, key, 1),)))
            except StoreError:
                await asyncio.sleep(0.01)


def listen(store: RedisStore) -> RecordingObserver:
    heard = RecordingObserver()
    store.observe(heard)
    return heard


async def banned(store: RedisStore) -> list[str]:
    return sorted(ban.key for ban in await store.bans.active())


@needs_redis
@pytest.mark.parametrize("how", ["flushed", "restarted"])
async def test_idle_workers_and_a_new_one_share_a_limit_and_the_bans_after_a_loss(how: str) -> None:
    with RedisServer() as server:
        async with workers_at(server, 4) as workers:
            *old, new = workers
            heard = [listen(store) for store in workers]
            await old[0].bans.ban("user:eve", None, "", "ann")
            for store in old:
                assert await hit(store)
                assert await banned(store) == ["user:eve"]
            if how == "flushed":
                server.command("FLUSHALL")
            else:
                server.kill()
                server.start()
            admitted = [await hit(store) for store in (new, *old) for _ in range(10)]
            assert sum(map(bool, admitted)) == 10
            assert len({store._names.secret for store in workers}) == 1
            assert ["store_reset" in told.kinds for told in heard] == [True, True, True, False]
            async with asyncio.timeout(BOUND_S):  # until a worker that held the ban has put it back
                while not await banned(new):
                    pass
            assert (await hit(new, "user:eve")).reason is Reason.BANNED


@needs_redis
@pytest.mark.parametrize("part", [*(part.decode() for part in PARTS if part != b":prefixes"), "all but the numbers"])
async def test_a_part_of_the_bans_that_is_gone_is_noticed_and_put_back(server: RedisServer, part: str) -> None:
    assert ADDRESS is not None
    async with workers_at(server, 3) as (one, two, late):
        heard = listen(one), listen(two)
        for key, length_us in (("192.0.2.0/24", 3_600_000_000), ("user:eve", None), ("2001:db8::/48", 7_200_000_000)):
            await one.bans.ban(key, length_us, "", "ann")
        await one.bans.strike(POLICY, "user:bob", 2, "")
        expected = await banned(one)
        assert await banned(two) == expected
        gone = [name.decode() for name in PARTS[1:]] if part.startswith("all") else [part]
        for name in gone:
            server.command("DEL", f"{one._prefix}:{{bans}}{name}")
        for store in (two, one):
            await settle(store.hit(((TEN, "user:cat", 1),)))
            await store.bans.active()
        assert [told.kinds.count("store_reset") for told in heard] == [1, 1]
        assert await banned(late) == expected
        assert (await settle(late.hit(((TEN, "user:dan", 1),), (ADDRESS,)))).reason is Reason.BANNED
        assert server.command("ZCARD", f"{one._prefix}:{{bans}}:ends") == 2
        await one.bans.ban("user:fay", None, "", "ann")
        assert await banned(two) == await banned(one) == await banned(late)


@needs_redis
async def test_losses_of_any_part_at_any_time_lose_no_ban_and_no_limit(server: RedisServer, rng: random.Random) -> None:
    names = [part.decode() for part in PARTS]
    async with workers_at(server, 3) as workers:
        keys: set[str] = set()
        for store in workers:
            await store.bans.active()
        for round_ in range(40):
            what = rng.choice(("ban", "ban", "unban", "lose", "lose all", "hit"))
            store = rng.choice(workers)
            if what == "ban":
                key = rng.choice((f"user:{round_}", f"198.51.100.{round_}", f"2001:db8:{round_:x}::/64"))
                await store.bans.ban(key, rng.choice((None, 3_600_000_000)), "", "ann")
                keys.add(key)
            elif what == "unban" and keys:
                keys.discard(gone := rng.choice(sorted(keys)))
                assert await store.bans.unban(gone, "ann")
            elif what == "lose":
                server.command("DEL", *(f"{store._prefix}:{{bans}}{name}" for name in rng.sample(names, 2)))
            elif what == "lose all":
                server.command("FLUSHALL")
            for each in rng.sample(workers, 3):
                await settle(each.hit(((TEN, f"user:x{round_}", 1),)))
                assert set(await banned(each)) == keys
        allowed = [bool(await hit(rng.choice(workers), "user:last")) for _ in range(30)]
        assert sum(allowed) == 10


@needs_redis
async def test_a_worker_starts_while_the_server_is_out_of_memory() -> None:
    with RedisServer() as server:
        async with workers_at(server, 2) as (old, new):
            await old.bans.ban("user:eve", None, "", "ann")
            for _ in range(10):
                await hit(old)
            server.command("CONFIG", "SET", "maxmemory", "1")
            assert len(await settle(new.secret)) == 32
            assert (await settle(new.hit(((TEN, "user:eve", 1),)))).reason is Reason.BANNED
            assert (await settle(new.hit(((TEN, "user:ann", 1),)))).reason is Reason.LIMITED
            with pytest.raises(StoreError, match="OOM"):
                await settle(new.hit(((TEN, "user:bob", 1),)))
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert await hit(new, "user:bob")


@needs_redis
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl"])
async def test_bans_outlive_a_server_that_evicts_and_whoever_connects_tells_of_it(policy: str) -> None:
    with RedisServer("--maxmemory", "4mb", "--maxmemory-policy", policy, "--maxmemory-samples", "1") as server:
        async with workers_at(server, 2) as (one, late):
            heard = listen(one)
            keys = sorted(f"198.51.100.{number}" for number in range(100))
            for key in keys:
                await one.bans.ban(key, 3_600_000_000, "", "ann")
            assert await banned(one) == keys
            assert heard.kinds[0] == "store_evicts"
            assert (heard.events[0].details["policy"], policy in one.evicts) == (policy, True)
            for number in range(40):
                flood = [settle(one.hit(((TEN, f"user:{number}-{place}", 1),))) for place in range(500)]
                await asyncio.gather(*flood, return_exceptions=True)  # a server that can evict nothing more says OOM
                assert await banned(one) == keys
            assert int(server.info("stats")["evicted_keys"]) > 0
            async with asyncio.timeout(BOUND_S):  # the last of the flood may have driven the bans out once more
                while await banned(late) != keys:
                    assert await banned(one) == keys
            assert heard.kinds.count("store_evicts") == 1


@needs_redis
async def test_a_server_that_keeps_everything_is_nothing_to_tell_of(server: RedisServer) -> None:
    async with workers_at(server, 1) as (one,):
        heard = listen(one)
        await hit(one)
        assert (one.evicts, heard.kinds) == ("", [])
