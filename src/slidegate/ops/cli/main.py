"""The group of all commands, and what they share: output, errors and the store.

Results go to stdout, notes and errors to stderr. Control characters are escaped here for all commands, because
untrusted text, such as a path in a log, must not control the terminal. Commands that only read open the store
read-only, and commands that write require an existing one: with a mistyped address, a ban would go to a new store that
no application uses.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from getpass import getuser
from os import PathLike
from typing import Any, Final, TypeAlias, TypeVar

import click

from ... import (
    ConfigurationError,
    Limiter,
    RateLimitMiddleware,
    SlidegateError,
    StoreError,
    __version__,
)
from ...core import compiled
from ...core.logs import escaped, logger, safe_text
from ...core.passwords import without_addresses
from ..replay.replay import nothing

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Answer: TypeAlias = tuple[Sequence[Mapping[str, Any]], Iterable[str]]
"""The result of a command: rows for JSON, and lines of text."""

STORE_VARIABLE: Final = "SLIDEGATE_STORE"
DEADLINE: Final = "10s"
"""A command can wait longer than a request, and must not fall back to local decisions."""
MAX_CELL: Final = 80
_MAX_VALUE: Final = 65_536
INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""
UNKNOWN: Final = 3
"""The exit code of a question that a store without an answer, or without a worker, leaves open."""


class NoAnswer(click.ClickException, SlidegateError):
    """A command whose exit code is an answer got none from the store."""

    exit_code = UNKNOWN


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(f"{__version__} ({'compiled' if compiled else 'interpreted'})", message="%(prog)s %(version)s")
def program() -> None:
    """Tools for sliding-window rate limits: test limits before they are enabled, and operate them afterwards.

    \b
    Example: slidegate check main:app
    """


def run_program(arguments: Sequence[str] | None) -> int:
    """Run a command, show its error, and return its exit code."""
    level = logger.logger.level
    logger.setLevel(logging.CRITICAL + 1)  # commands report findings and errors themselves
    try:
        return int(program.main(arguments, prog_name="slidegate", standalone_mode=False) or 0)
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        failure = error
    except ConfigurationError as error:
        failure = click.UsageError(one_line(error))
    except (SlidegateError, OSError) as error:
        failure = click.ClickException(one_line(error))
    finally:
        logger.setLevel(level)
    text = io.StringIO()
    failure.show(text)
    for line in text.getvalue().splitlines():
        note(without_addresses(line))  # click quotes arguments
    return failure.exit_code


# -- output ------------------------------------------------------------------------------------------------------------

with_json = click.option("--json", "as_json", is_flag=True, help="Write JSON, one object per line.")
"""Adds the option ``--json`` to a command, as the parameter `as_json`."""


def show(as_json: bool, rows: Iterable[Mapping[str, Any]], lines: Iterable[str]) -> None:
    """Write a result to stdout: `rows` as JSON, one object per line, or `lines` as text."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, allow_nan=False))
        return
    for line in lines:
        click.echo(escaped(line))


def note(message: str) -> None:
    """Write a line that is not part of the result to stderr."""
    click.echo(escaped(message), err=True)


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns; nothing without rows."""
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    if cells:
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for line in (columns, *cells):
            yield "  ".join(map(str.ljust, line, widths)).rstrip()


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if value is None:
        return ""
    return escaped(str(value), MAX_CELL)


def one_line(error: BaseException) -> str:
    """Return the message of an error as one printable line; for an `OSError`, with the file name."""
    text = safe_text(error, is_message=True)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename:
            text = f"{os.fsdecode(error.filename)}: {text}"
    return escaped(" ".join(text.split()))


# -- arguments ---------------------------------------------------------------------------------------------------------


def _user() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # the user ID has no name, as in some containers
        return "cli"


with_author = click.option(
    "--by", metavar="NAME", default=_user, show_default="your user name", help="The author of the change."
)
"""Adds the option ``--by`` to a command."""


with_reason = click.option("--reason", default="", metavar="TEXT", help="For operators; clients do not see it.")
"""Adds the option ``--reason`` to a command."""


def with_duration(lengths: str) -> Callable[[F], F]:
    """Add the option ``--for`` to a command, as the parameter `duration`, given the valid durations in words."""
    return click.option("--for", "duration", metavar="DURATION", required=True, help=f"How long: {lengths}.")


def _typed(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return a value, read from stdin for ``-``: every user of the machine can read the arguments of a process."""
    if value != "-":
        return value
    if sys.stdin is None:
        return ""
    return sys.stdin.readline(_MAX_VALUE).rstrip("\r\n")


with_value = click.option(
    "--value",
    metavar="TEXT",
    callback=_typed,
    help="The value that the client sends, if KEY is header:NAME, cookie:NAME or query:NAME; - reads it from stdin, so "
    "that other users of the machine cannot see it.",
)
"""Adds the option ``--value`` to a command."""


# -- the store ---------------------------------------------------------------------------------------------------------


def asking(
    *, writes: bool = False, has_code: bool = False
) -> Callable[[Callable[..., Awaitable[Answer]]], Callable[..., None]]:
    """Make the function of a command that asks a store, with the options ``--store`` and ``--json``.

    The decorated function takes a limiter on the store, and returns its result as rows for JSON and as lines of text.

    Args:
        writes: Whether the function writes; otherwise the store is opened read-only.
        has_code: Whether its only row has the exit code; a store that does not answer is 3 then.
    """

    def decorated(work: Callable[..., Awaitable[Answer]]) -> Callable[..., None]:
        @click.option(
            "--store",
            metavar="URL",
            envvar=STORE_VARIABLE,
            show_envvar=True,
            required=True,
            help="The store, for example lmdb:///var/lib/app/slidegate or redis://localhost:6379/0.",
        )
        @with_json
        @wraps(work)
        def command(store: str, as_json: bool, **arguments: Any) -> None:
            try:
                rows, lines = ask(store, lambda limiter: work(limiter, **arguments), writes=writes)
            except StoreError as error:
                if not has_code:
                    raise
                raise NoAnswer(one_line(error)) from error
            show(as_json, rows, lines)
            if has_code:
                click.get_current_context().exit(rows[0]["code"])

        return command

    return decorated


def ask(url: str, work: Callable[[Limiter], Awaitable[T]], *, writes: bool = False) -> T:
    """Open a store, call a function with a limiter on it, close it, and return the result.

    Args:
        url: The address of the store.
        writes: Whether the function writes; otherwise the store is opened read-only.

    Raises:
        ConfigurationError: The address is invalid, or is that of a memory store.
        StoreError: The store does not exist, or cannot be opened.
    """
    if str(url).strip().lower().startswith("memory:"):  # a configuration file may name anything
        raise ConfigurationError(
            "memory:// is in the memory of the server process, which no command can access; use the dashboard of the "
            "application"
        )

    async def worked() -> T:
        limiter = Limiter.from_url(url, read_only=not writes, create=False, deadline=DEADLINE, on_error="deny")
        try:
            return await work(limiter)
        finally:
            with suppress(StoreError):
                await limiter.close()

    return asyncio.run(worked())


# -- configuration files -----------------------------------------------------------------------------------------------


def middleware_of(path: str | PathLike[str]) -> RateLimitMiddleware:
    """Return the middleware of a configuration file, on a memory store; its application is never called."""
    reloading: Any = RateLimitMiddleware.from_file(nothing, path, store="memory://")
    middleware: RateLimitMiddleware = reloading.app
    return middleware
