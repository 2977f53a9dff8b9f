"""Requests to Redis are sent in batches.

Each event loop has a batcher with a connection of its own. The requests of one turn of the loop are sent together at
its end, in calls of at most `MAX_IN_CALL`. While `max_calls` calls are unanswered requests wait in line, and where the
line is full they are refused. A request that is given up before it was sent is not sent; later it is charged all the
same.

A connection that was lost, or could not be made, is opened by the next request: how soon that is, is for the circuit
breaker of the limiter to decide. An attempt goes on when the request that began it is given up, so the next one finds
the connection open.

`ServerBatcher` sends to one server. A cluster has one for each node, and a batcher before them, see `cluster`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import getrandbits
from struct import Struct
from struct import error as StructError
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from hiredis import HiredisError

from ...core.errors import StoreError, StoreUnavailable
from ...core.reservation import Reservation
from ...core.store import Clock, Event
from .bans import COUNT_BYTES, RedisBans
from .clock import ServerClock
from .errors import CLOSED, SICK, refusal, store_error, unexpected
from .link import Connection
from .refusals import RefusalCache
from .requests import Question, Request
from .script import BANS_SCRIPT, WINDOWS_SCRIPT, Packing, Script
from .server import Server

if TYPE_CHECKING:
    from .permits import Renewals

SLACK_MS: Final = 1_000
"""Added to the TTL of a key, so that it need not be renewed with every hit."""
TEST_SLACK_MS: Final = 86_400_000

STATE_PARTS: Final = 3
"""An answer begins with the time, what it says about bans, and the life of the data."""

_HEAD: Final = Struct("<qIIBq")
_TIME: Final = Struct("<q")
_SERVER_TIME: Final = -1

MAX_IN_CALL: Final = 64
"""A request takes the server some 5 us, and nobody else is served while a call runs."""
SCAN_PART: Final = 500


@dataclass
class Shared:
    """The parts of a store that its batchers and requests share.

    Attributes:
        server: Connects.
        max_waiting: How many requests may wait in a line.
        clock: The clock of a test.
        tell: Passes events on.
        read_only: Whether nothing is made where nothing of slidegate stands.
        packing: Packs requests.
        bans: The bans of the store.
        refusals: The refusals that are known here.
        renewals: Holds permits, and renews them.
        hand_back: Hands back, without waiting for it.
    """

    server: Server
    max_waiting: int
    clock: Clock | None
    tell: Callable[[Sequence[Event]], None]
    read_only: bool
    packing: Packing
    bans: RedisBans
    refusals: RefusalCache
    renewals: Renewals
    hand_back: Callable[[Sequence[Reservation]], object]


def head(clock: Clock | None, *, sees_numbers: bool, reset_us: int = -1) -> bytes:
    """Return the head of a call of the script of windows.

    Args:
        clock: The clock of a test.
        sees_numbers: Whether the call sees the hash with the numbers.
        reset_us: Where it does not: when all windows were reset, as far as is known here.
    """
    if clock is None:
        return _HEAD.pack(_SERVER_TIME, getrandbits(32), SLACK_MS, sees_numbers, reset_us)
    return _HEAD.pack(clock(), getrandbits(32), TEST_SLACK_MS, sees_numbers, reset_us)


def says_state(answer: Any) -> bool:
    """Return whether an answer begins as the script's do."""
    return (
        isinstance(answer, list)
        and len(answer) >= STATE_PARTS
        and type(answer[0]) is type(answer[1]) is type(answer[2]) is bytes
        and len(answer[1]) >= COUNT_BYTES
    )


def fail(requests: Sequence[Request], error: StoreError) -> None:
    """Raise an error in the tasks that still wait."""
    for request in requests:
        if not request.future.done():
            request.future.set_exception(error)


class Batcher(ABC):
    """The requests of one event loop, and the tasks that carry them.

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
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it is known where requests go."""

    @abstractmethod
    def _go(self) -> None:
        """Send the requests in line."""

    @abstractmethod
    async def _get_ready(self) -> None:
        """Find out where requests go."""

    @abstractmethod
    def _doubt(self, error: StoreError) -> None:
        """Let nothing be answered before it has got ready again."""

    @abstractmethod
    async def ask_about(self, name: bytes, *command: bytes | int) -> Any:
        """Send a command about a name by itself and return its answer.

        Raises:
            StoreError: None comes, or it is an error.
        """

    @abstractmethod
    async def names(self, pattern: bytes) -> list[bytes]:
        """Return the names that match a pattern, which are searched for a part at a time.

        Raises:
            StoreError: Redis cannot be reached, or answers with an error.
        """

    async def ask(self, *command: bytes | int) -> Any:
        """Send a command about what lies beside the numbers, as `ask_about` does."""
        return await self.ask_about(self._shared.packing.meta, *command)

    @abstractmethod
    async def forget_windows(self, pattern: bytes) -> int:
        """Forget the windows in the hashes that match a pattern, a part at a time; return how many had any.

        Raises:
            StoreError: Redis cannot be reached, or answers with an error.
        """

    def add(self, request: Request) -> None:
        """Send a request, now or later."""
        line = self._line
        if self._closed or len(line) >= self._shared.max_waiting:
            why = CLOSED if self._closed else f"redis: {len(line)} requests wait for an answer already"
            fail((request,), StoreUnavailable(why))
            return
        line.append(request)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._go)

    async def run(self, script: Script, keys: Sequence[bytes], asked: Sequence[bytes | int]) -> Any:
        """Run a script by itself and return its answer.

        Raises:
            StoreError: None comes, or it is an error.
        """
        try:
            return await self.ask_about(keys[0], b"EVALSHA", script.name, len(keys), *keys, *asked)
        except StoreUnavailable as error:
            if "NOSCRIPT" not in str(error):
                raise
        return await self.ask_about(keys[0], b"EVAL", script.source, len(keys), *keys, *asked)

    def attend(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine that nobody waits for, until the batcher is closed; a `StoreError` of it is dropped."""
        if self._closed:
            work.close()
        else:
            self._start(work)

    def close(self) -> None:
        """Close the connections; waiting tasks get an error."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        fail(self._taken(), StoreUnavailable(CLOSED))

    async def check_again(self) -> None:
        """Answer nothing more where nothing may be made, and nothing of slidegate stands there any more."""
        try:
            await self._check_there(self.ask)
        except StoreUnavailable as error:
            self._doubt(error)

    # -- getting ready -----------------------------------------------------------------------------------------------

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
            if failed is error:  # nothing is its own cause
                raise
            raise failed from error
        finally:
            self._opening = None

    async def _begin(self, ask: Callable[..., Awaitable[Any]]) -> None:
        """Do what has to be done before the first answer: look whether to answer at all, and for banned networks."""
        await self._check_there(ask)
        await self._shared.bans.read_networks(ask)

    async def _check_there(self, ask: Callable[..., Awaitable[Any]]) -> None:
        """See that something of slidegate stands under the prefix, where nothing may be made.

        Raises:
            StoreUnavailable: Nothing does.
        """
        if self._shared.read_only and not await ask(b"EXISTS", self._shared.packing.meta):
            raise StoreUnavailable(f"redis: nothing of slidegate stands under {self._shared.packing.meta.decode()}")

    def _fail_line(self, error: StoreError) -> None:
        """Deal with the requests that have not gone, where it cannot get ready."""
        fail(self._taken(), error)

    def _taken(self) -> list[Request]:
        """Return the requests in line, and take them out."""
        requests = list(self._line)
        self._line.clear()
        return requests

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _carry(self, requests: Sequence[Request], work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for requests that stand in no line meanwhile. If it fails, or is cancelled, they fail."""

        def ended(task: asyncio.Task[None]) -> None:
            error = StoreUnavailable(CLOSED) if task.cancelled() else task.exception()
            if error is not None:
                fail(requests, store_error(error))

        self._start(work).add_done_callback(ended)

    async def _settled(self, task: asyncio.Task[Any]) -> None:
        """Wait for a shared task: giving up here does not cancel it; if it is cancelled, that is an error here."""
        assert task is not asyncio.current_task(), "a task that waits for itself never ends"
        await asyncio.wait((task,))
        if task.cancelled():
            raise StoreUnavailable(CLOSED)
        task.result()

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
        if error is not None and not isinstance(error, StoreError):  # of which those who wait have been told
            self.loop.call_exception_handler({"message": "slidegate: a batcher to Redis failed", "exception": error})


class ServerBatcher(Batcher):
    """The requests of one event loop to one server.

    Attributes:
        max_calls: How many calls may be unanswered.
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

    async def names(self, pattern: bytes) -> list[bytes]:
        """See `Batcher.names`."""
        connection = await self.reached()
        return [name async for part in scan(connection, pattern) for name in part]

    async def forget_windows(self, pattern: bytes) -> int:
        """See `Batcher.forget_windows`."""
        return await forget_windows_of(await self.reached(), pattern, at_once=SCAN_PART)

    def close(self) -> None:
        """See `Batcher.close`."""
        super().close()
        self._doubt(StoreUnavailable(CLOSED))

    async def reached(self) -> Connection:
        """Return the connection, opened if need be.

        Raises:
            StoreError: That failed.
        """
        while self._connection is None or not self._connection.open:
            await self._settled(self._open())
        return self._connection

    def _go(self) -> None:
        self._scheduled = False
        connection, line = self._connection, self._line
        if connection is None or not connection.open:
            if line:
                self._open()
            return
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
        """Write a call.

        Args:
            connection: The connection.
            requests: The requests, which go together.
            how: The command that runs the script.
        """
        done = partial(self._answered, connection, requests, monotonic())
        script = WINDOWS_SCRIPT
        what = script.name if how == b"EVALSHA" else script.source
        try:
            names, arguments = self._arguments(requests)
        except Exception as error:  # of one of them, which nobody but whoever asked it can know
            if len(requests) > 1:
                for request in requests:
                    self.call(connection, (request,), how)
            else:
                fail(requests, StoreUnavailable(f"redis: a request cannot be sent: {error!r}", concerns="key"))
            return
        self._calls += 1
        connection.send(done, how, what, len(names), *names, *arguments)

    def _arguments(self, requests: Sequence[Request]) -> tuple[dict[bytes, int], tuple[bytes, ...]]:
        """Return the names and the arguments of a call."""
        names = {self._shared.packing.meta: 0, self._shared.bans.index_name: 1}
        packed = b"".join([request.pack(names) for request in requests])
        return names, (head(self._shared.clock, sees_numbers=True), packed)

    def _answered(self, connection: Connection, requests: Sequence[Request], sent_s: float, answer: Any) -> None:
        self._calls -= 1
        if isinstance(answer, StoreError):
            fail(requests, answer)
        elif isinstance(answer, HiredisError):
            self._refused(connection, requests, str(answer))
        else:
            self._heard(connection, requests, sent_s, answer)
        if self._line and not self._scheduled:
            self._go()

    def _heard(self, connection: Connection, requests: Sequence[Request], sent_s: float, answer: Any) -> None:
        """Deal with what the script answers."""
        if says_state(answer):
            self._shared.bans.heard(self, answer[1], answer[2])
        self._deliver(connection, requests, sent_s, answer)

    def _deliver(self, connection: Connection, requests: Sequence[Request], sent_s: float, answer: Any) -> None:
        """Give the answers of a call to the tasks that wait for them."""
        try:
            (now_us,) = _TIME.unpack(answer[0])
            if len(answer) != len(requests) + STATE_PARTS:
                raise ValueError
        except (TypeError, ValueError, LookupError, StructError):
            # This server cannot be relied on, whatever it is.
            error = unexpected(connection.name, answer)
            fail(requests, error)
            connection.close(error)
            return
        sent_us = int(sent_s * 1_000_000)
        self._shared.bans.saw(now_us)
        if self._shared.clock is None and (step_us := self._clock.saw(now_us, sent_us)):
            self._tell_step(connection, step_us)
        for request, part in zip(requests, answer[STATE_PARTS:], strict=True):
            future = request.future
            if not future.done():
                try:
                    future.set_result(request.answered(part, now_us, sent_us))
                except StoreError as error:
                    future.set_exception(error)
                    if any(word in str(error) for word in SICK):
                        connection.close(error)
                except Exception:  # of any kind: one task waits for this answer, and others for the rest
                    future.set_exception(unexpected(connection.name, part))
            elif isinstance(request, Question):
                request.missed(part, now_us)

    def _tell_step(self, connection: Connection, step_us: int) -> None:
        """Forget what was known in the time of a server whose clock was set, and tell of it."""
        self._shared.refusals.clear()
        way = "forward, so windows opened early" if step_us > 0 else "back"
        message = f"redis: the clock of {connection.name} was set {abs(step_us) / 1_000_000:.1f} s {way}"
        self._shared.tell((Event("clock_stepped", message, {"server": connection.name, "step_us": step_us}),))

    def _refused(self, connection: Connection, requests: Sequence[Request], error: str) -> None:
        """Deal with an error that Redis gives instead of running the script."""
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
            # Close it when the loop ends, which cancels tasks also before they began.
            guard = self._start(_until_lost(connection))
            guard.add_done_callback(lambda _: connection.close(StoreUnavailable("redis: the event loop has ended")))
            # At once, because the request that began this waits for it within its deadline.
            await asyncio.gather(self._shared.server.prepare(connection), self._begin(connection.ask))
        self._connection, self._clock = connection, ServerClock()

    async def _connect(self) -> Connection:
        return await self._shared.server.open_server()

    def _doubt(self, error: StoreError) -> None:
        if self._connection is not None:
            self._connection.close(error)


async def _until_lost(connection: Connection) -> None:
    await connection.lost


async def forget_windows_of(connection: Connection, pattern: bytes, at_once: int) -> int:
    """Forget the windows in the hashes of one server that match a pattern; return how many had any."""
    total: int = 0
    async for found in scan(connection, pattern):
        parts = [found[first : first + at_once] for first in range(0, len(found), at_once)]
        for _, forgotten in await asyncio.gather(*(connection.ask(*_forgetting(names)) for names in parts)):
            total += forgotten
    return total


def _forgetting(names: Sequence[bytes]) -> tuple[bytes | int, ...]:
    """Return the command that forgets the windows of some keys."""
    return b"EVAL", BANS_SCRIPT.source, len(names), *names, b"forget_windows", _SERVER_TIME


async def scan(connection: Connection, pattern: bytes) -> AsyncIterator[list[bytes]]:
    """Yield the names of one server that match a pattern, a part at a time; one may come twice."""
    place = b"0"
    while True:
        place, found = await connection.ask(b"SCAN", place, b"MATCH", pattern, b"COUNT", SCAN_PART)
        yield found
        if place == b"0":
            return
