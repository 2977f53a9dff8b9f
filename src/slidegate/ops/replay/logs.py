"""Reads access logs: when which client requested what, and the status of the response.

Each line is read by itself, because concatenated files mix formats:

* Combined and Common, also with more in front or behind: ``ADDRESS IDENT USER [TIME] "REQUEST" STATUS ...``. The time
  is what stands in brackets before the request, the client the first address before the time.
* The log of uvicorn, if a time stands in front: ``TIME ... ADDRESS:PORT - "REQUEST" STATUS``.
* JSON of nginx and Traefik.
* Any line, by a regular expression with named groups.

Log content is untrusted and never raises: a line becomes a record, or the reason why it does not. Each pattern matches
a text in one way only, so a hostile line cannot make it slow.

Memory use is constant, whatever files contain. A file is only roughly in order, because servers write a line when the
response is complete, and some log the start of the request. So the records of each file are sorted within a buffer, and
the files are then merged by time.
"""

from __future__ import annotations

import gzip
import heapq
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from ...core import ConfigurationError, parse_address
from ...core.errors import quoted
from ...core.logs import escaped

BUFFERED: Final = 32_768
"""The number of records buffered for sorting; several files share it."""
MAX_LINE_BYTES: Final = 65_536  # nginx reads at most four header buffers of 8 KiB
MAX_SHOWN: Final = 160
STANDARD_INPUT: Final = "-"
NO_REQUEST: Final = "it contains no request of an access log"
NO_TIME: Final = "it contains no time"
ODD_TIME: Final = (
    "its time cannot be read (expected 12/May/2024:00:00:17 +0000, 2024-05-12T00:00:17Z or 1715472017.5, for example)"
)
_NGINX: Final = {
    "time": "msec time_iso8601 time_local",
    "client": "remote_addr",
    "request": "request",
    "method": "request_method",
    "path": "request_uri uri",
    "status": "status",
    "headers": "http_",
}
"""Where JSON has the parts of a record: the names of fields, of which the first that is given counts. Of header fields
it is how their names begin."""
_TRAEFIK: Final = {
    "time": "StartUTC",
    "client": "ClientHost",
    "method": "RequestMethod",
    "path": "RequestPath",
    "status": "DownstreamStatus",
    "headers": "request_",
}
_MAX_TIME_S: Final = 253_402_300_800  # the year 10000
_MAX_TIME: Final = 64  # no time is longer
# No group is possessive: CPython before 3.11.5 matches such groups incorrectly.
_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*)"'
_REQUEST_AND_STATUS: Final = re.compile(rf"{_QUOTED} ([0-9]{{3}})(?= |$)(?: \S++ {_QUOTED} {_QUOTED}(?= |$))?")
_REQUEST_LINE: Final = re.compile(r"([A-Za-z][\w-]*+) (\S++) (?:HTTP/)?[0-9](?:\.[0-9])?", re.ASCII)
_STATUS: Final = re.compile(r"[0-9]{1,3}")
_PORT: Final = re.compile(":[0-9]+$")
_ODD_ZONE: Final = re.compile(":.*[+-][0-9]{2}:?[6-9][0-9]$")
_TIME_BEGINS: Final = re.compile("[0-9]|[A-Z][a-z]{2} [A-Z][a-z]{2} ")
_ISO_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?: ?[+-][0-9]{2}:?[0-9]{2}|Z)?"
)


class AccessRecord(NamedTuple):
    """One logged request.

    Attributes:
        time_us: The time of the request, in microseconds since 1970 UTC.
        client: The address of the client, without a port.
        method: The HTTP method; empty if the client did not send an HTTP request.
        path: The logged request target with its query; without a method, the text logged instead of a request.
        status: The status of the response; 0 if none is logged.
        headers: The logged header fields of the request: (lower-case name, value).
    """

    time_us: int
    client: str
    method: str
    path: str
    status: int
    headers: tuple[tuple[str, str], ...] = ()


Parsed: TypeAlias = AccessRecord | str
"""A record, or the reason why a line has none."""


def parse_line(text: str) -> Parsed:
    """Parse a line in one of the known formats."""
    if text.startswith("{"):
        return _parse_json(text)
    # A user name may contain anything but an unescaped quotation mark, so the first of these ends the time.
    before, bracket, behind = text.partition('] "')
    before, _, time = before.rpartition("[")
    if not bracket or not _TIME_BEGINS.match(time):
        before, _, behind = text.partition(' - "')
        # Kubernetes and others write a time in front; the last one is that of the server.
        time = next(reversed(_ISO_TIME.findall(before)), "")
        before = _PORT.sub("", before)  # uvicorn writes one behind each address, of IPv6 without brackets
    match = _REQUEST_AND_STATUS.match(f'"{behind}')
    if match is None:
        return NO_REQUEST
    request, status, referer, agent = match.groups()
    client = next(filter(None, map(address_in, before.split())), None)
    return _record(time, client, _request_of(request), status, {"referer": referer, "user-agent": agent})


def address_in(word: str) -> str | None:
    """Return the address in a word, without a port, brackets, quotation marks, and what precedes a comma.

    So of a list from X-Forwarded-For it is the last one, which the nearest proxy has added.
    """
    word = word.rpartition(",")[2].strip(' "')
    bare = word.removeprefix("[").partition("]")[0]
    for address in (bare, bare.rpartition(":")[0]):
        if parse_address(address) is not None:
            return address
    return None


def line_parser(regex: str | None = None) -> Callable[[str], Parsed]:
    """Return a function that parses the text of a line; by default `parse_line`.

    Args:
        regex: A regular expression that is searched in each line. Its named groups are ``time``, ``client``,
            ``request`` or ``method`` and ``path``, and optionally ``status`` and ``header_NAME``.

    Raises:
        ConfigurationError: The regular expression is invalid, or a required group is missing.
    """
    if regex is None:
        return parse_line
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ConfigurationError(f"{quoted(regex)} is no regular expression: {error}", "regex") from None
    groups = pattern.groupindex
    if not ({"time", "client"} <= groups.keys() and {"request", "path"} & groups.keys()):
        expected = "(?P<time>...), (?P<client>...) and (?P<request>...) or (?P<path>...)"
        raise ConfigurationError(f"expected groups {expected}, not {quoted(regex)}", "regex")
    # Each part of a record is in the group of its name.
    fields = dict(zip(groups, groups, strict=True)) | {"headers": "header_"}

    def parse(text: str) -> Parsed:
        match = pattern.search(text)
        if match is None:
            return NO_REQUEST
        return _record_of_fields(match.groupdict(), fields)

    return parse


def _parse_json(text: str) -> Parsed:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return "it is not a valid JSON object"
    if "StartUTC" in line:
        return _record_of_fields(line, _TRAEFIK)
    return _record_of_fields(line, _NGINX)


def _record_of_fields(line: Mapping[str, Any], fields: Mapping[str, str]) -> Parsed:
    """Return the record of a line with named fields, given in which of them each part is."""
    values = {part: _first_given(line, names) for part, names in fields.items()}
    request = "", "-"
    if values.get("request"):
        request = _request_of(values["request"])
    elif values.get("path"):
        request = values.get("method") or "GET", values["path"]
    prefix = fields["headers"]
    headers = {name.removeprefix(prefix): value for name, value in line.items() if name.startswith(prefix)}
    return _record(values["time"], address_in(values["client"]), request, values.get("status", "0"), headers)


def _first_given(line: Mapping[str, Any], names: str) -> str:
    """Return the first field that has a value; servers write ``-`` for none."""
    for name in names.split():
        value = line.get(name)
        if value not in (None, "", "-"):
            return str(value)
    return ""


def _request_of(text: str) -> tuple[str, str]:
    """Split a request line into method and target; the method is empty if it is not an HTTP request."""
    match = _REQUEST_LINE.fullmatch(text)
    if match is None:
        return "", text
    return match[1], match[2]


def _record(
    time: str, client: str | None, request: tuple[str, str], status: str, headers: Mapping[str, object]
) -> Parsed:
    """Return the record of these parts, or why there is none."""
    if client is None:
        return "it contains no address of a client"
    if not time:
        return NO_TIME
    time_us = time_us_of(time)
    if time_us is None:
        return ODD_TIME
    if _STATUS.fullmatch(status) is None:
        return "it contains no status"
    fields: dict[str, str] = {}
    for name, value in headers.items():
        if isinstance(value, str) and value not in ("", "-"):
            fields[name.lower().replace("_", "-")] = value
    return AccessRecord(time_us, client, *request, int(status), tuple(fields.items()))


@lru_cache(maxsize=1_024)
def time_us_of(text: str) -> int | None:
    """Parse a time of Common, of ISO 8601, of `ctime`, or a number of seconds; return None for any other text.

    A time without a zone counts as UTC: limits depend on differences of times alone.
    """
    if len(text) > _MAX_TIME or _ODD_ZONE.search(text):
        return None
    try:
        if "/" in text:  # Common, and HAProxy with milliseconds
            text = f"{datetime.strptime(text[:20], '%d/%b/%Y:%H:%M:%S')}{text[20:]}"
        elif text[:1].isalpha():  # uWSGI
            text = str(datetime.strptime(text, "%a %b %d %H:%M:%S %Y"))
        if text.replace(".", "", 1).isdecimal():
            time_s = float(text)
        else:
            moment = datetime.fromisoformat(re.sub(" (?=[+-])", "", text))
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            time_s = moment.timestamp()
    except ValueError:
        return None
    if 0 <= time_s < _MAX_TIME_S:
        return round(time_s * 1_000_000)
    return None


# -- files -------------------------------------------------------------------------------------------------------------


class AccessLogs:
    """The records of several files in chronological order, read lazily, once.

    Records that are out of order by up to 32,768 lines, in several files by their share of it, are sorted; later ones
    are yielded as they come, and counted.

    Args:
        names: The files, plain or compressed with gzip; ``-`` is standard input.
        regex: As for `line_parser`.

    Attributes:
        lines: Lines read so far that are not empty. Damaged gzip data counts as one.
        unreadable: How many of these lines are no records.
        late: Records yielded after a record of a later time.
        example: The first unreadable line, with its file, number and reason, safe to display.

    Raises:
        ConfigurationError: The regular expression is invalid.
        OSError: While iterating: a file is missing or cannot be read.
    """

    def __init__(self, names: Sequence[str], regex: str | None = None) -> None:
        self.lines = self.unreadable = self.late = 0
        self.example = ""
        self._names = names
        self._parse = line_parser(regex)

    def __iter__(self) -> Iterator[AccessRecord]:
        latest_us = 0
        for record in heapq.merge(*map(self._in_order, self._names), key=attrgetter("time_us")):
            self.late += record.time_us < latest_us
            latest_us = max(latest_us, record.time_us)
            yield record

    def _in_order(self, name: str) -> Iterator[AccessRecord]:
        """Yield the records of a file in order, as far as none is late by more lines than are buffered."""
        heap = list[tuple[int, int, AccessRecord]]()  # by time; those of one moment as they come
        most = max(BUFFERED // len(self._names), 1)
        for number, record in enumerate(self._records(name)):
            heapq.heappush(heap, (record.time_us, number, record))
            if len(heap) > most:
                yield heapq.heappop(heap)[2]
        for _, _, record in sorted(heap):
            yield record

    def _records(self, name: str) -> Iterator[AccessRecord]:
        """Yield the records of a file as they come, and count its lines."""
        for number, line in enumerate(_lines(name), 1):
            text = line.decode("utf-8-sig", "replace").strip()
            if not text:
                continue
            self.lines += 1
            record = self._parse(text)
            if isinstance(record, AccessRecord):
                yield record
                continue
            self.unreadable += 1
            if not self.example:
                where = f"line {number} of '{escaped(name, MAX_SHOWN)}'"
                self.example = f"{where}: {record}: {escaped(text, MAX_SHOWN)}"


def _lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a file, each cut to `MAX_LINE_BYTES`."""
    opened: str | int = name
    if name == STANDARD_INPUT:
        opened = 0  # its descriptor
    with open(opened, "rb", closefd=name != STANDARD_INPUT) as raw:
        file: Any = raw
        if raw.peek(2).startswith(b"\x1f\x8b"):
            file = gzip.GzipFile(fileobj=raw)
        try:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
                while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):  # the rest could pass for a line
                    line = file.readline(MAX_LINE_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            yield b"(the compressed data is damaged)"
