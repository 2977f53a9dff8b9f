"""Reads one line of an access log, whichever known format it has.

The format is found anew for every line, because rotated files are concatenated and formats change on the way. The
prefix that syslog writes in front of a line is left out. A log is written by strangers: each line becomes a record or
the reason for which it is none, and no line raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from ..core.errors import ConfigurationError, quoted
from .access_record import MAX_LINE_BYTES, AccessRecord, Skip
from .formats.balancer_logs import parse_balancer
from .formats.clf import parse_clf, parse_ordinary
from .formats.format_strings import parse_by_format
from .formats.json_logs import parse_by_fields, parse_json
from .formats.w3c_logs import DIRECTIVES, parse_w3c

Names: TypeAlias = tuple[str, ...]
"""The names of the fields that the last header line of a file gave; empty where there was none."""

_BOM: Final = b"\xef\xbb\xbf"
# As nginx writes to syslog, and as syslog writes to files: RFC 3164 with or without a host, RFC 5424, ISO times.
_SYSLOG: Final = re.compile(
    r"(?:<[0-9]{1,3}>)?(?:1 )?"
    r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9:]{4,6})) "
    r"(?:(?:[^\s:\[]{1,255} )?[\w./-]{1,64}(?:\[[0-9]{1,10}\])?:|[^\s:]{1,255} [\w./-]{1,64} \S{1,10} \S{1,32} -) ",
    re.ASCII,
)


class LineParser:
    """Reads lines of one format, or of every known one.

    Args:
        format: The format string of nginx or Apache; None for the known formats.
        fields: For JSON lines of any other kind the names of their fields, as `parse_by_fields` takes them.

    Raises:
        ConfigurationError: The format or the fields cannot be used, or both are given.
    """

    def __init__(self, format: str | None = None, fields: Mapping[str, str] | None = None) -> None:
        if format is not None and fields is not None:
            raise ConfigurationError(
                f"expected a format or fields, not both: format {quoted(format)} and fields {quoted(dict(fields))}"
            )
        self.is_custom = format is not None or fields is not None
        self._custom: Callable[[str], AccessRecord | Skip] | None = None
        if format is not None:
            self._custom = parse_by_format(format)
        elif fields is not None:
            self._custom = parse_by_fields(fields)

    def parse(self, line: bytes, names: Names = ()) -> AccessRecord | Skip:
        """Read one line.

        Args:
            line: The line, with or without its end.
            names: The fields that the last header line in front of it named.
        """
        if len(line) <= MAX_LINE_BYTES and not names and self._custom is None:
            found = parse_ordinary(line.decode(errors="replace"))
            # A line with a NUL is binary, wherever the NUL stands.
            if found is not None and b"\0" not in line:
                return found
        if len(line.removesuffix(b"\n")) > MAX_LINE_BYTES:
            return Skip.TOO_LONG
        line = line.removeprefix(_BOM).strip(b" \r\n\v\f" if names else None)
        if not line or line.isspace():
            return Skip.EMPTY
        if b"\0" in line:
            return Skip.BINARY
        text = line.decode(errors="replace")
        if text.startswith(DIRECTIVES):
            return Skip.HEADER
        return self._parse_text(text, names)

    def _parse_text(self, text: str, names: Names) -> AccessRecord | Skip:
        prefix = _SYSLOG.match(text)
        if self._custom is not None:
            found = self._custom(text[prefix.end() :]) if prefix else Skip.FORMAT
            return self._custom(text) if isinstance(found, Skip) else found
        if names:
            found = parse_w3c(text, names)
            if found is not Skip.FORMAT:
                return found
        text = text[prefix.end() :] if prefix else text
        if text[:1] == "{":
            return parse_json(text)
        found = parse_clf(text)
        return parse_balancer(text) if found is Skip.FORMAT else found


_KNOWN: Final = LineParser()


def parse_line(line: bytes) -> AccessRecord | Skip:
    """Read one line of any known format that needs no header line."""
    return _KNOWN.parse(line)
