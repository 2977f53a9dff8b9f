"""Batching of requests to Redis: one script call for all that ask in one iteration of an event loop.

Each event loop has a batcher. It has a link to Redis, see `link`, and for each call that may be under way on it a task
that sends what is queued, one call after another; when the queue is full, further requests fail. A request that is
cancelled before it is sent is dropped; a hit that is admitted after its request was cancelled is refunded.

Once a second, and so in the first call after a rest, a poll goes in front of the requests, in the same call: no request
is decided by what is older. The first poll goes alone, because what is not known to be there must not be written to.

A task goes on when the request that it serves is cancelled, so that the next one finds the connection open; the
limiter's circuit breaker decides when that is.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from hashlib import sha1
from struct import Struct
from time import monotonic, monotonic_ns
from typing import Any, Final, TypeAlias

from redis.exceptions import NoScriptError, ResponseError

from ...core.bans.ban import BanSubject
from ...core.buckets import Check
from ...core.errors import StoreError, StoreUnavailable, closed
from ...core.logs import logger, net
from ...core.reservation import Reservation
from ..leases import HeldPermits
from ..shared import in_steps
from .changes import windows_of
from .link import DEPTH, AnyLink, KeysApart
from .parts import Parts
from .poll import POLL_NS, Polled
from .protocol import (
    CHANGED,
    FAILED,
    PEEK,
    Packed,
    pack_command,
    pack_renewal,
    refusal,
    store_error,
    unexpected,
)
from .requests import Command, Read, Request, concern_permits

_HEAD: Final = Struct("<q")
"""The server's time."""
MAX_IN_CALL: Final = 64
"""A request takes the server about 10 us, and a call blocks its other clients."""
HALVED_FROM: Final = 33
"""From how many waiting requests on they go in two calls, even if one could take them all: while this process reads the
answers to one half, the server decides the other. With 64 at once that is 1.5 times as many requests a second."""
MAX_WAITING: Final = 10_000
"""The most requests of an event loop that may be queued for a slow server."""
RENEWED_AT_ONCE: Final = 64
"""How many rows of permits are renewed at once, so that requests of clients are sent in between."""
RENEW_EVERY_S: Final = 0.25
"""How often a link is renewed, at most: a full server answers an error to each call."""
MIGRATION_S: Final = 1.0
"""How long requests are sent one by one after a call has found the slot of the store in migration."""

AnyRequest: TypeAlias = Request | Polled


class Batcher:
    """The queued requests of one event loop, and the tasks that send them. Their link connects with the first command.

    Args:
        parts: The parts of the store.

    Attributes:
        parts: The parts of the store.
        permits: The permits of the loop. It is a worker of its own, because it sends one call with permits after
            another: when one is packed, the answers to all before it are known, so that it has the true count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, parts: Parts) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.loop = loop
        self.parts = parts
        self.permits = HeldPermits(parts.lease_us, self.renew_permits)
        self._permits_lock = asyncio.Lock()
        self._script_name = sha1(parts.script).hexdigest()
        self._queue: deque[AnyRequest] = deque()
        self._is_waking = False
        """Whether a task sends the queue in the next iteration of the loop."""
        self._migration_until_s = 0.0
        """Until when a call has the keys of one request, because their slot migrates to another node of the cluster."""
        self._idle: list[asyncio.Future[None]] = []
        self._renewed_s = 0.0
        """When the link was last renewed."""
        self._wants_poll = False
        """Whether the next call polls, however short ago the last one did."""
        link = parts.open_link()
        # Without the variables of the request that happens to be the first.
        self._tasks = [loop.create_task(self._send(link), context=Context()) for _ in range(DEPTH)]
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # `__del__` says it once

    def __del__(self) -> None:
        if self._tasks and self.loop.is_running() and not self.parts.is_closed and not sys.is_finalizing():
            logger.warning(
                "a limiter on Redis was forgotten while its event loop runs; close it: await limiter.close()"
            )

    def add(self, request: AnyRequest) -> None:
        """Queue a request to be sent at the end of this loop iteration; fail it if the queue is full or closed."""
        waiting = len(self._queue)
        if self.parts.is_closed:
            request.fail(closed("the Redis store"))
        elif waiting >= MAX_WAITING:
            request.fail(StoreUnavailable(f"redis: {waiting} requests are already queued"))
        else:
            self._queue.append(request)
            if not self._is_waking:
                self._wake()

    def request(self, pack: Callable[[], Packed], read: Read, *, has_permits: bool = False) -> asyncio.Future[Any]:
        """Send a request; see `Command`."""
        future = self.loop.create_future()
        self.add(Command(future, has_permits, pack, read))
        return future

    def command(self, names: Sequence[bytes], *args: bytes | int, read: Read) -> asyncio.Future[Any]:
        """Run a command of ``lua/bans.lua``.

        Args:
            names: Its keys.
            args: Its name and its arguments.
            read: Returns the result; the answer is what the command returns.
        """
        return self.request(partial(pack_command, names, *args), read)

    def question(
        self, what: int, checks: Sequence[Check], subjects: Iterable[BanSubject], read: Read
    ) -> asyncio.Future[Any]:
        """Send a request with checks; see `Packing.question` and `Command`."""
        pack = partial(self.parts.packing.question, what, checks, subjects, self.permits)
        return self.request(pack, read, has_permits=concern_permits(checks))

    def server_us(self) -> asyncio.Future[int]:
        """Return the server's time, in microseconds."""
        return self.question(PEEK, (), (), lambda answer, now_us: now_us)

    def refund(self, reservations: Sequence[Reservation]) -> asyncio.Future[bool]:
        """Refund what was charged; the result is False if nothing of it is left."""
        changes, checks = self.parts.changes, [reservation.check for reservation in reservations]

        def read(answer: bytes, now_us: int) -> bool:
            changes.note(windows_of(checks))  # again: what was asked meanwhile may be from before the refund
            return answer[0] == CHANGED

        changes.note(windows_of(checks))
        pack = partial(self.parts.packing.refund, reservations)
        return self.request(pack, read, has_permits=concern_permits(checks))

    def refund_in_background(self, reservations: Sequence[Reservation]) -> None:
        """Refund what nobody waits for, with the next call; if that fails, it stays charged."""
        refund = self.refund(reservations)
        refund.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio would log it

    def poll(self) -> asyncio.Future[int]:
        """Poll with the next call; the result comes after the poll was read."""
        self._wants_poll = True
        return self.server_us()

    async def renew_permits(self) -> None:
        """Renew the permits of the loop.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        answers: list[Any] = []
        async for some in in_steps(self.permits.rows(), RENEWED_AT_ONCE):
            sent = []
            for row in some:
                pack = partial(pack_renewal, row, self.permits)
                sent.append(self.request(pack, lambda answer, now_us: None, has_permits=True))
            answers += await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            if answer is not None:
                raise answer

    async def close(self) -> None:
        """Close the connections; waiting tasks get an error."""
        self.permits.is_open = False
        for task in self._tasks:
            task.cancel()
        while self._queue:
            self._queue.popleft().fail(closed("the Redis store"))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- the tasks that send -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Let an idle task send the queue in the next iteration of the loop, if there is one."""
        if self._idle:
            idle = self._idle.pop()
            if not idle.done():  # else the event loop ends, which has cancelled its task
                self._is_waking = True
                idle.set_result(None)

    async def _send(self, link: AnyLink) -> None:
        """Send what is queued over a link, until the store is closed or the event loop ends."""
        task = asyncio.current_task()
        assert task is not None
        with suppress(asyncio.CancelledError):
            while not task.cancelling():  # asyncio may lose the exception of a cancellation, see `wait_for` in 3.11
                with net("sending to Redis failed, and goes on", monotonic):
                    await asyncio.sleep(0)  # a turn that fails at once must not stop the event loop
                    while not task.cancelling():
                        self._is_waking = False
                        await self._take_turn(link)
        await link.close()

    async def _take_turn(self, link: AnyLink) -> None:
        """Send what a call takes of the queue, or wait until there is something."""
        if self._queue:
            await self._serve(link)
            return
        idle = self.loop.create_future()
        self._idle.append(idle)
        await idle

    async def _serve(self, link: AnyLink) -> None:
        """Send the requests of a call, and give each its answer or an error."""
        is_migrating = monotonic() < self._migration_until_s
        most = self._most_in_call()
        if is_migrating:
            most = 1
        requests = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        if self._queue:  # for another task
            self._wake()
        try:
            if is_migrating or not self.parts.polled.life:
                await self._poll_alone(link)
            if _have_permits(requests):
                async with self._permits_lock:
                    failed = await self._call(link, requests)
            else:
                failed = await self._call(link, requests)
        except BaseException as error:
            failed = self._handle_failure(requests, error, is_alone=is_migrating)
            if not isinstance(error, Exception):
                raise
        if failed is None or failed.concerns == "request":
            return
        # The server fails as a whole: what comes back may lack the last writes.
        self.parts.changes.note_loss()
        now_s = monotonic()
        if now_s - self._renewed_s >= RENEW_EVERY_S:  # a new connection may lead to a healthy server
            self._renewed_s = now_s
            await link.renew()

    def _most_in_call(self) -> int:
        """Return how many of the waiting requests the next call takes at most."""
        waiting = len(self._queue)
        if waiting < HALVED_FROM or waiting > MAX_IN_CALL:
            return MAX_IN_CALL
        # No other task is free to send the second half, or it would have to wait for the answers to the first.
        if not self._idle or _have_permits(self._queue):
            return MAX_IN_CALL
        return waiting - waiting // 2

    def _handle_failure(
        self, requests: Sequence[AnyRequest], error: BaseException, *, is_alone: bool
    ) -> StoreError | None:
        """Return the error of a call as one of a store, after its requests failed; None if they are sent again.

        Args:
            is_alone: Whether it had the keys of one request alone.
        """
        if isinstance(error, KeysApart):
            self._migration_until_s = monotonic() + MIGRATION_S
            if not is_alone:
                self._queue.extendleft(reversed(requests))  # nothing was done; now each goes alone
                return None
        failed: StoreError = closed("the Redis store")
        if isinstance(error, Exception) and not self.parts.is_closed:
            failed = store_error(error)
        for request in requests:
            request.fail(failed)
        return failed

    async def _poll_alone(self, link: AnyLink) -> None:
        """Poll in a call of its own, if that is due.

        Raises:
            StoreError: Nothing is known of the data: who is banned, or whether a store that only reads has any.
        """
        polled = self.parts.polled
        try:
            failed = await self._call(link, ())
        except KeysApart:
            if not polled.life:
                raise
            # The last poll holds while the slot migrates: the keys of polls may be on two nodes until the end of that.
            polled.due_ns = monotonic_ns() + POLL_NS
            return
        if failed is not None and not polled.life:
            raise failed

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _call(self, link: AnyLink, requests: Sequence[AnyRequest]) -> StoreError | None:
        """Make one script call, in front of which a poll goes if it is due; return an error of one of its answers."""
        parts, sent_ns = self.parts, monotonic_ns()
        if self._wants_poll or sent_ns >= parts.polled.due_ns:
            self._wants_poll = False
            requests = parts.polled, *requests
        sent: list[AnyRequest] = []
        names: list[bytes] = []
        packets: list[bytes] = []
        args: list[bytes | int] = []
        for request in requests:
            packed = self._pack(request)
            if packed is not None:
                sent.append(request)
                names += packed.names
                packets.append(packed.request)
                args += packed.args
        if not sent:
            return None
        keys = names or [parts.packing.meta]
        arguments = len(keys), *keys, parts.time.for_script(), b"".join(packets), *args
        try:
            reply = await link.ask("EVALSHA", self._script_name, *arguments)
        except ResponseError as error:
            # The server does not know the script, or does not permit EVALSHA.
            if not isinstance(error, NoScriptError) and "evalsha" not in str(error).lower():
                raise
            reply = await link.ask("EVAL", parts.script, *arguments)
        return self._deliver(sent, reply, sent_ns)

    def _pack(self, request: AnyRequest) -> Packed | None:
        """Pack a request; None if it was cancelled, or cannot be packed: then it fails alone."""
        if not request.is_awaited():
            return None
        try:
            return request.pack()
        except Exception as error:
            request.fail(StoreUnavailable(f"redis: a request cannot be sent: {error!r}", concerns="request"))
            return None

    def _deliver(self, sent: Sequence[AnyRequest], reply: Any, sent_ns: int) -> StoreError | None:
        """Give each request its answer or its error; return one of the errors, of the server if there is one.

        Raises:
            StoreUnavailable: There is not one answer for each request.
        """
        parts = self.parts
        try:
            (now_us,) = _HEAD.unpack(reply[0])
            answered = [*zip(sent, reply[1:], strict=True)]
        except Exception:
            raise unexpected(reply) from None
        if parts.time.note(now_us, sent_ns) and parts.leases.by_checks:
            parts.changes.note_loss()
        failed: StoreError | None = None
        for request, answer in answered:
            error = self._deliver_one(request, answer, now_us, sent_ns)
            if failed is None or failed.concerns == "request":
                failed = error or failed
        return failed

    def _deliver_one(self, request: AnyRequest, answer: Any, now_us: int, sent_ns: int) -> StoreError | None:
        """Give a request its answer or its error, and return the error; the others of its call get theirs."""
        is_late = not request.is_awaited()
        try:
            if isinstance(answer, bytes) and answer[0] == FAILED:
                raise refusal(answer[1:].decode(errors="replace"))
            request.deliver(answer, now_us, sent_ns)
        except Exception as error:
            failed: StoreError = unexpected(answer, "request")
            if isinstance(error, StoreError):
                failed = error
            request.fail(failed)
            return failed
        if is_late:
            for observer in self.parts.late_observers:
                observer()
        return None


def _have_permits(requests: Iterable[AnyRequest]) -> bool:
    """Return whether one of some requests is about permits."""
    for request in requests:  # faster than `any`
        if request.has_permits:
            return True
    return False
