"""The formats in which lists of networks come.

A parser takes the lines of a file and gives its entries: the line, the text of an address or network, and the moment
at which the entry ends where the format has one. Whether the text *is* a network is for others to say.

* ``plain``: an entry a line, which may be a range (``192.0.2.0 - 192.0.2.99``). Text behind ``#`` or ``;`` is a comment
  (netset files, Spamhaus DROP text), and further columns are not read (the score of IPsum), unless they look like a
  part of the entry: then the line is an error.
* ``jsonl``: an object with a ``cidr`` a line (Spamhaus DROP). Its last line says how many there are.
* ``csv``: the column named or numbered (from 1) by `column`; the first if none is.
* ``nginx``: ``deny`` directives. ``allow all`` is skipped; another ``allow`` is an exception, which a list has not.
* ``fail2ban``: the output of ``fail2ban-client get JAIL banip``, the same ``--with-time``, and ``banned``.
* ``crowdsec``: the output of ``cscli decisions list -o json`` or ``-o raw``: bans of addresses and ranges that
  are not simulated. The rest of a ban is counted from the moment when the file was written.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, TypeAlias

from ..core.errors import MOST_QUOTED, ConfigurationError, closest, quoted
from .ban_tools import COLUMNS, TIMED, Entry, crowdsec, fail2ban, read_json
from .ranges import begins_with_range, is_address, leading_entry, may_be_range

FORMATS: Final = ("auto", "plain", "jsonl", "csv", "nginx", "fail2ban", "crowdsec")

_ADDRESS: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}(/.*)?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:.*")
_HEADING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]*")
_DIRECTIVE: Final = re.compile(r"\s*+(deny|allow)\s++([^\s;]++)\s*+;")


def check_format(format: object, column: object) -> None:
    """Check the name of a format and the column of a CSV file.

    Raises:
        ConfigurationError: There is no such format, or it has no such column.
    """
    if format not in FORMATS:
        near = closest(format, FORMATS) if isinstance(format, str) else ""
        raise ConfigurationError(f"format: expected one of {', '.join(FORMATS)}, not {quoted(format)}{near}")
    if column is None:
        return
    if format not in ("auto", "csv"):
        raise ConfigurationError(f"column: only csv has columns, not format {format!r}")
    if isinstance(column, bool) or not isinstance(column, (str, int)) or column in ("", 0) or str(column)[0] == "-":
        raise ConfigurationError(f'column: expected a name or a number from 1, for example "ip", not {column!r}')


def read_entries(
    lines: Iterable[str], format: str, column: str | int | None, written_us: int, skipped: Counter[str]
) -> Iterator[Entry]:
    """Yield the entries of a file.

    Args:
        lines: The lines of the file.
        format: One of `FORMATS`; ``"auto"`` looks at the first line that says something.
        column: The column of a CSV file.
        written_us: When the file was written, in microseconds of Unix time.
        skipped: Counts what is left out, by cause.

    Raises:
        ConfigurationError: A line cannot be read; the message begins with its number.
    """
    if format == "auto":
        lines = iter(lines)
        head: list[str] = []
        for line in lines:
            head.append(line)
            if line.strip() and line.lstrip()[0] not in "#;":
                break
        lines = chain(head, lines)
        format = "csv" if column is not None else _guess(head[-1].strip()) if head else "plain"
    if format == "csv":
        return _csv(lines, column)
    if format == "crowdsec":
        return crowdsec(lines, written_us, skipped)
    return _PARSERS[format](lines, skipped)


def _guess(line: str) -> str:
    """Return the format of a file, given its first line that says something."""
    if line.startswith("{"):
        return "jsonl"
    if line.startswith("["):
        return "fail2ban" if line.startswith("[{'") else "crowdsec"
    if line == "null" or line.startswith(COLUMNS):
        return "crowdsec"
    if _DIRECTIVE.match(line):
        return "nginx"
    words = line.split()
    if (len(words) == 2 and may_be_range(*words)) or begins_with_range(line):
        return "plain"  # which reads it, or says that it may be a range
    if TIMED.fullmatch(line) or (len(words) > 1 and all(map(_ADDRESS.fullmatch, words))):
        return "fail2ban"
    return "csv" if "," in line.partition("#")[0].partition(";")[0] else "plain"


def _plain(lines: Iterable[str], skipped: Counter[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        text, _, comment = line.partition("#")[0].partition(";")
        text = text.strip()
        if text:
            if is_address(comment.partition(";")[0].strip()):
                raise ConfigurationError(
                    f"line {number}: expected a comment behind the semicolon, and no address: {quoted(line.strip())}"
                )
            try:
                yield number, leading_entry(text), None
            except ConfigurationError as error:
                raise ConfigurationError(f"line {number}: {error}") from None


def _jsonl(lines: Iterable[str], skipped: Counter[str]) -> Iterator[Entry]:
    count = 0
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        found = read_json(text, number)
        if isinstance(found, dict) and isinstance(found.get("cidr"), str):
            count += 1
            yield number, found["cidr"], None
        elif not isinstance(found, dict) or found.get("type") != "metadata":
            raise ConfigurationError(
                f'line {number}: expected an object with a cidr, for example {{"cidr": "192.0.2.0/24"}}, '
                f"not {quoted(text)}"
            )
        elif found.get("records", count) != count:
            raise ConfigurationError(
                f"line {number}: expected {quoted(found['records'])} records, but there are {count}"
            )


def _csv(lines: Iterable[str], column: str | int | None) -> Iterator[Entry]:
    rows = csv.reader(lines, strict=True)
    place = column - 1 if isinstance(column, int) else 0 if column is None else -1
    first = True
    try:
        for row in rows:
            if not any(row) or row[0].lstrip().startswith("#"):
                continue
            if place < 0:
                names = [name.strip() for name in row]
                if column not in names:
                    raise ConfigurationError(
                        f"line {rows.line_num}: expected a column named {column!r}, not one of "
                        f"{', '.join(names)[:MOST_QUOTED]}"
                    )
                place = names.index(column)
            elif place >= len(row):
                raise ConfigurationError(
                    f"line {rows.line_num}: expected {place + 1} columns, but there are {len(row)}"
                )
            elif column is None and len(row) > 1 and is_address(row[0].strip()) and is_address(row[1].strip()):
                raise ConfigurationError(
                    f"line {rows.line_num}: two addresses may be the ends of a range: {quoted(', '.join(row))}; write "
                    f"{row[0].strip()} - {row[1].strip()} in one column, or name the column that is meant"
                )
            elif not first or not _HEADING.fullmatch(row[place].strip()):
                yield rows.line_num, row[place].strip(), None
            first = False
    except csv.Error as error:
        raise ConfigurationError(f"line {rows.line_num}: not CSV: {error}") from None


def _nginx(lines: Iterable[str], skipped: Counter[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].rstrip()
        place = 0
        while place < len(text):
            found = _DIRECTIVE.match(text, place)
            if found is None:
                raise ConfigurationError(
                    f"line {number}: expected deny, for example deny 192.0.2.0/24; not {quoted(text[place:])}"
                )
            word, value = found.groups()
            place = found.end()
            if value == "unix:" or (word, value) == ("allow", "all"):
                skipped[f"{word} {value}"] += 1
            elif word == "allow":
                raise ConfigurationError(
                    f"line {number}: allow {value[:MOST_QUOTED]} is an exception, which a list of networks has not; "
                    "put it into the allowlist"
                )
            elif value == "all":
                raise ConfigurationError(f"line {number}: deny all would refuse everyone; leave it out")
            else:
                yield number, value, None


_Parser: TypeAlias = Callable[[Iterable[str], Counter[str]], Iterator[Entry]]
_PARSERS: Final[dict[str, _Parser]] = {"plain": _plain, "jsonl": _jsonl, "nginx": _nginx, "fail2ban": fail2ban}
