"""Bans in Redis, values of others at keys of ours, and lost data; clients, servers of nonsense, and being closed."""

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from ssl import CERT_NONE, CERT_REQUIRED
from types import NoneType
from typing import Any, Final
from unittest.mock import Mock

import pytest
from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, Redis
from redis.asyncio import RedisCluster as ClusterClient
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel as RedisSentinel
from redis.auth.token import SimpleToken
from redis.backoff import NoBackoff
from redis.credentials import StreamingCredentialProvider, UsernamePasswordCredentialProvider

from slidegate import BanPolicy, Decision, Quota, StoreError
from slidegate.core import Ban, Bucket, Concurrency, Reason, Reservation, Snapshot, StoreUnavailable, parse_address
from slidegate.core.reservation import reserved
from slidegate.stores.redis import RedisStore, clients, link
from slidegate.stores.redis.bans import CHUNK
from slidegate.stores.redis.clients import open_client
from slidegate.testing import FakeClock, RecordingObserver

from ...contract.player import listed, settle
from ...contract.store_contract import CHECKS, QUESTIONS, SHARED_QUESTIONS, bucket
from ...fault_proxy import FaultProxy, stop_listening
from ...hurry import at_once
from ...redis_servers import BOUND_S, RedisCluster, RedisServer, needs_redis, until
from .stores import PLENTY_S, Ahead, hit, server_that_says, store_at, struck, until_answered, workers_at

pytestmark = needs_redis
NOW_US = 1_900_000_000_000_000
WIDE = "1000000/minute"
ADDRESS = parse_address("192.0.2.7")


async def turns_of(work: Awaitable[object]) -> int:
    """Return how many turns an event loop takes while some work is done: in each of them others go on."""
    turns, done = 0, asyncio.ensure_future(work)
    while not done.done():
        await asyncio.sleep(0)
        turns += 1
    await done
    return turns


async def test_a_server_clock_that_is_set_back_revives_no_ban(server: RedisServer) -> None:
    clock = FakeClock(NOW_US)
    steps_us = (1_000_000, 4_000_000, -1_000_000, -3_600_000_000, 3_601_999_999)
    async with workers_at(server, 2, clock=clock) as stores:
        await stores[0].bans.ban("user:eve", 6_000_000, "", "ann")
        for step_us in (*steps_us, 1, -8_000_000):
            clock.advance(us=step_us)
            found = {(await hit(store, "user:eve", WIDE, subjects=["user:eve"])).reason for store in stores}
            assert found == {Reason.BANNED if step_us in steps_us else Reason.OK}


async def test_a_thousand_bans_are_listed_in_few_round_trips(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view of the dashboard waits for them, with Redis 20 ms away."""
    trips, under_way, ask = 0, 0, link.Link.ask

    async def noted(own: Any, *command: Any) -> Any:
        nonlocal trips, under_way
        trips += not under_way
        under_way += 1
        try:
            return await ask(own, *command)
        finally:
            under_way -= 1

    async with workers_at(server, 2) as (store, other):
        await store.bans.load([Ban(f"user:{number}", "", "ann", 0, 0, None) for number in range(1_000)])
        monkeypatch.setattr(link.Link, "ask", noted)
        assert len(await listed(other)) == 1_000
        assert trips <= 5


async def test_long_lists_are_read_and_trimmed_in_pages_between_which_others_go_on(server: RedisServer) -> None:
    many, page = 4_000, 500
    async with workers_at(server, 2) as (store, other):
        bans = [Ban(f"user:{number}", "", "ann", 0, 0, None) for number in range(many)]
        assert await turns_of(store.bans.load(bans)) >= many // CHUNK
        server.command("CONFIG", "RESETSTAT")
        assert await turns_of(listed(other)) >= many // (3 * CHUNK)
        assert many // (2 * page) <= server.calls()["zscan"] <= many // page
        index = f"{{{store._prefix}}}:bans:index"
        for first in range(0, many, page):  # they have ended
            server.command("ZADD", index, *[word for n in range(first, first + page) for word in (1, f"user:{n}")])
        for left in range(many - page, -1, -page):
            await store.bans.ban("user:0", None, "", "ann")
            assert server.command("ZCARD", index) in (left, left + 1)
        assert await listed(other) == [await other.bans.find(("user:0",))]


def paused(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have a store wait for an event when it has found the strikes of a key full, before it bans."""
    goes_on, ban_next = asyncio.Event(), store.bans._ban_next

    async def later(*hits: Any) -> Any:
        await goes_on.wait()
        return await ban_next(*hits)

    monkeypatch.setattr(store.bans, "_ban_next", later)
    return goes_on


async def test_a_strike_that_is_given_up_at_any_moment_makes_its_ban_and_tells_it_or_neither(
    server: RedisServer, observer: RecordingObserver
) -> None:
    ends = set()
    async with workers_at(server, 1) as (store,):
        store.observe(observer)
        for turns in range(100):
            strike = asyncio.ensure_future(store.bans.strike(BanPolicy("1/hour", "10m"), f"user:{turns}", 1, ""))
            for _ in range(turns):
                await asyncio.sleep(0)
            strike.cancel()
            ban = await store.bans.find((f"user:{turns}",))  # on the same connection, so that all before is answered
            assert len(observer.events) == (ban is not None), turns
            observer.events.clear()
            ends.add(ban)
    assert None in ends
    assert len(ends) > 1


@pytest.mark.parametrize("lifts", [False, True])
async def test_a_change_by_hand_that_is_given_up_at_any_moment_is_made_and_told_or_neither(
    lifts: bool, server: RedisServer, observer: RecordingObserver
) -> None:
    ends = set()
    async with workers_at(server, 1) as (store,):
        store.observe(observer)
        for turns in (*range(50), 1_000, 10_000):
            key = f"user:{turns}"
            change = store.bans.ban(key, None, "", "ann")
            if lifts:
                await change
                assert not await hit(store, key), "a refusal that is known"
                change = store.bans.unban(key, "ann")
            observer.events.clear()
            given_up = asyncio.ensure_future(change)
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
            is_banned = await store.bans.find((key,)) is not None
            assert len(observer.events) == (is_banned is not lifts), turns
            assert (await hit(store, key)).allowed is not is_banned
            ends.add(is_banned)
    assert ends == {False, True}


@pytest.mark.parametrize("between", ["nothing", "an unban", "the end of the ban and a strike", "a ban by hand"])
@pytest.mark.parametrize("shadow", [False, True])
async def test_of_two_workers_that_find_the_strikes_full_at_once_one_bans(
    between: str, shadow: bool, server: RedisServer, observer: RecordingObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has happened since: the slower one finds the strikes gone, another level, or a ban that lasts longer."""
    clock, policy = FakeClock(NOW_US), BanPolicy("3/hour", "10m", factor=2, name="p", shadow=shadow)
    async with workers_at(server, 2, clock=clock) as (fast, slow):
        for store in (fast, slow):
            store.observe(observer)
        goes_on = paused(slow, monkeypatch)
        await fast.bans.strike(policy, "user:eve", 2, "")
        struck = asyncio.ensure_future(slow.bans.strike(policy, "user:eve", 1, ""))
        await slow.bans.find(("user:eve",))
        by_hand, strike = between == "a ban by hand", partial(fast.bans.strike, policy, "user:eve", 1, "")
        made = await (fast.bans.ban("user:eve", None, "", "ann") if by_hand else strike())
        assert (made is None) is (shadow and not by_hand)
        if between == "an unban":
            assert await fast.bans.unban("user:eve", "ann")
        elif between.startswith("the end"):
            clock.advance("10m")
            assert await strike() is None
        goes_on.set()
        assert await struck is None
        assert observer.kinds.count("shadow_banned" if shadow and not by_hand else "banned") == 1
        stays = by_hand or (between == "nothing" and not shadow)
        assert await listed(fast) == ([made] if stays else [])


async def test_a_poll_that_an_event_loop_reads_late_takes_back_nothing_that_another_has_read(
    server: RedisServer,
) -> None:
    async with workers_at(server, 1) as (store,):
        for turns in range(30):
            late = store.batcher().poll()
            for _ in range(turns):
                await asyncio.sleep(0)
            at_once(lambda _: asyncio.run(store.bans.ban("192.0.2.0/24", None, "", "ann")), 1)  # which is waited for
            await late
            assert not await hit(store, subjects=[ADDRESS]), turns
            await store.bans.unban("192.0.2.0/24", "ann")


# -- values of others at keys of ours ----------------------------------------------------------------------------------


async def test_a_key_with_thousands_of_windows_is_forgotten_like_any_other(server: RedisServer) -> None:
    rules = [bucket("5/hour", f"rule-{number}") for number in range(4_500)]
    async with store_at(server) as store:
        await asyncio.gather(*(settle(store.hit(((rule, "ann", 1),))) for rule in rules))
        assert await settle(store.reset("ann")) is True
        assert (await settle(store.peek(((rules[-1], "ann", 0),)))).remaining == 5
        assert await settle(store.reset("ann")) is False


FOREIGN = {"SET": ["theirs"], "RPUSH": ["theirs"], "SADD": ["theirs"], "ZADD": [7, "theirs"], "HSET": ["of", "others"]}
GARBAGE = ("", "\0", "7" * 7, "7" * 16, "7" * 24, "\x7f" * 60, "7" * 5_000)
LAST = bucket("5/hour", "last")
HELD = Bucket("held", [Concurrency(5)])


def damage(server: RedisServer, name: bytes) -> Iterator[str]:
    """Put one foreign value after the other in the place of a value, and say which it is; restore it at the end."""
    stored = server.command("DUMP", name)
    try:
        for command, theirs in FOREIGN.items():
            server.command("DEL", name)
            server.command(command, name, *theirs)
            yield command
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


async def test_a_foreign_value_stops_the_questions_about_it_and_no_others(server: RedisServer) -> None:
    """That of one key says nothing about the server."""
    async with store_at(server, readable=True) as store:
        for rule in (LAST, HELD, Bucket("plan", (Quota("10/day"),))):
            assert await settle(store.hit(((rule, "ann", 1),)))
        for key in ("bob", "192.0.2.0/24"):
            await store.bans.ban(key, 3_600_000_000, "", "ann")
        await store.bans.strike(BanPolicy("20/10m", "1h"), "eve", 1, "")
        for key in ("ann", "bob"):
            for value in damage(server, f"{{{store._prefix}}}:w:{key}".encode()):
                found = await outcome(partial(store.hit, ((LAST, key, 1),), (key,)))
                assert isinstance(found, Decision) or found.concerns == "request", value
                assert await settle(store.hit(((HELD, f"{value} at {key}"[:60], 1),))), "nobody else is stopped"
        for name in ("bans", "bans:index", "bans:networks"):
            for value in damage(server, f"{{{store._prefix}}}:{name}".encode()):
                if value in ("SET", "RPUSH", "SADD"):
                    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
                        await store.bans.ban("192.0.2.0/24", None, "", "ann")
            await store.bans.ban("192.0.2.0/24", None, "", "ann")


# -- Redis loses its data, or parts of it: workers notice, report it, and start again ----------------------------------

POLICY = BanPolicy("3/hour", "1h", name="p")
TEN = bucket("10/hour")


async def hit_ten(store: RedisStore, key: str = "user:ann") -> Decision:
    return await until_answered(lambda: store.hit(((TEN, key, 1),)))


def listen(store: RedisStore) -> RecordingObserver:
    observer = RecordingObserver()
    store.observe(observer)
    return observer


async def banned(store: RedisStore) -> list[str]:
    return sorted(ban.key for ban in await listed(store))


@pytest.mark.parametrize("how", [pytest.param("flushed", marks=pytest.mark.all), "restarted"])
async def test_idle_workers_and_a_new_one_share_limits_after_a_loss_and_say_how_many_bans_are_gone(how: str) -> None:
    with RedisServer() as server:
        async with workers_at(server, 4, permit_lease="10m") as workers:
            *old, new = workers
            observer = [listen(store) for store in workers]
            held = [await hit(old[0], "ann", HELD) for _ in range(5)]
            for key in ("user:eve", "user:dan"):
                await old[0].bans.ban(key, None, "", "ann")
            for store in old:
                assert await hit_ten(store)
                assert await banned(store) == ["user:dan", "user:eve"]
            if how == "flushed":
                server.command("FLUSHALL")
            else:
                server.kill()
                with pytest.raises(StoreError):
                    await old[0].renew_permits()
                server.start()
                await until_answered(lambda: old[0].peek(((TEN, "ann", 0),)))
            await old[0].renew_permits()
            admitted = [await hit_ten(store) for store in (new, *old) for _ in range(10)]
            assert sum(map(bool, admitted)) == 10
            async with asyncio.timeout(PLENTY_S):
                while not all("store_reset" in each.kinds for each in observer[:3]):
                    for store in old:
                        await hit_ten(store, "user:later")  # it is asked once a second what has changed
                    await asyncio.sleep(0.01)
            assert not await hit(new, "ann", HELD), "permits are written again"
            assert all([await settle(old[0].refund(each.begin_refund())) for each in held])
            reported = [[event.details for event in each.events if event.kind == "store_reset"] for each in observer]
            assert reported == [[{"bans": 2}]] * 3 + [[]]
            for store in workers:
                assert await banned(store) == []
                assert await hit_ten(store, f"user:{how}")
            await new.bans.ban("user:eve", None, "", "ann")
            for store in workers:
                assert (await hit_ten(store, "user:eve")).reason is Reason.BANNED


async def test_a_server_that_evicts_is_reported_once_and_within_a_minute(server: RedisServer, ahead: Ahead) -> None:
    lru = "--maxmemory-policy", "allkeys-lru"
    with RedisServer("--maxmemory", "100mb", *lru) as evicting, RedisServer(*lru) as unbounded:
        async with store_at(evicting) as store, store_at(server) as other, store_at(unbounded) as third:
            observer, silent = listen(store), [listen(other), listen(third)]
            for policy, many in (("allkeys-lru", 1), ("noeviction", 1), ("volatile-ttl", 2)):
                evicting.command("CONFIG", "SET", "maxmemory-policy", policy)
                for each in (store, other, third) * 2:
                    ahead.by_s += 60.0
                    assert await hit_ten(each, f"user:{policy}")
                assert observer.kinds == ["store_evicts"] * many
            assert [event.details["policy"] for event in observer.events] == ["allkeys-lru", "volatile-ttl"]
            assert "(maxmemory-policy allkeys-lru)" in observer.events[0].message
            assert [each.kinds for each in silent] == [[], []]


@pytest.mark.all
async def test_a_tool_that_looks_on_answers_nothing_from_a_store_that_was_emptied_meanwhile() -> None:
    with RedisServer() as server:
        async with (
            store_at(server) as worker,
            store_at(server, create=False) as stranger,
            store_at(server, prefix=worker._prefix, create=False) as tool,
        ):
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


@pytest.mark.all
async def test_bans_hold_where_the_list_of_their_keys_was_evicted(server: RedisServer) -> None:
    async with workers_at(server, 3) as (one, other, new):
        await one.bans.ban("192.0.2.0/24", None, "", "ann")
        server.command("DEL", f"{{{one._prefix}}}:bans")
        assert (await hit(new, subjects=[ADDRESS])).reason is Reason.BANNED
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


BESIDE: Final[dict[str, tuple[Bucket, int]]] = {
    "nothing": (TEN, 0),
    "a window": (TEN, 3_600),
    "a permit": (HELD, 10),
    "a quota": (Bucket("plan", [Quota("5/day")]), 25 * 3_600),
}
"""By name: a bucket that is charged, and how many seconds it may be in Redis."""


@pytest.mark.parametrize("is_shortened", [False, True])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("charged", ["before", "meanwhile"])
async def test_what_a_permanent_ban_leaves_that_is_lifted_ends_as_if_there_had_been_none(
    is_shortened: bool, beside: str, charged: str, server: RedisServer
) -> None:
    (limited, kept_s), cost = BESIDE[beside], int(beside != "nothing")
    async with store_at(server) as store:
        for moment in ("before", "meanwhile"):
            if moment == charged:
                made = await settle(store.charge(((limited, "user:eve", cost),)))
            if moment == "before":
                await store.bans.ban("user:eve", None, "", "ann")
        assert server.command("PTTL", store.parts.packing.name_of("user:eve")) > 10**12
        if is_shortened:
            await store.bans.ban("user:eve", 60_000_000, "", "ann")
        await store.bans.unban("user:eve", "ann")
        names = server.command("KEYS", f"{{{store._prefix}}}:[wsb]*")
        left_ms = {name: server.command("PTTL", name) for name in names if not name.endswith(b":bans")}
        assert bool(left_ms) is bool(cost)
        assert all(0 < left <= kept_s * 1_000 + 2_000 for left in left_ms.values()), left_ms
        left = (await settle(store.peek(((limited, "user:eve", 0),)))).remaining
        assert left == made.remaining, "what was charged counts on"


async def test_nothing_is_counted_under_a_ban_of_a_network_that_no_poll_has_brought_yet(server: RedisServer) -> None:
    policy = BanPolicy(after="3/hour", duration="1h")
    async with workers_at(server, 2) as (store, other):
        await hit(store)
        await other.bans.ban("192.0.2.0/24", None, "", "ann")
        assert await store.bans.strike(policy, "192.0.2.0/24", 1, "scanner") is None
        assert await struck(store, policy, "192.0.2.0/24") == 0


# -- clients -----------------------------------------------------------------------------------------------------------


CREDENTIALS: Final = UsernamePasswordCredentialProvider("ann", "pw")
GIVEN: Final[dict[str, Any]] = {"username": "ann", "password": "pw", "retry": Retry(NoBackoff(), 5)}
A_NODE: Final = [ClusterNode("127.0.0.1", 1)]
TAKEN: Final = (HELD, "user:ann", 1)


@pytest.mark.parametrize(
    ("given", "verifies"),
    [
        (lambda: Redis(**GIVEN, retry_on_error=[OSError], health_check_interval=1), None),
        (lambda: Redis(**GIVEN, unix_socket_path="/s"), None),
        (lambda: open_client("rediss://ann:pw@h?ssl_cert_reqs=none", {})[0], CERT_NONE),
        (lambda: RedisSentinel([("127.0.0.1", 1)]).master_for("mymaster", **GIVEN, ssl=True), CERT_REQUIRED),
        (lambda: ClusterClient(**GIVEN, startup_nodes=A_NODE, ssl=True, ssl_cert_reqs="none"), CERT_NONE),
    ],
    ids=["server", "socket", "TLS", "sentinel", "cluster"],
)
def test_connections_are_as_given_but_for_the_stores_timeouts_and_no_retries(given: Any, verifies: Any) -> None:
    user: Any = given()
    own: Any = clients.OwnClients(user, 0.7)
    if own.is_cluster:
        kind, pool = user.connection_kwargs["connection_class"], own.open_node_pool(("h", 2))
    else:
        kind, pool = user.connection_pool.connection_class, own.open_pool()
    connection: Any = pool.make_connection()
    assert isinstance(connection, kind)
    assert (connection.username, connection.password) == ("ann", "pw")
    assert getattr(connection, "cert_reqs", None) is verifies
    assert (connection.retry._retries, connection.retry_on_error, connection.health_check_interval) == (0, [], 0)
    assert (connection.socket_connect_timeout, connection.socket_timeout) == (0.7, None), "a link bounds answers"


@pytest.mark.parametrize("kind", ["rediss", "rediss+cluster", "rediss+sentinel"])
async def test_a_listener_without_tls_sees_no_byte_of_the_password(kind: str) -> None:
    seen = list[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(65_536))
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    path = "/mymaster" if kind.endswith("sentinel") else ""
    async with store_at(f"{kind}://ann:s3cret@127.0.0.1:{port}{path}") as store:
        with pytest.raises(StoreError):
            await hit(store)
    await stop_listening(listener)
    assert seen
    assert all(sent.startswith(b"\x16\x03") for sent in seen), "the greeting of TLS, and nothing else"
    assert not any(b"s3cret" in sent or b"AUTH" in sent for sent in seen)


@pytest.mark.parametrize(
    "client",
    [
        lambda server: Redis(unix_socket_path=str(server.socket)),
        lambda server: Redis(port=server.port, decode_responses=True, encoding="latin-1"),
        lambda server: Redis(connection_pool=BlockingConnectionPool.from_url(server.url, max_connections=1)),
        lambda server: Redis.from_url(server.url, protocol=3, single_connection_client=True),
        lambda server: Redis(port=server.port, db=5, username="ann", password="pw"),
        lambda server: Redis(port=server.port, db=5, credential_provider=CREDENTIALS),
    ],
    ids=["socket", "decoding", "blocking pool", "RESP3", "password", "provider"],
)
async def test_a_client_of_any_settings_is_one_to_connect_as(server: RedisServer, client: Any) -> None:
    server.command("ACL", "SETUSER", "ann", "reset", "on", ">pw", "~*", "&*", "+@all")
    async with client(server) as given:
        settings = given.connection_pool.connection_kwargs
        settings["client_name"] = "ours"
        async with store_at(given) as store:
            decisions = await asyncio.gather(*(hit(store, f"user:{number % 30}", "10/hour") for number in range(300)))
            assert all(decisions)
            await store.bans.ban("user:eve", None, "", "ann")
            assert [ban.key for ban in await listed(store)] == ["user:eve"]
            user = b"ann" if settings.get("username") or settings.get("credential_provider") else b"default"
            lines = [line for line in server.command("CLIENT", "LIST").splitlines() if b" name=ours " in line]
            assert lines
            for line in lines:
                assert b" db=%d " % settings.get("db", 0) in line
                assert b" user=%s " % user in line
        assert await given.ping(), "it stays open"
        await given.connection_pool.disconnect()


def end_connections(server: RedisServer) -> None:
    """Come back when the server has ended all connections: it does so a little later than it says."""
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    until(lambda: server.command("CLIENT", "LIST").count(b"\n") == 1, "only who asks is connected")


@pytest.mark.parametrize("running", ["server", "cluster"])
@pytest.mark.parametrize("stands_still", [False, True])
async def test_an_idle_connection_may_end(running: str, stands_still: bool, request: pytest.FixtureRequest) -> None:
    deployment = request.getfixturevalue(running)
    async with store_at(deployment) as store:
        for spent in range(1, 4):
            assert (await hit(store, limits="10/hour")).remaining == 10 - spent
            for each in deployment.masters if isinstance(deployment, RedisCluster) else [deployment]:
                end_connections(each)
            if stands_still:
                time.sleep(2 * link.IDLE_S)  # noqa: ASYNC251 - the loop learns of nothing meanwhile
            else:
                await asyncio.sleep(0.05)


async def test_an_idle_connection_that_was_reset_is_opened_again(server: RedisServer) -> None:
    async with FaultProxy(server.port) as proxy, store_at(f"redis://127.0.0.1:{proxy.port}") as store:
        for spent in range(1, 4):
            assert (await hit(store, limits="10/hour")).remaining == 10 - spent
            await proxy.refuse()
            await proxy.accept()
            await asyncio.sleep(2 * link.IDLE_S)


async def test_connections_take_new_tokens_and_so_do_those_of_the_users_client(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "ann", "reset", "on", ">first", ">second", "~*", "&*", "+@all")
    token, tokens = "first", Mock(StreamingCredentialProvider)  # as for Azure, whose tokens expire
    tokens.get_credentials.side_effect = tokens.get_credentials_async.side_effect = lambda: ("ann", token)
    async with Redis(port=server.port, credential_provider=tokens) as given, store_at(given) as store:
        assert await given.ping()
        assert (await hit(store)).remaining == 4
        before = server.info("stats")["total_connections_received"]
        for number, new in enumerate(("second", "first", "second")):
            token = new
            server.command("CONFIG", "RESETSTAT")
            await tokens.on_next.call_args.args[0](SimpleToken(token, -1, 0, {"oid": "ann"}))  # the last one gets it
            await asyncio.sleep(2 * link.IDLE_S)  # it is taken after a rest, or within a second
            answers = await asyncio.gather(*(hit(store, f"user:{number}:{n}", WIDE) for n in range(200)))
            assert all(answers)
            assert await given.ping()
            assert server.calls()["auth"] == 2
            assert server.info("stats")["total_connections_received"] <= before


async def test_a_server_that_forbids_evalsha_is_asked_by_eval(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "hosted", "reset", "on", ">pw", "~*", "+@all", "-evalsha", "-script")
    async with store_at(server.url.replace("//", "//hosted:pw@")) as store:
        for spent in range(1, 4):
            assert (await hit(store)).remaining == 5 - spent
        server.command("ACL", "SETUSER", "hosted", "-eval")
        with pytest.raises(StoreUnavailable, match="no permissions to run the 'eval'"):
            await hit(store)


# -- a server that answers nonsense, and being closed amid everything --------------------------------------------------


def packed(value: Any) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(packed, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"$%d\r\n%s\r\n" % (len(value), value)


KNOWN: Final = {
    b"poll": packed([bytes(8), [0, b"life", b"", b"", [], b""]]),  # what there is: no bans
    b"CLIENT": b"+OK\r\n",
}


def knowing(reply: Callable[[list[bytes]], bytes]) -> Callable[[list[bytes]], bytes]:
    """Return answers that set a connection up, and then are whatever `reply` returns."""

    def answer(command: list[bytes]) -> bytes:
        name = b"poll" if b"poll" in command else command[0].upper()
        return KNOWN.get(name) or reply(command)

    return answer


@pytest.fixture
async def nothing_goes_wrong_that_nobody_deals_with() -> AsyncIterator[None]:
    complaints = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    yield
    assert complaints == []


async def outcome(question: Callable[[], Any]) -> Any:
    async with asyncio.timeout(BOUND_S):
        try:
            answer = question()
            return await answer if isinstance(answer, Awaitable) else answer
        except StoreError as error:
            return error


def charged(store: RedisStore) -> list[Reservation]:
    reservations = reserved((*CHECKS, TAKEN), [(1, 0, 1, 0), (1, 0, 0, 0)], [1, 1])
    reservations[1].holder = store.batcher().permits
    return reservations


METHODS: Final = {
    **QUESTIONS,
    **SHARED_QUESTIONS,
    "time": lambda store: store.shared_rows.time(),
    "hit of permits": lambda store: store.hit((TAKEN,)),
    "hit of two keys": lambda store: store.hit(tuple((CHECKS[0][0], key, 1) for key in ("user:7", "user:8"))),
    "refund of permits": lambda store: store.refund(charged(store)),
}
"""A question for each public method that asks Redis."""


NONSENSE: Final[list[Any]] = [0, -1, 2**63, None, b"", b"7" * 24, b"7" * 40, [], [0], [b"7", [0]], [b"7"] * 3]


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
@pytest.mark.parametrize("at", [None, 0, 1, 2, -1], ids=["all", "the time", "a poll", "an answer", "the last one"])
async def test_an_answer_that_is_none_is_a_clear_error_for_every_method(
    at: int | None, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method answers, or raises a StoreError, whatever stands in some place; nobody else gets anything else."""
    async with store_at(server) as store:
        await hit(store)
        ask, errors = link.Link.ask, list[str]()

        async def spoilt(own: Any, *command: Any) -> Any:
            answer = [*await ask(own, *command)]
            if at is not None and at < len(answer):
                answer[at] = said
            return said if at is None else answer

        monkeypatch.setattr(link.Link, "ask", spoilt)
        for said in NONSENSE:
            for found in await asyncio.gather(*(outcome(partial(method, store)) for method in METHODS.values())):
                assert isinstance(found, (StoreError, Decision, Ban, Snapshot, bool, list, tuple, int, NoneType)), said
                errors += [str(found)] if isinstance(found, StoreError) else []
        assert at == 1 or any("sent an unexpected answer" in error for error in errors), errors


async def test_the_script_declares_to_upstash_which_keys_it_uses() -> None:
    sent: list[list[bytes]] = []

    def reply(command: list[bytes]) -> bytes:
        sent.append(command)
        return b"-NOSCRIPT No matching script\r\n" if command[0] == b"EVALSHA" else packed([bytes(8), b"\0"])

    async with (
        server_that_says(knowing(reply)) as port,
        store_at(f"redis://127.0.0.1:{port}", key_locking=True) as store,
    ):
        await outcome(lambda: store.hit(CHECKS))
    (by_name, *_), (by_source, *_) = ([one for one in sent if one[0] == name] for name in (b"EVALSHA", b"EVAL"))
    assert by_source[1].startswith(b"#!lua flags=allow-key-locking\n")
    assert by_name[1].decode() == hashlib.sha1(by_source[1]).hexdigest()


class Moody(Connection):
    """A user's class of connections."""


def in_a_mood(name: str) -> Any:
    """Return a method of `Moody` that raises, once a connection was closed by it."""
    closes, error = name == "disconnect", TypeError(f"{name} is in a mood")

    async def method(self: Moody, *given: Any, **options: Any) -> None:
        if closes:
            await Connection.disconnect(self, *given, **options)
        raise error

    return Mock(side_effect=error) if name == "__init__" else method


GREETS: Final = "on_connect_check_health" if hasattr(Connection, "on_connect_check_health") else "on_connect"
MOODS: Final = "__init__", "connect", GREETS, "send_packed_command", "read_response", "disconnect"


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
@pytest.mark.parametrize("raises_in", MOODS)
@pytest.mark.parametrize("at_once", [1, 200])
async def test_what_a_class_of_connections_raises_is_reported_and_tried_again(
    raises_in: str, at_once: int, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hits() -> set[str]:
        found = await asyncio.gather(*(outcome(lambda: hit(store, limits=WIDE)) for _ in range(at_once)))
        return {str(one) if isinstance(one, StoreError) else str(one.reason) for one in found}

    given = Redis(connection_pool=ConnectionPool(connection_class=Moody, host="127.0.0.1", port=server.port))
    async with store_at(given) as store:
        for is_open in (False, True):
            with monkeypatch.context() as mood:
                mood.setattr(Moody, raises_in, in_a_mood(raises_in))
                for _ in range(3):
                    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                    found, said = await hits(), f"redis: TypeError: {raises_in} is in a mood"
                    killed = "redis: ConnectionError: Connection closed by server."
                    assert found == {said} or (found <= {said, killed, "ok"} and (is_open or raises_in == "disconnect"))
                    assert len(store.batcher()._queue) == 0
            assert await hits() == {"ok"}


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
async def test_a_client_that_cannot_be_made_is_reported_and_tried_again(server: RedisServer) -> None:
    async with store_at(server) as store:
        make, store.parts.open_link = store.parts.open_link, Mock(side_effect=TypeError("in a mood"))
        for ask in (lambda: hit(store), store.reset_all, lambda: store.bans.find(("user:ann",))) * 2:
            found = await asyncio.gather(*(outcome(ask) for _ in range(3)))
            assert [str(one) for one in found] == ["redis: TypeError: in a mood"] * 3
        store.parts.open_link = make
        assert await hit(store)


@pytest.mark.usefixtures("nothing_goes_wrong_that_nobody_deals_with")
@pytest.mark.parametrize("kind", ["server", "cluster"])
async def test_closing_ends_all(kind: str, server: RedisServer, cluster: RedisCluster, rng: random.Random) -> None:
    async with FaultProxy(server.port) as proxy:
        near, far = server.url, f"redis://127.0.0.1:{proxy.port}"
        if kind == "cluster":
            near = far = cluster.url
        for _ in range(40):
            store, other = (RedisStore(url, timeout=f"{BOUND_S}s") for url in (far, near))
            proxy.delay_s = rng.choice([0.0, 0.002])
            if rng.random() < 0.7:
                await store.hit(CHECKS)
            await other.bans.ban(f"user:{rng.random()}", 10_000_000, "", "ann")  # to be polled
            calls = [asyncio.create_task(outcome(partial(rng.choice([*METHODS.values()]), store))) for _ in range(20)]
            await asyncio.sleep(rng.choice([0.0, 0.0, rng.random() * 0.01]))
            await store.close()
            async with asyncio.timeout(BOUND_S):
                for found in await asyncio.gather(*calls):
                    assert not isinstance(found, asyncio.CancelledError)
            await other.close()
