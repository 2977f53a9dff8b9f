"""A lane to a cluster.

A call goes to the node of its slot, so requests of one turn of the loop are grouped by slot, and the calls to one node
share its connection. Who holds which slot is asked of the cluster once, and learnt again from its errors: ``MOVED``
says that a slot has another node now, ``ASK`` that a key has while its slot is on the move; it is asked there then.

The number of the last change of bans lies in one slot, and calls for others cannot see it. So it is asked for once
every `TRUST_S`, before the next requests go. The number of hand-backs comes along.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, TypeAlias

from hiredis import HiredisError
from redis.crc import key_slot

from ...core.errors import StoreError, StoreUnavailable
from .answers import TRUST_S
from .calls import SICK, Request, deliver, fail, head, pack_call, store_error
from .lanes import MOST_IN_CALL, Lane, remove
from .script import CHANGED, windows_script
from .wire import Wire

MOST_CALLS: Final = 256
MOST_REDIRECTIONS: Final = 5

Place: TypeAlias = tuple[str, int]

_REDIRECTED: Final = re.compile(r"(MOVED|ASK) ([0-9]+) (\S*):([0-9]+)$")


class _Call(NamedTuple):
    """Requests of one slot on their way."""

    slot: int
    requests: Sequence[Request]
    redirections: int = 0
    how: bytes = b"EVALSHA"
    what: bytes = b""


class ClusterLane(Lane):
    """The requests of one event loop to a cluster."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._places: dict[int, Place] | None = None
        self._wires: dict[Place, Wire] = {}
        self._reaching: dict[Place, asyncio.Task[Any]] = {}

    async def ask(self, *command: bytes | int) -> Any:
        """See `Lane.ask`: bans lie in one slot."""
        slot = key_slot(self._shared.meta)
        for _ in range(MOST_REDIRECTIONS):
            if self._places is None:
                await asyncio.shield(self._open())
            wire = await self._reach(self._place_of(slot))
            try:
                return await wire.ask(*command)
            except StoreUnavailable as error:
                moved = _REDIRECTED.search(str(error))
                if moved is None:
                    self._places = None if not wire.open else self._places
                    raise
                self._redirect(slot, moved, wire)
        raise StoreUnavailable(f"redis: slot {slot} is moved from node to node")

    async def remove(self, pattern: bytes) -> int:
        """See `Lane.remove`."""
        await asyncio.shield(self._open())  # who is there may have changed
        return sum([await remove(await self._reach(place), pattern) for place in {*(self._places or {}).values()}])

    def close(self) -> None:
        """See `Lane.close`."""
        super().close()
        for wire in self._wires.values():
            wire.close(StoreUnavailable("redis: the store is closed"))

    def _go(self) -> None:
        self._scheduled = False
        line, shared = self._line, self._shared
        if not line:
            return
        if self._places is None:
            self._open()
            return
        self._many = len(line) > 1
        if monotonic() - shared.bans.known_s >= TRUST_S:
            requests = list(line)
            line.clear()
            self._start(self._catch_up(requests))
            return
        groups: dict[int, list[Request]] = {}
        while line and self._calls + len(groups) < MOST_CALLS:
            request = line.popleft()
            if request.future.done():
                continue
            slot = key_slot(shared.meta if request.key is None else shared.name_of(request.key))
            groups.setdefault(slot, []).append(request)
        for slot, requests in groups.items():
            for first in range(0, len(requests), MOST_IN_CALL):
                self._send(_Call(slot, requests[first : first + MOST_IN_CALL], what=windows_script().name))

    def _send(self, call: _Call, asking: Place | None = None) -> None:
        self._calls += 1
        try:
            place = asking or self._place_of(call.slot)
        except StoreUnavailable as error:
            self._over(call.requests, error)
            return
        wire = self._wires.get(place)
        if wire is None or not wire.open:
            self._start(self._send_there(call, place, asking is not None))
        else:
            self._write(wire, call, asking is not None)

    async def _send_there(self, call: _Call, place: Place, asking: bool) -> None:
        """Connect to a node, and send a call there."""
        try:
            self._write(await self._reach(place), call, asking)
        except Exception as error:
            self._places = None  # somebody else may have its slots by now
            self._over(call.requests, store_error(error))

    def _write(self, wire: Wire, call: _Call, asking: bool) -> None:
        keys, packed = pack_call(call.requests, 0)
        names = [self._shared.name_of(key) for key in keys]
        if asking:
            wire.send(lambda answer: None, b"ASKING")
        done = partial(self._came, wire, call, monotonic())
        wire.send(done, call.how, call.what, len(names), *names, head(self._shared.clock, 0), b"", *packed)

    def _came(self, wire: Wire, call: _Call, sent_s: float, answer: Any) -> None:
        if isinstance(answer, StoreError):
            self._places = None
            self._over(call.requests, answer)
            return
        if isinstance(answer, HiredisError):
            self._calls -= 1
            self._redirected(wire, call, str(answer))
            return
        self._shared.tell(deliver(wire, call.requests, sent_s, answer))
        if any(part[0] == CHANGED for part in answer[3:]):
            self._start(self.ask(b"HINCRBY", self._shared.meta, b"hands", 1))
        self._over((), None)

    def _redirected(self, wire: Wire, call: _Call, error: str) -> None:
        moved = _REDIRECTED.search(error)
        again = call._replace(redirections=call.redirections + 1)
        if again.redirections <= MOST_REDIRECTIONS:
            if error.startswith("NOSCRIPT"):
                self._send(again._replace(how=b"EVAL", what=windows_script().source))
                return
            if moved is not None:
                self._send(again, self._redirect(call.slot, moved, wire))
                return
        self._calls += 1
        self._over(call.requests, StoreUnavailable(f"redis: {wire.place}: {error}"))
        if error.startswith((*SICK, "CLUSTERDOWN")):
            self._places = None
            wire.close(StoreUnavailable(f"redis: {wire.place}: {error}"))

    def _redirect(self, slot: int, moved: re.Match[str], wire: Wire) -> Place | None:
        """Take note of where a slot is; return where to ask this once, if it is still on its way."""
        place = moved[3] or wire.place.rpartition(":")[0], int(moved[4])
        if moved[1] == "ASK":
            return place
        if self._places is not None:
            self._places[slot] = place
        return None

    def _over(self, requests: Sequence[Request], error: StoreError | None) -> None:
        self._calls -= 1
        if error is not None:
            fail(requests, error)
        if self._line and not self._scheduled:
            self._go()

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _place_of(self, slot: int) -> Place:
        place = (self._places or {}).get(slot)
        if place is None:
            raise StoreUnavailable(f"redis: no node of the cluster has slot {slot}")
        return place

    async def _reach(self, place: Place) -> Wire:
        """Return the connection to a node, opened if need be."""
        wire = self._wires.get(place)
        if wire is None or not wire.open:
            if place not in self._reaching:
                task = self._reaching[place] = self._start(self._open_wire(place))
                task.add_done_callback(lambda _: self._reaching.pop(place, None))
            await asyncio.shield(self._reaching[place])
        return self._wires[place]

    async def _open_wire(self, place: Place) -> None:
        client = self._shared.client
        node = type(client.startup_nodes[0])(*place, **client.connection_kwargs)
        wire = await self._shared.open(lambda: node.connection_class(**node.connection_kwargs))
        self._wires[place] = wire
        self._guard(wire)

    async def _connect(self) -> None:
        try:
            await self._learn_places()
            await self._shared.learn_secret(self.ask)
            self.loop.call_soon(self._go)
        except Exception as error:
            self._places = None
            self._fail_all(store_error(error))
            raise store_error(error) from error
        finally:
            self._opening = None

    async def _learn_places(self) -> None:
        """Ask nodes, until one answers, who has which slots."""
        known = [place for place, wire in self._wires.items() if wire.open]
        known += [(node.host, node.port) for node in self._shared.client.startup_nodes]
        failed: StoreError = StoreUnavailable("redis: no node of the cluster is known")
        for place in dict.fromkeys(known):
            try:
                rows = await (await self._reach(place)).ask(b"CLUSTER", b"SLOTS")
            except StoreError as error:
                failed = error
                continue
            self._places = {
                slot: (master[0].decode() or place[0], int(master[1]))
                for first, last, master, *_ in rows
                for slot in range(first, last + 1)
            }
            return
        raise failed
