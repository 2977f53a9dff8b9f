"""The options of commands that read access logs, and the reading, with its progress bar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.progress import Progress

from ..core.errors import ConfigurationError, quoted
from ..core.logs import escaped
from ..logs import AccessLogs, AccessRecord
from ..logs.formats import MAX_TIME_US
from ..simulation.clients import Clients
from ..web.keys import check_token
from .report import Reporter, time_of

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
        since: str | None,
        until: str | None,
    ) -> None:
        self._since_us = _moment_us("--since", since)
        self._until_us = _moment_us("--until", until)
        self._given = log
        self.logs = AccessLogs(log, format=log_format, fields=_fields(log_fields))

    def read(self, out: Reporter, subject: str, add: Callable[[AccessRecord], object]) -> None:
        """Hand the records between the two moments on, and show how far the reading is.

        Args:
            out: Says whether nobody wants to see that.
            subject: What is going on.
            add: Takes each record.

        Raises:
            ConfigurationError: No line was a record, none lies between the moments, or none was an HTTP request.
        """
        since_us = self._since_us or 0
        until_us = MAX_TIME_US if self._until_us is None else self._until_us
        first_us, last_us, kept, requests = MAX_TIME_US, 0, 0, 0
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=out.quiet or not console.is_terminal) as bar:
            task = bar.add_task(subject, total=self.logs.size_bytes)
            for number, record in enumerate(self.logs, 1):
                if not number % _EVERY:
                    bar.update(task, completed=self.logs.taken_bytes)
                first_us, last_us = min(first_us, record.time_us), max(last_us, record.time_us)
                if since_us <= record.time_us < until_us:
                    kept += 1
                    requests += record.method != ""
                    add(record)
        if not self.logs.counts.records:
            raise ConfigurationError(self._no_records())
        if not kept:
            covered = f"{time_of(first_us / 1_000_000)} to {time_of(last_us / 1_000_000)}"
            raise ConfigurationError(f"no request lies between --since and --until: the log covers {covered}")
        if not requests:
            raise ConfigurationError(f"none of {kept:,} records is an HTTP request, so there is nothing to count")

    def _no_records(self) -> str:
        counts = self.logs.counts
        name = f"'{escaped(self._given[0], 300)}'" if len(self._given) == 1 else f"the {len(self._given)} files"
        if not counts.broken:
            return f"{name}: the log is empty"
        line = counts.examples[0]
        where = f"line {line.number}" if len(self._given) == 1 else f"line {line.number} of '{line.file}'"
        return (
            f"{name}: none of {counts.lines:,} lines is a record of an access log; {where} is {line.reason}: "
            f"{line.text}; --log-format takes the format string of the server"
        )

    def remarks(self, out: Reporter) -> None:
        """Say on stderr which lines were no records; three of them are shown."""
        counts = self.logs.counts
        if counts.broken:
            out.note(f"{counts.broken:,} of {counts.lines:,} lines are no records of an access log:")
            for line in counts.examples:
                out.note(f"  {line.file}:{line.number}: {line.reason}: {line.text}")
        if counts.late:
            out.note(f"{counts.late:,} records came too late to be put in order; they count at the time before them")


def check_header(out: Reporter, clients: Clients) -> None:
    """Say how many requests lack the header field by which `--key` counts.

    Raises:
        ConfigurationError: All do.
    """
    if not clients.without_header:
        return
    if clients.without_header >= clients.requests:
        raise ConfigurationError(
            f"--key: no request of this log has a field {clients.header}; have the server log it, and name it with "
            "--log-format or --log-fields"
        )
    out.note(
        f"{clients.without_header:,} of {clients.requests:,} requests have no field {clients.header}; they count by "
        "address"
    )


def _moment_us(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(f"{name}: expected a moment such as {_AN_EXAMPLE}, not {quoted(text)}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)


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
        return check_token("header", name, "X-API-Key")
    if key != "ip":
        raise ConfigurationError(f"--key: expected ip or header:NAME, such as header:X-API-Key, not {quoted(key)}")
    return None


def share_of(text: str) -> float:
    """Return the part, 0 to 1, that a percentage is.

    Raises:
        ConfigurationError: It is none.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:
        raise ConfigurationError(
            f"--touch: expected a share of clients such as 0.1%, not {quoted(text)}{_as_percentage(text)}"
        )
    return float(match[1]) / 100


def _as_percentage(text: str) -> str:
    """Return the percentage that a fraction such as ``0.5`` probably means, as a question."""
    try:
        share = float(text)
    except ValueError:
        return ""
    return f"; did you mean '{share * 100:g}%'?" if 0 <= share <= 1 else ""
