"""The batcher for a cluster: it keeps the slot map, and routes each request to the node that owns its slot.

redis-py reads the slot map, initially and after a connection was lost or could not be opened; until it is read, the
known owners are used. Nodes redirect requests: ``MOVED`` means that the slot has a new owner, ``ASK`` that a key of a
migrating slot is already on the next node, which is asked once. Each node has a batcher of its own, so that a hanging
node blocks no other, and every call has one slot.

The ban of a key is in the slot of its windows. The shared keys and the bans of networks are in a slot of their own.

Tasks never wait for each other in a cycle: commands wait until the batcher is ready, and `_get_ready`, which makes it
ready, uses only `_ask` and `_look`, which wait for nothing but connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, TypeAlias

from redis.asyncio.cluster import ClusterNode, NodesManager
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import RedisClusterException, RedisError

from ...core.errors import StoreError, StoreTimeout, StoreUnavailable
from ...core.logs import Throttle
from ...core.store import Event
from .batch import Batcher, ServerBatcher, Shared, fail, fail_unpacked
from .errors import CLOSED, refusal, sensible
from .link import Connection, open_connection, pack_command
from .requests import Question, Request

NodeAddress: TypeAlias = tuple[str, int]

MAX_REDIRECTIONS: Final = 5
NODES_IN_TURN: Final = 3
"""A node that does not answer may use a third of the timeout before the next one is asked for the slot map."""
TRY_AGAIN_S: Final = 0.02
SAY_EVERY_S: Final = 60.0

_REDIRECTED: Final = re.compile(r"(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)$")


class NodeBatcher(ServerBatcher):
    """The requests of one event loop to one node of a cluster.

    Args:
        front: The batcher of the cluster.
        address: Host and port of the node.
    """

    max_calls = 256

    def __init__(self, front: ClusterBatcher, shared: Shared, address: NodeAddress) -> None:
        super().__init__(front.loop, shared)
        self._front = front
        self.address = address

    @property
    def is_free(self) -> bool:
        """Whether no request waits for it, and there is no connection."""
        return not (self._calls or self._line or self._opening or self._is_ready)

    async def ask_for(self, requests: Sequence[Request]) -> None:
        """Write a call for a slot that is migrating to this node."""
        connection = await self.reached()
        connection.send(_ignore, pack_command(b"ASKING"))
        self.call(connection, requests, b"EVAL")  # a retry after NOSCRIPT would lack the ASKING

    async def _connect(self) -> Connection:
        there: Any = ClusterNode(*self.address, **self._shared.server.client.connection_kwargs)
        connection = await open_connection(
            there.connection_class(**there.connection_kwargs), self._shared.server.timeout_s
        )
        connection.lost.add_done_callback(self._front.doubt_owners)
        return connection

    async def _begin(self, ask: Any) -> None:
        """Do nothing: the batcher of the cluster polls, at the node with the shared keys."""

    def _poll_when_due(self) -> None:
        """Do nothing; see `_begin`."""

    def _fail_line(self, error: StoreError) -> None:
        """Send the unsent requests to the current owners of their slots."""
        if requests := self._taken():
            self._front.send_elsewhere(requests, self.address, error)

    def _groups(self, requests: Sequence[Request]) -> Iterable[Sequence[Request]]:
        groups: dict[object, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.group, []).append(request)
        return groups.values()

    def _refused(self, connection: Connection, requests: Sequence[Request], error: str) -> None:
        moved = _REDIRECTED.search(error)
        if moved is not None:
            self._front.redirect(requests, moved, connection, refusal(connection.name, error))
        elif error.startswith("TRYAGAIN") and len(requests) > 1:
            # The slot is migrating, and its keys are on two nodes. Those of a single request may be on one of them.
            for request in requests:
                request.group = request
            self._front.send(requests)
        elif error.startswith("TRYAGAIN") and isinstance(requests[0], Question) and requests[0].banned:
            self._front.send_apart(requests[0])
        else:
            super()._refused(connection, requests, error)
            if error.startswith("CLUSTERDOWN"):
                self._front.doubt_owners()


class ClusterBatcher(Batcher):
    """The queued requests of one event loop to a cluster."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        super().__init__(loop, shared)
        self._knows_slots = False
        self._owners: dict[int, NodeAddress] = {}
        self._nodes: dict[NodeAddress, NodeBatcher] = {}
        self._looking: asyncio.Task[Any] | None = None
        self._owners_in_doubt = False
        self._throttle = Throttle(SAY_EVERY_S)

    async def ask_about(self, name: bytes, *command: bytes | int) -> Any:
        """See `Batcher.ask_about`."""
        await self.ready()
        return await self._ask(name, *command)

    async def servers(self) -> Sequence[Connection]:
        """See `Batcher.servers`."""
        await self.ready()
        await self._look()  # nodes may have joined or left
        return [await self._node(address).reached() for address in {*self._owners.values()}]

    def close(self) -> None:
        """See `Batcher.close`."""
        super().close()
        for node in self._nodes.values():
            node.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        self._scheduled = False
        if not self._line or self._closed:
            return
        if not self._knows_slots:
            self._open()
            return
        if self._owners_in_doubt:
            self.look_soon()
        self._poll_when_due()
        self.send(self._taken())

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests to the owners of their slots."""
        if self._closed:
            fail(requests, StoreUnavailable(CLOSED))
            return
        for request in requests:
            try:
                slot = key_slot(request.name or self._shared.packing.meta)
            except UnicodeError as error:
                fail_unpacked([request], error)
                continue
            request.group = slot if request.group is None else request.group
            address = self._owners.get(slot)
            if request.future.done():
                continue
            if address is None:
                self.send_elsewhere([request], None, refusal("", f"CLUSTERDOWN Hash slot {slot} has no node"))
            else:
                self._node(address).add(request)

    def redirect(
        self, requests: Sequence[Request], moved: re.Match[str], connection: Connection, error: StoreError
    ) -> None:
        """Follow a redirection by a node; a request fails after `MAX_REDIRECTIONS`."""
        address = self._follow(moved, connection)
        lost = [request for request in requests if request.redirections == MAX_REDIRECTIONS]
        fail(lost, error)
        others = [request for request in requests if request.redirections < MAX_REDIRECTIONS]
        for request in others:
            request.redirections += 1
        if address is None:
            self.send(others)
        elif others:
            self._carry(others, self._node(address).ask_for(others))

    def send_elsewhere(self, requests: Sequence[Request], address: NodeAddress | None, error: StoreError) -> None:
        """Send unsent requests to the current owners of their slots, except to `address`, which failed."""
        self._carry(requests, self._look_and_send(requests, address, error))

    def send_apart(self, request: Question) -> None:
        """Read the bans of a request separately, then send it without them: its keys are on two nodes."""
        self._carry([request], self._look_apart(request))

    async def _look_apart(self, request: Question) -> None:
        if not await request.look_apart(self._ask):
            self.send([request])

    async def _look_and_send(self, requests: Sequence[Request], address: NodeAddress | None, error: StoreError) -> None:
        with suppress(StoreError):  # the known owners stay in use, and the requests fail with the first error
            await self._look()
            error.concerns = "slot"  # other nodes answer
        for request in requests:
            owner = self._owners.get(key_slot(request.name or self._shared.packing.meta))
            if owner in (None, address) or request.redirections >= MAX_REDIRECTIONS:
                fail([request], error)
            else:
                request.redirections += 1
                self.send([request])

    # -- nodes -------------------------------------------------------------------------------------------------------

    def doubt_owners(self, lost: object = None) -> None:
        """Read the slot map again with the next request, because a connection to a node was lost."""
        self._owners_in_doubt = True

    def look_soon(self) -> asyncio.Task[Any]:
        """Start to read the slot map, unless that is in progress; return the task."""
        self._owners_in_doubt = False
        if self._looking is None:
            self._looking = self._start(self._learn_owners())
        return self._looking

    @property
    def _is_ready(self) -> bool:
        return self._knows_slots

    async def _get_ready(self) -> None:
        await self._look()
        await self._begin(partial(self._ask, self._shared.packing.meta))
        self._knows_slots = True

    def _invalidate(self, error: StoreError) -> None:
        self._knows_slots = False

    def _node(self, address: NodeAddress) -> NodeBatcher:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = NodeBatcher(self, self._shared, address)
        return node

    async def _look(self) -> None:
        """Read the slot map, and wait for it."""
        await self.settled(self.look_soon())

    async def _learn_owners(self) -> None:
        try:
            server, known = self._shared.server, {*self._owners.values()}
            self._owners = await owners_of(server.client, known, server.timeout_s)
            for address in self._nodes.keys() - {*self._owners.values()}:
                if self._nodes[address].is_free:
                    del self._nodes[address]
        finally:
            self._looking = None

    def _follow(self, moved: re.Match[str], connection: Connection) -> NodeAddress | None:
        """Record the new owner of a slot; for ASK, return the node to ask just once."""
        address = moved[3] or connection.name.rpartition(":")[0], int(moved[4])
        if moved[1] == "ASK":
            return address
        self._owners[int(moved[2])] = address
        return None

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _ask(self, name: bytes, *command: bytes | int) -> Any:
        """Send a command to the owner of a name's slot, following redirections; waits only for connections."""
        slot, asking, error = key_slot(name), None, StoreError()
        until_s = monotonic() + self._shared.server.timeout_s
        for _ in range(MAX_REDIRECTIONS):
            address = asking or self._owners.get(slot)
            try:
                connection = await self._node(address).reached() if address else None
            except StoreError as failed:
                connection, error = None, failed
            if connection is None:
                await self._look()
                if self._owners.get(slot) in (None, address):
                    raise error if address else refusal("", f"CLUSTERDOWN Hash slot {slot} has no node")
                asking = None
                continue
            try:
                return await self._ask_there(connection, command, asking is not None, until_s)
            except StoreUnavailable as failed:
                moved = _REDIRECTED.search(str(failed))
                if moved is None:
                    raise
                asking, error = self._follow(moved, connection), failed
        raise error

    async def _ask_there(
        self, connection: Connection, command: Sequence[bytes | int], asking: bool, until_s: float
    ) -> Any:
        """Send a command to a node, and retry on TRYAGAIN: the keys of a migrating slot are on two nodes."""
        while True:
            if asking:
                connection.send(_ignore, pack_command(b"ASKING"))
            try:
                return await connection.ask(*command)
            except StoreUnavailable as error:
                if error.concerns != "slot" or "TRYAGAIN" not in str(error) or monotonic() >= until_s:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)

    def _poll_failed(self, error: StoreError) -> None:
        """See `Batcher`. The other nodes still answer, so only an event reports the failure."""
        super()._poll_failed(error)
        if self._throttle.left_out("bans_unread", monotonic()) is not None:
            message = f"redis: network bans cannot be read, so the last known ones stay in force: {error}"
            self._shared.tell((Event("bans_unread", message, {"error": str(error)}),))


@sensible
async def owners_of(client: Any, known: Iterable[NodeAddress], timeout_s: float) -> dict[int, NodeAddress]:
    """Return the node of each slot, according to the first node that answers.

    redis-py asks, through new node objects: those of the client may belong to another event loop, and have the
    user's timeouts.

    Args:
        client: The client of redis-py.
        known: Nodes to ask besides those that the client was created with.
        timeout_s: How long all of it may take.

    Raises:
        StoreError: No node answers.
    """
    share_s = timeout_s / NODES_IN_TURN
    bounds = {"socket_timeout": share_s, "socket_connect_timeout": share_s, "retry": Retry(NoBackoff(), 0)}
    settings, first = {**client.connection_kwargs, **bounds}, client.nodes_manager
    addresses = dict.fromkeys([*known, *((node.host, node.port) for node in first.startup_nodes.values())])
    asked = [ClusterNode(host, port, **settings) for host, port in addresses]
    manager = NodesManager(asked, False, settings, address_remap=first.address_remap)
    try:
        async with asyncio.timeout(timeout_s):
            await manager.initialize()
    except TimeoutError as error:
        raise StoreTimeout(f"redis: no node of the cluster returned the slot map within {timeout_s:g} s") from error
    except (RedisError, RedisClusterException, OSError) as error:  # the second is not one of the first
        raise StoreUnavailable(f"redis: {error}") from error
    finally:
        # Shielded: the store may be closed during this wait, and an unclosed connection emits a ResourceWarning.
        await asyncio.shield(asyncio.gather(*(node.disconnect() for node in asked), return_exceptions=True))
    return {slot: (nodes[0].host, int(nodes[0].port)) for slot, nodes in manager.slots_cache.items()}


def _ignore(answer: Any) -> None:
    """Discard the answer to ASKING, which is always OK."""
