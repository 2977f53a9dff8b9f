"""The store that a command uses: its options and its limiter.

Commands that only read open the store read-only, so they create no files or rows. Commands that write require an
existing store: with a mistyped path, bans would go to a new store that no application uses.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import wraps
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
from .output import time_of

T = TypeVar("T")

DEADLINE: Final = "10s"
"""A command can wait longer than a request, and must not fall back to local decisions."""
MAX_WORKERS: Final = 8
"""The maximum number of workers that a line names."""
_MAX_VALUE: Final = 65_536

with_store = click.option(
    "--store",
    metavar="URL",
    envvar=STORE_VARIABLE,
    show_envvar=True,
    required=True,
    help="The store, for example lmdb:///var/lib/app/slidegate or redis://localhost:6379/0.",
)
"""Adds the option ``--store`` to a command."""


def user() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user ID has no name, as in some containers
        return "cli"


with_author = click.option(
    "--by", metavar="NAME", default=user, show_default="your user name", help="The author of the change."
)
"""Adds the option ``--by`` to a command."""
with_reason = click.option("--reason", default="", metavar="TEXT", help="For operators; clients do not see it.")
"""Adds the option ``--reason`` to a command."""


def with_key(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument KEY and the option ``--value`` to a command, as one parameter `key` for a limiter."""

    @click.argument("key")
    @click.option(
        "--value",
        metavar="TEXT",
        help="The value that the client sends, if KEY is header:NAME, cookie:NAME or query:NAME; - reads it from "
        "stdin, so that other users of the machine cannot see it.",
    )
    @wraps(command)
    def called(key: str, value: str | None, **options: Any) -> Any:
        return command(key=_key_of(key, value), **options)

    return called


def _key_of(key: str, value: str | None) -> AnyKey:
    """Return the key from the arguments KEY and ``--value``.

    Raises:
        ConfigurationError: KEY takes no value, or no request can have this value.
    """
    if value is None:
        return key
    kind, _, name = key.partition(":")
    source = SENT_BY_NAME.get(kind)
    if source is None or not name:
        raise ConfigurationError(
            f"--value: expected a KEY such as header:X-API-Key, cookie:session or query:token, not {key!r}"
        )
    if value == "-":
        # Every user of the machine can read the arguments of a process.
        value = "" if sys.stdin is None else sys.stdin.readline(_MAX_VALUE).rstrip("\r\n")
    return source(name).of(value)


def ask(url: str, work: Callable[[Limiter], Awaitable[T]], *, writes: bool = False, makes: bool = False) -> T:
    """Open a store, call a function with a limiter on it, close it, and return the result.

    Args:
        url: The address of the store.
        work: The function.
        writes: Whether the function writes; otherwise the store is opened read-only.
        makes: Whether a missing store is created.

    Raises:
        ConfigurationError: The address is invalid, or is that of a memory store.
        StoreError: The store does not exist, or cannot be opened.
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


def end_of(ban: dict[str, Any]) -> str:
    """Return the end of a ban from its view."""
    return "it is removed" if ban["until_at"] is None else time_of(ban["until_at"])


def said_of(workers: Sequence[dict[str, Any]]) -> str:
    """Return a line with the workers that publish statistics, and the age of these."""
    if not workers:
        return (
            "no worker publishes statistics: add slidegate.stats.Statistics(limiter) or a dashboard to the "
            "application; the first are published after five seconds"
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
            # Fail on a damaged file: a store opened for writing would rename it.
            open_store(url, read_only=True).close()
        store = open_store(url)
    if isinstance(store, MemoryStore):
        raise ConfigurationError(
            "memory:// is in the memory of the server process, which no command can access; use the dashboard or the "
            "admin API of the application"
        )
    return store


def _is_there(url: str) -> bool:
    path = Path(unquote(urlsplit(url).path), "data.mdb")
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
