"""The nodes of a cluster: which of them has which slot, and connections to them.

The cluster is asked once which node holds which slot, and its errors tell of changes: ``MOVED`` says that a slot has
another node now, ``ASK`` that a key has while its slot is on the move; it is asked there then. A connection that is
lost, or cannot be made, has the cluster asked again; meanwhile the known places hold.

Tasks wait for each other in a tree, so that none ever waits for itself: commands wait for the lane to be ready, and
`_get_ready`, which makes it ready, uses only `_ask` and `_look`, which wait for connections alone.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from redis.asyncio.cluster import ClusterNode
from redis.crc import key_slot

from ....core.errors import StoreError, StoreUnavailable
from ..faults import refusal
from ..wire.batch import store_error
from ..wire.connection import Wire
from ..wire.first_answer import first_of
from ..wire.pipeline import RETRY_S, Lane
from .nodes import MOST_REDIRECTIONS, Call, Node, Place, read_slots, shown

TRY_AGAIN_S: Final = 0.02
NODES_AT_ONCE: Final = 10
"""While one node has not answered, the next is asked after a tenth of the timeout."""

REDIRECTED: Final = re.compile(r"(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)$")


class ClusterNodes(Lane, ABC):
    """A lane that knows the nodes of a cluster; `ClusterLane` sends calls to them."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._ready = False
        self._places: dict[int, Place] = {}
        self._serving: set[Place] = set()
        self._nodes: dict[Place, Node] = {}
        self._looking: asyncio.Task[Any] | None = None

    @abstractmethod
    def _drain(self, node: Node) -> None:
        """Write calls to a node, as many as may be unanswered."""

    @abstractmethod
    def _send_elsewhere(self, calls: Sequence[Call], place: Place | None, error: StoreError) -> None:
        """Send calls that never went to the nodes that have their slots by now, unless that is the node that failed."""

    async def _ask(self, *command: bytes | int) -> Any:
        """Send a command to the node with the bans, wherever that is; waits for connections alone."""
        slot, asking, error = key_slot(self._shared.meta), None, StoreError()
        until_s = monotonic() + self._shared.timeout_s
        for _ in range(MOST_REDIRECTIONS):
            place = asking or self._places.get(slot)
            try:
                wire = await self._reach(self._node(place)) if place else None
            except StoreError as failed:
                wire, error = None, failed
            if wire is None:
                await self._look()
                if self._places.get(slot) in (None, place):
                    raise error if place else refusal("", f"CLUSTERDOWN Hash slot {slot} has no node")
                asking = None
                continue
            try:
                return await self._ask_there(wire, command, asking is not None, until_s)
            except StoreUnavailable as failed:
                moved = REDIRECTED.search(str(failed))
                if moved is None:
                    raise
                asking, error = self._redirect(slot, moved, wire), failed
        raise error

    async def _ask_there(self, wire: Wire, command: Sequence[bytes | int], asking: bool, until_s: float) -> Any:
        """Ask a node, again and again while some keys of the slot are there and some are not."""
        while True:
            if asking:
                wire.send(ignore, b"ASKING")
            try:
                return await wire.ask(*command)
            except StoreUnavailable as error:
                if error.concerns != "slot" or "TRYAGAIN" not in str(error) or monotonic() >= until_s:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)

    def _redirect(self, slot: int, moved: re.Match[str], wire: Wire) -> Place | None:
        """Record the node of a slot; if the slot is still on its way, return the node to ask this once."""
        place = moved[3] or wire.place.rpartition(":")[0], int(moved[4])
        if moved[1] == "ASK":
            return place
        self._places[slot] = place
        self._serving.add(place)
        return None

    def _node(self, place: Place) -> Node:
        node = self._nodes.get(place)
        if node is None:
            node = self._nodes[place] = Node(place)
        return node

    async def _reach(self, node: Node) -> Wire:
        """Return the connection to a node, opened if need be."""
        if not node.is_open:
            await self._settled(self._open_soon(node))
        assert node.wire is not None
        return node.wire

    def _open_soon(self, node: Node) -> asyncio.Task[Any]:
        if node.opening is None:
            node.opening = self._start(self._open_node(node))
        return node.opening

    async def _open_node(self, node: Node) -> None:
        """Connect to a node and send the calls that wait for it; if that fails, to the nodes with their slots now."""
        try:
            client = self._shared.client
            there: Any = ClusterNode(*node.place, **client.connection_kwargs)
            wire = node.wire = await self._shared.open(lambda: there.connection_class(**there.connection_kwargs))
            self._guard(wire)
            wire.lost.add_done_callback(partial(self._lost_node, node))
        except Exception as error:
            failed = store_error(error)
            if calls := node.take_line():
                self._send_elsewhere(calls, node.place, failed)
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

    def _retry(self) -> None:
        if self._is_wanted and not self._ready:
            self._open()

    def _retry_node(self, node: Node) -> None:
        if self._is_wanted and not node.is_open and node.place in self._serving:
            self._open_soon(node)

    def _look_soon(self) -> asyncio.Task[Any]:
        if self._looking is None:
            self._looking = self._start(self._learn_places())
        return self._looking

    async def _look(self) -> None:
        """Learn which node has which slots."""
        await self._settled(self._look_soon())

    async def _learn_places(self) -> None:
        """Ask nodes, until one answers, which node has which slots."""
        try:
            known = [place for place, node in self._nodes.items() if node.is_open]
            known += [(node.host, node.port) for node in self._shared.client.nodes_manager.startup_nodes.values()]
            tries = [partial(self._slots_of, place) for place in dict.fromkeys([*known, *self._serving])]
            apart_s = self._shared.timeout_s / NODES_AT_ONCE
            self._places = await first_of(tries, apart_s, "redis: no node of the cluster is known")
            self._serving = {*self._places.values()}
            for place in self._nodes.keys() - self._serving:
                node = self._nodes[place]
                if node.is_idle and not node.is_open:
                    del self._nodes[place]
        finally:
            self._looking = None

    async def _slots_of(self, place: Place) -> dict[int, Place]:
        """Return the node of each slot, as one node knows it."""
        wire = await self._reach(self._node(place))
        places = dict(read_slots(await wire.ask(b"CLUSTER", b"SLOTS"), place))
        if not places:
            raise StoreUnavailable(f"redis: {shown(place)} knows nobody who has a slot")
        return places


def ignore(answer: Any) -> None:
    """Take the answer to ASKING, which is always the same."""
