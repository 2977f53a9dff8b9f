"""What a command has found, and how it is written: as text for people, as JSON or CSV for programs.

A command returns a `Table`, a `Report` or a mapping, and prints nothing itself. Results go to stdout; notes, which are
about the work and not its result, go to stderr. Text from outside, such as a path or an agent in a log, never reaches
the terminal as it is: control characters are escaped here, once for all commands.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from inspect import iscoroutine
from threading import current_thread, main_thread
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias

import click

from ..core.logs import escaped, logger
from .exits import OK

P = ParamSpec("P")

MAX_CELL: Final = 1_000
"""Characters of one value in a table."""
MAX_WIDTH: Final = 200
_GAP: Final = "  "


class Table(NamedTuple):
    """Rows of values by name: text, numbers, True, False or None.

    A column that is called "at", or ends in "_at", holds Unix seconds, which people see as a time, or None for never.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    empty: str = ""
    """The note where there is no row."""


class Report(NamedTuple):
    """A result that people and programs see in different forms."""

    value: Mapping[str, Any] | Table
    """What JSON has."""
    text: Iterable[str | Table]
    """The lines and tables that people see."""
    table: Table | None = None
    """What CSV has, in a command that knows CSV."""
    code: int = OK
    """The exit code of the command."""


Result: TypeAlias = Mapping[str, Any] | Table | Report | list[Report]


class Reporter:
    """Writes the result of a command.

    Args:
        form: ``"text"``, ``"json"`` or ``"csv"``.
        quiet: Whether notes are left out.
    """

    def __init__(self, form: str = "text", quiet: bool = False) -> None:
        self.quiet = quiet
        self._form = form
        self._width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
        # In a process that was started without streams, Python has None.
        self._stdout = sys.stdout if sys.stdout is not None else io.StringIO()
        self._stderr = sys.stderr if sys.stderr is not None else io.StringIO()

    @property
    def is_live(self) -> bool:
        """Whether a person looks at stdout."""
        return self._form == "text" and self._stdout.isatty()

    def note(self, message: str) -> None:
        """Write one line to stderr, unless the user wants quiet."""
        if not self.quiet:
            self._stderr.write(escaped(message, MAX_CELL) + "\n")
            self._stderr.flush()

    def write(self, result: Result) -> int:
        """Write a result to stdout, and return the exit code of the command."""
        if isinstance(result, list):
            for number, report in enumerate(result):
                if number and self._form == "text":
                    self._stdout.write("\n")
                self.write(report)
            return OK
        if isinstance(result, Table):
            if result.empty and not result.rows:
                self.note(result.empty)
            result = Report(result, [result], result)
        elif isinstance(result, Mapping):
            result = Report(result, [f"{name}: {_shown(name, value)}" for name, value in result.items()])
        if self._form == "json":
            self._write_json(result.value)
        elif self._form == "csv":
            self._write_csv(result.table or Table((), ()))
        else:
            self._stdout.writelines(f"{line}\n" for line in self.lines(result.text))
        return result.code

    def lines(self, text: Iterable[str | Table]) -> Iterator[str]:
        """Yield the lines that people see of some lines and tables."""
        for part in text:
            if isinstance(part, Table):
                yield from self._aligned(part)
            else:
                yield escaped(part, 10 * len(part))

    def _aligned(self, table: Table) -> Iterator[str]:
        """Yield aligned columns; where they are too wide for the terminal, blocks of ``name: value`` lines."""
        rows = [[_shown(name, row[name]) for name in table.columns] for row in table.rows]
        if not rows:
            return
        widths = [max(map(len, cells)) for cells in zip(table.columns, *rows, strict=True)]
        if sum(widths) + len(_GAP) * (len(widths) - 1) <= self._width:
            for cells in (table.columns, *rows):
                yield _GAP.join(map(str.ljust, cells, widths)).rstrip()
            return
        for number, cells in enumerate(rows):
            yield from [""] if number else []
            yield from map("{}: {}".format, table.columns, cells)

    def _write_json(self, value: Mapping[str, Any] | Table) -> None:
        rows = value.rows if isinstance(value, Table) else [value]
        self._stdout.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)

    def _write_csv(self, table: Table) -> None:
        writer = csv.writer(self._stdout, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows([_plain(row[name]) for name in table.columns] for row in table.rows)


def with_report(*forms: str) -> Callable[[Callable[Concatenate[Reporter, P], Any]], Callable[P, None]]:
    """Give a command the option ``--quiet``, and ``--format`` where it knows several; write what it returns.

    The command gets a `Reporter` as its first argument, for its notes. It may be a coroutine function.

    Args:
        forms: The forms that it knows besides text.
    """

    def decorate(command: Callable[Concatenate[Reporter, P], Any]) -> Callable[P, None]:
        @wraps(command)
        def reported(*args: P.args, **options: P.kwargs) -> None:
            reporter = Reporter(str(options.pop("format", "text")), bool(options.pop("quiet")))
            result = command(reporter, *args, **options)
            if code := reporter.write(_awaited(result) if iscoroutine(result) else result):
                raise click.exceptions.Exit(code)

        quiet = click.option("--quiet", "-q", is_flag=True, help="Leave out notes and progress.")
        choice = click.Choice(["text", *forms])
        form = click.option("--format", type=choice, default="text", show_default=True, help="Form of output.")
        return form(quiet(reported)) if forms else quiet(reported)

    return decorate


def _awaited(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a command to its end; Ctrl-C ends it wherever it is.

    asyncio's own handler waits for the next await, which never comes while a command reads from a terminal or a pipe.
    """
    before = signal.getsignal(signal.SIGINT)
    takes_signals = before is signal.default_int_handler and current_thread() is main_thread()
    if takes_signals:
        signal.signal(signal.SIGINT, partial(signal.default_int_handler))  # asyncio leaves all others alone
    try:
        return asyncio.run(work)
    finally:
        if takes_signals:
            signal.signal(signal.SIGINT, before)


@contextmanager
def silent_log() -> Iterator[None]:
    """Keep the package from logging, while a command itself says what it has found."""
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def time_of(unix_s: float) -> str:
    """Return a Unix time as ``2026-01-31T12:00:00Z``."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S}Z"


def _shown(name: str, value: object) -> str:
    """Return a value as people see it."""
    if name == "at" or name.endswith("_at"):
        return "never" if value is None else time_of(float(str(value)))
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _plain(value)


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escaped(value if isinstance(value, str) else str(value), MAX_CELL)
