"""A batcher to a cluster.

A call goes to the node of its slot, so requests of one turn of the loop are grouped by slot, and the calls to one node
share its connection. `cluster_nodes` finds and reaches the nodes.

The bans lie in one slot, and calls for others cannot see them. So they are asked about twice in `TRUST_S`. Where there
are some, those of a client are looked up before its request goes, all of a turn in one question, and again after
`TRUST_S`. But requests do not wait for that for long: without an answer the bans that are known here count, and limits
go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final

from hiredis import HiredisError
from redis.crc import key_slot

from ...core.errors import StoreError, StoreUnavailable
from ...core.store import Event
from .batch import CLOSED, MAX_IN_CALL, STATE_PARTS, deliver, fail, head, remove_from
from .cluster_nodes import MAX_REDIRECTIONS, REDIRECTED, Call, ClusterNodes, Node, NodeAddress, ignore, shown
from .link import SICK, Connection, refusal
from .refusals import TRUST_S
from .requests import Request
from .script import CHANGED, windows_script

MAX_CALLS: Final = 256
"""How many calls to one node may be unanswered."""
NEWS_TIMEOUT_S: Final = 0.03
"""How long requests wait for a look at the bans: less than a limiter's deadline."""
NEWS_AGAIN_S: Final = 0.1
SAY_EVERY_S: Final = 60.0

_CHANGED: Final = bytes((CHANGED,))


class ClusterBatcher(ClusterNodes):
    """The requests of one event loop to a cluster."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._news: asyncio.Task[Any] | None = None
        self._news_from_s = self._say_again_s = float("-inf")
        self._waits_for_news = True
        self._owes_hands = False

    async def ask(self, *command: bytes | int) -> Any:
        """See `Batcher.ask`: bans lie in one slot."""
        if not self._ready:
            await self._settled(self._open())
        return await self._ask(*command)

    async def remove(self, pattern: bytes) -> int:
        """See `Batcher.remove`: names lie in different slots."""
        if not self._ready:
            await self._settled(self._open())
        await self._look()  # nodes may have come and gone
        connections = [await self._reach(self._node(address)) for address in {*self._serving}]
        return sum([await remove_from(connection, pattern, at_once=1) for connection in connections])

    def close(self) -> None:
        """See `Batcher.close`."""
        super().close()
        gone = StoreUnavailable(CLOSED)
        for node in self._nodes.values():
            for call in node.take_line():
                fail(call.requests, gone)
            if node.connection is not None:
                node.connection.close(gone)

    def part_of(self, keys: Iterable[str]) -> str | None:
        """Return which nodes hold keys, or the bans where there are none; None while that is not known."""
        if not self._ready:
            return None
        names = [self._shared.name_of(key) for key in keys] or [self._shared.meta]
        return ", ".join(sorted({shown(self._owners.get(key_slot(name))) for name in names}))

    def _go(self) -> None:
        self._scheduled = False
        line = self._line
        if not line or self._closed:
            return
        self._asked_s = monotonic()
        if not self._ready:
            self._open()
            return
        requests = list(line)
        line.clear()
        bans, refusals = self._shared.bans, self._shared.refusals
        if refusals.age_s() >= TRUST_S / 2:
            self._hear()
        is_free = not bans.kinds.text and refusals.age_s() < TRUST_S
        passing, unknown = list[Request](), list[Request]()
        for request in requests:
            passes = is_free or not request.subjects or refusals.passes(request.subjects)
            (passing if passes else unknown).append(request)
        if unknown:
            self._carry(unknown, self._look_up(unknown))
        self._group(passing)

    def _group(self, requests: Sequence[Request]) -> None:
        """Send requests, those of one slot together."""
        shared, script = self._shared, windows_script()
        groups: dict[int, list[Request]] = {}
        for request in requests:
            if not request.future.done():
                slot = key_slot(request.name or shared.meta)
                groups.setdefault(slot, []).append(request)
        for slot, some in groups.items():
            for first in range(0, len(some), MAX_IN_CALL):
                self._send(Call(slot, some[first : first + MAX_IN_CALL], b"EVALSHA", script.name))

    # -- calls -------------------------------------------------------------------------------------------------------

    def _send(self, call: Call, asking: NodeAddress | None = None) -> None:
        """Send a call to the node of its slot, or to the one that is `asking` for it, when there is room."""
        address = asking or self._owners.get(call.slot)
        if self._closed:
            fail(call.requests, StoreUnavailable(CLOSED))
            return
        if address is None:
            self._send_elsewhere([call], None, refusal("", f"CLUSTERDOWN Hash slot {call.slot} has no node"))
            return
        node = self._node(address)
        if len(node.line) >= self._shared.max_waiting:
            fail(call.requests, StoreUnavailable(f"redis: {shown(address)}: {len(node.line)} calls wait already"))
            return
        node.line.append((call, asking is not None))
        self._drain(node)

    def _drain(self, node: Node) -> None:
        """Write calls to a node, as many as may be unanswered."""
        if not node.is_open:
            if node.line and not self._closed:
                self._open_soon(node)
            return
        while node.line and node.calls < MAX_CALLS and node.is_open:
            call, asking = node.line.popleft()
            requests = [request for request in call.requests if not request.future.done()]
            if requests and node.connection is not None:
                self._write(node, node.connection, call._replace(requests=requests), asking)

    def _write(self, node: Node, connection: Connection, call: Call, asking: bool) -> None:
        names: dict[bytes, int] = {}
        packed = b"".join([request.pack(names) for request in call.requests])
        if asking:
            connection.send(ignore, b"ASKING")
        done = partial(self._came, node, connection, call, monotonic())
        node.calls += 1
        known = head(self._shared.clock, 0, self._shared.bans.reset_us)
        connection.send(done, call.how, call.what, len(names), *names, known, b"", b"", packed)

    def _came(self, node: Node, connection: Connection, call: Call, sent_s: float, answer: Any) -> None:
        node.calls -= 1
        if isinstance(answer, StoreError):
            fail(call.requests, answer)
        elif isinstance(answer, HiredisError):
            self._bounced(connection, call, str(answer))
        else:
            self._shared.tell(deliver(connection, call.requests, sent_s, answer))
            if connection.open and any(type(part) is bytes and part[:1] == _CHANGED for part in answer[STATE_PARTS:]):
                self._start(self._tell_hands())
        self._drain(node)

    def _bounced(self, connection: Connection, call: Call, error: str) -> None:
        """Deal with an error that a node gives instead of running the script."""
        again = call._replace(redirections=call.redirections + 1)
        moved = REDIRECTED.search(error)
        if again.redirections <= MAX_REDIRECTIONS:
            if error.startswith("NOSCRIPT"):
                self._send(again._replace(how=b"EVAL", what=windows_script().source))
                return
            if moved is not None:
                self._send(again, self._redirect(call.slot, moved, connection))
                return
            if error.startswith("TRYAGAIN") and len({request.name for request in call.requests}) > 1:
                # Some keys of the slot are here, and some on its next node: each key alone is found on one of them.
                for name in {request.name: None for request in call.requests}:
                    self._send(again._replace(requests=[one for one in call.requests if one.name == name]))
                return
        fail(call.requests, refusal(connection.name, error))
        if error.startswith(SICK):
            connection.close(refusal(connection.name, error))
        elif error.startswith("CLUSTERDOWN"):
            self._look_soon()

    def _send_elsewhere(self, calls: Sequence[Call], address: NodeAddress | None, error: StoreError) -> None:
        """Send calls that never went to the nodes that have their slots by now, unless that is the node that failed."""
        self._carry([one for call in calls for one in call.requests], self._look_and_send(calls, address, error))

    async def _look_and_send(self, calls: Sequence[Call], address: NodeAddress | None, error: StoreError) -> None:
        with suppress(StoreError):  # the known owners hold, and the calls fail with the first error
            await self._look()
        for call in calls:
            found = self._owners.get(call.slot)
            if found in (None, address) or call.redirections >= MAX_REDIRECTIONS:
                fail(call.requests, error)
            else:
                self._send(call._replace(redirections=call.redirections + 1))

    # -- commands and news of bans -----------------------------------------------------------------------------------

    async def _tell_hands(self) -> None:
        """Let all workers know that something was handed back."""
        self._owes_hands = True
        await self.ask(b"HINCRBY", self._shared.meta, b"number", 1)
        self._owes_hands = False

    def _hear(self) -> None:
        """Have the latest bans learnt."""
        if self._news is None and monotonic() >= self._news_from_s:
            self._news = self._start(self._learn_news())

    async def _learn_news(self) -> None:
        try:
            if self._owes_hands:
                await self._tell_hands()
            await self._shared.bans.look(self, [])
            self._waits_for_news = True
        except StoreError as error:
            now_s, self._waits_for_news = monotonic(), False
            self._news_from_s = now_s + NEWS_AGAIN_S
            if now_s >= self._say_again_s:
                self._say_again_s = now_s + SAY_EVERY_S
                message = f"redis: changes of bans cannot be read, so those that are known hold: {error}"
                self._shared.tell((Event("bans_unread", message, {"error": str(error)}),))
        finally:
            self._news = None

    async def _look_up(self, requests: Sequence[Request]) -> None:
        """Send the requests that no ban refuses; where looking takes too long, the bans that are known here decide."""
        refusals = self._shared.refusals
        told: Sequence[bytes | None] = [None] * len(requests)
        if self._waits_for_news:
            sent_s = monotonic()
            looking = self._start(self._shared.bans.look(self, [request.subjects for request in requests]))
            # And not `asyncio.timeout`: where this process was held up, the answer may be here by now.
            await asyncio.wait((looking,), timeout=NEWS_TIMEOUT_S)
            self._waits_for_news = looking.done() and not looking.cancelled() and looking.exception() is None
            if self._waits_for_news:
                told = looking.result()
        passing = []
        for request, each in zip(requests, told, strict=True):
            refusal = request.known() if each is None else request.refused(each)
            if refusal is None:
                passing.append(request)
                if each is not None:
                    refusals.let_pass(request.subjects, sent_s)
            elif not request.future.done():
                request.future.set_result(refusal)
        self._group(passing)
