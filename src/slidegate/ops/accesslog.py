"""Reads access logs, one line at a time: each request with its client and its time.

The format is found anew for every line, because rotated files are concatenated and formats change on the way:

* Combined, Common and Traefik's CLF, with or without a virtual host in front: text, fields found by one pattern;
* nginx (``escape=json``, keys named after nginx's variables), Caddy and Traefik: one JSON object.

A log is written by strangers. Each line becomes a record or adds one to `AccessLog.skipped`, so that `read` and the sum
of `skipped` are the number of lines; nothing in a file raises. Lines are read up to `MAX_LINE_BYTES`, so neither a line
without an end nor a gzip bomb fills the memory, and gzip data that unpacks to far more than any log is given up. The
prefix that syslog writes in front of a line is left out.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from ..core.addresses import parse_address

# nginx reads at most four header buffers of 8 KiB, so a line with every header in it stays below this.
MAX_LINE_BYTES: Final = 65_536
MAX_RATIO: Final = 300
"""How far gzip data may unpack: logs of nothing but one health check reach a third of it, and newlines 1,030."""
MIN_BOMB_BYTES: Final = 1 << 20
_PIECE: Final = 1_024

_MAX_TIME_CHARACTERS: Final = 64
_MAX_TIME_US: Final = 253_402_300_800_000_000  # the year 10000
_BOM: Final = b"\xef\xbb\xbf"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Possessive (`*+`), so that a hostile line cannot make the pattern walk back and forth.
_QUOTED: Final = r'"((?:[^"\\]++|\\.)*+)"'
_BEHIND_TIME: Final = re.compile(rf"\] {_QUOTED} (\S++) (?:[0-9]++|-)(?:$| (?:{_QUOTED} {_QUOTED})?)", re.ASCII)
# As nginx writes to syslog, and as syslog writes to files: RFC 3164 with or without a host, RFC 5424, ISO times.
_SYSLOG: Final = re.compile(
    r"(?:<[0-9]{1,3}>)?(?:1 )?"
    r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9:]{4,6})) "
    r"(?:(?:[^\s:\[]{1,255} )?[\w./-]{1,64}(?:\[[0-9]{1,10}\])?:|[^\s:]{1,255} [\w./-]{1,64} \S{1,10} \S{1,32} -) ",
    re.ASCII,
)
_REQUEST: Final = re.compile(r"([A-Za-z][\w-]*+) (\S++) HTTP/[0-9](?:\.[0-9])?", re.ASCII)
_METHOD: Final = re.compile(r"[A-Za-z][\w-]*+", re.ASCII)
_CLF_TIME: Final = re.compile(
    r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}) ([+-][0-9]{2}[0-5][0-9])"
)
_NUMBER: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,12})?")


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
    BOMB = "gzip data that unpacks to far more than any log"


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


class AccessLog:
    """The records of one file, plain or gzip, read as they are asked for.

    Iterating again reads the file, and counts, from its start.

    Args:
        path: The file. It is opened when iteration starts, and may then raise an `OSError`.

    Attributes:
        read: Lines that became records, so far.
        skipped: Lines that did not, by reason, so far.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.read = 0
        self.skipped: Counter[Skip] = Counter()

    @property
    def total(self) -> int:
        """Lines seen so far."""
        return self.read + self.skipped.total()

    def __iter__(self) -> Iterator[AccessRecord]:
        self.read = 0
        self.skipped.clear()
        with self.path.open("rb") as file:
            for line in _lines(file):
                found = line if isinstance(line, Skip) else parse_line(line)
                if isinstance(found, Skip):
                    self.skipped[found] += 1
                else:
                    self.read += 1
                    yield found


def parse_line(line: bytes) -> AccessRecord | Skip:
    """Read one line of any known format."""
    line = line.removeprefix(_BOM).strip()
    if not line:
        return Skip.EMPTY
    if b"\0" in line:
        return Skip.BINARY
    if len(line) > MAX_LINE_BYTES:
        return Skip.TOO_LONG
    text = line.decode(errors="replace")
    prefix = _SYSLOG.match(text)
    text = text[prefix.end() :] if prefix else text
    return _parse_json(text) if text[0] == "{" else _parse_text(text)


class _Packed:
    """Gives gzip data in small pieces, so that the bytes taken tell how much was unpacked."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(min(size, _PIECE) if size >= 0 else _PIECE)
        self.taken += len(part)
        return part


def _lines(file: io.BufferedReader) -> Iterator[bytes | Skip]:
    magic = file.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)]
    packed = _Packed(file) if magic == _GZIP_MAGIC else None
    source = file if packed is None else gzip.GzipFile(fileobj=cast(Any, packed))
    unpacked = 0
    rest_of_long_line = False
    try:
        while line := source.readline(MAX_LINE_BYTES + 1):
            unpacked += len(line)
            if packed is not None and unpacked > MIN_BOMB_BYTES + MAX_RATIO * packed.taken:
                yield Skip.BOMB
                return
            whole = line.endswith(b"\n")
            if not rest_of_long_line:
                yield line if whole or len(line) <= MAX_LINE_BYTES else Skip.TOO_LONG
            rest_of_long_line = not whole
    except (EOFError, gzip.BadGzipFile, zlib.error):
        yield Skip.GZIP


def _parse_text(text: str) -> AccessRecord | Skip:
    # A user name may hold anything but a bare quotation mark, so the time stands in front of the first field in
    # quotation marks.
    end = text.find('] "')
    match = _BEHIND_TIME.match(text, end) if end >= 0 else None
    head, bracket, time = text[:end].rpartition("[")
    if match is None or not bracket or not 0 < len(time) <= _MAX_TIME_CHARACTERS:
        return Skip.FORMAT
    request, status, _, agent = match.groups()
    words = head.split()
    if len(words) < 3:
        return Skip.FORMAT
    client = words[1] if len(words) > 3 and _is_virtual_host(words[0], words[1]) else words[0]
    method, path = _request(request)
    return _record(_text_time_us(time), client, method, path, _status(status), agent)


def _is_virtual_host(first: str, second: str) -> bool:
    """Tell a virtual host from a client: a fourth word may also come from a user name with a space in it.

    An address in front is the client: the second word may be what the client's own identd says.
    """
    if parse_address(first) is not None:
        return False
    _, colon, port = first.rpartition(":")
    return parse_address(second) is not None or (colon != "" and port.isdigit())


def _record(
    time_us: int | None, client: str, method: str, path: str, status: int | None, agent: str | None
) -> AccessRecord | Skip:
    if client in ("", "-"):
        return Skip.CLIENT
    if time_us is None:
        return Skip.TIME
    if status is None:
        return Skip.STATUS
    return AccessRecord(time_us, client, method, path, status, None if agent in ("", "-") else agent)


def _parse_json(text: str) -> AccessRecord | Skip:
    try:
        line = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return Skip.JSON
    request = line.get("request")
    if isinstance(request, dict):
        return _parse_caddy(line, request)
    if "ClientHost" in line:
        return _parse_traefik(line)
    if "remote_addr" in line:
        return _parse_nginx(line)
    return Skip.FORMAT


def _parse_caddy(line: dict[str, Any], request: dict[str, Any]) -> AccessRecord | Skip:
    # Caddy logs an error while handling a request a second time, under http.log.error.
    if not str(line.get("logger", "http.log.access")).startswith("http.log.access"):
        return Skip.FORMAT
    peer = str(request.get("remote_addr", "")).rpartition(":")[0].strip("[]")  # as older versions write it
    client = request.get("client_ip") or request.get("remote_ip") or peer
    headers = request.get("headers")
    agents = headers.get("User-Agent") if isinstance(headers, dict) else None
    agent = agents[0] if isinstance(agents, list) and agents else None
    return _json_record(line.get("ts"), client, request.get("method"), request.get("uri"), line.get("status"), agent)


def _parse_traefik(line: dict[str, Any]) -> AccessRecord | Skip:
    client = line["ClientHost"]
    if isinstance(client, str):
        # Traefik repeats X-Forwarded-For here; only its last entry was not written by the client itself.
        client = client.rpartition(",")[2].strip()
    return _json_record(
        line.get("StartUTC", line.get("time")),
        client,
        line.get("RequestMethod"),
        line.get("RequestPath"),
        line.get("DownstreamStatus", line.get("OriginStatus")),
        line.get("request_User-Agent"),
    )


def _parse_nginx(line: dict[str, Any]) -> AccessRecord | Skip:
    time = next((line[name] for name in ("msec", "time_iso8601", "time_local") if name in line), None)
    method, path = line.get("request_method"), line.get("request_uri")
    request = line.get("request")
    if isinstance(request, str):
        method, path = _request(request)
    elif path is None:
        path = line.get("uri")
        if isinstance(path, str) and isinstance(line.get("args"), str) and line["args"]:
            path = f"{path}?{line['args']}"
    return _json_record(time, line["remote_addr"], method, path, line.get("status"), line.get("http_user_agent"))


def _json_record(
    time: object, client: object, method: object, path: object, status: object, agent: object
) -> AccessRecord | Skip:
    if not (isinstance(client, str) and isinstance(method, str) and isinstance(path, str)):
        return Skip.FORMAT
    if path in ("", "-") or _METHOD.fullmatch(method) is None:
        method = ""
    short = isinstance(time, str) and len(time) <= _MAX_TIME_CHARACTERS
    time_us = _text_time_us(str(time)) if short else _number_time_us(time)
    return _record(time_us, client, method, path, _status(status), agent if isinstance(agent, str) else None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a key twice, because nobody knows which of the values the server meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _request(field: str) -> tuple[str, str]:
    match = _REQUEST.fullmatch(field)
    return (match[1], match[2]) if match else ("", field)


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 999 else None


@lru_cache(maxsize=1_024)
def _text_time_us(text: str) -> int | None:
    """Read ``12/May/2024:00:00:17 +0000``, ISO 8601 with a zone, or a number; None for any other text."""
    match = _CLF_TIME.fullmatch(text)
    if match is not None:
        day, month, year, time, zone = match.groups()
        text = f"{year}-{_MONTHS.find(month) // 3 + 1:02}-{day}T{time}{zone}"
    elif _NUMBER.fullmatch(text):
        return _number_time_us(float(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    # A time without a zone is the writer's local time, and nobody knows where that was.
    time_us = (moment - _EPOCH) // timedelta(microseconds=1) if moment.tzinfo is not None else -1
    return time_us if time_us >= 0 else None


def _number_time_us(value: object) -> int | None:
    """Read a number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by its size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MAX_TIME_US * 1_000:
        return None
    for unit_us in (1_000_000, 1_000, 1):
        if value * unit_us < _MAX_TIME_US:
            return round(value * unit_us)
    return round(value // 1_000)
