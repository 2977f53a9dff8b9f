"""The nodes of a cluster: which of them has which slot, and connections to them.

The cluster is asked once which node holds which slot, and its errors tell of changes: ``MOVED`` says that a slot has
another node now, ``ASK`` that a key has while its slot is on the move; it is asked there then. A connection that is
lost, or cannot be made, has the cluster asked again; meanwhile the known owners hold.

Tasks wait for each other in a tree, so that none ever waits for itself: commands wait for the batcher to be ready, and
`_get_ready`, which makes it ready, uses only `_ask` and `_look`, which wait for connections alone.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from redis.asyncio.cluster import ClusterNode
from redis.crc import key_slot

from ...core.errors import StoreError, StoreUnavailable
from .batch import RETRY_S, Batcher, store_error
from .link import Connection, first_of, refusal
from .requests import Request

MAX_REDIRECTIONS: Final = 5

NodeAddress: TypeAlias = tuple[str, int]
TRY_AGAIN_S: Final = 0.02
NODES_AT_ONCE: Final = 10
"""While one node has not answered, the next is asked after a tenth of the timeout."""

REDIRECTED: Final = re.compile(r"(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)$")


class Call(NamedTuple):
    """Requests of one slot on their way."""

    slot: int
    requests: Sequence[Request]
    how: bytes
    what: bytes
    redirections: int = 0


class Node:
    """One node: its connection, and the calls that wait for it, so that a node that hangs holds up no other.

    Args:
        address: Where it is.

    Attributes:
        connection: The connection, if there was one.
        opening: Opens the next one.
        calls: How many calls are unanswered.
        line: Calls that have not gone yet, and whether each asks for a slot that is still on its way here.
    """

    __slots__ = ("address", "calls", "connection", "line", "opening")

    def __init__(self, address: NodeAddress) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Any] | None = None
        self.calls = 0
        self.line: deque[tuple[Call, bool]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self.connection is not None and self.connection.open

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it."""
        return not (self.calls or self.line or self.opening)

    def take_line(self) -> list[Call]:
        """Return the calls that were not sent yet, and take them out of the line."""
        calls = [call for call, _ in self.line]
        self.line.clear()
        return calls


def shown(address: NodeAddress | None) -> str:
    """Return a name for a address."""
    return "no node" if address is None else f"{address[0]}:{address[1]}"


def read_slots(rows: Any, asked: NodeAddress) -> Iterator[tuple[int, NodeAddress]]:
    """Yield each slot and its node, from an answer of ``CLUSTER SLOTS``.

    Args:
        rows: The answer.
        asked: The node that gave it: a node that does not know its own name leaves it out.

    Raises:
        StoreUnavailable: It cannot be read.
    """
    try:
        for first, last, (host, port, *_), *_ in rows:
            name = host.decode() if host and host != b"?" else asked[0]
            yield from ((slot, (name, int(port))) for slot in range(first, last + 1))
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreUnavailable(f"redis: {shown(asked)} does not say who has which slot: {error!r}") from error


class ClusterNodes(Batcher, ABC):
    """A batcher that knows the nodes of a cluster; `ClusterBatcher` sends calls to them."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._ready = False
        self._owners: dict[int, NodeAddress] = {}
        self._serving: set[NodeAddress] = set()
        self._nodes: dict[NodeAddress, Node] = {}
        self._looking: asyncio.Task[Any] | None = None

    @abstractmethod
    def _drain(self, node: Node) -> None:
        """Write calls to a node, as many as may be unanswered."""

    @abstractmethod
    def _send_elsewhere(self, calls: Sequence[Call], address: NodeAddress | None, error: StoreError) -> None:
        """Send calls that never went to the nodes that have their slots by now, unless that is the node that failed."""

    async def _ask(self, *command: bytes | int) -> Any:
        """Send a command to the node with the bans, wherever that is; waits for connections alone."""
        slot, asking, error = key_slot(self._shared.meta), None, StoreError()
        until_s = monotonic() + self._shared.timeout_s
        for _ in range(MAX_REDIRECTIONS):
            address = asking or self._owners.get(slot)
            try:
                connection = await self._reach(self._node(address)) if address else None
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
                moved = REDIRECTED.search(str(failed))
                if moved is None:
                    raise
                asking, error = self._redirect(slot, moved, connection), failed
        raise error

    async def _ask_there(
        self, connection: Connection, command: Sequence[bytes | int], asking: bool, until_s: float
    ) -> Any:
        """Ask a node, again and again while some keys of the slot are there and some are not."""
        while True:
            if asking:
                connection.send(ignore, b"ASKING")
            try:
                return await connection.ask(*command)
            except StoreUnavailable as error:
                if error.concerns != "slot" or "TRYAGAIN" not in str(error) or monotonic() >= until_s:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)

    def _redirect(self, slot: int, moved: re.Match[str], connection: Connection) -> NodeAddress | None:
        """Record the node of a slot; if the slot is still on its way, return the node to ask this once."""
        address = moved[3] or connection.name.rpartition(":")[0], int(moved[4])
        if moved[1] == "ASK":
            return address
        self._owners[slot] = address
        self._serving.add(address)
        return None

    def _node(self, address: NodeAddress) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address)
        return node

    async def _reach(self, node: Node) -> Connection:
        """Return the connection to a node, opened if need be."""
        if not node.is_open:
            await self._settled(self._open_soon(node))
        assert node.connection is not None
        return node.connection

    def _open_soon(self, node: Node) -> asyncio.Task[Any]:
        if node.opening is None:
            node.opening = self._start(self._open_node(node))
        return node.opening

    async def _open_node(self, node: Node) -> None:
        """Connect to a node and send the calls that wait for it; if that fails, to the nodes with their slots now."""
        try:
            client = self._shared.client
            there: Any = ClusterNode(*node.address, **client.connection_kwargs)
            settings = there.connection_class(**there.connection_kwargs)
            connection = node.connection = await self._shared.open(settings)
            self._guard(connection)
            connection.lost.add_done_callback(partial(self._lost_node, node))
        except Exception as error:
            failed = store_error(error)
            if calls := node.take_line():
                self._send_elsewhere(calls, node.address, failed)
            self.loop.call_later(RETRY_S, self._retry_node, node)
            raise failed from error
        finally:
            node.opening = None
        self._drain(node)

    def _lost_node(self, node: Node, lost: asyncio.Future[None]) -> None:
        """See `_lost`; somebody else may have the slots of the node by now."""
        if self._is_wanted and not lost.cancelled():
            self._look_soon()
            self._retry_node(node)

    async def _get_ready(self) -> None:
        await self._look()
        await self._check_there(self._ask)
        self._ready = True

    def _doubt(self, error: StoreError) -> None:
        self._ready = False

    def _retry(self) -> None:
        if self._is_wanted and not self._ready:
            self._open()

    def _retry_node(self, node: Node) -> None:
        if self._is_wanted and not node.is_open and node.address in self._serving:
            self._open_soon(node)

    def _look_soon(self) -> asyncio.Task[Any]:
        if self._looking is None:
            self._looking = self._start(self._learn_owners())
        return self._looking

    async def _look(self) -> None:
        """Learn which node has which slots."""
        await self._settled(self._look_soon())

    async def _learn_owners(self) -> None:
        """Ask nodes, until one answers, which node has which slots."""
        try:
            known = [address for address, node in self._nodes.items() if node.is_open]
            known += [(node.host, node.port) for node in self._shared.client.nodes_manager.startup_nodes.values()]
            tries = [partial(self._slots_of, address) for address in dict.fromkeys([*known, *self._serving])]
            apart_s = self._shared.timeout_s / NODES_AT_ONCE
            self._owners = await first_of(tries, apart_s, "redis: no node of the cluster is known")
            self._serving = {*self._owners.values()}
            for address in self._nodes.keys() - self._serving:
                node = self._nodes[address]
                if node.is_idle and not node.is_open:
                    del self._nodes[address]
        finally:
            self._looking = None

    async def _slots_of(self, address: NodeAddress) -> dict[int, NodeAddress]:
        """Return the node of each slot, as one node knows it."""
        connection = await self._reach(self._node(address))
        owners = dict(read_slots(await connection.ask(b"CLUSTER", b"SLOTS"), address))
        if not owners:
            raise StoreUnavailable(f"redis: {shown(address)} knows nobody who has a slot")
        return owners


def ignore(answer: Any) -> None:
    """Take the answer to ASKING, which is always the same."""
