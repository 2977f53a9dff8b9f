"""One request as an access log holds it, and what became of the lines that hold none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ..core.logs import escaped

# nginx reads at most four header buffers of 8 KiB, so a line with every header in it stays below this.
MAX_LINE_BYTES: Final = 65_536
MAX_EXAMPLES: Final = 3
MAX_EXAMPLE_CHARACTERS: Final = 160


class Skip(StrEnum):
    """Why a line is no record."""

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
    """One request as a log holds it."""

    time_us: int
    """The time of the request, in microseconds since 1970 UTC."""
    client: str
    """The client: an address, or a host name where the server resolves names."""
    method: str
    """The HTTP method; empty if the client sent something that is no HTTP request."""
    path: str
    """The request's target with its query, as it was logged; without a method, the text logged in its place."""
    status: int
    """The status of the answer; 0 if the server logged that there was none."""
    user_agent: str | None = None
    host: str | None = None
    """The host that was asked, or the virtual host that answered, without its port."""
    headers: tuple[tuple[str, str], ...] = ()
    """Header fields of the request that the log holds besides: pairs of a name in lower case and a value."""

    def header(self, name: str) -> str | None:
        """Return a header field of the request; None if the log does not hold it.

        Args:
            name: Its name, in upper or lower case.
        """
        name = name.lower()
        if name == "user-agent":
            return self.user_agent
        if name == "host":
            return self.host
        return next((value for field, value in self.headers if field == name), None)


class BrokenLine(NamedTuple):
    """A line that could not be read, as it is shown to people."""

    file: str
    """The name of the file; ``-`` for standard input."""
    number: int
    """The number of the line, from 1 on."""
    reason: Skip
    text: str
    """Its beginning, at most 160 printable characters."""


@dataclass
class LogCounts:
    """How many lines there were so far, and the fate of each; `lines` is the sum of `records` and `skipped`.

    Attributes:
        lines: Lines read. Data that is damaged counts as one.
        records: Lines that hold a request.
        skipped: Lines that do not, by reason.
        late: Records that were handed on after one of a later time.
        examples: At most three broken lines.
    """

    lines: int = 0
    records: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)
    late: int = 0
    examples: list[BrokenLine] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """Lines that hold no request and should: all that were skipped but empty ones."""
        return self.skipped.total() - self.skipped[Skip.EMPTY]

    def skip(self, reason: Skip, file: str, number: int, line: bytes) -> None:
        """Count a line that is no record; the first broken ones are kept as examples."""
        self.skipped[reason] += 1
        if reason is not Skip.EMPTY and len(self.examples) < MAX_EXAMPLES:
            text = line[: 4 * MAX_EXAMPLE_CHARACTERS].decode(errors="replace").rstrip("\r\n")
            self.examples.append(
                BrokenLine(escaped(file, MAX_EXAMPLE_CHARACTERS), number, reason, escaped(text, MAX_EXAMPLE_CHARACTERS))
            )
