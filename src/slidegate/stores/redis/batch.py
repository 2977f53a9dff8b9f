"""Batching of requests to Redis: one script call for all that ask in one iteration of an event loop.

Each event loop has a batcher. It has a line to Redis, see `line`, and for each call that may be under way on it a task
that sends what is in its `queue`, one call after another; when that is full, further requests fail. A request that is
cancelled before it is sent is dropped; a hit that is admitted when nobody awaits it any more is refunded.

Once a second, and so in the first call after a rest, the question for news goes in front of the requests, in the same
call: no request is decided by older news. The first question of all goes alone, because what is not known to be there
must not be written to.

A task goes on when the request that it serves is cancelled, so that the next one finds the connection open; the
limiter's circuit breaker decides when that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from time import monotonic, monotonic_ns
from typing import Any, Final

from redis.exceptions import NoScriptError, ResponseError

from ...core.decision import Decision
from ...core.errors import StoreError, StoreUnavailable
from ...core.reservation import Reservation
from ..leases import HeldPermits
from ..shared import in_steps
from .errors import CLOSED, refusal, store_error, unexpected
from .leasing import LeasingQuestion
from .line import KeysApart, Line, open_line
from .parts import Parts
from .question import Question
from .queue import RequestQueue, have_permits
from .requests import AskedQuestion, Asker, Command, Read, Request, ScriptCall
from .script import CHANGED, FAILED, HIT, PEEK, Packed, command, renewal

_HEAD: Final = Struct("<q?")
"""The server's time, and whether the call has stored anything."""
NEWS_NS: Final = 1_000_000_000
"""How old the news may be by which requests are decided: the bans of networks, and the identity of the data."""
MAX_IN_CALL: Final = 64
"""A request takes the server about 10 us, and a call blocks its other clients."""
HALVED_FROM: Final = 33
"""From how many waiting requests on they go in two calls, even if one could take them all: while this process reads the
answers to one half, the server decides the other. With 64 at once that is 1.5 times as many requests a second."""
RENEWED_AT_ONCE: Final = 64
"""How many rows of permits are renewed at once, so that requests of clients are sent in between."""
SCANNED: Final = 500
"""How many keys a server looks at in one call that searches for names."""


class Batcher:
    """The queued requests of one event loop, and the tasks that send them.

    Args:
        loop: The loop.
        parts: The parts of the store.

    Attributes:
        loop: The loop.
        permits: The permits of the loop. It is a worker of its own, because it sends one call with permits after
            another: when one is packed, the answers to all before it are known, so that it has the true count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, parts: Parts) -> None:
        self.loop = loop
        self._parts = parts
        self.permits = HeldPermits(parts.lease_us, self.renew_permits)
        self._permits_lock = asyncio.Lock()
        self._queue = RequestQueue(parts.max_waiting)
        self._is_waking = False
        """Whether a task is about to send what is queued, in the next iteration of the loop."""
        self._lines: list[Line] = []
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ask_news_from_ns = 0
        """From when on the next call asks for news (monotonic): they are too old then, or could not be had before."""
        self._news_fresh_until_ns = 0
        self._wants_news = False
        """Whether the next call asks for news, however old they are."""
        self._asker = Asker(parts, self.permits, self.refund_in_background)
        self._question_type = AskedQuestion
        if parts.leases is not None:
            self._question_type = LeasingQuestion
        self._news = Command([], has_permits=False, pack=parts.news.pack, read=parts.news.read)

    def add(self, request: Request) -> None:
        """Queue a request to be sent at the end of this loop iteration; fail it if the queue is full or closed."""
        if self._parts.is_closed:
            request.fail(StoreUnavailable(CLOSED))
            return
        if self._queue.add(request) and not self._is_waking:
            self._wake()

    def request(self, pack: Callable[[], Packed], read: Read, *, has_permits: bool = False) -> asyncio.Future[Any]:
        """Send a request; see `Command`."""
        future = self.loop.create_future()
        self.add(Command([future], has_permits, pack=pack, read=read))
        return future

    def command(
        self, names: Sequence[bytes], *args: bytes | int, read: Read = lambda answer, now_us: answer
    ) -> asyncio.Future[Any]:
        """Run a command of ``lua/bans.lua``.

        Args:
            names: Its keys.
            args: Its name and its arguments.
            read: Returns the result; the answer is what the command returns, which is the result by default.
        """
        return self.request(partial(command, names, *args), read)

    def server_us(self) -> asyncio.Future[int]:
        """Return the server's time, in microseconds."""
        pack = partial(self._parts.packing.question, PEEK, (), (), self.permits)
        return self.request(pack, lambda answer, now_us: now_us)

    def ask(self, what: int, question: Question) -> asyncio.Future[Decision]:
        """Send a hit, a peek or a charge."""
        future: asyncio.Future[Decision] = self.loop.create_future()
        if what != HIT or not self._queue.join(question, future):
            self.add(self._question_type([future], question.has_permits, self._asker, what, question))
        return future

    def refund(self, reservations: Sequence[Reservation]) -> asyncio.Future[bool]:
        """Refund what was charged; the result is False if nothing of it is left."""
        refusals, checks = self._parts.refusals, [one.check for one in reservations]

        def read(answer: bytes, now_us: int) -> bool:
            refusals.invalidate(checks)
            return answer[0] == CHANGED

        refusals.invalidate(checks)
        has_permits = any(bucket.is_permit for bucket, _, _ in checks)
        return self.request(partial(self._parts.packing.refund, reservations), read, has_permits=has_permits)

    def refund_in_background(self, reservations: Sequence[Reservation]) -> None:
        """Refund what nobody awaits any more, with the next call; if that fails, it stays charged."""
        self.refund(reservations).add_done_callback(_retrieve_exception)

    def hear(self) -> asyncio.Future[int]:
        """Ask for news with the next call; the answer comes after them."""
        self._wants_news = True
        return self.server_us()

    async def scan(self, cursor: int, pattern: bytes) -> tuple[int, list[bytes]]:
        """Return the next cursor, 0 at the end, and some of the names that match a pattern.

        This is no part of a script, which may touch only keys that it declares.

        Raises:
            StoreError: Redis does not answer.
        """
        try:
            if not self._lines:
                self._start()
            search = self.loop.create_task(self._lines[0].scan(cursor, pattern, SCANNED))
            self._tasks.add(search)
            search.add_done_callback(self._tasks.discard)
            search.add_done_callback(_retrieve_exception)
            # It goes on when its caller is cancelled, as requests do: others wait for their answers behind it.
            following, names = await asyncio.shield(search)
            if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
                raise unexpected(names)
            return following, names
        except BaseException as error:
            if self._parts.is_closed:
                raise StoreUnavailable(CLOSED) from error
            if not isinstance(error, Exception):
                raise
            raise store_error(error) from error

    async def renew_permits(self) -> None:
        """Renew the permits of the loop.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        answers: list[Any] = []
        async for some in in_steps(self.permits.rows(), RENEWED_AT_ONCE):
            sent = []
            for row in some:
                pack = partial(renewal, row, self.permits)
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
        self._queue.fail(StoreUnavailable(CLOSED))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- the tasks that send -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Let a task send what is queued, in the next iteration of the loop; not if all are under way."""
        if self._idle:
            idle = self._idle.pop()
            if not idle.done():  # else the event loop ends, which has cancelled its task
                self._is_waking = True
                idle.set_result(None)
            return
        if self._lines:
            return
        try:
            self._start()
        except Exception as error:  # in a class of the user's
            self._queue.fail(store_error(error))

    def _start(self) -> None:
        """Start the tasks that send; their lines connect with the first commands."""
        parts = self._parts
        self._lines = [open_line(parts.open_client, parts.packing.meta) for _ in range(parts.connections)]
        self._is_waking = True
        for line in self._lines:
            for _ in range(line.depth):
                self._tasks.add(self.loop.create_task(self._send(line)))

    async def _send(self, line: Line) -> None:
        """Send what is queued over a line, until the store is closed or the event loop ends."""
        task = asyncio.current_task()
        assert task is not None
        try:
            while not task.cancelling():  # asyncio may lose the exception of a cancellation, see `wait_for` in 3.11
                self._is_waking = False
                if self._queue:
                    await self._serve(line)
                    continue
                idle = self.loop.create_future()
                self._idle.append(idle)
                await idle
        finally:
            self._tasks.discard(task)
            await line.close()

    async def _serve(self, line: Line) -> None:
        """Send the requests of a call, and give each its answer or an error."""
        is_split = monotonic() < line.split_until_s
        most = self._most_in_call()
        if is_split:  # keys of two requests may be on two nodes
            most = 1
        requests = self._queue.take(most)
        has_permits = have_permits(requests)
        if self._queue:  # for another task
            self._wake()
        try:
            if is_split or not self._parts.news.life:
                await self._hear_alone(line)
            if has_permits:
                async with self._permits_lock:
                    failed = await self._ask(line, requests)
            else:
                failed = await self._ask(line, requests)
        except BaseException as error:
            failed = self._handle_failure(requests, error, is_alone=is_split)
            if not isinstance(error, Exception):
                raise
        if failed is not None and failed.concerns != "request":  # a new connection may lead to a healthy server
            if self._parts.leases is not None:
                self._parts.leases.drop()  # and to one that has lost the last writes
            await line.renew()

    def _most_in_call(self) -> int:
        """Return how many of the waiting requests the next call takes at most."""
        waiting = len(self._queue)
        if waiting < HALVED_FROM or waiting > MAX_IN_CALL:
            return MAX_IN_CALL
        # No other task is free to send the second half, or it would have to wait for the answers to the first.
        if not self._idle or self._queue.has_permits:
            return MAX_IN_CALL
        return waiting - waiting // 2

    def _handle_failure(
        self, requests: Sequence[Request], error: BaseException, *, is_alone: bool
    ) -> StoreError | None:
        """Deal with the error of a call, and return it as one of a store; None if its requests are sent again.

        Args:
            requests: Its requests.
            error: The error.
            is_alone: Whether it had the keys of one request alone.
        """
        if isinstance(error, KeysApart) and not is_alone:
            self._queue.put_back(requests)  # nothing was done; now each goes alone
            return None
        failed: StoreError = StoreUnavailable(CLOSED)
        if isinstance(error, Exception) and not self._parts.is_closed:
            failed = store_error(error)
        self._fail(requests, failed)
        return failed

    async def _hear_alone(self, line: Line) -> None:
        """Ask for news in a call of their own, if they are due.

        Raises:
            StoreError: Nothing is known of the data: who is banned, or whether a store that only reads has any.
        """
        life = self._parts.news.life
        if life and not self._wants_news and monotonic_ns() < self._ask_news_from_ns:
            return
        self._wants_news = True
        try:
            failed = await self._ask(line, ())
        except KeysApart:
            if not life:
                raise
            failed = None
        if failed is not None and not life:
            raise failed
        self._ask_news_from_ns = monotonic_ns() + NEWS_NS

    def _fail(self, requests: Iterable[Request], error: StoreError) -> None:
        """Raise an error in the tasks that still await these requests."""
        for request in requests:
            request.fail(error)

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _ask(self, line: Line, requests: Sequence[Request]) -> StoreError | None:
        """Make one script call, and deliver its answers; return an error of one of them."""
        parts, sent_ns = self._parts, monotonic_ns()
        call = self._packed(requests, sent_ns)
        if not call.requests:
            return None
        keys = call.names or [parts.packing.meta]
        args = len(keys), *keys, parts.time.for_script(), b"".join(call.packed), *call.args
        try:
            said = await line.ask("EVALSHA", parts.script.name, *args)
        except ResponseError as error:
            if not isinstance(error, NoScriptError) and "evalsha" not in str(error).lower():
                raise
            said = await line.ask("EVAL", parts.script.source, *args)  # it does not know the script, or forbids EVALSHA
        return self._deliver(call, said, sent_ns)

    def _packed(self, requests: Iterable[Request], now_ns: int) -> ScriptCall:
        """Pack the requests that are still awaited, behind the question for news if it is due.

        If one cannot be packed, only that one fails.
        """
        call = ScriptCall()
        if self._wants_news or now_ns >= self._ask_news_from_ns:
            self._wants_news = False
            call.add(self._news, self._news.pack())
        for request in requests:
            if not request.is_awaited():
                continue
            try:
                call.add(request, request.pack())
            except Exception as error:
                why = f"redis: a request cannot be sent: {error!r}"
                self._fail((request,), StoreUnavailable(why, concerns="request"))
        return call

    def _deliver(self, call: ScriptCall, said: Any, sent_ns: int) -> StoreError | None:
        """Give each request its answer or its error; return one of the errors, of the server if there is one.

        Raises:
            StoreUnavailable: There is not one answer for each request.
        """
        parts, failed = self._parts, None
        is_awaited = call.requests == [self._news]  # nobody awaits news, so an answer with news alone is never late
        try:
            now_us, has_stored = _HEAD.unpack(said[0])
            answered = [*zip(call.requests, said[1:], strict=True)]
        except Exception:
            raise unexpected(said) from None
        parts.time.saw(now_us)
        parts.writes += has_stored
        for request, answer in answered:
            is_awaited = is_awaited or request.is_awaited()
            try:
                if isinstance(answer, bytes) and answer[0] == FAILED:
                    raise refusal(answer[1:].decode(errors="replace"))
                if not request.deliver(answer, now_us):
                    self.add(request)
                if request is self._news:
                    self._ask_news_from_ns = self._news_fresh_until_ns = sent_ns + NEWS_NS
            except Exception as error:  # a malformed answer fails one request, and not the rest of the call
                refused = error if isinstance(error, StoreError) else unexpected(answer, "request")
                self._fail((request,), refused)
                failed = _graver(failed, refused)
        if parts.leases is not None:
            parts.leases.see(now_us, sent_ns, self._news_fresh_until_ns)
        if not is_awaited:
            for took in parts.late_observers:
                took((monotonic_ns() - sent_ns) // 1_000)
        return failed


def _graver(one: StoreError | None, other: StoreError) -> StoreError:
    """Return the error that concerns more than a request, if there is one."""
    if one is None or one.concerns == "request":
        return other
    return one


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception of a future that is never awaited as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
