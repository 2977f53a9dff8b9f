"""One connection to Redis, which many requests share.

Commands are written one behind the other, and answers come in the same order. So each answer belongs to the command
that has waited longest. A command that was given up is still counted: its answer is read and dropped, and no other
command gets it.

redis-py makes the connection (host names, TLS, sentinels, passwords, the database) and hands over its transport; what
follows is done here, because a coroutine, a timeout and a lock for each command cost several times as much as the
command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import hiredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ....core.errors import StoreError, StoreTimeout, StoreUnavailable
from ..faults import refusal
from ..server_clock import ServerClock

Make: TypeAlias = Callable[[], Any]
Connect: TypeAlias = Callable[[], Awaitable[object]]

MOST_UNREAD: Final = 2**26
"""How many bytes of one answer to keep; the longest that is asked for, 10,000 changes of bans, is a tenth of that."""

_PUSHED: Final = getattr(hiredis, "PushNotification", ())


class Wire(asyncio.Protocol):
    """A connection; made by `open_wire`.

    Args:
        loop: The event loop that it belongs to.
        place: What to call the server in messages.
        timeout_s: How long an answer may take. One that takes longer means that the connection is dead.
        clock: The server's time.

    Attributes:
        open: Whether commands can be sent.
        lost: Done when they cannot any more.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, place: str, timeout_s: float, clock: ServerClock) -> None:
        self._loop = loop
        self.clock = clock
        self.place = place
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader(notEnoughData=self)
        self._unread = 0
        self._waiting: deque[tuple[Callable[[Any], None], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._connection: Any = None
        self._transport: Any = None
        self.open = True
        self.lost = loop.create_future()

    def take(self, connection: Any) -> None:
        """Take a connection of redis-py over."""
        self._connection = connection
        self._transport = connection._writer.transport
        self._transport.set_protocol(self)

    @property
    def taken(self) -> bool:
        """Whether there was a connection."""
        return self._transport is not None

    def send(self, done: Callable[[Any], None], *command: bytes | int) -> None:
        """Write a command.

        Args:
            done: Called with the answer, which may be Redis's error; or with a `StoreError` where none comes.
            command: The command and its arguments.
        """
        if not self.open:
            done(StoreUnavailable(f"redis: {self.place} has closed the connection"))
            return
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        self._waiting.append((done, self._loop.time() + self._timeout_s))
        self._transport.write(packed)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    async def ask(self, *command: bytes | int) -> Any:
        """Send a command and return its answer.

        Raises:
            StoreError: None comes, or it is an error.
        """
        future = self._loop.create_future()
        self.send(lambda answer: None if future.done() else future.set_result(answer), *command)
        answer = await future
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, hiredis.HiredisError):
            raise refusal(self.place, answer)
        return answer

    def data_received(self, data: bytes) -> None:
        """Give the answers in `data` to those who wait for them."""
        reader = self._reader
        reader.feed(data)
        self._unread += len(data)
        try:
            while (answer := reader.gets()) is not self:
                self._unread = 0
                if _PUSHED and isinstance(answer, _PUSHED):
                    continue
                done, _ = self._waiting.popleft()
                done(answer)
        except Exception as error:  # of any kind: no later answer can be matched to its command
            self.close(StoreUnavailable(f"redis: {self.place} does not speak Redis: {error!r}"))
        if self._unread > MOST_UNREAD:
            self.close(
                StoreUnavailable(f"redis: {self.place} gave {self._unread} bytes of an answer that does not end")
            )

    def connection_lost(self, error: BaseException | None) -> None:
        """Tell all who wait."""
        why = f": {error}" if error else ""
        self.close(StoreUnavailable(f"redis: {self.place} closed the connection{why}"))

    def close(self, error: StoreError) -> None:
        """Close the connection. Tasks that still wait for an answer get the error."""
        if not self.open:
            return
        self.open = False
        if not self.lost.done():
            self.lost.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._connection is not None:
            self._connection._reader = self._connection._writer = None  # it is closed, whatever redis-py thinks
        while self._waiting:
            done, _ = self._waiting.popleft()
            done(error)

    def _look(self) -> None:
        """Close the connection if the oldest command has waited too long."""
        self._timer = None
        if self._waiting:
            left_s = self._waiting[0][1] - self._loop.time()
            if left_s <= 0:
                self.close(StoreTimeout(f"redis: {self.place} has not answered for {self._timeout_s:g} s"))
            else:
                self._timer = self._loop.call_later(left_s, self._look)


async def open_wire(
    make: Make, timeout_s: float, clock: ServerClock, name: str = "", connect: Connect | None = None
) -> Wire:
    """Connect to a server.

    Args:
        make: Makes a connection of redis-py.
        timeout_s: How long that, and later any answer, may take.
        clock: The server's time.
        name: What to call the server in messages; by default its address.
        connect: Connects what `make` has made; by default its own `connect`.

    Raises:
        StoreUnavailable: That failed.
        StoreTimeout: It took too long.
    """
    connection = make()
    connection.retry = Retry(NoBackoff(), 0)
    known = vars(connection)
    place = name or str(known.get("path") or f"{known.get('host')}:{known.get('port')}")
    wire = Wire(asyncio.get_running_loop(), place, timeout_s, clock)
    try:
        async with asyncio.timeout(timeout_s):
            await (connect or connection.connect)()
        wire.take(connection)
    except (TimeoutError, RedisTimeoutError) as error:
        raise StoreTimeout(f"redis: {place} could not be reached within {timeout_s:g} s") from error
    except (RedisError, OSError, AttributeError) as error:  # the last, where it was closed at once
        raise StoreUnavailable(f"redis: {place}: {error}") from error
    finally:
        if not wire.taken:
            _let_go(connection)
    return wire


def _let_go(connection: Any) -> None:
    """Close a connection that was given up before it was complete."""
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        writer.transport.abort()
        connection._reader = connection._writer = None
