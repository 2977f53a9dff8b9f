"""Addresses of Redis and Valkey, and their clients::

    redis://[user:password@]host[:6379][/0]            one server; rediss:// over TLS
    unix:///run/redis.sock[?db=0]                      one server, by its Unix socket
    redis+cluster://[user:password@]h1[:6379],h2,…     a cluster; the other nodes are discovered from these
    redis+sentinel://[user:password@]h1[:26379],h2,…/service[/0]
                                                       the master of a service, found through these sentinels

``rediss+cluster://`` and ``rediss+sentinel://`` use TLS for servers and sentinels. Options follow a question mark:
`ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile` are paths of files, ``ssl_check_hostname=false`` accepts a certificate
for another name, and ``ssl_cert_reqs=none`` any certificate. User and password of an address are those of the servers;
sentinels that have their own take the options `sentinel_username` and `sentinel_password`.

Error messages never include the part between ``//`` and the path, nor the value of an option that takes text: they hold
passwords, also in a mistyped address.

The clients of a store are its own, made from the settings of the user's. Everything that the user's client says about
connections stays: TLS, credentials, sockets, the version of the protocol. Three things are ours: answers are bytes, the
timeouts are the store's, and nothing is ever sent twice, because a charge whose answer was lost may have been made.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import unquote
from weakref import WeakSet

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import StreamingCredentialProvider
from redis.event import AfterPooledConnectionsInstantiationEvent, ClientType, EventDispatcher
from redis.exceptions import RedisClusterException

from ...core.errors import ConfigurationError, StoreUnavailable
from ..shared import clean_address, read_options

Client: TypeAlias = "Redis | RedisCluster"
Options: TypeAlias = dict[str, Any]
Node: TypeAlias = tuple[str, int]
"""Host and port."""

EXPECTED: Final = (
    "redis://host:6379/0, redis+cluster://h1:6379,h2:6379, redis+sentinel://h1:26379,h2:26379/mymaster/0 or "
    "unix:///run/redis.sock, with 'user:password@' before hosts, whose user may be empty; there write % as %25, "
    ": as %3A, @ as %40, / as %2F, ? as %3F, # as %23, [ as %5B and ] as %5D"
)
_SENTINEL_OPTIONS: Final[dict[str, type]] = {"sentinel_username": str, "sentinel_password": str}
_TLS_OPTIONS: Final[dict[str, type]] = {
    **dict.fromkeys(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"), str),
    "ssl_check_hostname": bool,
}
OPTIONS: Final[dict[str, dict[str, type]]] = {
    "redis": {},
    "rediss": _TLS_OPTIONS,
    "redis+cluster": {},
    "rediss+cluster": _TLS_OPTIONS,
    "redis+sentinel": _SENTINEL_OPTIONS,
    "rediss+sentinel": _TLS_OPTIONS | _SENTINEL_OPTIONS,
    "unix": {"db": int},
}
"""By scheme, the options of clients that an address may have."""
_PORT: Final = 6_379
_SENTINEL_PORT: Final = 26_379
_SHAPE: Final = re.compile(r"([^/?#@:]*:[^/?#@]*@)?([^/?#@]*)(/[^?#@]*)?(?:\?([^#]*))?")
"""An address without its scheme: user and password, hosts, path, options."""
_OF_ITS_OWNER: Final = (
    "connection_pool",
    "event_dispatcher",
    "himport_",
    "maint_",
    "orig_",
    "oss_cluster_",
    "response_callbacks",
)
"""The start of settings that refer to the pool or the cluster from which they were read."""


def open_client(url: str, others: Mapping[str, type]) -> tuple[Client, Options]:
    """Create the client for an address. It does not connect before it is used.

    Args:
        url: The address.
        others: The types of the options that it may have besides those of the client.

    Returns:
        The client, and the other options.

    Raises:
        ConfigurationError: The address is invalid.
    """
    scheme, _, rest = clean_address(url).partition("://")
    scheme = scheme.lower()
    types, shape = OPTIONS.get(scheme), _SHAPE.fullmatch(rest)
    if types is not None and shape is not None:
        login, hosts, path, query = shape.groups("")
        options = read_options(query, {**others, **types}, f"store address: {scheme}://…")
        others_given = {name: options.pop(name) for name in others if name in options}
        with suppress(ValueError, KeyError, RedisClusterException):  # whose text may hold a mistyped password
            return _client(scheme, login, hosts, path, options), others_given
    raise ConfigurationError(f"store address: expected {EXPECTED}")


def _client(scheme: str, login: str, hosts: str, path: str, options: Options) -> Client:
    """Return the client for the parts of an address, as redis-py reads each of them.

    Raises:
        ValueError: One of them is invalid, or the service is missing.
        KeyError: A host is missing.
        RedisClusterException: It is a cluster with another database than 0.
    """
    if scheme == "unix":
        return Redis.from_url(f"unix://{login}{hosts}{path}", **options)
    if scheme.startswith("rediss"):
        verify = options.get("ssl_cert_reqs", "required").lower().removeprefix("cert_")  # as Python's `ssl` writes it
        # Without a certificate to verify there is no name to compare.
        options = {"ssl": True, "ssl_check_hostname": verify != "none", **options, "ssl_cert_reqs": verify}
    service, default_port, number = "", _PORT, path[1:]
    if scheme.endswith("+sentinel"):
        default_port = _SENTINEL_PORT
        service, _, number = number.partition("/")
        if not service:
            raise ValueError("it has no service")
    nodes: list[Node] = []
    for host in hosts.split(","):
        node = parse_url(f"redis://{host}")
        nodes.append((node["host"], node.get("port", default_port)))
    settings: Options = {"db": int(number or 0), **parse_url(f"redis://{login}")}
    if scheme.endswith("+sentinel"):
        return _master(nodes, unquote(service), options, settings)
    settings |= options
    if scheme.endswith("+cluster"):
        return RedisCluster(startup_nodes=[ClusterNode(*node) for node in nodes], **settings)
    ((host, port),) = nodes
    return Redis(host=host, port=port, **settings)


def _master(nodes: list[Node], service: str, options: Options, settings: Options) -> Redis:
    """Return the client for the master of a service: `settings` are those of servers, `options` also of sentinels."""
    login = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    sentinel = Sentinel(nodes, sentinel_kwargs=options | login)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(service, **options, **settings)
    return master


# -- our own clients ---------------------------------------------------------------------------------------------------


class OwnClients:
    """Makes the pools of a store. They do not connect before they are used.

    Args:
        client: The user's client, which is not changed.
        timeout_s: How long connecting, or an answer, may take.

    Attributes:
        is_cluster: Whether the user's client is one of a cluster.
    """

    def __init__(self, client: Client, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.is_cluster = isinstance(client, RedisCluster)
        self._client: Any = client
        self._pools: WeakSet[ConnectionPool] = WeakSet()

    def open_pool(self) -> ConnectionPool:
        """Return a pool of connections to the server of the user's client, or to the master that sentinels name."""
        of_user = self._client.connection_pool
        self._pools.add(of_user)
        return self._followed(own_pool(of_user, self.timeout_s))

    def open_node_pool(self, node: Node) -> ConnectionPool:
        """Return a pool of connections to a node of the user's cluster."""
        host, port = node
        settings = _settings(self._client.connection_kwargs, self.timeout_s)
        return self._followed(ConnectionPool(**settings, host=host, port=port))

    def startup_nodes(self) -> list[Node]:
        """Return the nodes of the user's cluster that its client knows."""
        return [(node.host, node.port) for node in self._client.nodes_manager.startup_nodes.values()]

    def reachable(self, host: str, port: int) -> Node:
        """Return where the user's client reaches a node that another one names."""
        node: Node = self._client.nodes_manager.remap_host_port(host, port)
        return node

    def _followed(self, pool: ConnectionPool) -> ConnectionPool:
        """Have the connections of a pool authenticate again when the user's provider has another token.

        A provider calls one function. So the user's pool and all of the store's get a token together.
        """
        self._pools.add(pool)
        provider = pool.connection_kwargs.get("credential_provider")
        if isinstance(provider, StreamingCredentialProvider):
            pools = AfterPooledConnectionsInstantiationEvent([*self._pools], ClientType.ASYNC, provider)
            EventDispatcher().dispatch(pools)
        return pool


def own_pool(other: Any, timeout_s: float, answer_timeout_s: float | None = None) -> ConnectionPool:
    """Return a pool with the settings of another one, but for ours; see `_settings`."""
    settings = _settings(other.connection_kwargs, timeout_s, answer_timeout_s)
    settings["connection_class"] = other.connection_class
    if isinstance(other, SentinelConnectionPool):
        sentinels = _Sentinels(other.sentinel_manager, timeout_s)
        return SentinelConnectionPool(other.service_name, sentinels, **settings)  # type: ignore[no-untyped-call]
    return ConnectionPool(**settings)


def _settings(kwargs: Options, timeout_s: float, answer_timeout_s: float | None = None) -> Options:
    """Return the settings of a connection with our timeouts, and without retries.

    Args:
        answer_timeout_s: By default none: a `Link` bounds all that its connection does, and redis-py would start a
            task to watch each write.
    """
    kept = {name: value for name, value in kwargs.items() if not name.startswith(_OF_ITS_OWNER)}
    return kept | {
        "socket_timeout": answer_timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 0,  # its check would be sent in front of a command, and fail with it
        "decode_responses": False,
        "protocol": kept.get("protocol") or 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
    }


class _Sentinels:
    """The sentinels of a service: redis-py's `Sentinel`, whose connections are closed when one has answered.

    Args:
        sentinel: The `Sentinel` of the user's client, which is not changed.
        timeout_s: How long all sentinels and the server may take, one after another: most of them may hang.
    """

    def __init__(self, sentinel: Any, timeout_s: float) -> None:
        self._sentinel = copy(sentinel)
        each_s = timeout_s / (1 + len(sentinel.sentinels))  # the server needs some of it, too
        pools = [own_pool(one.connection_pool, each_s, each_s) for one in sentinel.sentinels]
        sentinels: list[Any] = [Redis(connection_pool=pool) for pool in pools]
        for one in sentinels:
            one.sentinel_masters = partial(self._masters, one.sentinel_masters)
        self._sentinel.sentinels = sentinels

    async def discover_master(self, service: str) -> Node:
        """Return the address of the master; the sentinel that has said it is asked first the next time.

        Raises:
            StoreUnavailable: None has said it, as the last one tells. redis-py's error may have passwords.
        """
        self._failed = "they know none"
        try:
            master: Node = await self._sentinel.discover_master(service)
            return master
        except MasterNotFoundError:
            pass
        finally:
            for one in self._sentinel.sentinels:
                await one.connection_pool.disconnect()
        raise StoreUnavailable(f"redis: no sentinel leads to a master of {service!r}: {self._failed}")

    async def _masters(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask a sentinel for its masters, and remember why it does not answer."""
        try:
            return await ask()
        except Exception as error:
            self._failed = str(error)
            raise
