"""Batching of requests to Redis.

Each event loop has a batcher with its own connection. The requests of one loop iteration are sent together at its end,
in calls of at most `MAX_IN_CALL`. While `max_calls` calls are unanswered, requests are queued; when the queue is full,
they fail. A request that is cancelled before it is sent is dropped; after that it is charged nevertheless.

A connection that was lost, or could not be opened, is opened by the next request; the limiter's circuit breaker decides
when that is. An attempt to connect continues when the request that started it is cancelled, so that the next request
finds the connection open.

`ServerBatcher` sends to one server. A cluster has one for each node, behind a `ClusterBatcher`; see `cluster`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import getrandbits
from struct import Struct
from struct import error as StructError
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hiredis import HiredisError

from ...core.errors import StoreError, StoreUnavailable
from ...core.reservation import Reservation
from ...core.store import Event
from .clock import ServerClock, StoreTime
from .errors import CLOSED, SICK, refusal, store_error, unexpected
from .link import Connection, pack_command
from .refusals import RefusalCache
from .requests import Question, Request
from .script import BANS_SCRIPT, WINDOWS_SCRIPT, Packing
from .server import Server

if TYPE_CHECKING:
    from .bans import RedisBans
    from .permits import Renewals

Ask: TypeAlias = Callable[..., Awaitable[Any]]
"""Sends a command, and returns its answer."""

_HEAD: Final = Struct("<qII")
_TIME: Final = Struct("<q")

NEWS_S: Final = 1.0
"""How often to poll for changes: the bans of networks, and the identity of the data."""
MAX_IN_CALL: Final = 64
"""A request takes the server about 5 us, and a call blocks its other clients."""
SCAN_PART: Final = 500


@dataclass
class Shared:
    """The parts of a store that depend on each other.

    Attributes:
        server: Opens connections.
        max_waiting: The most requests in a queue.
        max_bans: The most bans in force.
        read_only: Whether to write nothing where Redis has no slidegate data.
        time: The store's clock.
        tell: Emits events.
        packing: Packs requests.
        batcher: Returns the batcher of the running event loop.
        hand_back: Refunds reservations without waiting.
        bans: The bans of the store.
        refusals: The cached refusals.
        renewals: Holds and renews permits.
        late: Called with the microseconds of each answer that nobody awaits any more.
    """

    server: Server
    max_waiting: int
    max_bans: int
    read_only: bool
    time: StoreTime
    tell: Callable[[Sequence[Event]], None]
    packing: Packing
    batcher: Callable[[], Batcher]
    hand_back: Callable[[Sequence[Reservation]], object]
    refusals: RefusalCache
    bans: RedisBans = field(init=False)
    renewals: Renewals = field(init=False)
    late: list[Callable[[int], None]] = field(default_factory=list)

    def tell_late(self, took_us: int) -> None:
        """Report how long an answer took that nobody awaits any more."""
        for took in self.late:
            took(took_us)


def fail(requests: Sequence[Request], error: StoreError) -> None:
    """Raise an error in the tasks that still await these requests."""
    for request in requests:
        if not request.future.done():
            request.future.set_exception(error)


def fail_unpacked(requests: Sequence[Request], error: Exception) -> None:
    """Raise the error of packing these requests in the tasks that await them."""
    fail(requests, StoreUnavailable(f"redis: a request cannot be sent: {error!r}", concerns="key"))


class Batcher(ABC):
    """The queued requests of one event loop, and the tasks that send them.

    Args:
        loop: The loop.
        shared: The parts of the store.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        self.loop = loop
        self._shared = shared
        self._line: deque[Request] = deque()
        self._scheduled = False
        self._closed = False
        self._news_from_s = float("-inf")
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether requests can be sent."""

    @abstractmethod
    def _go(self) -> None:
        """Send the queued requests."""

    @abstractmethod
    async def _get_ready(self) -> None:
        """Connect, or learn the nodes of the cluster."""

    @abstractmethod
    def _invalidate(self, error: StoreError) -> None:
        """Answer nothing until `_get_ready` has run again."""

    @abstractmethod
    async def ask_about(self, name: bytes, *command: bytes | int) -> Any:
        """Send one command, outside the batches, to the server with the slot of `name`; return its answer.

        Raises:
            StoreError: No answer came, or it is an error.
        """

    @abstractmethod
    async def servers(self) -> Sequence[Connection]:
        """Return a connection to each server.

        Raises:
            StoreError: One cannot be reached.
        """

    async def names(self, start: bytes, step: int) -> AsyncIterator[list[bytes]]:
        """Yield the keys with a tag after `start`, at most `step` at a time; SCAN may return a key twice.

        Raises:
            StoreError: Redis cannot be reached, or answers with an error.
        """
        pattern = start + b"{*"
        for connection in await self.servers():
            cursor: bytes | None = b"0"
            while cursor is not None:
                cursor, found = await connection.ask(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_PART)
                if not all(isinstance(name, bytes) for name in found):
                    raise unexpected(connection.name, found)
                for first in range(0, len(found), step):
                    yield found[first : first + step]
                cursor = None if cursor == b"0" else cursor

    async def ask(self, *command: bytes | int) -> Any:
        """Send a command about keys in the slot of `Packing.meta`, as `ask_about` does."""
        return await self.ask_about(self._shared.packing.meta, *command)

    def add(self, request: Request) -> None:
        """Queue a request to be sent at the end of this loop iteration; fail it if the queue is full or closed."""
        line = self._line
        if self._closed or len(line) >= self._shared.max_waiting:
            why = CLOSED if self._closed else f"redis: {len(line)} requests are already queued"
            fail((request,), StoreUnavailable(why))
            return
        line.append(request)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._go)

    async def command(
        self, name: bytes, keys: Sequence[bytes], args: Sequence[bytes | int] = (), ask: Ask | None = None
    ) -> list[Any]:
        """Run a command of ``lua/bans.lua``, outside the batches; return the server's time and the rest of its answer.

        Args:
            name: The command.
            keys: Its KEYS.
            args: Its arguments.
            ask: Sends it; by default to the server with the slot of the first key.

        Raises:
            StoreError: No answer came, or it is an error.
        """
        ask, time = ask or partial(self.ask_about, keys[0]), self._shared.time
        packed = (len(keys), *keys, name, time.for_script(), *args)
        try:
            answer = await ask(b"EVALSHA", BANS_SCRIPT.name, *packed)
        except StoreUnavailable as error:
            if "NOSCRIPT" not in str(error):
                raise
            answer = await ask(b"EVAL", BANS_SCRIPT.source, *packed)
        (now_us,) = _TIME.unpack(answer[0])
        time.saw(now_us)
        return [now_us, *answer[1:]]

    def close(self) -> None:
        """Close the connections; waiting tasks get an error."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        fail(self._taken(), StoreUnavailable(CLOSED))

    # -- getting ready -----------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until requests can be sent.

        Raises:
            StoreError: The server or the cluster cannot be reached.
        """
        while not self._is_ready:
            await self.settled(self._open())

    def opening(self) -> asyncio.Task[None] | None:
        """Return the task that connects and reads the bans of networks; None if requests can be sent."""
        return None if self._is_ready else self._open()

    async def settled(self, task: asyncio.Task[Any]) -> None:
        """Wait for a shared task without cancelling it; if it was cancelled itself, raise StoreUnavailable."""
        assert task is not asyncio.current_task(), "a task that awaits itself never ends"
        await asyncio.wait((task,))
        if task.cancelled():
            raise StoreUnavailable(CLOSED)
        task.result()

    def _open(self) -> asyncio.Task[None]:
        if self._opening is None:
            self._opening = self._start(self._try())
        return self._opening

    async def _try(self) -> None:
        try:
            await self._get_ready()
            self.loop.call_soon(self._go)
        except Exception as error:
            failed = store_error(error)
            self._fail_line(failed)
            if failed is error:  # an exception cannot be its own cause
                raise
            raise failed from error
        finally:
            self._opening = None

    async def _begin(self, ask: Ask) -> None:
        """Poll before the first answer: read the banned networks, and raise if a read-only store has no data."""
        self._news_from_s = monotonic() + NEWS_S
        await self._shared.bans.hear(ask)

    def _poll_when_due(self) -> None:
        """Poll for changes in a task, at most once in `NEWS_S`."""
        if monotonic() >= self._news_from_s:
            self._news_from_s = monotonic() + NEWS_S
            self._start(self._poll())

    async def _poll(self) -> None:
        try:
            await self._shared.bans.hear()
        except StoreError as error:
            self._poll_failed(error)

    def _poll_failed(self, error: StoreError) -> None:
        """Handle a poll that failed."""
        if self._shared.read_only:  # the data may be gone
            self._invalidate(error)

    def _fail_line(self, error: StoreError) -> None:
        """Handle the queued requests after `_get_ready` has failed."""
        fail(self._taken(), error)

    def _taken(self) -> list[Request]:
        """Empty the queue, and return its requests."""
        requests = list(self._line)
        self._line.clear()
        return requests

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _carry(self, requests: Sequence[Request], work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for requests that are not in the queue. They fail if it fails or is cancelled."""

        def ended(task: asyncio.Task[None]) -> None:
            error = StoreUnavailable(CLOSED) if task.cancelled() else task.exception()
            if error is not None:
                fail(requests, store_error(error))

        self._start(work).add_done_callback(ended)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self._closed:
            work.close()
            raise StoreUnavailable(CLOSED)
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError):  # waiters have raised a StoreError
            self.loop.call_exception_handler({"message": "slidegate: a batcher to Redis failed", "exception": error})


class ServerBatcher(Batcher):
    """The requests of one event loop to one server.

    Attributes:
        max_calls: The most calls in flight.
    """

    max_calls = 16

    def __init__(self, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        super().__init__(loop, shared)
        self._calls = 0
        self._connection: Connection | None = None
        self._clock = ServerClock()

    @property
    def _is_ready(self) -> bool:
        return self._connection is not None and self._connection.open

    async def ask_about(self, name: bytes, *command: bytes | int) -> Any:
        """See `Batcher.ask_about`."""
        return await (await self.reached()).ask(*command)

    async def servers(self) -> Sequence[Connection]:
        """See `Batcher.servers`."""
        return (await self.reached(),)

    def close(self) -> None:
        """See `Batcher.close`."""
        super().close()
        self._invalidate(StoreUnavailable(CLOSED))

    async def reached(self) -> Connection:
        """Return the connection, opening it if necessary.

        Raises:
            StoreError: It cannot be opened.
        """
        await self.ready()
        assert self._connection is not None, "ready() has returned"
        return self._connection

    def _go(self) -> None:
        self._scheduled = False
        connection, line = self._connection, self._line
        if connection is None or not connection.open:
            if line:
                self._open()
            return
        self._poll_when_due()
        while line and self._calls < self.max_calls:
            requests: list[Request] = []
            while line and len(requests) < MAX_IN_CALL:
                request = line.popleft()
                if not request.future.done():
                    requests.append(request)
            for some in self._groups(requests):
                self.call(connection, some)

    def _groups(self, requests: Sequence[Request]) -> Iterable[Sequence[Request]]:
        """Return the requests of each call."""
        return (requests,) if requests else ()

    def call(self, connection: Connection, requests: Sequence[Request], how: bytes = b"EVALSHA") -> None:
        """Write a script call.

        Args:
            connection: The connection.
            requests: The requests of the call.
            how: The command that runs the script.
        """
        done = partial(self._answered, connection, requests, monotonic())
        script = WINDOWS_SCRIPT
        what = script.name if how == b"EVALSHA" else script.source
        try:
            names = dict[bytes, int]()
            packed = b"".join([request.pack(names) for request in requests])
            head = _HEAD.pack(self._shared.time.for_script(), getrandbits(32), self._shared.time.slack_ms)
            command = pack_command(how, what, len(names), *names, head, packed)
        except Exception as error:  # from packing one request: send each by itself, so that only that one fails
            if len(requests) > 1:
                for request in requests:
                    self.call(connection, (request,), how)
            else:
                fail_unpacked(requests, error)
            return
        self._calls += 1
        connection.send(done, command)

    def _answered(self, connection: Connection, requests: Sequence[Request], sent_s: float, answer: Any) -> None:
        self._calls -= 1
        if isinstance(answer, StoreError):
            fail(requests, answer)
        elif isinstance(answer, HiredisError):
            self._refused(connection, requests, str(answer))
        else:
            if all(request.future.done() for request in requests):
                self._shared.tell_late(int((monotonic() - sent_s) * 1_000_000))
            self._deliver(connection, requests, sent_s, answer)
        if self._line and not self._scheduled:
            self._go()

    def _deliver(self, connection: Connection, requests: Sequence[Request], sent_s: float, answer: Any) -> None:
        """Deliver the answers of a call to the tasks that await them."""
        try:
            time, *parts = answer
            (now_us,) = _TIME.unpack(time)
            if len(parts) != len(requests):
                raise ValueError
        except (TypeError, ValueError, LookupError, StructError):
            # Later answers of this server cannot be trusted either.
            error = unexpected(connection.name, answer)
            fail(requests, error)
            connection.close(error)
            return
        sent_us = int(sent_s * 1_000_000)
        self._shared.time.saw(now_us)
        if self._shared.time.is_real and (step_us := self._clock.saw(now_us, sent_us)):
            self._tell_step(connection, step_us)
        for request, part in zip(requests, parts, strict=True):
            future = request.future
            if not future.done():
                try:
                    future.set_result(request.answered(part, now_us, sent_us))
                except StoreError as error:
                    future.set_exception(error)
                    if any(word in str(error) for word in SICK):
                        connection.close(error)
                except Exception:  # a malformed answer fails one request, and not the rest of the call
                    future.set_exception(unexpected(connection.name, part))
            elif isinstance(request, Question):
                request.missed(part, now_us)

    def _tell_step(self, connection: Connection, step_us: int) -> None:
        """Drop what was cached by the time of a server whose clock was set, and emit an event."""
        self._shared.refusals.clear()
        way = "forward, so windows opened early" if step_us > 0 else "back"
        message = f"redis: the clock of {connection.name} was set {abs(step_us) / 1_000_000:.1f} s {way}"
        self._shared.tell((Event("clock_stepped", message, {"server": connection.name, "step_us": step_us}),))

    def _refused(self, connection: Connection, requests: Sequence[Request], error: str) -> None:
        """Handle an error that Redis returned instead of running the script."""
        if error.startswith("NOSCRIPT"):
            self.call(connection, requests, b"EVAL")
            return
        fail(requests, refusal(connection.name, error))
        if error.startswith(SICK):
            connection.close(refusal(connection.name, error))

    # -- the connection ----------------------------------------------------------------------------------------------

    async def _get_ready(self) -> None:
        connection = await self._connect()
        with connection.closed_on_error():
            # Close it when the loop ends: that cancels this task, even before its first step.
            guard = self._start(_until_lost(connection))
            guard.add_done_callback(lambda _: connection.close(StoreUnavailable("redis: the event loop has ended")))
            # Concurrently, because the deadline of the request that started this includes it.
            await asyncio.gather(self._shared.server.prepare(connection), self._begin(connection.ask))
        self._connection, self._clock = connection, ServerClock()

    async def _connect(self) -> Connection:
        return await self._shared.server.open()

    def _invalidate(self, error: StoreError) -> None:
        if self._connection is not None:
            self._connection.close(error)


async def _until_lost(connection: Connection) -> None:
    await connection.lost
