"""What else may stand in Redis, and what is not there any more: values of others at keys of ours, and lost data."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from slidegate import BanPolicy, Quota, StoreError
from slidegate.core import Bucket, Concurrency, Decision, Reason, StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...contract.harness import bucket
from ...contract.player import settle
from ...redis_servers import RedisServer, needs_redis
from .stores import PLENTY, PLENTY_S, fresh_prefix, store_at, struck, until_answered, workers_at

pytestmark = needs_redis


async def test_a_key_with_thousands_of_windows_is_forgotten_like_any_other(server: RedisServer) -> None:
    rules = [bucket("5/hour", f"rule-{number}") for number in range(4_500)]
    async with store_at(server) as store:
        await asyncio.gather(*(settle(store.hit(((rule, "ann", 1),))) for rule in rules))
        assert await settle(store.reset("ann")) is True
        assert (await settle(store.peek(((rules[-1], "ann", 0),)))).remaining == 5
        assert await settle(store.reset("ann")) is False


FOREIGN: dict[str, tuple[str, ...]] = {
    "text": ("SET", "{}", "of somebody else"),
    "list": ("RPUSH", "{}", "of", "somebody", "else"),
    "set": ("SADD", "{}", "of", "somebody", "else"),
    "sorted set": ("ZADD", "{}", "7", "of somebody else"),
    "hash": ("HSET", "{}", "of", "somebody else"),
}
GARBAGE = ("", "\0", "7" * 7, "7" * 16, "7" * 24, "\x7f" * 60, "7" * 5_000)
LAST = bucket("5/hour", "last")
HELD = Bucket("held", [Concurrency(5)])


async def fill(store: RedisStore) -> None:
    """Have every kind of key made."""
    for rule in (LAST, HELD, Bucket("plan", (Quota("10/day"),))):
        assert await settle(store.hit(((rule, "ann", 1),)))
    await store.bans.ban("bob", 3_600_000_000, "", "ann")
    await store.bans.ban("192.0.2.0/24", 3_600_000_000, "", "ann")
    await store.bans.strike(BanPolicy("20/10m", "1h"), "eve", 1, "")


def damage(server: RedisServer, name: bytes) -> Iterator[str]:
    """Put one foreign value after the other in the place of a value, and say which it is; restore it at the end."""
    stored = server.command("DUMP", name)
    try:
        for kind, (command, _, *rest) in FOREIGN.items():
            server.command("DEL", name)
            server.command(command, name, *rest)
            yield kind
        server.command("DEL", name)
        server.command("RESTORE", name, 0, stored)
        if server.command("TYPE", name) == b"hash":
            fields = server.command("HKEYS", name)
            for text in GARBAGE:
                for field in fields:
                    server.command("HSET", name, field, text)
                yield f"a hash of {text[:20]!r}"
    finally:
        server.command("DEL", name)
        server.command("RESTORE", name, 0, stored)


async def test_what_cannot_be_read_of_a_key_says_nothing_about_the_server(server: RedisServer) -> None:
    prefix = fresh_prefix()
    async with store_at(server, prefix=prefix, readable=True) as store:
        await fill(store)
        for key in ("ann", "bob"):
            for value in damage(server, f"{{{prefix}}}:w:{key}".encode()):
                answer = asyncio.ensure_future(settle(store.hit(((LAST, key, 1),), (key,))))
                await asyncio.wait([answer])
                error = answer.exception()
                assert error is None or (isinstance(error, StoreUnavailable) and error.concerns == "key"), value
                assert await settle(store.hit(((HELD, f"{value} at {key}"[:60], 1),))), "nobody else is stopped"


async def test_a_foreign_value_at_a_shared_key_is_an_error_until_it_is_gone(server: RedisServer) -> None:
    prefix = fresh_prefix()
    async with store_at(server, prefix=prefix) as store:
        await fill(store)
        for name in ("bans", "bans:index", "bans:networks"):
            for value in damage(server, f"{{{prefix}}}:{name}".encode()):
                if value in ("text", "list", "set"):
                    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
                        await store.bans.ban("192.0.2.0/24", None, "", "ann")
            await store.bans.ban("192.0.2.0/24", None, "", "ann")


# -- Redis loses its data, or parts of it: workers notice, say so, and count anew --------------------------------------


POLICY = BanPolicy("3/hour", "1h", name="p")

TEN = bucket("10/hour")


async def hit(store: RedisStore, key: str = "user:ann") -> Decision:
    return await until_answered(lambda: store.hit(((TEN, key, 1),)))


def listen(store: RedisStore) -> RecordingObserver:
    observer = RecordingObserver()
    store.observe(observer)
    return observer


async def banned(store: RedisStore) -> list[str]:
    return sorted(ban.key for ban in await store.bans.active())


@pytest.mark.parametrize("how", ["flushed", "restarted"])
@pytest.mark.all
async def test_idle_workers_and_a_new_one_share_a_limit_after_a_loss_and_say_how_many_bans_are_gone(how: str) -> None:
    with RedisServer() as server:
        async with workers_at(server, 4) as workers:
            *old, new = workers
            observer = [listen(store) for store in workers]
            for key in ("user:eve", "user:dan"):
                await old[0].bans.ban(key, None, "", "ann")
            for store in old:
                assert await hit(store)
                assert await banned(store) == ["user:dan", "user:eve"]
            if how == "flushed":
                server.command("FLUSHALL")
            else:
                server.kill()
                server.start()
            admitted = [await hit(store) for store in (new, *old) for _ in range(10)]
            assert sum(map(bool, admitted)) == 10
            async with asyncio.timeout(PLENTY_S):
                while not all("store_reset" in each.kinds for each in observer[:3]):
                    for store in old:
                        await hit(store, "user:later")  # it is asked once a second what has changed
                    await asyncio.sleep(0.01)
            reported = [[event.details for event in each.events if event.kind == "store_reset"] for each in observer]
            assert reported == [[{"bans": 2}]] * 3 + [[]]
            for store in workers:
                assert await banned(store) == []
                assert await hit(store, f"user:{how}")
            await new.bans.ban("user:eve", None, "", "ann")
            for store in workers:
                assert (await hit(store, "user:eve")).reason is Reason.BANNED


@pytest.mark.all
async def test_a_worker_starts_while_the_server_is_out_of_memory() -> None:
    with RedisServer() as server:
        async with workers_at(server, 2) as (old, new):
            await old.bans.ban("user:eve", None, "", "ann")
            for _ in range(10):
                await hit(old)
            server.command("CONFIG", "SET", "maxmemory", "1")
            assert (await settle(new.hit(((TEN, "user:eve", 1),)))).reason is Reason.BANNED
            assert (await settle(new.hit(((TEN, "user:ann", 1),)))).reason is Reason.LIMITED
            with pytest.raises(StoreError, match="OOM"):
                await settle(new.hit(((TEN, "user:bob", 1),)))
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert await hit(new, "user:bob")


@pytest.mark.all
async def test_whoever_connects_to_a_server_that_evicts_tells_of_it_once_and_of_no_other(server: RedisServer) -> None:
    policy = "--maxmemory-policy", "allkeys-lru"
    with RedisServer("--maxmemory", "4mb", *policy) as evicting, RedisServer(*policy) as unbounded:
        async with (
            workers_at(evicting, 1) as (one,),
            workers_at(server, 1) as (other,),
            workers_at(unbounded, 1) as (third,),
        ):
            observer, unheard = listen(one), listen(other)
            third.observe(unheard)
            for _ in range(3):
                await hit(one)
                await hit(other)
                await hit(third)
            assert observer.kinds == ["store_evicts"]
            assert observer.events[0].details["policy"] == "allkeys-lru"
            assert "(maxmemory-policy allkeys-lru)" in observer.events[0].message
            assert unheard.kinds == []


@pytest.mark.all
async def test_a_tool_that_looks_on_answers_nothing_from_a_store_that_was_emptied_meanwhile() -> None:
    with RedisServer() as server:
        async with workers_at(server, 1) as (worker,), workers_at(server, 1, read_only=True) as (stranger,):
            prefix = worker._prefix
            tool = RedisStore(server.url, prefix=prefix, timeout=PLENTY, read_only=True)
            assert await hit(worker)
            assert (await settle(tool.peek(((TEN, "user:ann", 1),)))).remaining == 8
            with pytest.raises(StoreError, match="no slidegate data"):
                await settle(stranger.peek(((TEN, "user:ann", 1),)))
            server.command("FLUSHALL")
            async with asyncio.timeout(PLENTY_S):
                with suppress(StoreError):
                    while True:
                        await settle(tool.peek(((TEN, "user:ann", 1),)))
            with pytest.raises(StoreError, match="no slidegate data"):
                await settle(tool.peek(((TEN, "user:ann", 1),)))
            assert server.command("DBSIZE") == 0
            assert await hit(worker)
            assert (await until_answered(lambda: tool.peek(((TEN, "user:ann", 1),)))).remaining == 8
            await tool.close()


@pytest.mark.all
async def test_bans_hold_where_the_list_of_their_keys_was_evicted(server: RedisServer) -> None:
    async with workers_at(server, 2) as (one, other):
        for key, length_us in (("user:eve", None), ("user:dan", 3_600_000_000)):
            await one.bans.ban(key, length_us, "", "ann")
        await one.bans.strike(POLICY, "user:ann", 1, "")
        server.command("DEL", f"{{{one._prefix}}}:bans:index")
        for store in (one, other):
            assert (await hit(store, "user:eve")).reason is Reason.BANNED
            assert await banned(store) == []
        await other.bans.ban("user:new", 3_600_000_000, "", "ann")
        assert await banned(one) == ["user:new"]
        assert await struck(one, POLICY, "user:ann") == 1
        assert await one.bans.unban("user:eve", "ann")
        assert (await hit(one, "user:eve")).allowed
