"""The record of one logged request, and the counts of parsed and skipped lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ..core.logs import escaped

# nginx reads at most four header buffers of 8 KiB, so a line that contains all header fields is shorter.
MAX_LINE_BYTES: Final = 65_536
MAX_EXAMPLES: Final = 3
MAX_EXAMPLE_CHARACTERS: Final = 160


class Skip(StrEnum):
    """The reason a line was skipped."""

    EMPTY = "empty line"
    BINARY = "binary data"
    TOO_LONG = "line too long"
    FORMAT = "not an access record"
    JSON = "broken JSON"
    CLIENT = "no client"
    TIME = "unreadable time"
    STATUS = "no status"
    GZIP = "damaged gzip data"


class AccessRecord(NamedTuple):
    """One logged request."""

    time_us: int
    """The time of the request, in microseconds since 1970 UTC."""
    client: str
    """The client: an address, or a host name if the server resolves names."""
    method: str
    """The HTTP method; empty if the client did not send an HTTP request."""
    path: str
    """The logged request target with its query; without a method, the text logged instead of a request."""
    status: int
    """The status of the response; 0 if the server logged none."""
    user_agent: str | None = None
    host: str | None = None
    """The Host of the request, or the virtual host that answered, without the port."""
    headers: tuple[tuple[str, str], ...] = ()
    """Other logged header fields of the request: (lower-case name, value)."""

    def header(self, name: str) -> str | None:
        """Return a header field of the request; None if it was not logged.

        Args:
            name: The name of the field, case-insensitive.
        """
        name = name.lower()
        if name == "user-agent":
            return self.user_agent
        if name == "host":
            return self.host
        return next((value for field, value in self.headers if field == name), None)


class BrokenLine(NamedTuple):
    """A line that could not be parsed, safe to display."""

    file: str
    """The name of the file; ``-`` for standard input."""
    number: int
    """The line number, starting at 1."""
    reason: Skip
    text: str
    """The beginning of the line, at most 160 printable characters."""


@dataclass
class LogCounts:
    """The lines read so far, by result; `lines` is the sum of `records` and `skipped`.

    Attributes:
        lines: Lines read. Damaged gzip data counts as one.
        records: Lines with a request.
        skipped: Lines without one, by reason.
        late: Records yielded after a record of a later time.
        examples: At most three broken lines.
    """

    lines: int = 0
    records: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)
    late: int = 0
    examples: list[BrokenLine] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """All skipped lines except empty ones."""
        return self.skipped.total() - self.skipped[Skip.EMPTY]

    def skip(self, reason: Skip, file: str, number: int, line: bytes) -> None:
        """Count a skipped line; the first broken ones are kept as examples."""
        self.skipped[reason] += 1
        if reason is not Skip.EMPTY and len(self.examples) < MAX_EXAMPLES:
            text = line[: 4 * MAX_EXAMPLE_CHARACTERS].decode(errors="replace").rstrip("\r\n")
            self.examples.append(
                BrokenLine(escaped(file, MAX_EXAMPLE_CHARACTERS), number, reason, escaped(text, MAX_EXAMPLE_CHARACTERS))
            )
