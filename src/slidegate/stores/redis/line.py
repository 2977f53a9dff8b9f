"""The lines of an event loop to Redis: calls go one behind another, and are answered in that order.

A line to a server, or to the master that sentinels name, is a connection of redis-py. Two calls may be under way: the
server decides one while this process reads the answers to the other. A line to a cluster is a client of redis-py, which
finds the node with the keys; it has one call under way, because ASKING must go over the connection of the command that
follows it.

A line opens its connection before a command is sent, and again if it has ended. Nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from redis.asyncio import RedisCluster
from redis.exceptions import ClusterError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from ...core.errors import StoreUnavailable
from .clients import IDLE_S, read_what_has_come
from .protocol import unexpected
from .urls import Client

DEPTH: Final = 2
"""How many calls are under way on a connection. A third one would wait behind two in the server."""
SPLIT_S: Final = 1.0
"""How long a slot is thought to be on its way after it was seen there."""
_TRY_AGAIN: Final = "TTL exhausted"
"""How redis-py says that a node has answered TRYAGAIN each time."""


class KeysApart(StoreUnavailable):
    """Some keys of a call are on one node of a cluster and some on another: nothing was done."""


class Line(ABC):
    """What the calls of an event loop are sent over."""

    depth: int
    """How many calls may be under way."""
    split_until_s = 0.0
    """Until when each call should have the keys of one request, because the keys are on their way to another node."""

    @abstractmethod
    async def ask(self, *command: bytes | int | str) -> Any:
        """Send a command, and return its answer."""

    @abstractmethod
    async def scan(self, cursor: int, pattern: bytes, many: int) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and about `many` of the names that match a pattern."""

    @abstractmethod
    async def renew(self) -> None:
        """Close the connection when what is under way is answered; the next command opens another one."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection, which fails what is under way."""


def open_line(open_client: Callable[[], Client], name: bytes) -> Line:
    """Return a line, which connects with its first command.

    Args:
        open_client: Returns a client with the settings of the store.
        name: A name of a key, which all keys share a slot with.
    """
    client = open_client()
    return ClusterLine(client, name) if isinstance(client, RedisCluster) else ServerLine(client)


class ServerLine(Line):
    """A line to one server.

    Args:
        client: The store's own client, which is kept: a connection of a sentinel's refers to it weakly.
    """

    depth = DEPTH

    def __init__(self, client: Client) -> None:
        self._client: Any = client
        self._connection: Any = None
        self._writing = asyncio.Lock()
        self._last: asyncio.Future[None] | None = None
        """Is done when the last command sent over the connection is answered."""

    async def ask(self, *command: bytes | int | str) -> Any:
        """See `Line`."""
        async with self._writing:
            connection = self._connection
            if connection is not None and monotonic() - connection.used_s > IDLE_S:
                await read_what_has_come()
            if connection is None or connection.has_ended():
                connection = await self._open()
            if connection.has_new_token:
                await self._authenticate(connection)
            await connection.send_command(*command)
            before, answered = self._last, asyncio.get_running_loop().create_future()
            self._last = answered
        try:
            if before is not None:
                await before
            if not connection.is_connected:
                raise RedisConnectionError("the connection was closed before the answer came")
            return await connection.read_response()
        except ResponseError:  # an answer
            raise
        except BaseException:
            await self._discard(connection)
            raise
        finally:
            if not answered.done():  # a task that is cancelled cancels the future that it awaits
                answered.set_result(None)

    async def scan(self, cursor: int, pattern: bytes, many: int) -> tuple[int, list[bytes]]:
        """See `Line`."""
        said = await self.ask("SCAN", cursor, "MATCH", pattern, "COUNT", many)
        try:
            following, names = said
            return int(following), names
        except (TypeError, ValueError):
            raise unexpected(said) from None

    async def renew(self) -> None:
        """See `Line`."""
        async with self._writing:  # nothing else is sent meanwhile
            if self._last is not None:
                await self._last
            await self.close()

    async def close(self) -> None:
        """See `Line`."""
        await self._discard(self._connection)

    async def _open(self) -> Any:
        """Connect anew, over a connection of its own: who still reads from the one before finds its end."""
        await self.close()
        self._last = None
        pool = self._client.connection_pool
        connection = self._connection = pool.make_connection()
        pool._in_use_connections.add(connection)  # which it tells of new tokens
        try:
            await connection.connect()
        except BaseException:
            await self._discard(connection)
            raise
        return connection

    async def _authenticate(self, connection: Any) -> None:
        """Send the new token of a connection, when all before it is answered."""
        if self._last is not None:
            await self._last
        try:
            await connection.re_auth()
        except BaseException:
            await self._discard(connection)
            raise

    async def _discard(self, connection: Any) -> None:
        """Close a connection, and use it no more."""
        if connection is None:
            return
        if connection is self._connection:
            self._connection = None
        self._client.connection_pool._in_use_connections.discard(connection)
        with suppress(Exception):  # of a class of the user's
            await connection.disconnect(nowait=True)


class ClusterLine(Line):
    """A line to the node of a cluster that has the keys of the store.

    Args:
        client: The store's own client.
        name: A name of a key, which all keys share a slot with.
    """

    depth = 1

    def __init__(self, client: RedisCluster, name: bytes) -> None:
        self._client: Any = client
        self._name = name.decode()

    async def ask(self, *command: bytes | int | str) -> Any:
        """See `Line`.

        Raises:
            KeysApart: The slot is on its way to another node, which has some of the keys.
        """
        await self._client.initialize()  # it would send a command before that to any node, which may be a dead one
        try:
            return await self._client.execute_command(*command)
        except ClusterError as error:
            if _TRY_AGAIN not in str(error):
                raise
            self.split_until_s = monotonic() + SPLIT_S
            raise KeysApart("redis: the keys of the call are on two nodes, because their slot is moving") from error

    async def scan(self, cursor: int, pattern: bytes, many: int) -> tuple[int, list[bytes]]:
        """See `Line`."""
        await self._client.initialize()
        node = self._client.get_node_from_key(self._name)
        scan = "SCAN", cursor, "MATCH", pattern, "COUNT", many
        following, names = await self._client.execute_command(*scan, target_nodes=node)
        return int(following[node.name]), names

    async def renew(self) -> None:
        """See `Line`."""
        await self.close()

    async def close(self) -> None:
        """See `Line`."""
        with suppress(Exception):  # of a class of the user's
            await self._client.aclose()
        for nodes in ("nodes_cache", "startup_nodes"):  # it closes none of them if the last command failed
            with suppress(Exception):
                await self._client.nodes_manager.aclose(nodes)
