"""The clients of a store connect as the user's does, notice what has ended, and never send anything twice."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel as RedisSentinel
from redis.backoff import NoBackoff

from slidegate import Limiter, StoreError
from slidegate.core import StoreUnavailable
from slidegate.stores.redis import RedisStore, clients
from slidegate.testing import RecordingObserver

from ...fault_proxy import stop_listening
from ...redis_servers import RedisCluster as ClusterServers
from ...redis_servers import RedisServer, needs_redis
from .stores import PLENTY, hit, store_at

MANY = Retry(NoBackoff(), 5)


@pytest.mark.parametrize(
    "given",
    [
        lambda: Redis(retry=MANY, retry_on_error=[OSError], health_check_interval=1),
        lambda: Redis(unix_socket_path="/s", retry=MANY),
        lambda: RedisSentinel([("127.0.0.1", 1)], retry=MANY).master_for("mymaster", retry=MANY, ssl=True),
    ],
    ids=["server", "socket", "sentinel"],
)
def test_connections_have_the_stores_timeouts_and_no_retries(given: Callable[[], Redis]) -> None:
    own: Any = clients.open_own(given(), 0.7)
    connection = own.connection_pool.make_connection()
    assert (connection.retry._retries, connection.retry_on_error, connection.health_check_interval) == (0, [], 0)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.7, 0.7)
    assert isinstance(connection, given().connection_pool.connection_class)


def test_a_client_for_a_cluster_keeps_tls_and_credentials_and_has_no_retries() -> None:
    nodes = [ClusterNode("127.0.0.1", 1)]
    given = RedisCluster(startup_nodes=nodes, ssl=True, username="ann", password="pw", ssl_cert_reqs="none", retry=MANY)
    own: Any = clients.open_own(given, 0.7)
    assert getattr(own, "cluster_error_retry_attempts", own.retry._retries) == 0  # the first in redis-py 5
    for node in (*own.nodes_manager.startup_nodes.values(), ClusterNode("127.0.0.1", 2, **own.connection_kwargs)):
        connection = node.acquire_connection()
        assert isinstance(connection, given.connection_kwargs["connection_class"])
        assert (connection.username, connection.password, connection.socket_timeout) == ("ann", "pw", 0.7)
        assert connection.retry._retries == 0


@pytest.mark.parametrize("kind", ["rediss", "rediss+cluster", "rediss+sentinel"])
async def test_a_listener_without_tls_sees_no_byte_of_the_password(kind: str) -> None:
    seen = list[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(65_536))
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    path = "/mymaster" if kind.endswith("sentinel") else ""
    store = RedisStore(f"{kind}://ann:s3cret@127.0.0.1:{port}{path}", timeout=PLENTY)
    with pytest.raises(StoreError):
        await hit(store)
    await store.close()
    await stop_listening(listener)
    assert seen
    assert all(sent.startswith(b"\x16\x03") for sent in seen), "the greeting of TLS, and nothing else"
    assert not any(b"s3cret" in sent or b"AUTH" in sent for sent in seen)


@needs_redis
@pytest.mark.parametrize(
    "client",
    [
        lambda server: Redis(unix_socket_path=str(server.socket)),
        lambda server: Redis(host="127.0.0.1", port=server.port, decode_responses=True, encoding="latin-1"),
        lambda server: Redis(connection_pool=BlockingConnectionPool.from_url(server.url, max_connections=1)),
        lambda server: Redis.from_url(server.url, protocol=3, single_connection_client=True),
    ],
    ids=["socket", "decoding", "blocking pool", "RESP3"],
)
async def test_a_client_of_any_settings_is_one_to_connect_as(server: RedisServer, client: Any) -> None:
    async with client(server) as given:
        async with store_at(given) as store:
            decisions = await asyncio.gather(*(hit(store, f"user:{number % 30}", "10/hour") for number in range(300)))
            assert all(decisions)
            await store.bans.ban("user:eve", None, "", "ann")
            assert [ban.key for ban in await store.bans.active()] == ["user:eve"]
        assert await given.ping(), "it stays open"
        await given.connection_pool.disconnect()


@needs_redis
@pytest.mark.parametrize("running", ["server", "cluster"])
@pytest.mark.parametrize("idle_s", [0.0, 1.1])
async def test_a_connection_that_was_ended_while_it_was_idle_costs_nothing(
    running: str, idle_s: float, request: pytest.FixtureRequest
) -> None:
    deployment = request.getfixturevalue(running)
    observer = RecordingObserver()
    async with (
        store_at(deployment) as store,
        Limiter(store, deadline="60s", on_error="deny", observers=[observer]) as limiter,
    ):
        for spent in range(1, 4):
            assert (await limiter.hit("ann", "10/hour")).remaining == 10 - spent
            await asyncio.sleep(0.01)  # until nothing is on its way
            for each in deployment.masters if isinstance(deployment, ClusterServers) else [deployment]:
                each.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            if idle_s:
                time.sleep(idle_s)  # noqa: ASYNC251 - the loop learns of nothing meanwhile
            else:
                await asyncio.sleep(0.05)
        assert observer.events == []


@needs_redis
async def test_a_server_that_forbids_evalsha_is_asked_by_eval(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "hosted", "reset", "on", ">pw", "~*", "+@all", "-evalsha", "-script")
    async with store_at(server.url.replace("//", "//hosted:pw@")) as store:
        for spent in range(1, 4):
            assert (await hit(store)).remaining == 5 - spent
        server.command("ACL", "SETUSER", "hosted", "-eval")
        with pytest.raises(StoreUnavailable, match="no permissions to run the 'eval'"):
            await hit(store)
