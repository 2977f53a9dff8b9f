"""Requests that wait for room, in the queue of their first rule with `wait` and its key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive

from ..core.bans.ban import BanSubject
from ..core.buckets import Check
from ..core.decision import Decision
from ..limiter.aio import answer_of, on_asyncio
from ..limiter.engine import Engine
from ..limiter.queues import Ask, Name, Queues, is_too_late, room_in_us
from .callbacks import UserCallbacks
from .client_ip import ClientAddress
from .keys import Key, KeyFunction, parts_of
from .plan import LEFT, BoundRule
from .rules import Rule
from .visit import Effect, Visit

_MOST_AHEAD_BYTES: Final = 65_536
"""How much of a body is read while a request waits; a client that disconnects later is not noticed."""
_MESSAGE_BYTES: Final = 256
"""The estimated memory of a message besides its body."""
_STOPS_READING: Final = ("http.disconnect", "websocket.disconnect", "websocket.receive")
"""The messages after which nothing is read ahead."""


async def hit_or_wait(
    visit: Visit,
    rules: Sequence[BoundRule],
    checks: Sequence[Check],
    subjects: Sequence[BanSubject],
    request: Any,
    calls: UserCallbacks,
) -> Decision:
    """Charge the checks of a request, after waiting if there is no room for them.

    Args:
        visit: The request in its middleware.
        rules: The rules that let it wait; the first one that counts it has the queue.
        checks: The checks, none of which counts a refusal, as the store is asked many times.
        subjects: The keys and addresses whose bans refuse it.
        request: The request as functions get it; None if no rule is fair.
        calls: Calls the user's functions.
    """
    engine: Engine = visit.policy.engine

    async def ask() -> Decision:
        answer = engine.hit(checks, subjects)
        decision = answer if isinstance(answer, Decision) else await answer
        return visit.explain(decision)

    queue = _queue_of(rules, checks)
    if queue is None:  # no rule that lets it wait counts this request
        return await ask()
    bound, name = queue
    tenant = ""
    if bound.rule.fair is not None:
        tenant = await _tenant(bound, bound.rule.fair, visit, request, calls)
    refusal: Decision | None = None
    if engine.queues.is_queued(name):
        # It joins at once, unless a ban or another limit refuses it: then it takes no place from others.
        decision = visit.explain(await answer_of(engine.peek(checks, subjects)))
        waits = not is_too_late(decision, bound.rule.wait_us)
    else:
        decision = refusal = await ask()
        waits = room_in_us(decision) is not None
    if waits:
        decision = await _wait(visit, bound.rule, name, tenant, refusal, ask)
    if decision.allowed and decision.checks and bound.rule.fair is not None:  # no checks while switched off
        engine.queues.count_permit(name, tenant, 1)
        visit.effects = [_CountedPermit(engine.queues, name, tenant), *visit.effects]
    return decision


async def _wait(visit: Visit, rule: Rule, name: Name, tenant: str, refusal: Decision | None, ask: Ask) -> Decision:
    """Wait in a queue, and return the decision.

    Args:
        refusal: The refusal before it; None if the request has not asked.
        ask: Asks the whole question.
    """
    engine: Engine = visit.policy.engine
    channel = visit.receive_from
    if not isinstance(channel, ReadAhead):
        channel = visit.receive_from = ReadAhead(channel)
    if channel not in visit.effects:
        visit.effects = [channel, *visit.effects]  # before those that are awaited
    channel.begin()
    try:
        decision = await engine.queues.wait(
            name, refusal, ask, wait_us=rule.wait_us, wait_max=rule.wait_max, tenant=tenant, is_gone=channel.is_gone
        )
    except BaseException:
        for around in visit.visits():  # one of which reports its outcome
            around.was_waiting = True
        raise
    if channel.is_gone():  # what it was charged meanwhile is refunded
        if visit.scope["type"] == "websocket":  # Starlette's BaseHTTPMiddleware fails without an answer
            visit.send_on = discard_message
        await engine.refund(decision.begin_refund())
        return LEFT
    return decision


async def _tenant(
    bound: BoundRule, fair: Key | KeyFunction, visit: Visit, request: HTTPConnection, calls: UserCallbacks
) -> str:
    """Return the tenant whose share of the permits of a fair rule a request uses; ``""`` if it is unknown."""
    if not isinstance(fair, Key):
        return await calls.ask(bound.rule, request, "fair", fair, calls.checked_key, None) or ""
    tenant = fair.read(bound.routed(request.scope), visit.policy.limiter, visit.client.key)
    if tenant == visit.client.key and not any(isinstance(key, ClientAddress) for key in parts_of(fair)):
        return ""  # a request without the value
    return tenant


class _CountedPermit(Effect):
    """A permit of a fair rule, which counts for its tenant until the request ends.

    It ends before the store has the permit back, so that the right waiter asks for it.

    Args:
        queues: The queues of the limiter.
        name: The name of the queue.
    """

    def __init__(self, queues: Queues, name: Name, tenant: str) -> None:
        self._queues = queues
        self._name = name
        self._tenant = tenant

    def end(self, visit: Visit, error: BaseException | None) -> None:
        self._queues.count_permit(self._name, self._tenant, -1)


def _queue_of(rules: Sequence[BoundRule], checks: Sequence[Check]) -> tuple[BoundRule, Name] | None:
    """Return the first of some rules that has a check, and the name of its queue; None if none has one."""
    for bound in rules:
        for bucket, key, _ in checks:
            if bucket.name == bound.identity:
                return bound, (bound.identity, key)
    return None


async def discard_message(message: Message) -> None:
    """Drop a message: the client has left, or the request is over."""


class ReadAhead(Effect):
    """Reads messages ahead while a request waits, to notice a disconnect; the application receives them afterwards.

    A read is never cancelled but kept for the next reader, because some servers, such as granian, lose the message
    otherwise. Under trio nothing is read ahead, so only the application notices a disconnect.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._early: deque[Message] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._is_waiting = False

    def begin(self) -> None:
        """Begin to read ahead: the request waits."""
        self._is_waiting = True
        if on_asyncio() and (self._reader is None or self._reader.done()):
            self._reader = asyncio.ensure_future(self._read_ahead())
            # asyncio would log a failure that the application does not read.
            self._reader.add_done_callback(lambda reader: reader.cancelled() or reader.exception())

    def is_gone(self) -> bool:
        """Return whether the client has disconnected. Callable from any thread."""
        return bool(self._early) and bool(self._early[-1]["type"].endswith(".disconnect"))

    async def __call__(self) -> Message:
        """Return the next message."""
        self._is_waiting = False
        while not self._early:
            reader = self._reader
            if reader is None:
                return await self._receive()
            await asyncio.wait([reader])
            if self._reader is reader:
                self._reader = None
                reader.result()  # raises what the channel has raised
        return self._early.popleft()

    def end(self, visit: Visit, error: BaseException | None) -> None:
        """Cancel a pending read: there are no more readers."""
        self._is_waiting = False
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def _read_ahead(self) -> None:
        """Read until the application reads, the client has left, or there is enough."""
        while self._is_waiting:
            if self._early and self._early[-1]["type"] in _STOPS_READING:
                break
            if sum(len(message.get("body", b"")) + _MESSAGE_BYTES for message in self._early) >= _MOST_AHEAD_BYTES:
                break
            self._early.append(await self._receive())
