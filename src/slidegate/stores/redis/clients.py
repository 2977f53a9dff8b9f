"""The clients of a store: redis-py's own, made from the settings of the user's client.

Everything that the user's client says about connections stays: TLS, credentials, sockets, the version of the protocol.
Three things are ours: answers are bytes, the timeouts are the store's, and nothing is ever sent twice, because a charge
whose answer was lost may have been made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from inspect import signature
from typing import Any, Final
from weakref import WeakSet

from redis.asyncio import ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import StreamingCredentialProvider
from redis.event import AfterPooledConnectionsInstantiationEvent, ClientType, EventDispatcher
from redis.exceptions import RedisError

from .urls import Client

_OF_ITS_OWNER: Final = ("connection_pool", "event_dispatcher", "himport_", "maint_", "orig_", "oss_cluster_")
"""The start of settings that refer to the pool or the cluster from which they were read."""
_CLUSTER_OPTIONS: Final = signature(RedisCluster.__init__).parameters.keys()


class OwnClients:
    """Makes the pools of a store, and its clients of clusters. They do not connect before they are used.

    Args:
        given: The user's client, which is not changed.
        timeout_s: How long connecting, or an answer, may take.

    Attributes:
        timeout_s: The argument.
        is_cluster: Whether the user's client is one of a cluster.
    """

    def __init__(self, given: Client, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.is_cluster = isinstance(given, RedisCluster)
        self._given: Any = given
        self._pools: WeakSet[ConnectionPool] = WeakSet()

    def open_pool(self) -> ConnectionPool:
        """Return a pool of connections to the server of the user's client, or to the master that sentinels name."""
        return self._followed(own_pool(self._given.connection_pool, self.timeout_s))

    def open_cluster(self) -> RedisCluster:
        """Return a client for the user's cluster, which finds nodes; no command goes over it."""
        kind, nodes = self._given.connection_kwargs["connection_class"], self._given.nodes_manager
        settings = _settings(self._given.connection_kwargs, self.timeout_s)
        return RedisCluster(
            startup_nodes=[ClusterNode(node.host, node.port) for node in nodes.startup_nodes.values()],
            address_remap=nodes.address_remap,
            require_full_coverage=False,  # a store needs one slot
            ssl=issubclass(kind, SSLConnection),
            **{name: value for name, value in settings.items() if name in _CLUSTER_OPTIONS},
        )

    def open_node_pool(self, host: str, port: int) -> ConnectionPool:
        """Return a pool of connections to a node of the user's cluster."""
        node = ClusterNode(host, port, **_settings(self._given.connection_kwargs, self.timeout_s))
        return self._followed(ConnectionPool(connection_class=node.connection_class, **node.connection_kwargs))

    def _followed(self, pool: ConnectionPool) -> ConnectionPool:
        """Have the connections of a pool authenticate anew when the user's provider has another token.

        A provider calls one function. So the user's pool and all of the store's are told of a token together.
        """
        self._pools.add(pool)
        provider = pool.connection_kwargs.get("credential_provider")
        if isinstance(provider, StreamingCredentialProvider):
            pools = [*self._pools]
            if not self.is_cluster:
                pools.append(self._given.connection_pool)
            EventDispatcher().dispatch(AfterPooledConnectionsInstantiationEvent(pools, ClientType.ASYNC, provider))
        return pool


def own_pool(given: Any, timeout_s: float) -> ConnectionPool:
    """Return a pool with the settings of another one."""
    settings = _settings(given.connection_kwargs, timeout_s) | {"connection_class": given.connection_class}
    if isinstance(given, SentinelConnectionPool):
        masters = _Masters(given.sentinel_manager, settings, timeout_s)
        return SentinelConnectionPool(given.service_name, masters, **settings)  # type: ignore[no-untyped-call]
    return ConnectionPool(**settings)


def _settings(given: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the settings of a connection with our timeouts, and without retries."""
    kept = {name: value for name, value in given.items() if not name.startswith(_OF_ITS_OWNER)}
    return kept | {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 0,  # its check would be sent in front of a command, and fail with it
        "decode_responses": False,
        "protocol": kept.get("protocol") or 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
    }


class _Masters:
    """Finds the master of a service, in the place of redis-py's `Sentinel`, which asks one sentinel after another.

    Args:
        given: The `Sentinel` of the user's client.
        settings: The settings of connections to servers.
        timeout_s: How long a sentinel or a server may take.
    """

    def __init__(self, given: Any, settings: dict[str, Any], timeout_s: float) -> None:
        self._given = given
        self._settings = settings
        self._timeout_s = timeout_s

    async def discover_master(self, service: str) -> tuple[str, int]:
        """Ask all sentinels at once; return the first address whose server says that it is a master.

        Raises:
            MasterNotFoundError: There is none.
        """
        failed: Exception | None = None
        asked = [asyncio.ensure_future(self._ask(sentinel, service)) for sentinel in self._given.sentinels]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    return await answer
                except (RedisError, OSError) as error:
                    failed = error
            raise MasterNotFoundError(f"no sentinel leads to a master of service {service!r}: {failed}") from failed
        finally:
            for task in asked:
                task.cancel()
            await asyncio.shield(asyncio.gather(*asked, return_exceptions=True))  # they close their connections

    async def _ask(self, sentinel: Redis, service: str) -> tuple[str, int]:
        """Ask one sentinel, which may be out of date, and then the server that it names."""
        async with _once(own_pool(sentinel.connection_pool, self._timeout_s)) as own:
            await own.ping()  # says by itself why it cannot be reached
            alone = copy(self._given)
            alone.sentinels = [own]
            pool: Any = SentinelConnectionPool(service, alone, **self._settings)  # type: ignore[no-untyped-call]
            async with _once(pool) as server:
                if (await server.info("replication"))["role"] != "master":
                    raise MasterNotFoundError(f"the server that a sentinel names for service {service!r} is no master")
            host, port = pool.master_address
            return host, port


@asynccontextmanager
async def _once(pool: ConnectionPool) -> AsyncIterator[Redis]:
    """Use a pool for a few commands; its connection is closed, also where the closing is cancelled."""
    client = Redis.from_pool(pool)
    try:
        yield client
    finally:
        await asyncio.shield(client.aclose())
