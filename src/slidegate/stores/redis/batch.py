"""Batching of requests to Redis: one script call for all that ask in one iteration of an event loop.

Each event loop has a batcher. At most `MAX_SENDERS` tasks send what is queued, each over a connection of its own, and
one call after another; when the queue is full, further requests fail. A request that is cancelled before it is sent is
dropped; a hit that is admitted when nobody awaits it any more is refunded.

If there are several senders, each connects before it takes requests, and one that cannot leaves them to the others:
where a server allows few connections, one of each event loop is enough.

A sender goes on when the request that it serves is cancelled, so that the next one finds the connection open; the
limiter's circuit breaker decides when that is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from struct import Struct
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, ResponseError

from ...core.errors import StoreError, StoreUnavailable
from ..leases import HeldPermits
from ..shared import in_steps
from .clients import line_of
from .errors import CLOSED, store_error, unexpected
from .requests import Command, Read, Request
from .script import PEEK, SCRIPT, SCRIPT_NAME, Packed, command, raise_failure, renewal

if TYPE_CHECKING:
    from .store import RedisStore

_HEAD: Final = Struct("<q?")
"""The server's time, and whether the call has stored anything."""
NEWS_S: Final = 1.0
"""How often to poll for changes: the bans of networks, and the identity of the data."""
MAX_IN_CALL: Final = 32
"""A request takes the server about 13 us, and a call blocks its other clients. Of 64 requests, the server decides half
while this process reads the answers to the others."""
MAX_SENDERS: Final = 4
REST_S: Final = 10.0
"""How long a connection may be idle before it is closed, unless it is the only one."""
RETRY_S: Final = 1.0
"""How long no further connection is opened after one could not be."""
RENEWED_AT_ONCE: Final = 64
"""How many rows of permits are renewed at once, so that requests of clients are sent in between."""


class Batcher:
    """The queued requests of one event loop, and the tasks that send them.

    Args:
        loop: The loop.
        store: The store.

    Attributes:
        permits: The permits of the loop. It is a worker of its own, because it sends one call with permits after
            another: when one is packed, the answers to all before it are known, so that it has the true count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, store: RedisStore) -> None:
        self.loop = loop
        self._store = store
        self.permits = HeldPermits(store.lease_us, self.renew_permits)
        self._permits_lock = asyncio.Lock()
        self._queue: deque[Request] = deque()
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []
        self._senders: set[asyncio.Task[None]] = set()
        self._news_s = self._alone_until_s = 0.0
        self._failures = 0

    def add(self, request: Request) -> None:
        """Queue a request to be sent at the end of this loop iteration; fail it if the queue is full or closed."""
        if self._store.closed or len(self._queue) >= self._store.max_waiting:
            why = CLOSED if self._store.closed else f"redis: {len(self._queue)} requests are already queued"
            request.future.set_exception(StoreUnavailable(why))
            return
        self._queue.append(request)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._go)

    def request(self, pack: Callable[[], Packed], read: Read, has_permits: bool = False) -> asyncio.Future[Any]:
        """Send a request; see `Command`."""
        request = Command(self.loop.create_future(), pack, read, has_permits)
        self.add(request)
        return request.future

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
        pack = partial(self._store.packing.question, PEEK, (), (), self.permits)
        return self.request(pack, lambda answer, now_us: now_us)

    async def renew_permits(self) -> None:
        """Renew the permits of the loop.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        answers: list[Any] = []
        async for some in in_steps(self.permits.rows(), RENEWED_AT_ONCE):
            sent = [self.request(partial(renewal, row, self.permits), lambda *_: None, True) for row in some]
            answers += await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            if answer is not None:
                raise answer

    async def close(self) -> None:
        """Close the connections; waiting tasks get an error."""
        self.permits.is_open = False
        for sender in self._senders:
            sender.cancel()
        self._fail(self._queue, StoreUnavailable(CLOSED))
        self._queue.clear()
        await asyncio.gather(*self._senders, return_exceptions=True)

    # -- senders -----------------------------------------------------------------------------------------------------

    def _go(self) -> None:
        """Let another sender send what is queued."""
        self._scheduled = False
        if self._store.closed:
            return
        if self._idle:
            idle = self._idle.pop()
            if not idle.done():  # else the event loop ends, which has cancelled its sender
                idle.set_result(None)
        elif len(self._senders) < (MAX_SENDERS if monotonic() >= self._alone_until_s else 1):
            self._senders.add(self.loop.create_task(self._send()))

    async def _send(self) -> None:
        """Send what is queued until the store is closed or the event loop ends, or others are left to do it.

        It is sent over one connection of redis-py, or by its client for a cluster, which is this sender's own: while a
        slot is migrating, ASKING must go over the connection of the command that follows.
        """
        task = asyncio.current_task()
        assert task is not None
        line, failures = None, -1
        try:
            client = self._store.open_client()  # kept: a connection of a sentinel's refers to it weakly
            line = line_of(client)
            while not task.cancelling():  # asyncio may lose the exception of a cancellation, see `wait_for` in 3.11
                if not self._queue:
                    if failures < 0:  # others were faster than this one could begin to connect
                        return
                    await self._rest(task)
                elif failures == self._failures:
                    await self._serve(line)
                else:  # of any sender: a new connection may lead to a healthy server
                    failures = self._failures
                    await _close(line)
                    if len(self._senders) > 1 and not await self._connect(line):
                        return
        except Exception as error:  # in opening or closing, by a class of connections of the user's
            self._leave(task, error)
        finally:
            self._senders.discard(task)
            with suppress(Exception):
                await _close(line)

    def _leave(self, sender: asyncio.Task[None], error: Exception) -> None:
        """End a sender that cannot go on: others send what is queued, or it fails. The next request begins another."""
        self._senders.discard(sender)
        if self._senders:
            self._alone_until_s = monotonic() + RETRY_S
            self._go()
            return
        self._fail(self._queue, store_error(error))
        self._queue.clear()

    async def _rest(self, sender: asyncio.Task[None]) -> None:
        """Wait until there is something to send; not for long, unless this sender is the only one."""
        idle = self.loop.create_future()
        self._idle.append(idle)
        timer = self.loop.call_later(REST_S, self._dismiss, sender, idle) if len(self._senders) > 1 else None
        await idle
        if timer is not None:
            timer.cancel()

    def _dismiss(self, sender: asyncio.Task[None], idle: asyncio.Future[None]) -> None:
        """End a sender that is still idle, but for the last one."""
        if len(self._senders) > 1 and not idle.done():
            self._idle.remove(idle)
            self._senders.remove(sender)
            sender.cancel()

    async def _connect(self, line: Any) -> bool:
        """Poll for changes over a new connection, before requests are taken; return whether the sender goes on.

        One that cannot connect leaves the requests to the others, unless it is the last.
        """
        try:
            await self._hear(line)
        except Exception as error:
            if store_error(error).concerns != "request" and len(self._senders) > 1:
                self._alone_until_s = monotonic() + RETRY_S
                self._go()
                return False
        return True

    async def _serve(self, line: Any) -> None:
        """Send the requests of a call, and give each its answer or an error. Poll for changes once a second."""
        requests = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_IN_CALL))]
        if self._queue:  # for another sender
            self._go()
        try:
            if not self._store.bans.life:  # the first answer needs the bans of networks
                await self._hear(line)
            has_permits = any(request.has_permits for request in requests)
            async with self._permits_lock if has_permits else nullcontext():
                await self._ask(line, requests)
        except BaseException as error:
            is_error = isinstance(error, Exception) and not self._store.closed
            self._fail(requests, store_error(error) if is_error else StoreUnavailable(CLOSED))
            if not isinstance(error, Exception):
                raise
        if monotonic() >= self._news_s:
            with suppress(Exception):  # of whatever kind: the known bans stay in force
                await self._hear(line)

    async def _hear(self, line: Any) -> None:
        """Poll for changes, by a call of its own: a slot that is on its way to another node serves no call with keys of
        both.
        """
        self._news_s = monotonic() + NEWS_S
        news = Command(self.loop.create_future(), self._store.bans.news, self._store.bans.apply_news)
        await self._ask(line, [news])
        await news.future

    def _fail(self, requests: Iterable[Request], error: StoreError) -> None:
        """Raise an error in the tasks that still await these requests."""
        self._failures += error.concerns != "request"
        for request in requests:
            if not request.future.done():
                request.future.set_exception(error)

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _ask(self, line: Any, requests: Sequence[Request]) -> None:
        """Make one script call, and deliver its answers."""
        calls, sent_ns, time = self._packed(requests), monotonic_ns(), self._store.time
        if not calls:
            return
        keys = [name for packed in calls.values() for name in packed.names] or [self._store.packing.meta]
        requests_packed = b"".join([packed.request for packed in calls.values()])
        args = [arg for packed in calls.values() for arg in packed.args]
        said = await self._eval(line, len(keys), *keys, time.for_script(), requests_packed, *args)
        try:
            now_us, has_stored = _HEAD.unpack(said[0])
            answers = [*zip(calls, said[1:], strict=True)]
        except Exception:
            raise unexpected(said) from None
        time.saw(now_us)
        self._store.writes += has_stored
        if all(request.future.done() for request in calls):
            for took in self._store.late:
                took((monotonic_ns() - sent_ns) // 1_000)
        for request, answer in answers:
            try:
                raise_failure(answer)
                result = request.read(answer, now_us)
                if not request.future.done():
                    request.future.set_result(result)
            except Exception as error:  # a malformed answer fails one request, and not the rest of the call
                self._fail((request,), error if isinstance(error, StoreError) else unexpected(answer, "request"))

    def _packed(self, requests: Iterable[Request]) -> dict[Request, Packed]:
        """Pack the requests that are still awaited; if one cannot be packed, only that one fails."""
        packed: dict[Request, Packed] = {}
        for request in requests:
            if not request.future.done():
                try:
                    packed[request] = request.pack()
                except Exception as error:
                    why = f"redis: a request cannot be sent: {error!r}"
                    self._fail((request,), StoreUnavailable(why, concerns="request"))
        return packed

    async def _eval(self, line: Any, *args: bytes | int) -> Any:
        """Run the script by its digest; by its source if the server does not know it, or forbids EVALSHA."""
        try:
            return await _execute(line, "EVALSHA", SCRIPT_NAME, *args)
        except ResponseError as error:
            if not isinstance(error, NoScriptError) and "evalsha" not in str(error).lower():
                raise
        return await _execute(line, "EVAL", SCRIPT, *args)


async def _close(line: Any) -> None:
    """Close the connections of a sender; its next command opens them anew."""
    if line is None:
        return
    if isinstance(line, RedisCluster):
        await line.aclose()
        for nodes in ("nodes_cache", "startup_nodes"):  # it closes none of them if the last command failed
            await line.nodes_manager.aclose(nodes)
    else:
        await line.disconnect(nowait=True)


async def _execute(line: Any, *command: bytes | int | str) -> Any:
    """Send a command over a connection, or to the node of a cluster that has its keys; return the answer."""
    if isinstance(line, RedisCluster):
        await line.initialize()  # it would send a command before that to any node, which may be a dead one
        return await line.execute_command(*command)
    await line.send_command(*command)
    return await line.read_response()
