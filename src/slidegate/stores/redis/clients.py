"""The clients of a store: redis-py's own, made from the settings of the user's client, one for each line.

Everything that the user's client says about connections stays: TLS, credentials, sockets, the version of the protocol.
Three things are ours: answers are bytes, the timeouts are the store's, and nothing is ever sent twice, because a charge
whose answer was lost may have been made. So a connection that was idle is checked for its end before it is written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from inspect import signature
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import StreamingCredentialProvider
from redis.event import AfterPooledConnectionsInstantiationEvent, ClientType, EventDispatcher
from redis.exceptions import RedisError

from ...core.errors import ConfigurationError, quoted
from ..shared import running_loop
from .urls import Client

IDLE_S: Final = 0.01
"""After so long a rest the event loop reads what has come, before a connection is written to: it may be its end."""
CLUSTER_HOPS: Final = 3
"""How many nodes a command is sent to: one that has moved the slot, one that is moving it, and the one that has it."""
SHORT: Final = 32_768
"""A command of fewer bytes is buffered as a whole, whether the server reads or not."""
SLOWER: Final = 4
LATER_S: Final = 0.1
"""How many times as long as a sentinel that has failed the others have from then on, and at least how long."""
_OF_ITS_OWNER: Final = ("connection_pool", "event_dispatcher", "himport_", "maint_", "orig_", "oss_cluster_")
"""The start of settings that refer to the pool or the cluster from which they were read."""
_CLUSTER_OPTIONS: Final = signature(RedisCluster.__init__).parameters.keys()


def open_own(given: Client, timeout_s: float) -> Client:
    """Return a client with the settings of another one. It does not connect before it is used.

    Args:
        given: The user's client, which is not changed.
        timeout_s: How long connecting, or an answer, may take.
    """
    if isinstance(given, RedisCluster):
        return _open_cluster(given, timeout_s)
    pool: Any = given.connection_pool
    settings, kind = _settings(pool.connection_kwargs, timeout_s), own_kind(pool.connection_class)
    if isinstance(pool, SentinelConnectionPool):
        masters = _Masters(pool, settings, timeout_s)
        return Redis.from_pool(
            SentinelConnectionPool(pool.service_name, masters, connection_class=kind, **settings)  # type: ignore[no-untyped-call]
        )
    return Redis.from_pool(ConnectionPool(connection_class=kind, **settings))


class OwnClients:
    """Makes the clients of a store.

    Args:
        given: The user's client, which is not changed.
        timeout_s: How long connecting, or an answer, may take.

    Raises:
        ConfigurationError: Connections like those of the user's client cannot be made, for example because a class of
            the user's does not take all settings.
    """

    def __init__(self, given: Client, timeout_s: float) -> None:
        self._given: Any = given
        self._timeout_s = timeout_s
        self._pools: WeakSet[ConnectionPool] = WeakSet()
        _check_opens(given, timeout_s)

    def open(self) -> Client:
        """Return another client. It does not connect before it is used."""
        own = open_own(self._given, self._timeout_s)
        if not isinstance(own, RedisCluster):  # a cluster's follows tokens by itself
            self._pools.add(own.connection_pool)
            self._follow_tokens()
        return own

    def _follow_tokens(self) -> None:
        """Have connections authenticate anew whenever the user's provider has another token.

        A provider calls one function. So the user's client and all of the store's are told of a token together.
        """
        pool = self._given.connection_pool
        provider = pool.connection_kwargs.get("credential_provider")
        if isinstance(provider, StreamingCredentialProvider):
            dispatcher = pool.connection_kwargs.get("event_dispatcher") or EventDispatcher()
            pools = [pool, *self._pools]
            dispatcher.dispatch(AfterPooledConnectionsInstantiationEvent(pools, ClientType.ASYNC, provider))


def _check_opens(given: Client, timeout_s: float) -> None:
    """Check that connections with the settings of a user's client can be made; nothing connects.

    Raises:
        ConfigurationError: They cannot.
    """
    try:
        own: Any = open_own(given, timeout_s)
        if isinstance(own, RedisCluster):
            next(iter(own.nodes_manager.startup_nodes.values())).acquire_connection()
        else:
            own.connection_pool.make_connection()
    except Exception as error:
        if isinstance(error, RuntimeError) and running_loop() is None:
            return  # it may need an event loop; senders have one
        raise ConfigurationError(
            f"client: a connection like those of {type(given).__name__} cannot be made: {quoted(error)}; a class of "
            "connections has to take all settings of redis.asyncio.Connection, for example as **settings"
        ) from error


def _open_cluster(given: RedisCluster, timeout_s: float) -> RedisCluster:
    """Return a client for the same cluster. It follows redirections, and never sends a command again after an error."""
    kind, nodes = given.connection_kwargs["connection_class"], given.nodes_manager
    settings = _settings(given.connection_kwargs, timeout_s)
    own = RedisCluster(
        startup_nodes=[ClusterNode(node.host, node.port) for node in nodes.startup_nodes.values()],
        address_remap=nodes.address_remap,
        require_full_coverage=False,  # a store needs one slot
        reinitialize_steps=0,  # which would close the connections of others after some redirections
        ssl=issubclass(kind, SSLConnection),
        **{name: value for name, value in settings.items() if name in _CLUSTER_OPTIONS},
    )
    if hasattr(own, "cluster_error_retry_attempts"):  # redis-py 5, where `retry` is that of the connections
        own.cluster_error_retry_attempts = 0
    else:
        assert own.retry.get_retries() == 0, "a charge must not be sent twice"
    own.RedisClusterRequestTTL = CLUSTER_HOPS
    own.commands_parser = _NoCommands()  # type: ignore[assignment]
    own.connection_kwargs["connection_class"] = reopening(kind)
    for node in own.nodes_manager.startup_nodes.values():
        node.connection_class = reopening(kind)
    return own


class _NoCommands:
    """In the place of redis-py's table of commands, for which it asks a node that may be dead: scripts need none."""

    async def initialize(self, node: ClusterNode) -> None:
        """Ask nothing."""


def _settings(given: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the settings of a connection with our timeouts, and without retries."""
    kept = {name: value for name, value in given.items() if not name.startswith(_OF_ITS_OWNER)}
    return kept | {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 0,  # its check would be sent in front of a command, and fail with it
        "decode_responses": False,
        "protocol": kept.get("protocol") or 2,
        **_NO_RETRY,
    }


_NO_RETRY: Final[dict[str, Any]] = {"retry": Retry(NoBackoff(), 0), "retry_on_error": [], "retry_on_timeout": False}


@cache
def own_kind(kind: Any) -> Any:
    """Return a class of connections that never retry, and say whether the server has ended them."""

    class OwnConnection(kind):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings | _NO_RETRY)
            self.socket_timeout: float | None
            self.used_s = 0.0
            self.has_new_token = False

        def set_re_auth_token(self, token: Any) -> None:
            super().set_re_auth_token(token)
            self.has_new_token = True

        async def re_auth(self) -> None:
            self.has_new_token = False
            await super().re_auth()

        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            bound_s = self.socket_timeout
            if sum(map(len, command)) < SHORT:
                self.socket_timeout = None  # redis-py would start a task to watch a write that waits for nobody
            try:
                await super().send_packed_command(command, check_health)
            finally:
                self.socket_timeout = bound_s
            self.used_s = monotonic()

        def has_ended(self) -> bool:
            reader = self._reader
            return not self.is_connected or reader.at_eof() or reader.exception() is not None

    return OwnConnection


async def read_what_has_come() -> None:
    """Let the event loop read what has come while a connection was idle: in its first turn, known in the next."""
    for _ in range(2):
        await asyncio.sleep(0)


@cache
def reopening(kind: Any) -> Any:
    """Return a class of such connections that connect anew before a command is sent, for a client that keeps them."""

    class ReopeningConnection(own_kind(kind)):  # type: ignore[misc]
        _is_opening = False

        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if monotonic() - self.used_s > IDLE_S:
                await read_what_has_come()
            if not self._is_opening and self.has_ended():
                await self._open_anew()
            await super().send_packed_command(command, check_health)

        async def _open_anew(self) -> None:
            self._is_opening = True  # it sends commands of its own
            try:
                await self.disconnect(nowait=True)
                await self.connect()
            finally:
                self._is_opening = False

    return ReopeningConnection


class _Masters:
    """Finds the master of a service, in the place of redis-py's `Sentinel`, which believes the first sentinel.

    Args:
        pool: The pool of the user's client.
        settings: The settings of connections to servers.
        timeout_s: How long a sentinel or a server may take.
    """

    def __init__(self, pool: Any, settings: dict[str, Any], timeout_s: float) -> None:
        self._given = pool.sentinel_manager
        kind = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
        self._settings = settings | {"connection_class": kind}
        self._timeout_s = timeout_s

    async def discover_master(self, service: str) -> tuple[str, int]:
        """Ask all sentinels at once; return the first address whose server says that it is a master.

        Where one has failed, the others have not much longer: they may hang, and the next attempt may find it well.

        Raises:
            MasterNotFoundError: There is none.
        """
        waiting = {asyncio.ensure_future(self._ask(sentinel, service)) for sentinel in self._given.sentinels}
        asking, began_s, left_s = [*waiting], monotonic(), self._timeout_s
        failed: BaseException | None = None
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:  # the others hang
                    break
                for answer in done:
                    failed = answer.exception()
                    if failed is None:
                        return answer.result()
                    if not isinstance(failed, (RedisError, OSError)):
                        raise failed
                left_s = max(SLOWER * (monotonic() - began_s), LATER_S)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise MasterNotFoundError(f"no sentinel leads to a master of service {service!r}: {failed}") from failed

    async def _ask(self, sentinel: Redis, service: str) -> tuple[str, int]:
        async with _once(open_own(sentinel, self._timeout_s)) as client:
            state: Any = await client.sentinel_master(service)
        if not self._given.check_master_state(state, service):
            raise MasterNotFoundError(f"a sentinel does not confirm the master of service {service!r}")
        host, port = getattr(self._given, "_force_master_ip", None) or state["ip"], state["port"]
        pool = ConnectionPool(**self._settings, host=host, port=port)
        async with _once(Redis.from_pool(pool)) as server:
            if (await server.info("replication"))["role"] != "master":
                raise MasterNotFoundError(f"the server that a sentinel names for service {service!r} is no master")
        return host, port


@asynccontextmanager
async def _once(client: Client) -> AsyncIterator[Any]:
    """Use a client for a few commands; its connection is closed, also where the closing is cancelled."""
    try:
        yield client
    finally:
        await asyncio.shield(client.aclose())
