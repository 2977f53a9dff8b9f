"""One connection to a server of Redis, which many requests share.

Commands are written one behind the other, and answers come in the same order. So each answer belongs to the command
that has waited longest. A command that was given up is still counted: its answer is read and dropped, and no other
command gets it.

redis-py says how to connect: hosts, sentinels, nodes, TLS, credentials. Its own connections are not used, because they
wait for each answer in a coroutine, which costs several times as much as the command, and keep an answer of any length.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from struct import error as StructError
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import hiredis
from redis.exceptions import RedisError

from ...core.errors import Concerns, SlidegateError, StoreError, StoreTimeout, StoreUnavailable
from ...core.store import Event

P = ParamSpec("P")
T = TypeVar("T")

Settings: TypeAlias = Any
"""A connection of redis-py that is never opened; it says how to connect."""

MAX_UNREAD: Final = 2**26
"""How many bytes of one answer to keep; the longest asked for, stats of a thousand workers, is a tenth of that."""

SICK: Final = ("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM")
"""Errors after which another connection may lead to a server that is well, or one that has learnt the password."""
_OF_A_KEY: Final = "WRONGTYPE"
_OF_A_SLOT: Final = ("TRYAGAIN", "CLUSTERDOWN Hash slot", "MOVED", "ASK", "CROSSSLOT")
_MAX_SHOWN: Final = 300
SENTINELS_AT_ONCE: Final = 10
"""While one sentinel has not answered, the next is asked after a tenth of the timeout."""
_DOWN: Final = ("s_down", "o_down", "disconnected")

Open: TypeAlias = Callable[..., Awaitable["Connection"]]
"""Opens a connection, given its settings, a name for the server, and its address."""


def refusal(place: str, said: object) -> StoreUnavailable:
    """Return the error to raise for an error of a server.

    Args:
        place: What to call the server.
        said: Its words.
    """
    text = str(said)
    concerns: Concerns = "server"
    if _OF_A_KEY in text:  # a script may say more before it
        concerns = "key"
    elif text.startswith(_OF_A_SLOT):
        concerns = "slot"
    return StoreUnavailable(f"redis: {place}{': ' if place else ''}{text}", concerns=concerns)


def store_error(error: BaseException) -> StoreError:
    """Return any error as the StoreError that waiting tasks get."""
    return error if isinstance(error, StoreError) else StoreUnavailable(f"redis: {error!r}")


def unexpected(place: str, answer: object) -> StoreUnavailable:
    """Return the error for an answer that does not fit its command."""
    shown = repr(answer)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return StoreUnavailable(f"redis: {place or 'the server'} gave an answer that does not fit: {shown}")


_NONSENSE: Final = (TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError, StructError)


def sensible(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Raise a StoreUnavailable where what a server has answered cannot be read by a method, whatever that was."""

    @wraps(method)
    async def read(*args: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*args, **named)
        except SlidegateError:  # some of which are of these kinds, too
            raise
        except _NONSENSE as error:
            raise StoreUnavailable(f"redis: an answer makes no sense: {error!r}") from error

    return read


class Connection(asyncio.Protocol):
    """A connection; made by `open_connection`.

    Args:
        loop: The event loop that it belongs to.
        name: What to call the server in messages.
        timeout_s: How long an answer may take. One that takes longer means that the connection is dead.

    Attributes:
        open: Whether commands can be sent.
        lost: Done when they cannot any more.
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
        """Have the system look now and then whether the server is still there, where the settings ask for that."""
        if getattr(settings, "socket_keepalive", False):
            known = self._transport.get_extra_info("socket")
            known.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in settings.socket_keepalive_options.items():
                known.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, done: Callable[[Any], None], *command: bytes | int) -> None:
        """Write a command.

        Args:
            done: Called with the answer, which may be Redis's error; or with a `StoreError` where none comes.
            command: The command and its arguments.
        """
        if not self.open:
            done(StoreUnavailable(f"redis: {self.name} has closed the connection"))
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
            raise refusal(self.name, answer)
        return answer

    def data_received(self, data: bytes) -> None:
        """Give the answers in `data` to those who wait for them."""
        reader = self._reader
        reader.feed(data)
        self._unread += len(data)
        try:
            while (answer := reader.gets()) is not self:
                self._unread = 0
                done, _ = self._waiting.popleft()
                done(answer)
        except Exception as error:  # of any kind: no later answer can be matched to its command
            self.close(StoreUnavailable(f"redis: {self.name} does not speak Redis: {error!r}"))
        if self._unread > MAX_UNREAD:
            self.close(StoreUnavailable(f"redis: {self.name} gave {self._unread} bytes of an answer that does not end"))

    def connection_lost(self, error: BaseException | None) -> None:
        """Tell all who wait."""
        why = f": {error}" if error else ""
        self.close(StoreUnavailable(f"redis: {self.name} closed the connection{why}"))

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the connection where something fails that has to be done before it is used."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self, error: StoreError | None = None) -> None:
        """Close the connection. Tasks that still wait for an answer get the error."""
        if not self.open:
            return
        error = error or StoreUnavailable(f"redis: {self.name}: not in use")
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

    def _look(self) -> None:
        """Close the connection if the oldest command has waited too long."""
        self._timer = None
        if self._waiting:
            left_s = self._waiting[0][1] - self._loop.time()
            if left_s <= 0:
                self.close(StoreTimeout(f"redis: {self.name} has not answered for {self._timeout_s:g} s"))
            else:
                self._timer = self._loop.call_later(left_s, self._look)


async def open_connection(
    settings: Settings, timeout_s: float, name: str = "", address: tuple[str, int] | None = None
) -> Connection:
    """Connect to a server.

    Args:
        settings: How.
        timeout_s: How long that, and later any answer, may take.
        name: What to call the server in messages; by default its address.
        address: Its host and port, where the settings do not say them.

    Raises:
        StoreUnavailable: That failed.
        StoreTimeout: It took too long.
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
        if isinstance(error, (OSError, RedisError)):  # the latter of a provider of credentials
            raise StoreUnavailable(f"redis: {name}: {error}") from error
        raise
    return connection


async def _greeting(settings: Settings) -> list[tuple[bytes, ...]]:
    """Return the commands that authenticate, say the client's name and choose the database."""
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


async def first_of(
    tries: Iterable[Callable[[], Awaitable[T]]],
    apart_s: float,
    nobody: str,
    let_go: Callable[[T], object] = lambda answer: None,
) -> T:
    """Return the first answer that comes.

    The next one is tried when one has failed, or has not answered for `apart_s`; a late answer still counts. As long as
    one has not answered, those that failed are tried again: they may know more by now, and nobody has to wait for a
    server that hangs.

    Args:
        tries: Each asks one server, and raises a StoreError if it fails.
        apart_s: How long to wait before the next is asked beside those before it.
        nobody: What to say where there is nobody to ask.
        let_go: Is given an answer that is not needed any more.

    Raises:
        StoreError: All failed; this is the last error.
    """
    left, again = deque(tries), deque[Callable[[], Awaitable[T]]]()
    running: dict[asyncio.Future[T], Callable[[], Awaitable[T]]] = {}
    failed: StoreError = StoreUnavailable(nobody)
    try:
        while left or running:
            if left:
                ask = left.popleft()
                running[asyncio.ensure_future(ask())] = ask
            done, _ = await asyncio.wait(
                running, timeout=apart_s if left or again else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                left, again = left or again, again if left else deque()
            for task in done:
                ask, error = running.pop(task), task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, StoreError):
                    raise error
                failed = error
                again.append(ask)
        raise failed
    finally:
        for task in running:
            task.cancel()
        for answer in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(answer, BaseException):
                let_go(answer)


async def open_master(pool: Any, timeout_s: float, to_sentinel: Open, to_server: Open) -> Connection:
    """Connect to the master of the service of a pool of redis-py.

    Args:
        pool: The pool.
        timeout_s: How long a sentinel, or a server, may take.
        to_sentinel: Opens connections to sentinels.
        to_server: Opens connections to servers.

    Raises:
        StoreError: No sentinel leads to a master.
    """
    name, manager = pool.service_name, pool.sentinel_manager

    async def through(sentinel: Any) -> Connection:
        connection = await to_sentinel(sentinel.connection_pool.make_connection(), f"a sentinel of {name!r}")
        try:
            row = await connection.ask(b"SENTINEL", b"MASTER", name)
        finally:
            connection.close()
        host, port = _address(connection.name, row, manager.min_other_sentinels)
        connection = await to_server(pool.make_connection(), f"{name} ({host}:{port})", (host, port))
        with connection.closed_on_error():
            await _check_role(connection)
        return connection

    try:
        tries = [partial(through, sentinel) for sentinel in manager.sentinels]
        return await first_of(tries, timeout_s / SENTINELS_AT_ONCE, "there are no sentinels", Connection.close)
    except StoreError as error:
        told = str(error).removeprefix("redis: ")
        raise type(error)(f"redis: no sentinel leads to a master of service {name!r}: {told}") from error


def _address(place: str, row: Any, others: int) -> tuple[str, int]:
    """Return where a sentinel says that the master is.

    Raises:
        StoreUnavailable: It does not, or it sees the master down, or too few other sentinels.
    """
    try:
        said = dict(zip(row[::2], row[1::2], strict=True))
        host, flags = said[b"ip"].decode(), said[b"flags"].decode().split(",")
        port, seen = int(said[b"port"]), int(said[b"num-other-sentinels"])
    except (TypeError, ValueError, LookupError, AttributeError):
        raise unexpected(place, row) from None
    down = [flag for flag in _DOWN if flag in flags]
    if down or seen < others:
        why = f"it is {down[0]}" if down else f"{seen} other sentinels are seen, and {others} are asked for"
        raise StoreUnavailable(f"redis: {place} does not trust {host}:{port}: {why}")
    return host, port


async def _check_role(connection: Connection) -> None:
    """See that a server is a master, unless it does not let us ask.

    Raises:
        StoreUnavailable: It is not.
    """
    try:
        role = await connection.ask(b"ROLE")
    except StoreUnavailable as error:
        if "NOPERM" in str(error):
            return
        raise
    if not isinstance(role, list) or role[:1] != [b"master"]:
        raise StoreUnavailable(f"redis: {connection.name} is no master by now")


KEEPS: Final = "noeviction"


class Eviction:
    """Looks at the policy of servers, and tells of each that evicts, once.

    Args:
        tell: Passes events on.

    Attributes:
        found: Which server evicts by which policy; empty where none does, as far as is known.
    """

    def __init__(self, tell: Callable[[Sequence[Event]], None]) -> None:
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self.found = ""

    async def look(self, connection: Connection) -> None:
        """Look at the policy of a server. A user who may not ask for it finds nothing."""
        said: object = b""
        with suppress(StoreError):
            said = await connection.ask(b"INFO", b"memory")
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        rows = (row.partition(":") for row in text.splitlines())
        known = {name: value for name, _, value in rows}
        policy, most = known.get("maxmemory_policy", KEEPS), known.get("maxmemory", "0")
        if policy == KEEPS or most == "0" or (connection.name, policy) in self._told:
            return
        self._told.add((connection.name, policy))
        self.found = f"{connection.name} evicts keys when it is full (maxmemory-policy {policy})"
        message = f"redis: {self.found}: limits and bans that it evicts are forgotten; set {KEEPS}"
        self._tell((Event("store_evicts", message, {"server": connection.name, "policy": policy}),))
