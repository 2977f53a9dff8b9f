"""A lane to a cluster.

A call goes to the node of its slot, so requests of one turn of the loop are grouped by slot, and the calls to one node
share its connection. The cluster is asked once which node holds which slot, and its errors tell of changes: ``MOVED``
says that a slot has another node now, ``ASK`` that a key has while its slot is on the move; it is asked there then.
A connection that is lost, or cannot be made, has the cluster asked again; meanwhile the known places hold.

Tasks wait for each other in a tree, so that none ever waits for itself: commands wait for the lane to be ready, and
`_connect`, which makes it ready, uses only `_ask` and `_look`, which wait for connections alone.

The bans lie in one slot, and calls for others cannot see them. So requests are judged by the list that is held here,
which is refreshed twice in `TRUST_S`. Where it is older they are looked up first, all of a turn in one question; but
they do not wait for that for long: without an answer the bans that are held count, and limits go on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

from hiredis import HiredisError
from redis.asyncio.cluster import ClusterNode
from redis.crc import key_slot

from ....core.errors import StoreError, StoreUnavailable
from ....core.protocols import Event
from ..bans.ban_replica import UNSEEN
from ..faults import SICK, refusal
from ..known_refusals import TRUST_S
from ..packing import CHANGED, windows_script
from ..wire.batch import STATE_PARTS, Request, deliver, fail, head, pack_call, store_error
from ..wire.connection import Wire
from ..wire.first_answer import first_of
from ..wire.pipeline import CLOSED, MOST_IN_CALL, RETRY_S, Lane, remove
from .nodes import MOST_REDIRECTIONS, Call, Node, Place, read_slots, shown

MOST_CALLS: Final = 256
"""How many calls to one node may be unanswered."""
PATIENCE_S: Final = 0.02
"""How long requests wait for news of bans: less than a limiter's deadline."""
NEWS_AGAIN_S: Final = 0.1
SAY_EVERY_S: Final = 60.0
TRY_AGAIN_S: Final = 0.02
NODES_AT_ONCE: Final = 10
"""While one node has not answered, the next is asked after a tenth of the timeout."""

NO_BANS: Final = b"", b"", b""
"""The number, life and guards in a call for another slot, which cannot see the bans."""

_CHANGED: Final = bytes((CHANGED,))
_REDIRECTED: Final = re.compile(r"(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)$")


class ClusterLane(Lane):
    """The requests of one event loop to a cluster."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._ready = False
        self._places: dict[int, Place] = {}
        self._serving: set[Place] = set()
        self._nodes: dict[Place, Node] = {}
        self._looking: asyncio.Task[Any] | None = None
        self._news: asyncio.Task[Any] | None = None
        self._news_from_s = self._say_again_s = float("-inf")
        self._patient = True
        self._owes_hands = False

    async def ask(self, *command: bytes | int) -> Any:
        """See `Lane.ask`: bans lie in one slot."""
        if not self._ready:
            await self._settled(self._open())
        return await self._ask(*command)

    async def remove(self, pattern: bytes) -> int:
        """See `Lane.remove`."""
        if not self._ready:
            await self._settled(self._open())
        await self._look()  # nodes may have come and gone
        return sum([await remove(await self._reach(self._node(place)), pattern) for place in {*self._serving}])

    def close(self) -> None:
        """See `Lane.close`."""
        super().close()
        gone = StoreUnavailable(CLOSED)
        for node in self._nodes.values():
            for call in node.take_line():
                fail(call.requests, gone)
            if node.wire is not None:
                node.wire.close(gone)

    def part_of(self, keys: Iterable[str]) -> str | None:
        """Return which nodes hold keys, or the bans where there are none; None while that is not known."""
        if not self._ready:
            return None
        names = [self._shared.name_of(key) for key in keys] or [self._shared.meta]
        return ", ".join(sorted({shown(self._places.get(key_slot(name))) for name in names}))

    def _go(self) -> None:
        self._scheduled = False
        line = self._line
        if not line or self._closed:
            return
        now_s = self._asked_s = monotonic()
        if not self._ready:
            self._open()
            return
        requests = list(line)
        line.clear()
        age_s = now_s - self._shared.bans.known_s
        if age_s >= TRUST_S / 2:
            self._hear()
        seen, unseen = list[Request](), list[Request]()
        for request in requests:
            known = request.judged is None or (request.judged != UNSEEN and age_s < TRUST_S)
            (seen if known else unseen).append(request)
        if unseen:
            self._carry(unseen, self._look_up(unseen))
        self._group(seen)

    def _group(self, requests: Sequence[Request]) -> None:
        """Send requests, those of one slot together."""
        shared, script = self._shared, windows_script()
        groups: dict[int, list[Request]] = {}
        for request in requests:
            if not request.future.done():
                slot = key_slot(shared.meta if request.key is None else shared.name_of(request.key))
                groups.setdefault(slot, []).append(request)
        for slot, some in groups.items():
            for first in range(0, len(some), MOST_IN_CALL):
                self._send(Call(slot, some[first : first + MOST_IN_CALL], b"EVALSHA", script.name))

    # -- calls -------------------------------------------------------------------------------------------------------

    def _send(self, call: Call, asking: Place | None = None) -> None:
        """Send a call to the node of its slot, or to the one that is `asking` for it, when there is room."""
        place = asking or self._places.get(call.slot)
        if self._closed:
            fail(call.requests, StoreUnavailable(CLOSED))
            return
        if place is None:
            self._send_elsewhere([call], None, refusal("", f"CLUSTERDOWN Hash slot {call.slot} has no node"))
            return
        node = self._node(place)
        if len(node.line) >= self._shared.max_waiting:
            fail(call.requests, StoreUnavailable(f"redis: {shown(place)}: {len(node.line)} calls wait already"))
            return
        node.line.append((call, asking is not None))
        self._drain(node)

    def _drain(self, node: Node) -> None:
        """Write calls to a node, as many as may be unanswered."""
        if not node.is_open:
            if node.line and not self._closed:
                self._open_soon(node)
            return
        while node.line and node.calls < MOST_CALLS and node.is_open:
            call, asking = node.line.popleft()
            requests = [request for request in call.requests if not request.future.done()]
            if requests and node.wire is not None:
                self._write(node, node.wire, call._replace(requests=requests), asking)

    def _write(self, node: Node, wire: Wire, call: Call, asking: bool) -> None:
        keys, packed = pack_call(call.requests, 0)
        names = [self._shared.name_of(key) for key in keys]
        if asking:
            wire.send(_ignore, b"ASKING")
        done = partial(self._came, node, wire, call, monotonic())
        node.calls += 1
        wire.send(done, call.how, call.what, len(names), *names, head(self._shared.clock, 0), *NO_BANS, *packed)

    def _came(self, node: Node, wire: Wire, call: Call, sent_s: float, answer: Any) -> None:
        node.calls -= 1
        if isinstance(answer, StoreError):
            fail(call.requests, answer)
        elif isinstance(answer, HiredisError):
            self._bounced(wire, call, str(answer))
        else:
            self._shared.tell(deliver(wire, call.requests, sent_s, answer))
            if wire.open and any(type(part) is bytes and part[:1] == _CHANGED for part in answer[STATE_PARTS:]):
                self._start(self._tell_hands())
        self._drain(node)

    def _bounced(self, wire: Wire, call: Call, error: str) -> None:
        """Deal with an error that a node gives instead of running the script."""
        again = call._replace(redirections=call.redirections + 1)
        moved = _REDIRECTED.search(error)
        if again.redirections <= MOST_REDIRECTIONS:
            if error.startswith("NOSCRIPT"):
                self._send(again._replace(how=b"EVAL", what=windows_script().source))
                return
            if moved is not None:
                self._send(again, self._redirect(call.slot, moved, wire))
                return
            if error.startswith("TRYAGAIN") and len({request.key for request in call.requests}) > 1:
                # Some keys of the slot are here, and some on its next node: each key alone is found on one of them.
                for key in {request.key: None for request in call.requests}:
                    self._send(again._replace(requests=[one for one in call.requests if one.key == key]))
                return
        fail(call.requests, refusal(wire.place, error))
        if error.startswith(SICK):
            wire.close(refusal(wire.place, error))
        elif error.startswith("CLUSTERDOWN"):
            self._look_soon()

    def _redirect(self, slot: int, moved: re.Match[str], wire: Wire) -> Place | None:
        """Record the node of a slot; if the slot is still on its way, return the node to ask this once."""
        place = moved[3] or wire.place.rpartition(":")[0], int(moved[4])
        if moved[1] == "ASK":
            return place
        self._places[slot] = place
        self._serving.add(place)
        return None

    def _send_elsewhere(self, calls: Sequence[Call], place: Place | None, error: StoreError) -> None:
        """Send calls that never went to the nodes that have their slots by now, unless that is the node that failed."""
        self._carry([one for call in calls for one in call.requests], self._look_and_send(calls, place, error))

    async def _look_and_send(self, calls: Sequence[Call], place: Place | None, error: StoreError) -> None:
        with suppress(StoreError):  # the known places hold, and the calls fail with the first error
            await self._look()
        for call in calls:
            found = self._places.get(call.slot)
            if found in (None, place) or call.redirections >= MOST_REDIRECTIONS:
                fail(call.requests, error)
            else:
                self._send(call._replace(redirections=call.redirections + 1))

    # -- commands and news of bans -----------------------------------------------------------------------------------

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
                moved = _REDIRECTED.search(str(failed))
                if moved is None:
                    raise
                asking, error = self._redirect(slot, moved, wire), failed
        raise error

    async def _ask_there(self, wire: Wire, command: Sequence[bytes | int], asking: bool, until_s: float) -> Any:
        """Ask a node, again and again while some keys of the slot are there and some are not."""
        while True:
            if asking:
                wire.send(_ignore, b"ASKING")
            try:
                return await wire.ask(*command)
            except StoreUnavailable as error:
                if error.concerns != "slot" or "TRYAGAIN" not in str(error) or monotonic() >= until_s:
                    raise
            await asyncio.sleep(TRY_AGAIN_S)

    async def _tell_hands(self) -> None:
        """Let all workers know that something was handed back."""
        self._owes_hands = True
        await self.ask(b"HINCRBY", self._shared.meta, b"hands", 1)
        self._owes_hands = False

    def _hear(self) -> None:
        """Have the latest bans learnt."""
        if self._news is None and monotonic() >= self._news_from_s:
            self._news = self._start(self._learn_news())

    async def _learn_news(self) -> None:
        try:
            if self._owes_hands:
                await self._tell_hands()
            await self._shared.bans.refresh(self)
            self._patient = True
        except StoreError as error:
            now_s, self._patient = monotonic(), False
            self._news_from_s = now_s + NEWS_AGAIN_S
            if now_s >= self._say_again_s:
                self._say_again_s = now_s + SAY_EVERY_S
                message = f"redis: changes of bans cannot be read, so those that are known hold: {error}"
                self._shared.tell((Event("bans_unread", message, {"error": str(error)}),))
        finally:
            self._news = None

    async def _look_up(self, requests: Sequence[Request]) -> None:
        """Send the requests that no ban refuses; where looking takes too long, the bans that are held decide."""
        found = [request.held() for request in requests]
        if self._patient:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    found = await self._shared.bans.look(self, requests)
            except (StoreError, TimeoutError):
                self._patient = False  # until the bans could be read
        for request, barred in zip(requests, found, strict=True):
            if barred is not None and not request.future.done():
                request.future.set_result(barred)
        self._group(requests)

    # -- nodes -------------------------------------------------------------------------------------------------------

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

    async def _connect(self) -> None:
        try:
            await self._look()
            await self._shared.learn_secret(self._ask)
            self._ready = True
            self.loop.call_soon(self._go)
        except Exception as error:
            self._fail_all(store_error(error))
            self.loop.call_later(RETRY_S, self._retry)
            raise store_error(error) from error
        finally:
            self._opening = None

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


def _ignore(answer: Any) -> None:
    """Take the answer to ASKING, which is always the same."""
