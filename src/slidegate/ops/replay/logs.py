"""Reads access logs: when which client requested what, and the status of the response.

Each line is read by itself, because concatenated files mix formats:

* Combined and Common, also with more in front or behind: ``ADDRESS IDENT USER [TIME] "REQUEST" STATUS ...``. The time
  is what stands in brackets before the request. `client_of` finds the client among the words before the time, whatever
  Kubernetes, Docker, syslog or journald has written in front.
* The logs of uvicorn and granian: ``TIME ... ADDRESS - "REQUEST" STATUS``.
* JSON of nginx, Caddy and Traefik, or with other names of fields; also within ``log`` or ``MESSAGE``, as Docker and
  journald store lines.
* Any line, by a regular expression with named groups.

Log content is untrusted and never raises: a line becomes a record, or the reason why it does not. Each pattern matches
a text in one way only, so a hostile line cannot make it slow. Memory use is constant, whatever a file contains.

A file is only roughly in order, because servers write a line when the response is complete, and some log the start of
the request. So the records of each file are sorted within a buffer, and the files are then merged.
"""

from __future__ import annotations

import gzip
import heapq
import io
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from os import PathLike
from typing import Any, Final, NamedTuple, TypeAlias, cast

from ...core import ConfigurationError, parse_address
from ...core.errors import closest, quoted
from ...core.logs import escaped

BUFFERED: Final = 32_768
"""The number of records buffered for sorting; several files share it."""
MAX_LINE_BYTES: Final = 65_536  # nginx reads at most four header buffers of 8 KiB
MAX_SHOWN: Final = 160
STANDARD_INPUT: Final = "-"
NO_CLIENT: Final = "it contains no address of a client"
NO_REQUEST: Final = "it contains no request of an access log"
NO_TIME: Final = "it contains no time"
PRESETS: Final = {
    "nginx": "time=msec|time_iso8601|time_local,client=remote_addr|http_x_real_ip|http_x_forwarded_for,request=request,"
    "method=request_method,path=request_uri|uri,query=args,status=status,headers=http_",
    "caddy": "time=ts,client=request.client_ip|request.remote_ip|request.remote_addr,method=request.method,"
    "path=request.uri,status=status,headers=request.headers",
    "traefik": "time=StartUTC|time,client=ClientHost,method=RequestMethod,path=RequestPath,"
    "status=DownstreamStatus|OriginStatus,headers=request_",
}
"""The fields of the JSON lines of servers, as `line_parser` takes them."""
_MARKS: Final = {"nginx": "remote_addr", "caddy": "request.uri", "traefik": "ClientHost"}
_PARTS: Final = ("time", "client", "request", "method", "path", "query", "status", "headers")
_US: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_TIME_US: Final = 253_402_300_800 * _US  # the year 10000
_MAX_WORD: Final = 64  # no address and no time is longer
_MAX_PREFIX: Final = 1_024
# No group is possessive: CPython before 3.11.5 matches such groups incorrectly.
_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*)"'
_REQUEST_AND_STATUS: Final = re.compile(rf"{_QUOTED} (\S++)(?= |$)(?: \S++ {_QUOTED} {_QUOTED}(?= |$))?")
_REQUEST_LINE: Final = re.compile(r"([A-Za-z][\w-]*+) (\S++) (?:HTTP/)?[0-9](?:\.[0-9])?", re.ASCII)
_ISO_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?: ?[+-][0-9]{2}:?[0-9]{2}|Z)?"
)
# RFC 5424 has a host and three fields in front of the message that may be "-", as an ident is.
_SYSLOG: Final = re.compile(r"(?:<[0-9]{1,3}>)?1 \S+ \S+ \S+ \S+ \S+ (?:-|(?:\[[^]]*\])+) ")
_MAGIC: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}


class AccessRecord(NamedTuple):
    """One logged request."""

    time_us: int
    """The time of the request, in microseconds since 1970 UTC."""
    client: str
    """The address of the client, without a port."""
    method: str
    """The HTTP method; empty if the client did not send an HTTP request."""
    path: str
    """The logged request target with its query; without a method, the text logged instead of a request."""
    status: int
    """The status of the response; 0 if none is logged."""
    headers: tuple[tuple[str, str], ...] = ()
    """The logged header fields of the request: (lower-case name, value)."""


Parsed: TypeAlias = AccessRecord | str
"""A record, or the reason why a line has none."""


# -- lines of text -----------------------------------------------------------------------------------------------------


def parse_line(text: str) -> Parsed:
    """Parse a line of text in one of the known formats."""
    if prefix := _SYSLOG.match(text):
        text = text[prefix.end() :]
    if text[:1] == "{":
        return _parse_json(text)
    # A user name may contain anything but an unescaped quotation mark, so the first of these ends the time.
    end = text.find('] "')
    start = text.rfind("[", 0, end) if end > 0 else -1
    if start >= 0 and text[start + 1].isdigit():
        return _record_of_text(text[start + 1 : end], client_of(text[:start].split()), text[end + 2 :])
    before, dash, after = text.partition(' - "')
    words = before[-_MAX_PREFIX:].split()
    if dash and words:
        # Kubernetes and others write a time in front; the last one is that of the server.
        times = _ISO_TIME.findall(before[-_MAX_PREFIX:])
        return _record_of_text(times[-1] if times else "", address_in(words[-1]), f'"{after}')
    return _parse_json(text[text.index("{") :]) if text[-1:] == "}" and "{" in text else NO_REQUEST


def _record_of_text(time: str, client: str | None, text: str) -> Parsed:
    """Return the record of a line from its time, its client and the text from the request on."""
    match = _REQUEST_AND_STATUS.match(text)
    if match is None:
        return NO_REQUEST
    request, status, referer, agent = match.groups()
    return _record(time, client, _request_of(request), status, {"referer": referer, "user-agent": agent})


def client_of(words: Sequence[str]) -> str | None:
    """Return the address of the client from the words before the time of a line; None if there is none.

    It is the last address, whatever stands in front of it or behind it; of a list from X-Forwarded-For the last one as
    well, which the nearest proxy has added. Clients choose their user names, which may look like addresses: so if an
    address has an ident of ``-`` behind it, the first such address is the client.
    """
    found = [(index, address) for index, word in enumerate(words) if (address := address_in(word)) is not None]
    before_ident = [address for index, address in found if words[index + 1 : index + 2] == ["-"]]
    return before_ident[0] if before_ident else found[-1][1] if found else None


def address_in(word: str) -> str | None:
    """Return the address in a word, without a port, brackets, quotation marks, and what precedes a comma."""
    word = word.rpartition(",")[2].strip(' "')
    return _address_in(word) if len(word) <= _MAX_WORD else None


@lru_cache(maxsize=4_096)
def _address_in(word: str) -> str | None:
    bare = word.removeprefix("[").partition("]")[0]
    if parse_address(bare) is not None:
        return bare
    host, _, port = bare.rpartition(":")
    return host if port.isdecimal() and parse_address(host) is not None else None


# -- JSON, and other formats -------------------------------------------------------------------------------------------


def line_parser(*, regex: str | None = None, fields: str | None = None) -> Callable[[str], Parsed]:
    """Return a function that parses the text of a line; by default `parse_line`.

    Args:
        regex: A regular expression that is searched in each line. Its named groups are ``time``, ``client``,
            ``request`` or ``method`` and ``path``, and optionally ``query``, ``status`` and ``header_NAME``.
        fields: For JSON lines, ``"nginx"``, ``"caddy"``, ``"traefik"``, or the fields of these parts:
            ``"time=ts,client=http.ip,path=uri,status=code"``, with dots below objects and ``|`` between alternatives.
            ``headers`` is an object of header fields, or what the names of such fields begin with.

    Raises:
        ConfigurationError: An argument is invalid, or a required part is missing.
    """
    if regex is not None and fields is not None:
        raise ConfigurationError("expected regex or fields, not both")
    if fields is not None:
        named = _fields_of(fields)
        return lambda text: _parse_json(text[text.find("{") :], named)
    if regex is None:
        return parse_line
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise ConfigurationError(f"{quoted(regex)} is no regular expression: {error}", "regex") from None
    groups = [name for name in pattern.groupindex if not name.startswith("header_")]
    parts = _fields_of(",".join(f"{name}={name}" for name in groups), "regex") | {"headers": ["header_"]}
    return lambda text: _record_of_fields(match.groupdict(), parts) if (match := pattern.search(text)) else NO_REQUEST


@lru_cache
def _fields_of(text: str, option: str = "fields") -> dict[str, list[str]]:
    """Return the names of fields by part, as `line_parser` takes them."""
    example = (
        ", ".join(PRESETS) + ' or "time=ts,client=http.ip,path=uri"' if option == "fields" else "groups (?P<time>...)"
    )
    expected = f"{example} (parts are {', '.join(_PARTS)})"
    pairs = [pair.partition("=") for pair in PRESETS.get(text, text).split(",")]
    fields = {part.strip(): names.strip().split("|") for part, _, names in pairs}
    for part, names in fields.items():
        if part not in _PARTS or "" in names:
            raise ConfigurationError(
                f"expected {expected}, not {quoted(part)}{closest(part, (*_PARTS, *PRESETS))}", option
            )
    if not ({"time", "client"} <= fields.keys() and {"request", "path"} & fields.keys()):
        raise ConfigurationError(
            f"expected {expected}, with time, client, and request or path, not {quoted(text)}", option
        )
    return fields


def _parse_json(text: str, fields: Mapping[str, list[str]] | None = None) -> Parsed:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        return "it is not a valid JSON object"
    fitting = [name for name, mark in _MARKS.items() if _below(line, mark) is not None]
    stored = line.get("log") or line.get("MESSAGE")
    if fields is None and not fitting and isinstance(stored, str):
        return parse_line(stored.strip())
    # Caddy logs a failed request a second time, as an error.
    if not str(line.get("logger", "http.log.access")).startswith("http.log.access") and "caddy" in fitting:
        return NO_REQUEST
    if fields is None and len(fitting) != 1:
        return NO_REQUEST
    return _record_of_fields(line, fields or _fields_of(PRESETS[fitting[0]]))


def _record_of_fields(line: Mapping[str, Any], fields: Mapping[str, list[str]]) -> Parsed:
    values = {part: _first_given(line, names) for part, names in fields.items() if part != "headers"}
    request, path, query = values.get("request"), values.get("path"), values.get("query")
    method = values["method"] if "method" in fields else "GET"
    if isinstance(request, str):
        target = _request_of(request)
    elif isinstance(path, str):
        whole = path if not query or "?" in path else f"{path}?{query}"
        target = method if _REQUEST_LINE.fullmatch(f"{method} / 1") else "", whole
    elif request is None and path is None:
        target = "", "-"
    else:
        return NO_REQUEST
    address = address_in(values["client"]) if isinstance(values["client"], str) else None
    status = values.get("status", "" if "status" in fields else 0)
    return _record(values["time"], address, target, status, _headers_of(line, fields.get("headers", [""])[0]))


def _headers_of(line: Mapping[str, Any], where: str) -> dict[str, object]:
    below = _below(line, where)
    if not isinstance(below, dict):
        below = {name[len(where) :]: value for name, value in line.items() if where and name.startswith(where)}
    firsts = ((name, value[0] if isinstance(value, list) and value else value) for name, value in below.items())
    return {name.lower().replace("_", "-"): value for name, value in firsts}


def _first_given(line: Mapping[str, Any], names: Sequence[str]) -> Any:
    values = (_below(line, name) for name in names)
    return next((value for value in values if value not in (None, "", "-")), None)


def _below(line: Mapping[str, Any], name: str) -> Any:
    value: Any = line
    for part in [name] if name in line else name.split("."):  # some servers write names with dots
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _request_of(text: str) -> tuple[str, str]:
    """Split a request line into method and target; the method is empty if it is not an HTTP request."""
    match = _REQUEST_LINE.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def _record(
    time: object, client: str | None, request: tuple[str, str], status: object, headers: Mapping[str, object]
) -> Parsed:
    if client is None:
        return NO_CLIENT
    if time in ("", None):
        return NO_TIME
    time_us = text_time_us(time[: _MAX_WORD + 1]) if isinstance(time, str) else number_time_us(time)
    if time_us is None:
        return "its time cannot be read"
    text = f"{status:03}" if isinstance(status, int) else str(status)
    if not (text.isascii() and text.isdigit() and len(text) == 3):
        return "it contains no status"
    given = [(name, value) for name, value in headers.items() if isinstance(value, str) and value not in ("", "-")]
    return AccessRecord(time_us, client, *request, int(text), tuple(given))


@lru_cache(maxsize=1_024)
def text_time_us(text: str) -> int | None:
    """Parse ``12/May/2024:00:00:17 +0000``, ISO 8601 or a number of seconds; return None for any other text.

    A time without a zone counts as UTC: limits depend on differences of times alone.
    """
    if len(text) > _MAX_WORD:
        return None
    try:
        if text.replace(".", "", 1).isdecimal():
            return number_time_us(float(text))
        if "/" in text:
            moment = datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
        else:
            moment = datetime.fromisoformat(re.sub(" (?=[+-])", "", text))
    except ValueError:
        return None
    time_us = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return time_us // timedelta(microseconds=1) if time_us >= timedelta() else None


def number_time_us(value: object) -> int | None:
    """Convert seconds, milliseconds, microseconds or nanoseconds since 1970; the magnitude determines the unit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MAX_TIME_US * 1_000:
        return None
    units_us = (unit_us for unit_us in (_US, 1_000, 1) if value * unit_us < _MAX_TIME_US)
    return next((round(value * unit_us) for unit_us in units_us), int(value) // 1_000)


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass
class LogCounts:
    """The lines read so far: `lines` is the sum of `records`, `empty` and the counts of `unreadable`.

    Attributes:
        lines: Lines read. Damaged gzip data counts as one.
        records: Lines with a request.
        empty: Lines without text.
        unreadable: Other lines, by the reason why they have no record.
        late: Records yielded after a record of a later time.
        example: The first unreadable line, with its file, number and reason, safe to display.
    """

    lines: int = 0
    records: int = 0
    empty: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    late: int = 0
    example: str = ""


class AccessLogs:
    """An iterable over the records of several files in chronological order, read lazily.

    Records that are out of order by up to 32,768 lines, in several files by their share of it, are sorted; later ones
    are yielded as they come and counted in ``counts.late``. Each iteration reads and counts from the start, except
    standard input.

    Args:
        paths: The files, plain or compressed with gzip; ``-`` is standard input.
        regex: As for `line_parser`.
        fields: As for `line_parser`.

    Attributes:
        counts: The lines read so far, by result. They include the records that are still buffered.

    Raises:
        ConfigurationError: An argument is invalid. While iterating: a file is compressed, but not with gzip.
        OSError: While iterating: a file is missing or cannot be read.
    """

    def __init__(
        self, paths: Iterable[str | PathLike[str]], *, regex: str | None = None, fields: str | None = None
    ) -> None:
        if isinstance(paths, (str, bytes, PathLike)) or not (names := [os.fspath(path) for path in paths]):
            raise ConfigurationError(f"expected a list of files, such as ['access.log'], not {quoted(paths)}")
        if names.count(STANDARD_INPUT) > 1:
            raise ConfigurationError("expected standard input once, such as ['-'], not several times")
        self.names: Final = names
        self.counts = LogCounts()
        self._parse = line_parser(regex=regex, fields=fields)

    def __iter__(self) -> Iterator[AccessRecord]:
        counts = self.counts = LogCounts()
        latest_us = 0
        for record in heapq.merge(*(self._in_order(name, counts) for name in self.names), key=itemgetter(0)):
            counts.late += record.time_us < latest_us
            latest_us = max(latest_us, record.time_us)
            yield record

    def _in_order(self, name: str, counts: LogCounts) -> Iterator[AccessRecord]:
        """Yield the records of a file in order, as far as none is late by more lines than are buffered."""
        buffer: list[AccessRecord] = []
        most = max(BUFFERED // len(self.names), 1)
        for record in self._records(name, counts):
            buffer.append(record)
            if len(buffer) > 2 * most:
                buffer.sort(key=itemgetter(0))
                yield from buffer[:-most]
                del buffer[:-most]
        buffer.sort(key=itemgetter(0))
        yield from buffer

    def _records(self, name: str, counts: LogCounts) -> Iterator[AccessRecord]:
        for number, line in enumerate(_lines(name), 1):
            text = (
                line if isinstance(line, str) else line.removeprefix(b"\xef\xbb\xbf").strip().decode(errors="replace")
            )
            counts.lines += 1
            if not text:
                counts.empty += 1
                continue
            record = self._parsed(line, text)
            if isinstance(record, AccessRecord):
                counts.records += 1
                yield record
            else:
                counts.unreadable[record] += 1
                shown = escaped(text, MAX_SHOWN)
                counts.example = counts.example or f"line {number} of '{escaped(name, MAX_SHOWN)}': {record}: {shown}"

    def _parsed(self, line: bytes | str, text: str) -> Parsed:
        if isinstance(line, str):
            return line
        if len(line) - line.endswith(b"\n") > MAX_LINE_BYTES:
            return f"it is longer than {MAX_LINE_BYTES:,} bytes"
        return "it contains binary data" if "\0" in text else self._parse(text)


def _lines(name: str) -> Iterator[bytes | str]:
    """Yield the lines of a file, as bytes; a text is the reason why its data ends."""
    with _opened(name) as raw:
        magic = raw.peek(6)
        packer = next((packer for sign, packer in _MAGIC.items() if magic.startswith(sign)), None)
        if packer is not None:
            raise ConfigurationError(
                f"cannot read '{escaped(name, MAX_SHOWN)}': it is compressed with {packer}; expected plain text or gzip"
            )
        file = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=raw))) if magic[:2] == b"\x1f\x8b" else raw
        try:
            while line := file.readline(MAX_LINE_BYTES + 2):
                yield line
                while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):  # the rest of a line that is too long
                    line = file.readline(MAX_LINE_BYTES + 1) or b"\n"
        except (EOFError, gzip.BadGzipFile, zlib.error):
            yield "the compressed data is damaged"


def _opened(name: str) -> AbstractContextManager[io.BufferedReader]:
    if name != STANDARD_INPUT:
        return open(name, "rb")
    if sys.stdin is None:
        raise ConfigurationError("standard input is closed; expected the path of an access log, or a pipe")
    return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))
