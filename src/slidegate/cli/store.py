"""A store that a command works on: its options, its limiter, and the rules of a configuration file.

A command that only reads opens the store for reading only, so that it makes no file and no row. A command that writes
needs a store that is there: in a mistyped path, a new store would hold bans that nobody obeys.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click

from ..admin import views
from ..core.bans.ban import Ban
from ..core.errors import ConfigurationError, StoreError
from ..core.store import Store
from ..limiter import Limiter
from ..limiter.keys import AnyKey
from ..limiter.open_store import open_store
from ..stores.memory.store import MemoryStore
from ..web.config import STORE_VARIABLE
from ..web.keys import SENT_BY_NAME
from ..web.middleware import RateLimitMiddleware
from .output import failed, time_of

T = TypeVar("T")

DEADLINE: Final = "10s"
"""A command has more time than a request, and no use for an answer that is not the store's."""
MAX_WORKERS: Final = 8
"""How many workers a line names."""
_MAX_VALUE: Final = 65_536

with_store = click.option(
    "--store",
    metavar="URL",
    envvar=STORE_VARIABLE,
    show_envvar=True,
    required=True,
    help="The store, for example lmdb:///var/lib/app/slidegate or redis://localhost:6379/0.",
)
"""Gives a command the option ``--store``."""


def with_key(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument KEY and the option ``--value``, as one `key` for the methods of a limiter."""

    @click.argument("key")
    @click.option(
        "--value",
        metavar="TEXT",
        help="The value that the client sends, where KEY is header:NAME, cookie:NAME or query:NAME; - reads it from "
        "stdin, where no other user of the machine sees it.",
    )
    @wraps(command)
    def called(key: str, value: str | None, **options: Any) -> Any:
        return command(key=_key_of(key, value), **options)

    return called


def _key_of(key: str, value: str | None) -> AnyKey:
    """Return the key that a user has written.

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


def ask(url: str, work: Callable[[Limiter], Awaitable[T]], *, writes: bool = False, makes: bool = False) -> T:
    """Open a store, do work on it as a limiter, close it, and return the result.

    Args:
        url: Its address.
        work: The work.
        writes: Whether it writes; otherwise the store is opened for reading only.
        makes: Whether a store that is not there is made.

    Raises:
        ConfigurationError: The address cannot be read, or names the memory of a process.
        StoreError: The store is not there, or cannot be opened.
    """

    async def asked() -> T:
        limiter = Limiter(_open(url, writes, makes), deadline=DEADLINE, on_error="deny")
        try:
            return await work(limiter)
        finally:
            with suppress(StoreError):
                await limiter.close()

    return asyncio.run(asked())


def view_of(ban: Ban) -> dict[str, Any]:
    """Return a ban as the admin API shows it."""
    return views.Ban.model_validate(ban).model_dump()


def user() -> str:
    """Return the name of whoever runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        return "cli"


def end_of(ban: dict[str, Any]) -> str:
    """Return when a ban ends, by its view."""
    return "it is removed" if ban["until_at"] is None else time_of(ban["until_at"])


def said_of(workers: Sequence[dict[str, Any]]) -> str:
    """Return a line that says which workers have statistics, and how old these are."""
    if not workers:
        return (
            "no worker has statistics: write slidegate.stats.Statistics(limiter) in the application, or give it a "
            "dashboard; new ones are shown after five seconds"
        )
    listed = [f"{worker['host']}:{worker['pid']} ({worker['age_s']:.0f} s old)" for worker in workers[:MAX_WORKERS]]
    more = f" and {len(workers) - MAX_WORKERS} more" if len(workers) > MAX_WORKERS else ""
    return f"statistics of {len(workers)} worker{'s' * (len(workers) != 1)}: {', '.join(listed)}{more}"


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
            "memory:// lives inside the server process, where no command can reach it; use the dashboard or the admin "
            "API of the application"
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
        store: The address of a store instead of the file's, which is not touched then; empty for the file's.

    Raises:
        click.ClickException: The file cannot be used.
        StoreError: Its store cannot be opened.
    """
    try:
        return RateLimitMiddleware.from_file(_no_app, path, store=store, on_exceeded=_ignore).app
    except ConfigurationError as error:
        raise failed(error) from error


async def _no_app(*_: Any) -> None:
    """Stand in for an application."""


def _ignore(*_: Any) -> None:
    """Stand in for the function that a rule with ``on_exceeded`` calls."""
