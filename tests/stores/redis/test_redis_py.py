"""What we use of redis-py, all of it public: where one of these goes, this test says so before anybody connects."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.crc import key_slot
from redis.credentials import UsernamePasswordCredentialProvider

from slidegate.core.errors import StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.urls import close_client, open_client

from ...redis_servers import RedisServer, needs_redis


def settings_of(client: Any) -> Any:
    return client.connection_pool.make_connection()


@needs_redis
async def test_a_connection_is_made_as_the_client_says(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "ann", "reset", "on", ">pw", "~*", "&*", "+@all")
    try:
        provider = UsernamePasswordCredentialProvider("ann", "pw")
        for how in ({"username": "ann", "password": "pw"}, {"credential_provider": provider}):
            client = Redis(host="127.0.0.1", port=server.port, db=5, client_name="middleware-test", **how)  # type: ignore[arg-type]
            store = RedisStore(client, prefix="redis-py")
            await store.reset("user:ann")
            (line,) = [row for row in server.command("CLIENT", "LIST").splitlines() if b"name=middleware-test" in row]
            assert b" db=5 " in line
            assert b" user=ann " in line
            await store.close()
            await client.aclose()
        wrong = RedisStore(Redis(host="127.0.0.1", port=server.port, username="ann", password="no"))
        with pytest.raises(StoreUnavailable, match=r"WRONGPASS|invalid username"):
            await wrong.reset("user:ann")
        await wrong.close()
    finally:
        server.command("ACL", "DELUSER", "ann")


async def test_a_client_says_how_to_connect() -> None:
    client = Redis(
        host="h", port=7, db=3, username="ann", password="pw", client_name="middleware", socket_keepalive=True
    )
    said = settings_of(client)
    assert (said.host, said.port, said.db, said.username, said.password) == ("h", 7, 3, "ann", "pw")
    assert (said.client_name, said.credential_provider, said.socket_keepalive) == ("middleware", None, True)
    assert isinstance(said.socket_keepalive_options, dict)
    assert settings_of(Redis(unix_socket_path="/run/s")).path == "/run/s"
    safe = settings_of(open_client("rediss://h"))
    assert safe.ssl_context.get().verify_mode is ssl.CERT_REQUIRED
    provider = UsernamePasswordCredentialProvider("ann", "pw")
    assert settings_of(Redis(credential_provider=provider)).credential_provider is provider
    assert await provider.get_credentials_async() == ("ann", "pw")
    await close_client(client)


async def test_sentinels_and_nodes_are_known() -> None:
    master: Any = Sentinel([("h", 1), ("i", 2)], min_other_sentinels=1).master_for("middleware", db=2)  # type: ignore[no-untyped-call]
    pool = master.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert (pool.service_name, pool.sentinel_manager.min_other_sentinels, settings_of(master).db) == (
        "middleware",
        1,
        2,
    )
    assert [settings_of(sentinel).port for sentinel in pool.sentinel_manager.sentinels] == [1, 2]
    await close_client(master)
    cluster = RedisCluster(startup_nodes=[ClusterNode("h", 7)], password="pw")
    assert [(node.host, node.port) for node in cluster.nodes_manager.startup_nodes.values()] == [("h", 7)]
    node: Any = ClusterNode("i", 8, **cluster.connection_kwargs)
    said = node.connection_class(**node.connection_kwargs)
    assert (said.host, said.port, said.password) == ("i", 8, "pw")
    assert key_slot(b"a{user}") == key_slot(b"b{user}")
    await close_client(cluster)
