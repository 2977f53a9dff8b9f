"""One pipelined connection to a Redis server, shared by many requests.

Commands are pipelined, and Redis answers them in order, so each answer belongs to the oldest unanswered command. A
cancelled command keeps its position: its answer is read and discarded, never delivered to another command.

redis-py provides the connection settings: hosts, sentinels, nodes, TLS, credentials. Its own connections are not used:
they await each answer in a coroutine, which costs several times as much as the command, and buffer answers of any size.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import hiredis
from redis.exceptions import RedisError

from ...core.errors import StoreError, StoreTimeout, StoreUnavailable
from .errors import refusal

Settings: TypeAlias = Any
"""A redis-py connection that is never opened; only its settings are read."""

MAX_UNREAD: Final = 2**26
"""The most bytes of one answer; the longest expected, the stats of a thousand workers, has a tenth of that."""


def pack_command(*command: bytes | int) -> bytes:
    """Return a command and its arguments in the protocol of Redis.

    Raises:
        TypeError: An argument, which may come from an earlier answer, is neither bytes nor a number.
    """
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


class Connection(asyncio.Protocol):
    """A connection; opened by `open_connection`.

    Args:
        loop: The event loop that it belongs to.
        name: The server's name in messages.
        timeout_s: How long an answer may take before the connection counts as dead and is closed.

    Attributes:
        open: Whether commands can be sent.
        lost: A future that is done when the connection is closed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, timeout_s: float) -> None:
        self._loop = loop
        self.name = name
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader(notEnoughData=self)
        self._unread = 0
        self._waiting: deque[tuple[Callable[[Any], None], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self.open = True
        self.lost = loop.create_future()

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport

    def keep_alive(self, settings: Settings) -> None:
        """Enable TCP keepalive if the settings ask for it."""
        if getattr(settings, "socket_keepalive", False):
            tcp = self._transport.get_extra_info("socket")
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in settings.socket_keepalive_options.items():
                tcp.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, done: Callable[[Any], None], command: bytes) -> None:
        """Write a command.

        Args:
            done: Called with the answer, which may be a Redis error; or with a `StoreError` if there is none.
            command: The command, packed by `pack_command`.
        """
        if not self.open:
            done(StoreUnavailable(f"redis: {self.name} has closed the connection"))
            return
        self._waiting.append((done, self._loop.time() + self._timeout_s))
        self._transport.write(command)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_timeout)

    async def ask(self, *command: bytes | int) -> Any:
        """Send a command and return its answer.

        Raises:
            StoreError: No answer came, or it is an error.
        """
        future = self._loop.create_future()
        packed = pack_command(*command)
        self.send(lambda answer: None if future.done() else future.set_result(answer), packed)
        answer = await future
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, hiredis.HiredisError):
            raise refusal(self.name, answer)
        return answer

    def data_received(self, data: bytes) -> None:
        """Deliver the answers in `data` to their commands."""
        reader = self._reader
        reader.feed(data)
        self._unread += len(data)
        try:
            while (answer := reader.gets()) is not self:
                self._unread = 0
                done, _ = self._waiting.popleft()
                done(answer)
        except Exception as error:  # after any error, later answers cannot be matched to their commands
            self.close(StoreUnavailable(f"redis: {self.name} does not speak Redis: {error!r}"))
        if self._unread > MAX_UNREAD:
            self.close(StoreUnavailable(f"redis: {self.name} sent {self._unread} bytes of an unfinished answer"))

    def connection_lost(self, error: BaseException | None) -> None:
        """Close the connection, and fail all unanswered commands."""
        why = f": {error}" if error else ""
        self.close(StoreUnavailable(f"redis: {self.name} closed the connection{why}"))

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the connection if the block, which prepares it for use, raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self, error: StoreError | None = None) -> None:
        """Close the connection. All unanswered commands fail with `error`."""
        if not self.open:
            return
        error = error or StoreUnavailable(f"redis: {self.name}: the connection was closed")
        self.open = False
        if not self.lost.done():
            self.lost.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            done, _ = self._waiting.popleft()
            done(error)

    def _check_timeout(self) -> None:
        """Close the connection if the oldest command has timed out; else set the timer again."""
        self._timer = None
        if self._waiting:
            left_s = self._waiting[0][1] - self._loop.time()
            if left_s <= 0:
                self.close(StoreTimeout(f"redis: {self.name} has not answered for {self._timeout_s:g} s"))
            else:
                self._timer = self._loop.call_later(left_s, self._check_timeout)


async def open_connection(
    settings: Settings, timeout_s: float, name: str = "", address: tuple[str, int] | None = None
) -> Connection:
    """Connect to a server.

    Args:
        settings: The connection settings.
        timeout_s: How long connecting, and later each answer, may take.
        name: The server's name in messages; by default its address.
        address: Its host and port, if the settings do not have them.

    Raises:
        StoreUnavailable: The server cannot be reached, or refused the credentials.
        StoreTimeout: The server did not answer in time.
    """
    loop, path = asyncio.get_running_loop(), getattr(settings, "path", "")
    host, port = ("", 0) if path else address or (settings.host, settings.port)
    name = name or path or f"{host}:{port}"
    connection = Connection(loop, name, timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            if path:
                await loop.create_unix_connection(lambda: connection, path)
            else:
                tls = getattr(settings, "ssl_context", None)
                await loop.create_connection(lambda: connection, host, port, ssl=tls and tls.get())
            connection.keep_alive(settings)
            await asyncio.gather(*(connection.ask(*command) for command in await _greeting(settings)))
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise StoreTimeout(f"redis: {name} could not be reached within {timeout_s:g} s") from error
        if isinstance(error, (OSError, RedisError)):  # a credential provider may raise a RedisError
            raise StoreUnavailable(f"redis: {name}: {error}") from error
        raise
    return connection


async def _greeting(settings: Settings) -> list[tuple[bytes, ...]]:
    """Return the commands that authenticate, set the client's name and select the database."""
    commands: list[tuple[bytes, ...]] = []
    credentials: Sequence[str] = ()
    if settings.credential_provider is not None:
        credentials = await settings.credential_provider.get_credentials_async()
    elif settings.username:
        credentials = settings.username, settings.password or ""
    elif settings.password:
        credentials = (settings.password,)
    if credentials:
        commands.append((b"AUTH", *(part.encode() for part in credentials)))
    if settings.client_name:
        commands.append((b"CLIENT", b"SETNAME", settings.client_name.encode()))
    if settings.db:
        commands.append((b"SELECT", str(settings.db).encode()))
    return commands
