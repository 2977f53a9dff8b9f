"""The options of commands that read access logs, and the reading, with its progress bar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging import CRITICAL
from typing import Any, Final, TypeVar

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..logs import AccessLogs, AccessRecord
from ..web.keys import check_header_name
from .output import Output

F = TypeVar("F", bound=Callable[..., Any])

_EVERY: Final = 2_048
"""After how many records the bar moves."""
_SHARE: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
_AN_EXAMPLE: Final = "2026-03-03T10:00:00+00:00"


def log_options(command: F) -> F:
    """Give a command the options that say which logs are read, and how."""
    for option in (
        click.option("--until", metavar="TIME", help="Leave out requests from this moment on."),
        click.option("--since", metavar="TIME", help=f"Leave out requests before this moment, as {_AN_EXAMPLE}."),
        click.option("--processes", type=click.IntRange(1, 256), help="Processes that parse; one on each core."),
        click.option("--log-fields", metavar="JSON", help='Names in JSON lines: {"time": "ts", "client": "ip", ...}.'),
        click.option("--log-format", metavar="FORMAT", help="The format string of nginx or Apache, for custom logs."),
        click.argument("log", nargs=-1, required=True),
    ):
        command = option(command)
    return command


class Logs:
    """The records that a command works on.

    Args:
        log: The files; ``-`` is standard input.
        log_format: The format string of a custom format.
        log_fields: The names of the fields of JSON lines, as a JSON object.
        processes: How many processes parse.
        since: The first moment, as ISO 8601 has it; UTC where it names no zone.
        until: The moment behind the last one.

    Raises:
        ConfigurationError: A value cannot be used, or a file cannot be read.
    """

    def __init__(
        self,
        log: tuple[str, ...],
        log_format: str | None,
        log_fields: str | None,
        processes: int | None,
        since: str | None,
        until: str | None,
    ) -> None:
        self._since_us = _moment_us("--since", since)
        self._until_us = _moment_us("--until", until)
        self.logs = AccessLogs(log, format=log_format, fields=_fields(log_fields), processes=processes)

    def read(self, out: Output, subject: str) -> Generator[AccessRecord, None, None]:
        """Yield the records, and show how far the reading is.

        Raises:
            ConfigurationError: No line was a record.
        """
        since_us, until_us = self._since_us, self._until_us
        with _bar(out, subject, self.logs) as moved:
            for number, record in enumerate(self.logs, 1):
                if not number % _EVERY:
                    moved(number)
                if (since_us is None or record.time_us >= since_us) and (until_us is None or record.time_us < until_us):
                    yield record
        if complaint := self.logs.complaint():
            raise ConfigurationError(complaint)

    def remarks(self, out: Output) -> None:
        """Say on stderr which lines were no records; three of them are shown."""
        counts = self.logs.counts
        if counts.broken:
            out.note(f"{counts.broken:,} of {counts.lines:,} lines are no records of an access log:")
            for line in counts.examples:
                out.note(f"  {line.file}:{line.number}: {line.reason}: {line.text}")
        if counts.late:
            out.note(f"{counts.late:,} records came too late to be put in order; they count at the time before them")


@contextmanager
def quiet_gate() -> Iterator[None]:
    """Keep a replayed gate from logging bans of long ago."""
    before = logger.level
    logger.setLevel(CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _bar(out: Output, subject: str, logs: AccessLogs) -> Iterator[Callable[[int], None]]:
    console = out.console(notes=True)
    if out.quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(subject, total=logs.size_bytes, rate="")

        def moved(records: int) -> None:
            elapsed_s = progress.tasks[task].elapsed or 1.0
            progress.update(task, completed=logs.taken_bytes, rate=f"{records / elapsed_s:,.0f} lines/s")

        yield moved


def _moment_us(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(f"{name}: expected a moment such as {_AN_EXAMPLE}, not {quoted(text)}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _fields(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ConfigurationError(
            'expected the names of fields as a JSON object, such as {"time": "ts", "client": "ip", "status": "code", '
            f'"request": "line"}}, not {quoted(text)}'
        )
    return fields


def header_of(key: str) -> str | None:
    """Return the header field that ``header:NAME`` names; None for ``ip``.

    Raises:
        ConfigurationError: It is neither.
    """
    kind, colon, name = key.partition(":")
    if kind == "header" and colon:
        return check_header_name(name)
    if key != "ip":
        raise ConfigurationError(f"--key: expected ip or header:NAME, such as header:X-API-Key, not {quoted(key)}")
    return None


def share_of(text: str) -> float:
    """Return the part, 0 to 1, that a percentage is.

    Raises:
        ConfigurationError: It is none.
    """
    found = _SHARE.fullmatch(text.strip())
    if found is None or float(found[1]) > 100:
        raise ConfigurationError(f"--touch: expected a share of clients such as 0.1%, not {quoted(text)}")
    return float(found[1]) / 100
