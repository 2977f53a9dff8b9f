"""One request as an access log tells it, and the reasons for which a line is none."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

# nginx reads at most four header buffers of 8 KiB, so a line with every header in it stays below this.
MAX_LINE_BYTES: Final = 65_536


class Skip(StrEnum):
    """Why a line is no record."""

    EMPTY = "empty line"
    HEADER = "header line"
    BINARY = "binary data"
    TOO_LONG = "line too long"
    FORMAT = "not an access record"
    JSON = "broken JSON"
    CLIENT = "no client"
    TIME = "unreadable time"
    STATUS = "no status"
    GZIP = "damaged gzip data"
    ZSTD = "damaged zstd data"
    BOMB = "packed data that unpacks to far more than any log"


HARMLESS: Final = frozenset({Skip.EMPTY, Skip.HEADER})
"""Lines that a log has by right, though they hold no request."""


class AccessRecord(NamedTuple):
    """One request as a log tells it."""

    time_us: int
    """The time of the request, in microseconds since 1970 UTC."""
    client: str
    """The client: an address, or a host name where the server looks names up."""
    method: str
    """The HTTP method; empty if the client sent something that is no HTTP request."""
    path: str
    """The request's target with its query, as it was logged; without a method, the text logged in its place."""
    status: int
    """The status of the answer; 0 if the server logged that there was none."""
    user_agent: str | None
    host: str | None = None
    """The host that was asked, or the virtual host that answered, without its port."""
    referer: str | None = None
    sent_bytes: int | None = None
    """How large the answer was: its body alone, or with its header fields, as the format has it."""
    duration_us: int | None = None
    """How long the request took, in microseconds."""
    headers: tuple[tuple[str, str], ...] = ()
    """Header fields of the request that the log holds besides: pairs of a name in lower case and a value."""

    def header(self, name: str) -> str | None:
        """Return a header field of the request; None where the log does not hold it.

        Args:
            name: Its name, in upper or lower case.
        """
        name = name.lower()
        if name == "user-agent":
            return self.user_agent
        if name == "referer":
            return self.referer
        if name == "host":
            return self.host
        return next((value for field, value in self.headers if field == name), None)
