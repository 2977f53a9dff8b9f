"""A store that a command works on, and the event loop to ask it.

A command that only reads opens the store for reading only, so that it makes no file and no row. A command that writes
wants a store that is there: in a mistyped path, a new store would hold bans that nobody obeys.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast
from urllib.parse import unquote, urlsplit

import click

from ..core.bans.ban import Ban
from ..core.bans.rows import Row
from ..core.errors import ConfigurationError, StoreError, StoreUnavailable
from ..core.logs import logger
from ..core.store import Event, Store
from ..limiter import Limiter
from ..limiter.aio import within
from ..limiter.keys import AnyKey
from ..limiter.open_store import open_store
from ..stores.memory.store import MemoryStore
from ..web import keys
from ..web.config import STORE_VARIABLE
from ..web.keys import MadeOfValue
from .exits import print_error

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEADLINE: Final = "10s"
"""A command has more time than a request, and no use for an answer that is not the store's."""
_KINDS: Final[dict[str, Callable[[str], MadeOfValue]]] = {
    "header": keys.header,
    "cookie": keys.cookie,
    "query": keys.query,
}
_LMDB: Final = re.compile("lmdb:", re.IGNORECASE)
_SAID_BY_COMMANDS: Final = ("banned", "unbanned")
"""The events of which the command itself tells."""
_END: Final = object()
_MAX_VALUE: Final = 65_536


class StoredBans(Protocol):
    """The bans of a store that several processes share."""

    def active_parts(self) -> AsyncIterator[Sequence[Ban]]:
        """Yield the bans in force, a part at a time."""

    def dump_parts(self) -> AsyncIterator[Sequence[Row]]:
        """Yield everything known about bans as rows, a part at a time."""


class StoreSession:
    """A limiter on a store, and an event loop of its own.

    Args:
        limiter: The limiter.
        runner: Runs the loop.
    """

    def __init__(self, limiter: Limiter, runner: asyncio.Runner) -> None:
        self.limiter = limiter
        self._runner = runner
        self._iterators: list[AsyncIterator[Any]] = []

    @property
    def bans(self) -> StoredBans:
        """The bans of the store."""
        return cast(StoredBans, self.limiter.store.bans)  # `open_session` lets in no other stores

    def wait(self, answer: Awaitable[T]) -> T:
        """Run the loop until there is an answer."""

        async def waiting() -> T:
            return await answer

        return self._runner.run(waiting())

    def each(self, parts: AsyncIterator[T]) -> Iterator[T]:
        """Yield each part as it comes; the loop stands still in between."""

        async def following() -> Any:
            return await within(anext(parts, _END))

        self._iterators.append(parts)
        while (part := self._runner.run(following())) is not _END:
            yield part

    def close(self) -> None:
        """Close the iterators that were not read to their end, and the store."""
        for parts in self._iterators:
            if isinstance(parts, AsyncGenerator):
                self.wait(parts.aclose())
        with suppress(StoreError):
            self.wait(self.limiter.close())


def key_of(key: str, value: str | None) -> AnyKey:
    """Return the key that a user has written, for the methods of a limiter.

    Args:
        key: An address, a network or a text; with a value ``header:NAME``, ``cookie:NAME`` or ``query:NAME``.
        value: The value that the client sends; ``"-"`` has it read from stdin.

    Raises:
        ConfigurationError: No request can have such a value.
    """
    if value is None:
        return key
    kind, _, name = key.partition(":")
    source = _KINDS.get(kind)
    if source is None or not name:
        raise ConfigurationError(
            f"--value: expected a key such as header:X-API-Key, cookie:session or query:token before it, not {key!r}"
        )
    if value == "-":
        # In the arguments, every user of the machine could read it.
        value = "" if sys.stdin is None else sys.stdin.readline(_MAX_VALUE).rstrip("\r\n")
    return source(name).of(value)


def with_store(command: F) -> F:
    """Give a click command the option ``--store``, as its parameter `store`."""
    return click.option(
        "--store",
        metavar="URL",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        help="The store, for example lmdb:///var/lib/app/slidegate or redis://localhost:6379/0.",
    )(command)


def with_key(command: F) -> F:
    """Give a click command the argument KEY and the option ``--value``, as `key` and `value`."""
    command = click.option(
        "--value",
        metavar="TEXT",
        help="The value that the client sends, where KEY is header:NAME, cookie:NAME or query:NAME; - reads it from "
        "stdin, where no other user of the machine sees it.",
    )(command)
    return click.argument("key")(command)


@contextmanager
def open_session(url: str | None, *, writes: bool = False, makes: bool = False) -> Iterator[StoreSession]:
    """Open a store for a command, and close it afterwards.

    Args:
        url: Its address.
        writes: Whether the command writes; otherwise the store is opened for reading only.
        makes: Whether a store that is not there is made.

    Raises:
        ConfigurationError: The address cannot be read, or names the memory of a process.
        StoreError: The store is not there, or cannot be opened.
    """
    if url is None:
        raise ConfigurationError(
            f"expected --store URL, or the variable {STORE_VARIABLE}; for example lmdb:///var/lib/app"
        )
    store = _open(url, writes, makes)
    with asyncio.Runner() as runner:
        logger.addHandler(logging.NullHandler())  # the observer tells instead
        limiter = Limiter(store, observers=[_print], deadline=DEADLINE, on_error="deny")
        limiter.engine.publisher.keep_quiet()
        session = StoreSession(limiter, runner)
        try:
            yield session
        finally:
            session.close()


def _print(event: Event) -> None:
    if event.kind not in _SAID_BY_COMMANDS:
        print_error(event.message)


def _open(url: str, writes: bool, makes: bool) -> Store:
    try:
        if not _LMDB.match(url):
            store = open_store(url, read_only=not makes)
        elif not writes:
            store = open_store(url, read_only=True)
        else:
            if not makes or _is_there(url):
                # A damaged file is refused here: a store that writes would set it aside.
                open_store(url, read_only=True).close()
            store = open_store(url)
    except ConfigurationError as error:
        if str(error).startswith("lmdb: "):
            raise StoreUnavailable(str(error)) from error
        raise
    if isinstance(store, MemoryStore):
        raise ConfigurationError(
            "memory:// lies in the server's own process, where no command reaches it; "
            "use the dashboard or the admin API of the application"
        )
    return store


def _is_there(url: str) -> bool:
    path = Path(unquote(urlsplit(url).path), "data.mdb")
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
