"""A sub-command that ends in each way that a command can end."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import click

from slidegate.cli.exits import NotFound
from slidegate.cli.output import Output, with_output
from slidegate.core.errors import ConfigurationError, StoreTimeout, StoreUnavailable

HOSTILE = "a\x1b[2J\x9b31m\u202eb\nc"
ENDS: dict[str, BaseException] = {
    "configuration": ConfigurationError(f"limit: expected 5/minute, not {HOSTILE}"),
    "timeout": StoreTimeout("the store did not answer"),
    "unreachable": StoreUnavailable("the store is gone"),
    "not-found": NotFound("there is no such ban"),
    "interrupt": KeyboardInterrupt(),
    "abort": click.Abort(),
    "pipe": BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)),
    "missing": FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a\nb.log"),
    "usage": click.UsageError("two of these do not go together"),
    "fault": ZeroDivisionError(f"a\n{HOSTILE}"),
    "exit": SystemExit(1),
}


@click.command()
@click.argument("end", required=False)
@click.option("--rows", type=click.IntRange(0), default=0)
@with_output()
def sample(out: Output, end: str | None, rows: int) -> None:
    """Write rows, and end."""
    out.note("working")
    if rows:
        out.rows(["number", "agent"], numbered(rows))
    if end is not None:
        raise ENDS[end]


def numbered(rows: int) -> Iterator[tuple[int, str]]:
    for number in range(rows):
        yield number, f"{HOSTILE} größe {'x' * (number % 7)}"
