"""The link to Redis: whatever becomes of a connection, at whichever step, the next healthy one is used; two calls are
under way, also at a distance; a slot that moves costs what it has to, and no storm of connections."""

import asyncio
import gc
import random
import shutil
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.asyncio import RedisCluster as cluster_client
from redis.asyncio.cluster import ClusterNode

from slidegate import Decision, Limiter, StoreError
from slidegate.core import StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.batch import MAX_IN_CALL, RENEW_EVERY_S
from slidegate.stores.redis.clients import OwnClients
from slidegate.stores.redis.link import DEPTH, IDLE_S, KeysApart, Link, open_link

from ... import redis_servers
from ...contract.store_contract import bucket
from ...fault_proxy import Fate, FaultProxy
from ...redis_servers import HOST, RedisCluster, RedisServer, make_certificate, needs_redis, needs_valkey
from .faults import Deployment, behind_a_sentinel, on_a_cluster, on_a_server
from .stores import PLENTY_S, eventually, hit, server_that_says, store_at

pytestmark = needs_redis

TIMEOUT_S: Final = 0.25
SLACK_S: Final = 3.0
"""How much longer it may take on a busy machine; a hang takes for ever."""
WIDE: Final = "1000000/hour"
Way = Callable[[Path], AbstractAsyncContextManager[Deployment]]


@asynccontextmanager
async def with_login(_: Path) -> AsyncIterator[Deployment]:
    """AUTH, CLIENT and SELECT come before the first question."""
    async with on_a_server() as at:
        at.server.command("ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all")
        yield Deployment(f"redis://ann:pw@{HOST}:{at.proxy.port}/1", at.servers, at.proxies)


@asynccontextmanager
async def with_hello(folder: Path) -> AsyncIterator[Deployment]:
    """HELLO, with the login, comes before the first question."""
    async with with_login(folder) as at:
        client: Any = Redis(port=at.proxy.port, username="ann", password="pw", db=1, protocol=3, client_name="ours")
        yield Deployment(client, at.servers, at.proxies)


@asynccontextmanager
async def behind_tls(folder: Path) -> AsyncIterator[Deployment]:
    """The bytes are those of TLS, of its handshake too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*make_certificate(folder))
    with RedisServer() as server:
        async with FaultProxy(server.port, tls=context) as inner, FaultProxy(inner.port) as proxy:
            yield Deployment(f"rediss://{HOST}:{proxy.port}/0?ssl_cert_reqs=none", [server], [proxy])


@asynccontextmanager
async def before_a_sentinel(_: Path) -> AsyncIterator[Deployment]:
    """The proxy is before the sentinel; that one before the server is the sentinel's, too."""
    async with behind_a_sentinel() as at, FaultProxy(urlsplit(at.url).port or 0) as before:
        yield replace(at, url=f"redis+sentinel://{HOST}:{before.port}/mymaster", proxies=[before])


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
WAYS = [
    with_login,
    *(pytest.param(way, marks=pytest.mark.all) for way in (with_hello, before_a_sentinel, lambda _: on_a_cluster())),
    pytest.param(behind_tls, marks=[pytest.mark.all, needs_openssl]),
]
PINNED: list[Sequence[Fate]] = [
    [(0, True)],  # accepted, and never answered: until November 2026 that was the end of Redis for an event loop
    [(7, True)],  # in the midst of the handshake
    [(20, False), (0, True)],
    [(400, True)],  # in the midst of an answer
]


def draw(rng: random.Random) -> Sequence[Fate]:
    """Return what becomes of the next connections: each step of their life may hang, be reset, or be answered half."""
    return [
        (rng.randrange(rng.choice((1, 30, 300, 5_000))), rng.random() < 0.5) for _ in range(rng.choice((1, 1, 2, 4)))
    ]


async def survive(store: RedisStore, at: Deployment, fates: Sequence[Fate]) -> float:
    """Ask all the time while the next connections have such fates; return how long after the last one it was answered.

    What is asked ends with an answer or an error of the store.
    """
    left, last_s, answered_s, asked = [*fates], monotonic(), 0.0, list[asyncio.Task[None]]()

    def fate() -> Fate | None:
        nonlocal last_s
        last_s = monotonic() if left else last_s
        return left.pop() if left else None

    async def ask() -> None:
        nonlocal answered_s
        with suppress(StoreError):
            assert await hit(store, f"user:{len(asked)}", WIDE)
            answered_s = monotonic()

    def drop() -> None:
        for server in at.servers:
            server.command("CLIENT", "KILL", "TYPE", "normal")
        for proxy in at.proxies:
            proxy.drop()

    for proxy in at.proxies:
        proxy.fate = fate
    drop()
    async with asyncio.timeout(len(fates) * TIMEOUT_S + PLENTY_S):
        while left or answered_s < last_s:
            if asked and asked[-1].done() and left and answered_s > last_s:
                drop()  # a connection that lives has the next fate
            asked.append(asyncio.create_task(ask()))
            await asyncio.wait(asked[-1:], timeout=0.02)
        await asyncio.gather(*asked)
    for proxy in at.proxies:
        proxy.fate = None
    drop()
    await asyncio.sleep(2 * IDLE_S)  # it is known that the last one has ended, too
    return answered_s - last_s


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.deep)])
async def test_whatever_becomes_of_a_connection_at_any_step_the_next_healthy_one_is_used(
    way: Way, rounds: int, tmp_path: Path, rng: random.Random
) -> None:
    async with way(tmp_path) as at, store_at(at.url, timeout=timedelta(seconds=TIMEOUT_S)) as store:
        for fates in (*PINNED, *(draw(rng) for _ in range(rounds))):
            took_s = await survive(store, at, fates)
            assert took_s < TIMEOUT_S + 1 + SLACK_S, fates
        together = [hit(store, f"{number}", WIDE) for number in range((DEPTH + 1) * MAX_IN_CALL)]
        async with asyncio.timeout(SLACK_S):
            assert all(await asyncio.gather(*together))


async def test_a_call_is_sent_while_another_one_waits_for_its_answer_however_long_ago_that_was_sent() -> None:
    async with on_a_server() as at, store_at(at.url) as store:
        link = store.parts.open_link()
        assert await link.ask("PING") == b"PONG"
        at.proxy.freeze()
        first = asyncio.ensure_future(link.ask("ECHO", "first"))
        await asyncio.sleep(2 * IDLE_S)
        sent = at.proxy.requests
        second = asyncio.ensure_future(link.ask("ECHO", "second"))
        await eventually(lambda: at.proxy.requests > sent)
        at.proxy.thaw()
        assert await asyncio.gather(first, second) == [b"first", b"second"]
        await link.close()


async def test_what_is_held_ends_where_a_link_leads_elsewhere(server: RedisServer) -> None:
    """The other server may lack the last writes; a first connection ends nothing, because other threads have theirs."""
    reopened, clients = list[bool](), OwnClients(Redis(port=server.port), PLENTY_S)
    link = Link(clients.open_pool(), PLENTY_S, lambda: reopened.append(True))
    assert await link.ask("PING") == b"PONG"
    assert reopened == []
    await link.renew(clients.open_pool())
    assert await link.ask("PING") == b"PONG"
    assert reopened == [True]
    await link.close()


async def test_a_cluster_is_found_again_by_nodes_that_the_address_does_not_name(cluster: RedisCluster) -> None:
    async with FaultProxy(cluster.servers[0].port) as proxy, store_at(f"redis+cluster://{HOST}:{proxy.port}") as store:
        link = store.parts.open_link()
        for refuse in (proxy.refuse, proxy.accept):
            assert await link.ask("EVAL", "return 1", 1, store.parts.packing.meta) == 1
            await refuse()
            await link.renew()
        await link.close()


@needs_valkey
async def test_nodes_that_name_no_host_are_reached_by_that_of_the_one_that_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_servers, "REDIS", redis_servers.VALKEY)
    with RedisCluster() as cluster:
        for server in cluster.servers:
            server.command("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
            async with store_at(server.url.replace("redis", "redis+cluster")) as store:
                link = store.parts.open_link()
                assert await link.ask("EVAL", "return 1", 1, store.parts.packing.meta) == 1
                await link.close()


async def test_a_slot_that_does_not_move_after_all_is_no_failure() -> None:
    """The node to which it was to go names the first one, which is asked again."""
    ports, answers = list[int](), list[bytes]()

    def home(command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return slots(ports[0])
        return answers.pop(0) if command[0] == b"ECHO" else b"+OK\r\n"

    def ahead(command: list[bytes]) -> bytes:
        return b"-MOVED 1 127.0.0.1:%d\r\n" % ports[0] if command[0] == b"ECHO" else b"+OK\r\n"

    async with server_that_says(home) as one, server_that_says(ahead) as other:
        ports += [one, other]
        answers += [b"-ASK 1 127.0.0.1:%d\r\n" % other, b"+done\r\n"]
        link = link_to(one)
        assert await link.ask("ECHO") == b"done"
        await link.close()


async def test_a_node_that_names_no_host_while_its_link_is_renewed_is_found_again() -> None:
    ports = list[int]()

    def home(command: list[bytes]) -> bytes:
        return slots(ports[0]) if command[0] == b"CLUSTER" else b"-MOVED 1 :%d\r\n" % ports[1]

    async with (
        server_that_says(home) as one,
        server_that_says(lambda command: b"+done\r\n") as other,
        FaultProxy(one) as proxy,
    ):
        ports += [proxy.port, other]
        link = link_to(proxy.port)
        await link._find()
        proxy.freeze()
        asked = asyncio.ensure_future(link.ask("ECHO"))
        await eventually(lambda: link._home._reading.locked())
        renewed = asyncio.ensure_future(link.renew())
        await asyncio.sleep(0.01)
        proxy.thaw()
        assert await asked == b"done"
        await renewed
        await link.close()


def slots(port: int) -> bytes:
    """Return the answer to CLUSTER SLOTS of a cluster of one node."""
    return b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port


def link_to(port: int) -> Any:
    client = cluster_client(startup_nodes=[ClusterNode(HOST, port)])
    return open_link(OwnClients(client, PLENTY_S), lambda: None)


async def test_keys_on_two_nodes_cost_no_connections_and_no_other_request(cluster: RedisCluster) -> None:
    def connections() -> int:
        return sum(server.info("stats")["total_connections_received"] for server in cluster.masters)

    both = [(bucket(WIDE, "one"), "ann", 1), (bucket(WIDE, "two"), "bob", 1)]
    async with store_at(cluster) as store:
        slot = cluster.slot_of(store._prefix)
        owner = cluster.owner(slot)
        target = next(server for server in cluster.masters if server is not owner)
        assert await store.hit(both)
        with cluster.migrating(slot, target):
            owner.command("MIGRATE", HOST, target.port, store.parts.packing.name_of("ann"), 0, 5_000)
            before = connections()
            for _ in range(20):
                apart, *others = await asyncio.gather(
                    store.hit(both), *(hit(store, key, WIDE) for key in ("ann", "bob")), return_exceptions=True
                )
                assert isinstance(apart, KeysApart)
                assert all(isinstance(other, Decision) for other in others), others
            assert connections() - before <= len(cluster.masters) * 2, "those of `connections`, and one for what moves"
        assert await store.hit(both)
        assert len(store.batcher()._tasks) == DEPTH
        assert not any(task.done() for task in store.batcher()._tasks)


async def test_a_full_server_costs_four_connections_a_second_at_most() -> None:
    with RedisServer() as server:
        async with store_at(server) as store:
            assert await hit(store)
            server.command("CONFIG", "SET", "maxmemory", 1)
            before, begun_s = server.info("stats")["total_connections_received"], monotonic()
            for number in range(100):
                with pytest.raises(StoreUnavailable, match="OOM"):
                    await hit(store, f"user:{number}")
            opened = server.info("stats")["total_connections_received"] - before - 1  # that which asks for the number
            assert 1 <= opened <= 1 + (monotonic() - begun_s) / RENEW_EVERY_S


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_limiter_that_is_forgotten_leaves_one_line(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    complaints = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    limiter = Limiter.from_url(server.url)
    await limiter.hit("ann", WIDE)
    gone = weakref.ref(limiter.store)
    del limiter
    await eventually(lambda: gc.collect() >= 0 and gone() is None)
    await asyncio.sleep(0.01)
    assert complaints == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "slidegate: a limiter on Redis was forgotten while its event loop runs; close it: await limiter.close()"
    )
