"""The options of commands that read access logs, and the reading itself with a progress bar."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final

import click

from ..core.errors import ConfigurationError, quoted
from ..core.logs import escaped
from ..logs import AccessLogs, AccessRecord
from ..logs.formats import MAX_TIME_US
from ..simulation.clients import Clients
from .output import failed, note, time_of

_EVERY: Final = 2_048
"""The number of records between two updates of the progress bar."""
_SHARE: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
_AN_EXAMPLE: Final = "2026-03-03T10:00:00+00:00"
_MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])


def with_logs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for reading logs to a command, as one parameter `logs`."""

    @click.argument("log", nargs=-1, required=True)
    @click.option("--key", default="ip", show_default=True, metavar="KEY", help="What to count by: ip or header:NAME.")
    @click.option("--log-format", metavar="FORMAT", help="The nginx format string of a custom log.")
    @click.option("--log-fields", metavar="JSON", help='Fields of JSON lines: {"time": "ts", "client": "ip", ...}.')
    @click.option("--since", metavar="TIME", type=_MOMENT, help=f"Skip requests before this time: {_AN_EXAMPLE}.")
    @click.option("--until", metavar="TIME", type=_MOMENT, help="Skip requests from this time on.")
    @wraps(command)
    def called(
        log: tuple[str, ...],
        key: str,
        log_format: str | None,
        log_fields: str | None,
        since: datetime | None,
        until: datetime | None,
        **options: Any,
    ) -> Any:
        clients = Clients(_header_of(key))
        records = AccessLogs(log, format=log_format, fields=_fields(log_fields))
        logs = Logs(log, records, clients, _unix_us(since, 0), _unix_us(until, MAX_TIME_US))
        return command(logs=logs, **options)

    return called


@dataclass
class Logs:
    """The logs that a command reads.

    Attributes:
        names: The files as given; ``-`` is standard input.
        records: The records of the files.
        clients: The clients of the selected time, identified as `--key` says; the command adds their requests.
        since_us: The start of the selected time, inclusive, in microseconds of Unix time.
        until_us: The end of the selected time, exclusive.
    """

    names: tuple[str, ...]
    records: AccessLogs
    clients: Clients
    since_us: int
    until_us: int

    def read(self, subject: str, add: Callable[[AccessRecord], object]) -> None:
        """Pass the records of the selected time to a function, with a progress bar.

        Args:
            subject: The label of the progress bar.
            add: Called with each record.

        Raises:
            click.ClickException: The files have no record, none in the selected time, or no HTTP request.
        """
        first_us, last_us, kept, requests = MAX_TIME_US, 0, 0, 0
        size_bytes = self.records.size_bytes
        hidden = size_bytes is None or sys.stderr is None or not sys.stderr.isatty()
        bar: Any
        with click.progressbar(length=size_bytes or 1, label=subject, file=sys.stderr, hidden=hidden) as bar:
            try:
                for number, record in enumerate(self.records, 1):
                    if not number % _EVERY:
                        bar.update(self.records.taken_bytes - bar.pos)
                    first_us, last_us = min(first_us, record.time_us), max(last_us, record.time_us)
                    if self.since_us <= record.time_us < self.until_us:
                        kept += 1
                        requests += record.method != ""
                        add(record)
            except ConfigurationError as error:
                raise failed(error) from error
        if not self.records.counts.records:
            raise click.ClickException(self._no_records())
        if not kept:
            covered = f"{time_of(first_us / 1_000_000)} to {time_of(last_us / 1_000_000)}"
            raise click.ClickException(f"no request is between --since and --until; the log covers {covered}")
        if not requests:
            raise click.ClickException(f"none of {kept:,} records is an HTTP request")

    def _no_records(self) -> str:
        counts = self.records.counts
        name = f"'{escaped(self.names[0], 300)}'" if len(self.names) == 1 else f"the {len(self.names)} files"
        if not counts.broken:
            return f"{name}: the log is empty"
        line = counts.examples[0]
        return (
            f"{name}: none of {counts.lines:,} lines is a record of an access log; line {line.number} of "
            f"'{line.file}': {line.reason}: {line.text}; for a custom format, use --log-format or --log-fields"
        )

    def note_omissions(self) -> None:
        """Write to stderr how many lines were skipped, with up to three examples, and how many requests lack the key.

        Raises:
            click.ClickException: All requests lack the header field of `--key`.
        """
        counts, clients = self.records.counts, self.clients
        if counts.broken:
            note(f"{counts.broken:,} of {counts.lines:,} lines are not records of an access log:")
            for line in counts.examples:
                note(f"  {line.file}:{line.number}: {line.reason}: {line.text}")
        if counts.late:
            note(f"{counts.late:,} records are too far out of order; each counts at the time of the record before it")
        if 0 < clients.without_header == clients.requests:
            raise click.ClickException(
                f"--key: no request in this log has the header {clients.header}; configure the server to log it, and "
                "name it with --log-format or --log-fields"
            )
        if clients.without_header:
            lacking = f"{clients.without_header:,} of {clients.requests:,} requests"
            note(f"{lacking} have no header {clients.header}; they count by address")


def _unix_us(moment: datetime | None, otherwise_us: int) -> int:
    if moment is None:
        return otherwise_us
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1_000_000)


def _fields(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ConfigurationError(
            'expected field names as a JSON object, such as {"time": "ts", "client": "ip", "status": "code", '
            f'"request": "line"}}, not {quoted(text)}'
        )
    return fields


def _header_of(key: str) -> str | None:
    """Return NAME for ``header:NAME``, and None for ``ip``.

    Raises:
        ConfigurationError: `key` is neither.
    """
    kind, colon, name = key.partition(":")
    if kind == "header" and colon:
        return name
    if key != "ip":
        raise ConfigurationError(f"--key: expected ip or header:NAME, such as header:X-API-Key, not {quoted(key)}")
    return None


def share_of(text: str) -> float:
    """Convert a percentage to a number from 0 to 1.

    Raises:
        ConfigurationError: `text` is not a percentage.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:
        raise ConfigurationError(f"--touch: expected a share of clients in percent, such as 0.1%, not {quoted(text)}")
    return float(match[1]) / 100
