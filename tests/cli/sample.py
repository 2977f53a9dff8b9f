"""A sub-command that ends in each way that a command can end."""

from __future__ import annotations

import errno
import os

import click

from slidegate.cli.exits import NotFound
from slidegate.cli.report import Reporter, Table, with_report
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
@with_report("json", "csv")
def sample(out: Reporter, end: str | None, rows: int) -> Table:
    """Write rows, or end."""
    out.note("working")
    if end is not None:
        raise ENDS[end]
    numbered = [{"number": number, "agent": f"{HOSTILE} größe {'x' * (number % 7)}"} for number in range(rows)]
    return Table(("number", "agent"), numbered)
