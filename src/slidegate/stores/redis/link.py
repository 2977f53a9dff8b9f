"""The link of an event loop to Redis: calls go one behind another, and are answered in that order.

A link is a connection of a pool. Two calls may be under way on it: the server decides one while this process reads the
answers to the other. On a cluster the link leads to the node with the keys of the store.

What has been written is never written again. So a connection that has rested, and may have ended meanwhile, is looked
at before it is written to, and opened again if it has ended. Looking, connecting and the handshake have one deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import sample
from time import monotonic
from typing import Any, Final, TypeAlias

from redis.asyncio import ConnectionPool
from redis.exceptions import AskError, MovedError, RedisError, ResponseError, TryAgainError

from ...core.errors import StoreUnavailable
from .clients import Node, OwnClients

DEPTH: Final = 2
"""How many calls are under way on a connection; `batch` keeps to it. A third one would wait in the server."""
IDLE_S: Final = 0.01
"""A connection that has rested for so long is looked at before it is written to."""
CHECKED_S: Final = 1.0
"""So is one that was last looked at so long ago, also without a rest: it may have to log in with a new token."""
MOST_NODES: Final = 3
"""How many nodes of a cluster a call is sent to, until one has the slot."""


class KeysApart(StoreUnavailable):
    """Some keys of a call are on one node of a cluster and some on another: nothing was done."""


class Link:
    """A link to one server, or to the master that sentinels name.

    Two fair locks set the order: who writes first reads first. Who has both knows that everything is answered, and may
    open the connection, or close it for another one.

    Args:
        pool: The pool that makes the connection. It is kept here because a connection behind Sentinel refers to it
            weakly. None for a node that is not known yet.
        timeout_s: How long opening the connection may take, or an answer, from when the one before it was read:
            redis-py has no timeout of its own here.
        reopened: Is called when another connection is open, also when a cluster redirects: it may lead to a server that
            lacks the last writes. It ends all leases.

    Attributes:
        node: The node of a cluster where it leads, once that is known.
    """

    def __init__(self, pool: ConnectionPool | None, timeout_s: float, reopened: Callable[[], None]) -> None:
        self.node: Node | None = None
        self._pool: Any = pool
        self._timeout_s = timeout_s
        self._reopened = reopened
        self._connection: Any = None
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._used_s = self._checked_s = 0.0

    async def ask(self, *command: bytes | int | str, asking: bool = False) -> Any:
        """Send a command, and return its answer; answers come in the order of commands.

        Args:
            asking: Whether the slot of its keys is on its way to this node, which takes it behind ASKING alone.
        """
        try:
            async with self._writing:
                if self._is_due(monotonic()):
                    async with self._reading:
                        await self._open()
                connection = self._connection
                packed = connection.pack_command(*command)
                if asking:  # in one piece: redis-py would open a connection again that ends between two
                    packed = connection.pack_command("ASKING") + packed
                async with asyncio.timeout(self._timeout_s):
                    await connection.send_packed_command(packed)
            async with self._reading:
                async with asyncio.timeout(self._timeout_s):
                    if asking:
                        with suppress(ResponseError):  # the command is refused as well, and its error is raised
                            await connection.read_response()
                    answer = await connection.read_response()
                self._used_s = monotonic()
                return answer
        except ResponseError:  # an answer
            raise
        except BaseException:
            # The other call on it fails as well: nobody opens another one before that, because who opens waits for
            # `_reading` behind it.
            await self.close(nowait=True)
            raise

    def _is_due(self, now_s: float) -> bool:
        """Return whether the connection has to be opened, or looked at; while a call reads, it does not rest."""
        if self._connection is None or not self._connection.is_connected or now_s - self._checked_s > CHECKED_S:
            return True
        return now_s - self._used_s > IDLE_S and not self._reading.locked()

    async def _open(self) -> None:
        """Open the connection, unless it is open."""
        if self._connection is None:
            self._connection = self._pool.get_available_connection()
        try:
            async with asyncio.timeout(self._timeout_s):
                if not await self._is_open():
                    await self._connection.connect()
                    if self._checked_s:  # another one was open before
                        self._reopened()
        except BaseException:  # one that is half open would answer what was asked when it was opened
            await self.close(nowait=True)
            raise
        self._checked_s = monotonic()

    async def _is_open(self) -> bool:
        """Look at the connection, and return whether it is open; one that has ended is closed.

        An open one has nothing to read, because all that was asked is answered. It logs in with a new token, if there
        is one.
        """
        connection = self._connection
        if not connection.is_connected:
            return False
        # So that the event loop reads what has come, which may be the end of the connection: it polls before the first
        # of these ends, and runs what it found before the second.
        for _ in range(2):
            await asyncio.sleep(0)
        # It has ended, or a new token was refused: then the handshake says so. What comes unasked ends it, too.
        with suppress(RedisError):
            if await connection.read_response(timeout=0) is None:  # nothing has come
                await connection.re_auth()
                return True
        await connection.disconnect(nowait=True)
        return False

    async def renew(self, pool: ConnectionPool | None = None) -> None:
        """Close the connection when what is under way is answered; the next command opens another one.

        Args:
            pool: The pool of that one, if it leads elsewhere.
        """
        async with self._writing, self._reading:
            await self.close(nowait=True)
            if pool is not None:
                self._pool, self._connection = pool, None

    async def close(self, *, nowait: bool = False) -> None:
        """Close the connection, which fails what is under way."""
        if self._connection is not None:
            with suppress(Exception):  # of a class of the user's
                await self._connection.disconnect(nowait=nowait)


class ClusterLink:
    """A link to the node of a cluster that has the keys of the store, and one to the node to which they are on the way.

    Args:
        clients: Opens pools for nodes.
        reopened: See `Link`.
    """

    def __init__(self, clients: OwnClients, reopened: Callable[[], None]) -> None:
        self._clients = clients
        self._home, self._ahead = [Link(None, clients.timeout_s, reopened) for _ in range(2)]
        self._finding = asyncio.Lock()
        self._known: list[Node] = []
        """The nodes of the cluster, as one of them has named them."""

    async def ask(self, *command: bytes | int | str) -> Any:
        """Send a command, and return its answer.

        Raises:
            KeysApart: The slot is on its way to another node, which has some of the keys.
            StoreUnavailable: Each node names another one.
        """
        try:
            for _ in range(MOST_NODES):
                if self._home.node is None:
                    await self._find()
                try:
                    return await self._home.ask(*command)
                except MovedError as moved:
                    await self._lead(self._home, moved)
                except AskError as there:
                    await self._lead(self._ahead, there)
                    with suppress(AskError):  # the slot stays at home after all, which is asked again
                        return await self._ahead.ask(*command, asking=True)
        except TryAgainError as error:
            text = "redis: the keys of the call are on two nodes, because their slot is moving"
            raise KeysApart(text, concerns="request") from error
        raise StoreUnavailable("redis: no node of the cluster has the keys of the store, each names another one")

    async def _find(self) -> None:
        """Lead to a node that answers; if it does not have the slot, it names the one that does."""
        async with self._finding:
            # In any order: one that is cut off costs a timeout, and must not always be the first.
            nodes = sample(self._known, len(self._known))
            nodes += self._clients.startup_nodes()
            for node in nodes[:-1]:
                with suppress(Exception):  # the next one may answer
                    await self._lead_home(node)
            await self._lead_home(nodes[-1])

    async def _lead_home(self, node: Node) -> None:
        """Lead to a node, and ask it which ones there are, unless the link leads somewhere already."""
        if self._home.node is not None:
            return
        await self._home.renew(self._clients.open_node_pool(node))
        slots = await self._home.ask("CLUSTER", "SLOTS")
        named = {(host, port) for _, _, *owners in slots for host, port, *_ in owners}
        # A node that does not know its own address names none.
        self._known = [self._clients.reachable((host or b"").decode() or node[0], port) for host, port in named]
        if self._home.node is None:  # else a call that was under way has been redirected meanwhile, see `_lead`
            self._home.node = node

    async def _lead(self, link: Link, redirected: AskError) -> None:
        """Let a link lead to the node that another one names when what is under way is answered."""
        host = redirected.host
        if not host:  # it says only the port, of the host by which it was reached
            if self._home.node is None:  # which is renewed: the next try finds it
                return
            host, _ = self._home.node
        node = self._clients.reachable(host, redirected.port)
        if link.node != node:
            # First, so that the next call that is redirected there does not renew the link again. It goes to the new
            # node in any case: the locks of a link are fair, so it waits behind `renew`.
            link.node = node
            await link.renew(self._clients.open_node_pool(node))

    async def renew(self) -> None:
        """Close the connections when what is under way is answered; the next command finds the node again."""
        self._home.node = None
        await self._home.renew()
        await self._ahead.renew()  # to the node that it knows: a call that is redirected names it in any case

    async def close(self) -> None:
        """Close the connections, which fails what is under way."""
        await self._home.close()
        await self._ahead.close()


AnyLink: TypeAlias = Link | ClusterLink


def open_link(clients: OwnClients, reopened: Callable[[], None]) -> AnyLink:
    """Return a link, which connects with its first command; see `ClusterLink` for the arguments."""
    if clients.is_cluster:
        return ClusterLink(clients, reopened)
    return Link(clients.open_pool(), clients.timeout_s, reopened)
