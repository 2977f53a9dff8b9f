"""A store that a command works on: its options, its limiter, and the rules of a configuration file.

A command that only reads opens the store for reading only, so that it makes no file and no row. A command that writes
wants a store that is there: in a mistyped path, a new store would hold bans that nobody obeys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import logger
from ..core.store import Event, Store
from ..limiter import Limiter
from ..limiter.open_store import open_store
from ..stores.memory.store import MemoryStore
from ..web.config import STORE_VARIABLE
from ..web.keys import SENT_BY_NAME
from ..web.middleware import RateLimitMiddleware
from .exits import print_error

F = TypeVar("F", bound=Callable[..., Any])

DEADLINE: Final = "10s"
"""A command has more time than a request, and no use for an answer that is not the store's."""
_SAID_BY_COMMANDS: Final = ("banned", "unbanned")
"""The events of which the command itself tells."""
_MAX_VALUE: Final = 65_536


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


def key_of(key: str, value: str | None) -> Any:
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
    source = SENT_BY_NAME.get(kind)
    if source is None or not name:
        raise ConfigurationError(
            f"--value: expected a key such as header:X-API-Key, cookie:session or query:token before it, not {key!r}"
        )
    if value == "-":
        # In the arguments, every user of the machine could read it.
        value = "" if sys.stdin is None else sys.stdin.readline(_MAX_VALUE).rstrip("\r\n")
    return source(name).of(value)


@asynccontextmanager
async def open_limiter(url: str | None, *, writes: bool = False, makes: bool = False) -> AsyncIterator[Limiter]:
    """Open a store for a command as a limiter, and close it afterwards.

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
    logger.addHandler(logging.NullHandler())  # the observer tells instead
    limiter = Limiter(store, observers=[_print], deadline=DEADLINE, on_error="deny")
    try:
        yield limiter
    finally:
        with suppress(StoreError):
            await limiter.close()


def _print(event: Event) -> None:
    if event.kind not in _SAID_BY_COMMANDS:
        print_error(event.message)


def _open(url: str, writes: bool, makes: bool) -> Store:
    if not url.lower().startswith("lmdb:"):
        store = open_store(url, read_only=not makes)
    elif not writes:
        store = open_store(url, read_only=True)
    else:
        if not makes or _is_there(url):
            # A damaged file is refused here: a store that writes would set it aside.
            open_store(url, read_only=True).close()
        store = open_store(url)
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


def middleware_of(path: str | PathLike[str], store: str = "memory://") -> RateLimitMiddleware:
    """Return the middleware of a configuration file.

    Args:
        path: The file.
        store: The address of a store in the place of the file's, which is not touched then; empty for the file's.

    Raises:
        ConfigurationError: The file cannot be used.
        StoreError: Its store cannot be opened.
    """
    return RateLimitMiddleware.from_file(_no_app, path, store=store, on_exceeded=_ignore).app


async def _no_app(*_: Any) -> None:
    """Stand where an application would."""


def _ignore(*_: Any) -> None:
    """Hear that a tracked rule was exceeded, which no middleware without requests tells."""
