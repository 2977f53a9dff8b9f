"""Bans in Redis, values of others at keys of ours, and lost data."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from slidegate import BanPolicy, Decision, Limiter, Quota, StoreError
from slidegate.core import Bucket, Concurrency, Reason, StoreUnavailable
from slidegate.core.bans.rows import to_rows
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.bans import CHUNK
from slidegate.testing import FakeClock, RecordingObserver

from ...contract.harness import bucket
from ...contract.player import settle
from ...redis_servers import RedisServer, needs_redis
from .faults import Deployment
from .stores import PLENTY, PLENTY_S, address, fresh_prefix, hit, store_at, struck, until_answered, workers_at

pytestmark = needs_redis
NOW_US = 1_900_000_000_000_000
WIDE = "1000000/minute"
AT_ONCE = BanPolicy("1/hour", "1h", name="p")


async def turns_of(work: Awaitable[object]) -> int:
    """Return how many turns an event loop takes while some work is done: in each of them others go on."""
    turns, done = 0, asyncio.ensure_future(work)
    while not done.done():
        await asyncio.sleep(0)
        turns += 1
    await done
    return turns


async def test_requests_are_decided_while_bans_change_with_each(deployment: Deployment) -> None:
    async with store_at(deployment.server) as one, store_at(deployment, prefix=one._prefix) as slow:
        deployment.proxy.delay_s = 0.003

        async def change() -> None:
            for number in itertools.count():
                await one.bans.ban(f"198.51.100.{number % 250}", 60_000_000, "", "ann")

        changing = [asyncio.create_task(change()) for _ in range(4)]
        async with asyncio.timeout(PLENTY_S):
            for _ in range(100):
                hits = (hit(slow, f"user:{n}", WIDE, subjects=[address("192.0.2.7")]) for n in range(5))
                assert {answer.reason for answer in await asyncio.gather(*hits)} == {Reason.OK}
        assert not any(task.done() for task in changing)
        for task in changing:
            task.cancel()


async def test_a_server_clock_that_is_set_back_revives_no_ban(server: RedisServer) -> None:
    clock = FakeClock(NOW_US)
    steps_us = (1_000_000, 4_000_000, -1_000_000, -3_600_000_000, 3_601_999_999)
    async with workers_at(server, 2, clock=clock) as stores:
        await stores[0].bans.ban("user:eve", 6_000_000, "", "ann")
        for step_us in (*steps_us, 1, -8_000_000):
            clock.advance(us=step_us)
            found = {(await hit(store, "user:eve", WIDE, subjects=["user:eve"])).reason for store in stores}
            assert found == {Reason.BANNED if step_us in steps_us else Reason.OK}


async def test_many_bans_are_read_in_steps_between_which_others_go_on(server: RedisServer) -> None:
    many = 4_000
    async with workers_at(server, 2) as (one, other):
        for first in range(0, many, 500):
            some = [f"2001:db8:{n:x}::/64" for n in range(first, first + 500)]
            await asyncio.gather(*(one.bans.ban(key, 3_600_000_000, "", "ann") for key in some))
        limiter = Limiter(other)

        async def drain(found: AsyncIterator[object]) -> None:
            assert len([each async for each in found]) >= many

        assert await turns_of(other.bans.active()) >= many // CHUNK
        for work in (limiter.export_bans(), limiter.bans()):
            assert await turns_of(drain(work)) >= 2 * many // CHUNK
        rows = [*to_rows(await other.bans.active())]
        assert await turns_of(one.bans.load(rows)) >= many // CHUNK


def paused(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have a store wait for an event when it has found the strikes of a key full, before it bans."""
    goes_on, ban_next = asyncio.Event(), store.bans._ban_next

    async def later(*hits: Any) -> Any:
        await goes_on.wait()
        return await ban_next(*hits)

    monkeypatch.setattr(store.bans, "_ban_next", later)
    return goes_on


async def test_a_ban_by_hand_outlives_a_later_policy(
    workers: list[RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, slow = workers
    goes_on = paused(slow, monkeypatch)
    struck = asyncio.ensure_future(slow.bans.strike(AT_ONCE, "user:eve", 1, ""))
    await slow.bans.find(("user:eve",))
    by_hand = await one.bans.ban("user:eve", None, "", "ann")
    goes_on.set()
    assert await struck is None
    assert await one.bans.active() == [by_hand]


@pytest.mark.parametrize("between", ["nothing", "an unban", "the end of the ban and a strike"])
@pytest.mark.parametrize("shadow", [False, True])
async def test_of_two_workers_that_find_the_strikes_full_at_once_one_bans(
    between: str, shadow: bool, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has happened since: the slower one finds the strikes gone, or another level."""
    clock, policy = FakeClock(NOW_US), BanPolicy("3/hour", "10m", factor=2, name="p", shadow=shadow)
    async with workers_at(server, 2, clock=clock) as (fast, slow):
        observer = RecordingObserver()
        for store in (fast, slow):
            store.observe(observer)
        goes_on = paused(slow, monkeypatch)
        await fast.bans.strike(policy, "user:eve", 2, "")
        struck = asyncio.ensure_future(slow.bans.strike(policy, "user:eve", 1, ""))
        await slow.bans.find(("user:eve",))
        made = await fast.bans.strike(policy, "user:eve", 1, "")
        assert (made is None) is shadow
        if between == "an unban":
            assert await fast.bans.unban("user:eve", "ann")
        elif between != "nothing":
            clock.advance("10m")
            assert await fast.bans.strike(policy, "user:eve", 1, "") is None
        goes_on.set()
        assert await struck is None
        assert [kind for kind in observer.kinds if kind.endswith("banned")].count(f"{'shadow_' * shadow}banned") == 1
        assert len(await fast.bans.active()) == (between == "nothing" and not shadow)


# -- values of others at keys of ours ----------------------------------------------------------------------------------


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


async def hit_ten(store: RedisStore, key: str = "user:ann") -> Decision:
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
                assert await hit_ten(store)
                assert await banned(store) == ["user:dan", "user:eve"]
            if how == "flushed":
                server.command("FLUSHALL")
            else:
                server.kill()
                server.start()
            admitted = [await hit_ten(store) for store in (new, *old) for _ in range(10)]
            assert sum(map(bool, admitted)) == 10
            async with asyncio.timeout(PLENTY_S):
                while not all("store_reset" in each.kinds for each in observer[:3]):
                    for store in old:
                        await hit_ten(store, "user:later")  # it is asked once a second what has changed
                    await asyncio.sleep(0.01)
            reported = [[event.details for event in each.events if event.kind == "store_reset"] for each in observer]
            assert reported == [[{"bans": 2}]] * 3 + [[]]
            for store in workers:
                assert await banned(store) == []
                assert await hit_ten(store, f"user:{how}")
            await new.bans.ban("user:eve", None, "", "ann")
            for store in workers:
                assert (await hit_ten(store, "user:eve")).reason is Reason.BANNED


@pytest.mark.all
async def test_a_worker_starts_while_the_server_is_out_of_memory() -> None:
    with RedisServer() as server:
        async with workers_at(server, 2) as (old, new):
            await old.bans.ban("user:eve", None, "", "ann")
            for _ in range(10):
                await hit_ten(old)
            server.command("CONFIG", "SET", "maxmemory", "1")
            assert (await settle(new.hit(((TEN, "user:eve", 1),)))).reason is Reason.BANNED
            assert (await settle(new.hit(((TEN, "user:ann", 1),)))).reason is Reason.LIMITED
            with pytest.raises(StoreError, match="OOM"):
                await settle(new.hit(((TEN, "user:bob", 1),)))
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert await hit_ten(new, "user:bob")


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
                await hit_ten(one)
                await hit_ten(other)
                await hit_ten(third)
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
            assert await hit_ten(worker)
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
            assert await hit_ten(worker)
            assert (await until_answered(lambda: tool.peek(((TEN, "user:ann", 1),)))).remaining == 8
            await tool.close()


@pytest.mark.all
async def test_bans_hold_where_the_list_of_their_keys_was_evicted(server: RedisServer) -> None:
    async with workers_at(server, 3) as (one, other, new):
        await one.bans.ban("192.0.2.0/24", None, "", "ann")
        server.command("DEL", f"{{{one._prefix}}}:bans")
        assert (await hit(new, subjects=[address("192.0.2.7")])).reason is Reason.BANNED
        await one.bans.unban("192.0.2.0/24", "ann")
        for key, length_us in (("user:eve", None), ("user:dan", 3_600_000_000)):
            await one.bans.ban(key, length_us, "", "ann")
        await one.bans.strike(POLICY, "user:ann", 1, "")
        server.command("DEL", f"{{{one._prefix}}}:bans:index")
        for store in (one, other):
            assert (await hit_ten(store, "user:eve")).reason is Reason.BANNED
            assert await banned(store) == []
        await other.bans.ban("user:new", 3_600_000_000, "", "ann")
        assert await banned(one) == ["user:new"]
        assert await struck(one, POLICY, "user:ann") == 1
        assert await one.bans.unban("user:eve", "ann")
        assert (await hit_ten(one, "user:eve")).allowed
