"""Writes results: as text, or as JSON with one object per line.

Results go to stdout, notes to stderr. Control characters are escaped here for all commands, because untrusted text,
such as a path in a log, must not control the terminal.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from ..core.logs import escaped, logger, written

with_format = click.option(
    "--format",
    "as_json",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    callback=lambda ctx, param, value: value == "json",
    help="Format of the output.",
)
"""Adds the option ``--format`` to a command, as the parameter `as_json`."""


def show(as_json: bool, rows: Iterable[Mapping[str, Any]], lines: Iterable[str]) -> None:
    """Write a result to stdout: `rows` as JSON, one object per line, or `lines` as text."""
    for line in (json.dumps(row, allow_nan=False) for row in rows) if as_json else map(escaped, lines):
        click.echo(line)


def note(message: str) -> None:
    """Write a line that is not part of the result to stderr."""
    click.echo(escaped(message), err=True)


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns; nothing without rows."""
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    if cells:
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for line in (columns, *cells):
            yield "  ".join(map(str.ljust, line, widths)).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3f}" if isinstance(value, float) else escaped(str(value), 80)


def time_of(unix_s: float) -> str:
    """Return a Unix time as ``2026-01-31T12:00:00Z``."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S}Z"


def one_line(error: BaseException) -> str:
    """Return the message of an error as one printable line; for an `OSError`, with the file name."""
    text = written(error, str)
    if isinstance(error, OSError) and error.strerror:
        text = f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    return escaped(" ".join(text.split()))


def failed(error: BaseException) -> click.ClickException:
    """Return the exception that ends a command with exit code 1 and the message of `error`."""
    return click.ClickException(one_line(error))


@contextmanager
def silent_log() -> Iterator[None]:
    """Disable the log of the library: commands report findings and errors themselves."""
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
