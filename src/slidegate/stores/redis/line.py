"""The line of an event loop to Redis: calls go one behind another, and are answered in that order.

A line is a connection of a pool. Two calls may be under way on it: the server decides one while this process reads the
answers to the other. On a cluster redis-py finds the node with the keys of the store, and the line leads there.

What has been written is never written again. So a connection that has rested, and may have ended meanwhile, is
returned to its pool and taken again before it is written to: the pool checks whether it has ended, and opens it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeAlias

from redis.asyncio import ConnectionPool
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from ...core.errors import StoreUnavailable
from .clients import OwnClients

DEPTH: Final = 2
"""How many calls are under way on a connection. A third one would wait behind two in the server."""
IDLE_S: Final = 0.01
TAKEN_S: Final = 1.0
"""After so long a rest, or so long after it was taken, a connection is returned to its pool and taken again."""
MOST_NODES: Final = 3
"""How many nodes of a cluster a call is sent to, until one has the slot."""


class KeysApart(StoreUnavailable):
    """Some keys of a call are on one node of a cluster and some on another: nothing was done."""


class ServerLine:
    """A line to one server, or to the master that sentinels name.

    Args:
        pool: The pool of its connection, which a connection of a sentinel's refers to weakly.
        timeout_s: How long an answer may take.
        reopened: Is called when the connection is opened again: it may lead to a server that lacks the last writes.
    """

    def __init__(self, pool: ConnectionPool, timeout_s: float, reopened: Callable[[], None]) -> None:
        self._pool: Any = pool
        self._timeout_s = timeout_s
        self._reopened = reopened
        self._connection: Any = None
        self._taken_s = self._used_s = 0.0
        self._writing = asyncio.Lock()
        self._last: asyncio.Future[None] | None = None
        """Is done when the last command that was sent is answered."""

    async def ask(self, *command: bytes | int | str) -> Any:
        """Send a command, and return its answer; answers come in the order of commands."""
        async with self._writing:
            connection = await self._send(command)
            before, answered = self._last, asyncio.get_running_loop().create_future()
            self._last = answered
        try:
            if before is not None:
                await before
            async with asyncio.timeout(self._timeout_s):
                return await connection.read_response()
        except ResponseError:  # an answer
            raise
        except BaseException:
            await self._end()
            raise
        finally:
            if not answered.done():  # a task that is cancelled cancels the future that it awaits
                answered.set_result(None)

    async def _send(self, command: tuple[bytes | int | str, ...]) -> Any:
        """Send a command; return the connection that it went over."""
        now_s = monotonic()
        if now_s - self._used_s > IDLE_S or now_s - self._taken_s > TAKEN_S:
            await self._give_back()
            await self._take()
            self._taken_s = now_s
        self._used_s = now_s
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connection.send_command(*command)
        except BaseException:
            await self._end()
            raise
        return self._connection

    async def _take(self) -> None:
        """Take a connection from the pool that has not ended."""
        for _ in range(2):  # the event loop reads what has come: it may be the end of the connection
            await asyncio.sleep(0)
        try:
            connection = self._connection = await self._pool.get_connection()
        except BaseException:
            with suppress(Exception):  # of a class of the user's
                await self._pool.disconnect()  # one that is half open would answer what was asked when it was opened
            raise
        connection.socket_timeout = None  # redis-py would start a task to watch each write
        connection.register_connect_callback(self._connected)
        try:
            await connection.send_packed_command([], check_health=False)
        except RedisConnectionError:  # the pool sees the end of a connection, but not that it was reset
            await connection.connect()

    async def _connected(self, connection: Any) -> None:
        self._reopened()

    async def _give_back(self) -> None:
        """Return the connection to its pool when all is answered, which sends a new token, if there is one."""
        if self._last is not None:
            await self._last
        connection, self._connection, self._used_s = self._connection, None, 0.0
        if connection is not None:
            connection.socket_timeout = self._timeout_s
            with suppress(Exception):  # it has ended, and takes no token
                await self._pool.release(connection)

    async def _end(self) -> None:
        """Close the connection; it is returned to the pool when all who wait for an answer of it know."""
        self._used_s = 0.0
        if self._connection is not None:
            with suppress(Exception):  # of a class of the user's
                await self._connection.disconnect(nowait=True)

    async def renew(self) -> None:
        """Close the connection when what is under way is answered; the next command opens another one."""
        async with self._writing:
            if self._last is not None:
                await self._last
            await self._end()

    async def close(self) -> None:
        """Close the connection, which fails what is under way."""
        await self._end()
        with suppress(Exception):
            await self._pool.disconnect()  # also one that was not taken in the end


class ClusterLine:
    """A line to the node of a cluster that has the keys of the store.

    Args:
        clients: Opens pools for nodes.
        name: A name of a key, which all keys share a slot with.
        reopened: See `ServerLine`.
    """

    def __init__(self, clients: OwnClients, name: bytes, reopened: Callable[[], None]) -> None:
        self._clients = clients
        self._name = name.decode()
        self._reopened = reopened
        self._cluster: Any = clients.open_cluster()
        self._lines: dict[tuple[str, int], ServerLine] = {}
        self._home: ServerLine | None = None
        """The line to the node that has the slot, once it is known."""
        self._finding = asyncio.Lock()
        self._asked: list[ClusterNode] = []
        """The nodes that were asked for it last."""
        self._asking = asyncio.Lock()

    async def ask(self, *command: bytes | int | str) -> Any:
        """Send a command, and return its answer.

        Raises:
            KeysApart: The slot is on its way to another node, which has some of the keys.
        """
        try:
            for _ in range(MOST_NODES):
                line = self._home or await self._find()
                try:
                    return await line.ask(*command)
                except MovedError as moved:
                    self._home = self._line_named_by(moved)
                except AskError as there:
                    return await self._ask_ahead(self._line_named_by(there), command)
        except TryAgainError as error:
            raise KeysApart("redis: the keys of the call are on two nodes, because their slot is moving") from error
        raise StoreUnavailable("redis: no node of the cluster has the keys of the store, each names another one")

    async def _ask_ahead(self, line: ServerLine, command: tuple[bytes | int | str, ...]) -> Any:
        """Send a command to the node that a slot is on its way to, which takes it behind ASKING alone."""
        async with self._asking:
            await line.ask("ASKING")
            return await line.ask(*command)

    async def _find(self) -> ServerLine:
        """Return a line to the node that has the slot, as a node says that is asked."""
        async with self._finding:
            if self._home is None:
                nodes = self._cluster.nodes_manager
                self._asked = [*nodes.startup_nodes.values()]  # which initialize() replaces by what they know
                try:
                    await nodes.initialize()
                    node = self._cluster.get_node_from_key(self._name)
                    self._home = self._line_to(node.host, node.port)
                finally:
                    await self._end_finding()
            return self._home

    async def _end_finding(self) -> None:
        """Close the connections over which nodes were asked."""
        await asyncio.gather(*[node.disconnect() for node in self._asked], return_exceptions=True)

    def _line_named_by(self, redirected: AskError) -> ServerLine:
        """Return the line to the node that another one names."""
        return self._line_to(*self._cluster.nodes_manager.remap_host_port(redirected.host, redirected.port))

    def _line_to(self, host: str, port: int) -> ServerLine:
        """Return the line to a node."""
        line = self._lines.get((host, port))
        if line is None:
            pool = self._clients.open_node_pool(host, port)
            line = self._lines[host, port] = ServerLine(pool, self._clients.timeout_s, self._reopened)
        return line

    async def renew(self) -> None:
        """Close the connections when what is under way is answered; the next command finds the node again."""
        self._home = None
        for line in self._lines.values():
            await line.renew()

    async def close(self) -> None:
        """Close the connections, which fails what is under way."""
        await self._end_finding()  # it may have been cancelled
        for line in self._lines.values():
            await line.close()


Line: TypeAlias = ServerLine | ClusterLine


def open_line(clients: OwnClients, name: bytes, reopened: Callable[[], None]) -> Line:
    """Return a line, which connects with its first command; see `ClusterLine` for the arguments."""
    if clients.is_cluster:
        return ClusterLine(clients, name, reopened)
    return ServerLine(clients.open_pool(), clients.timeout_s, reopened)
