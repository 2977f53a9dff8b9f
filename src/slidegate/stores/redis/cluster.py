"""A batcher to a cluster: which node has which slot, and what each of them is asked.

redis-py asks the cluster which node has which slot, at first and after a connection was lost or could not be made; the
known owners hold meanwhile. Errors of nodes tell of changes: ``MOVED`` says that a slot has another node now, ``ASK``
that a key has while its slot is on the move; it is asked there then. Each node has a batcher of its own, so that a node
that hangs holds up no other, and a call is about one slot.

The ban of a key lies in the slot of its windows. The numbers and the bans of networks lie in a slot of their own.

Tasks wait for each other in a tree, so that none ever waits for itself: commands wait for the batcher to be ready, and
`_get_ready`, which makes it ready, uses only `_ask` and `_look`, which wait for connections alone.
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
from .batch import Batcher, ServerBatcher, Shared, fail
from .errors import CLOSED, refusal, sensible
from .link import Connection, open_connection
from .requests import Question, Request

NodeAddress: TypeAlias = tuple[str, int]

MAX_REDIRECTIONS: Final = 5
NODES_IN_TURN: Final = 3
"""A node that does not answer may use up a third of the timeout before the next is asked who has which slot."""
TRY_AGAIN_S: Final = 0.02
SAY_EVERY_S: Final = 60.0

_REDIRECTED: Final = re.compile(r"(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)$")


class NodeBatcher(ServerBatcher):
    """The requests of one event loop to one node of a cluster.

    Args:
        front: The batcher to the cluster.
        address: Where the node is.
    """

    max_calls = 256

    def __init__(self, front: ClusterBatcher, shared: Shared, address: NodeAddress) -> None:
        super().__init__(front.loop, shared)
        self._front = front
        self.address = address

    @property
    def is_free(self) -> bool:
        """Whether nobody waits for it, and there is no connection."""
        return not (self._calls or self._line or self._opening or self._is_ready)

    async def ask_for(self, requests: Sequence[Request]) -> None:
        """Write a call about a slot that is still on its way here."""
        connection = await self.reached()
        connection.send(_ignore, b"ASKING")
        self.call(connection, requests, b"EVAL")  # nobody would ask once more where the script is unknown

    async def _connect(self) -> Connection:
        there: Any = ClusterNode(*self.address, **self._shared.server.client.connection_kwargs)
        connection = await open_connection(
            there.connection_class(**there.connection_kwargs), self._shared.server.timeout_s
        )
        connection.lost.add_done_callback(self._front.doubt_owners)
        return connection

    async def _begin(self, ask: Any) -> None:
        """Do nothing: the batcher to the cluster does, where the numbers are."""

    def _hear(self) -> None:
        """Do nothing; see `_begin`."""

    def _fail_line(self, error: StoreError) -> None:
        """Send the requests that never went to the nodes that have their slots by now."""
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
            # Some keys of the slot are here, and some on its next node: those of one request may be on one of them.
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
    """The requests of one event loop to a cluster."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        super().__init__(loop, shared)
        self._knows_slots = False
        self._owners: dict[int, NodeAddress] = {}
        self._serving: set[NodeAddress] = set()
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
        await self._look()  # nodes may have come and gone
        return [await self._node(address).reached() for address in {*self._serving}]

    def close(self) -> None:
        """See `Batcher.close`."""
        super().close()
        for node in self._nodes.values():
            node.close()

    def part_of(self, keys: Iterable[str]) -> str | None:
        """Return which nodes hold keys, or the bans where there are none; None while that is not known."""
        if not self._knows_slots:
            return None
        names = [self._shared.packing.name_of(key) for key in keys] or [self._shared.packing.meta]
        return ", ".join(sorted({_shown(self._owners.get(key_slot(name))) for name in names}))

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
        self._hear()
        self.send(self._taken())

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests to the nodes that have their slots."""
        if self._closed:
            fail(requests, StoreUnavailable(CLOSED))
            return
        for request in requests:
            slot = key_slot(request.name or self._shared.packing.meta)
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
        """Send requests where a node says that they belong."""
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
        """Send requests that never went to the nodes of their slots by now, unless that is the one that failed."""
        self._carry(requests, self._look_and_send(requests, address, error))

    def send_apart(self, request: Question) -> None:
        """Look for the bans of a request by themselves, and send it without: their keys lie on two nodes."""
        self._carry([request], self._look_apart(request))

    async def _look_apart(self, request: Question) -> None:
        if not await request.look_apart(self._ask):
            self.send([request])

    async def _look_and_send(self, requests: Sequence[Request], address: NodeAddress | None, error: StoreError) -> None:
        with suppress(StoreError):  # the known owners hold, and the requests fail with the first error
            await self._look()
        for request in requests:
            owner = self._owners.get(key_slot(request.name or self._shared.packing.meta))
            if owner in (None, address) or request.redirections >= MAX_REDIRECTIONS:
                fail([request], error)
            else:
                request.redirections += 1
                self.send([request])

    # -- nodes -------------------------------------------------------------------------------------------------------

    def doubt_owners(self, lost: object = None) -> None:
        """Look for the owners of slots at the next request, because a connection to one of them was lost."""
        self._owners_in_doubt = True

    def look_soon(self) -> asyncio.Task[Any]:
        """Have nodes asked which of them has which slot."""
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

    def _doubt(self, error: StoreError) -> None:
        self._knows_slots = False

    def _node(self, address: NodeAddress) -> NodeBatcher:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = NodeBatcher(self, self._shared, address)
        return node

    async def _look(self) -> None:
        """Learn which node has which slots."""
        await self._settled(self.look_soon())

    async def _learn_owners(self) -> None:
        try:
            self._owners = await owners_of(self._shared.server.client, self._serving, self._shared.server.timeout_s)
            self._serving = {*self._owners.values()}
            for address in self._nodes.keys() - self._serving:
                if self._nodes[address].is_free:
                    del self._nodes[address]
        finally:
            self._looking = None

    def _follow(self, moved: re.Match[str], connection: Connection) -> NodeAddress | None:
        """Record the node of a slot; if the slot is still on its way, return the node to ask this once."""
        address = moved[3] or connection.name.rpartition(":")[0], int(moved[4])
        if moved[1] == "ASK":
            return address
        self._owners[int(moved[2])] = address
        self._serving.add(address)
        return None

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _ask(self, name: bytes, *command: bytes | int) -> Any:
        """Send a command to the node with the slot of a name, wherever that is; waits for connections alone."""
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
        """Ask a node, again and again while some keys of the slot are there and some are not."""
        while True:
            if asking:
                connection.send(_ignore, b"ASKING")
            try:
                return await connection.ask(*command)
            except StoreUnavailable as error:
                if error.concerns != "slot" or "TRYAGAIN" not in str(error) or monotonic() >= until_s:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)

    def _unheard(self, error: StoreError) -> None:
        """See `Batcher`: nodes that are well go on answering, so this is told."""
        super()._unheard(error)
        if self._throttle.left_out("bans_unread", monotonic()) is not None:
            message = f"redis: bans of networks cannot be read, so those that are known hold: {error}"
            self._shared.tell((Event("bans_unread", message, {"error": str(error)}),))


@sensible
async def owners_of(client: Any, known: Iterable[NodeAddress], timeout_s: float) -> dict[int, NodeAddress]:
    """Return the node of each slot, as the first node that answers knows it.

    redis-py asks, with nodes that are made for this: its connections belong to one event loop, and wait as long as its
    user says.

    Args:
        client: The client of redis-py.
        known: Nodes that may be asked besides those that the client was made with.
        timeout_s: How long that may take.

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
        raise StoreTimeout(
            f"redis: no node of the cluster has said within {timeout_s:g} s who has which slot"
        ) from error
    except (RedisError, RedisClusterException, OSError) as error:  # the second is not one of the first
        raise StoreUnavailable(f"redis: {error}") from error
    finally:
        # Shielded, because the store may be closed while this waits, and a connection that is never closed warns.
        await asyncio.shield(asyncio.gather(*(node.disconnect() for node in asked), return_exceptions=True))
    return {slot: (nodes[0].host, int(nodes[0].port)) for slot, nodes in manager.slots_cache.items()}


def _shown(address: NodeAddress | None) -> str:
    return "no node" if address is None else f"{address[0]}:{address[1]}"


def _ignore(answer: Any) -> None:
    """Take the answer to ASKING, which is always the same."""
