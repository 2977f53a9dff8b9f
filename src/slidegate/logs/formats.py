"""Parses one line of an access log in any known format: Combined, Common, or JSON of nginx, Caddy or Traefik.

The format is detected for each line, because concatenated files can have different formats. A syslog prefix is
dropped. Log content is untrusted: each line yields a record or the reason it is skipped, and no line raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ..core.addresses import parse_address
from .record import MAX_LINE_BYTES, AccessRecord, Skip

Parse: TypeAlias = Callable[[str], AccessRecord | Skip]
"""Parses the text of one line."""

MAX_TIME_CHARACTERS: Final = 64
MAX_TIME_US: Final = 253_402_300_800_000_000  # the year 10000
# Each text matches in exactly one way, so that a hostile line cannot cause backtracking. No group is possessive:
# CPython before 3.11.5 matches such groups incorrectly.
QUOTED_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_QUOTED: Final = f'"({QUOTED_TEXT})"'
_BOM: Final = b"\xef\xbb\xbf"
# The prefixes that nginx and syslog daemons write: RFC 3164 with or without a host, RFC 5424, ISO times.
_SYSLOG: Final = re.compile(
    r"(?:<[0-9]{1,3}>)?(?:1 )?"
    r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9:]{4,6})) "
    r"(?:(?:[^\s:\[]{1,255} )?[\w./-]{1,64}(?:\[[0-9]{1,10}\])?:|[^\s:]{1,255} [\w./-]{1,64} \S{1,10} \S{1,32} -) ",
    re.ASCII,
)
# A user name may contain anything except an unescaped quotation mark, so the time precedes the first of these.
_CLF: Final = re.compile(
    rf'((?:[^"]*\\")*[^"]*)\[([^][" ]{{1,40}}(?: [^][" ]{{1,8}})?)\] {_QUOTED} (\S++) (?:[0-9]++|-)'
    rf"(?:$| (?:{_QUOTED} {_QUOTED})?)",
    re.ASCII,
)
_REQUEST: Final = re.compile(r"([A-Za-z][\w-]*+) (\S++) HTTP/[0-9](?:\.[0-9])?", re.ASCII)
_METHOD: Final = re.compile(r"[A-Za-z][\w-]*+", re.ASCII)
_WITH_PORT: Final = re.compile(r"\[([^]]+)\](?::[0-9]{1,5})?|([^][:]+):[0-9]{1,5}")
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_CLF_TIME: Final = re.compile(
    r"([0-9]{2})/([A-Z][a-z]{2})/([0-9]{4}):([0-9]{2}:[0-9]{2}:[0-9]{2}) ([+-][0-9]{2}[0-5][0-9])"
)
_NUMBER: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,12})?")


def parse_line(line: bytes, parse: Parse | None = None) -> AccessRecord | Skip:
    """Parse one line.

    Args:
        line: The line, with or without its newline.
        parse: Parses the text; by default the format is detected.
    """
    if len(line) - line.endswith(b"\n") > MAX_LINE_BYTES:
        return Skip.TOO_LONG
    line = line.removeprefix(_BOM).strip()
    if not line:
        return Skip.EMPTY
    if b"\0" in line:
        return Skip.BINARY
    text = line.decode(errors="replace")
    parse = parse or _parse_known
    prefix = _SYSLOG.match(text)
    record = parse(text[prefix.end() :] if prefix else text)
    return parse(text) if prefix and record is Skip.FORMAT else record


def _parse_known(text: str) -> AccessRecord | Skip:
    return _parse_json(text) if text[:1] == "{" else _parse_clf(text)


def _parse_clf(text: str) -> AccessRecord | Skip:
    """Parse a line in Combined or Common format, optionally preceded by a virtual host; trailing text is ignored."""
    match = _CLF.match(text)
    words = match[1].split() if match else []
    if match is None or len(words) < 3:
        return Skip.FORMAT
    _, time, request, status, referer, agent = match.groups()
    host = words[0] if len(words) > 3 and _is_virtual_host(words[0], words[1]) else None
    headers = (("referer", referer),) if given(referer) else ()
    return _record(
        text_time_us(time), words[0] if host is None else words[1], _request_of(request), status, agent, host, headers
    )


def _is_virtual_host(first: str, second: str) -> bool:
    """Return whether the first word is a virtual host; a fourth word can also come from a user name with a space.

    If the first word is an address, it is the client, and the second may be the answer of the client's identd.
    """
    bare = without_port(first)
    if parse_address(bare) is not None:
        return False
    return parse_address(without_port(second)) is not None or bare != first


def _parse_json(text: str) -> AccessRecord | Skip:
    line = json_object(text)
    if line is None:
        return Skip.JSON
    request = line.get("request")
    if isinstance(request, dict):
        return _parse_caddy(line, request)
    if "ClientHost" in line:
        return _parse_traefik(line)
    return nginx_record(line) if "remote_addr" in line else Skip.FORMAT


def _parse_caddy(line: dict[str, Any], request: dict[str, Any]) -> AccessRecord | Skip:
    # Caddy logs a failed request twice; the second entry is under http.log.error.
    if not str(line.get("logger", "http.log.access")).startswith("http.log.access"):
        return Skip.FORMAT
    # Older versions write `remote_addr`, with a port.
    client = request.get("client_ip") or request.get("remote_ip") or request.get("remote_addr", "")
    sent = request.get("headers")
    fields = {
        name.lower(): values[0]
        for name, values in (sent.items() if isinstance(sent, dict) else ())
        if isinstance(values, list) and values
    }
    host = request.get("host")
    return _of_json(line.get("ts"), client, request.get("method"), request.get("uri"), line.get("status"), host, fields)


def _parse_traefik(line: dict[str, Any]) -> AccessRecord | Skip:
    client = line["ClientHost"]
    if isinstance(client, str):
        # Traefik copies X-Forwarded-For here; the client controls all entries except the last.
        client = client.rpartition(",")[2].strip()
    time, status = line.get("StartUTC", line.get("time")), line.get("DownstreamStatus", line.get("OriginStatus"))
    fields = {name[8:].lower(): value for name, value in line.items() if name.startswith("request_")}
    host = line.get("RequestHost")
    return _of_json(time, client, line.get("RequestMethod"), line.get("RequestPath"), status, host, fields)


def nginx_record(values: Mapping[str, Any]) -> AccessRecord | Skip:
    """Return the record of a line from its nginx variables, or the reason it is skipped.

    Args:
        values: The values by the names of the variables, without the dollar sign.
    """
    time = next((values[name] for name in ("msec", "time_iso8601", "time_local") if name in values), None)
    method, path = values.get("request_method"), values.get("request_uri")
    request = values.get("request")
    if isinstance(request, str):
        method, path = _request_of(request)
    elif path is None:
        path = values.get("uri")
        query = given(values.get("args")) or given(values.get("query_string"))
        if isinstance(path, str) and query:
            path = f"{path}?{query}"
    fields = {name[5:].replace("_", "-"): value for name, value in values.items() if name.startswith("http_")}
    asked_host = fields.pop("host", None)
    host = values.get("host") or asked_host or values.get("server_name")
    client = next(filter(None, map(given, _nginx_clients(values))), "")
    return _of_json(time, client, method, path, values.get("status"), host, fields)


def _nginx_clients(values: Mapping[str, Any]) -> Iterator[object]:
    """Yield the values that may name the client, the most trustworthy first."""
    for name in ("remote_addr", "realip_remote_addr", "proxy_protocol_addr", "http_x_real_ip"):
        yield values.get(name)
    yield str(values.get("http_x_forwarded_for", "")).rpartition(",")[2].strip()


def _of_json(
    time: object, client: object, method: object, path: object, status: object, host: object, fields: dict[str, Any]
) -> AccessRecord | Skip:
    if not (isinstance(client, str) and isinstance(method, str) and isinstance(path, str)):
        return Skip.FORMAT
    agent = fields.pop("user-agent", None)
    request = ("", path) if path in ("", "-") or _METHOD.fullmatch(method) is None else (method, path)
    headers = tuple((name, text) for name, value in fields.items() if (text := given(value)) is not None)
    time_us = text_time_us(time) if isinstance(time, str) else _number_time_us(time)
    return _record(time_us, client, request, status, agent, host, headers)


def _record(
    time_us: int | None,
    client: str,
    request: tuple[str, str],
    status: object,
    agent: object,
    host: object = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> AccessRecord | Skip:
    """Return a record from the parts of a line, or the first reason to skip it."""
    if client in ("", "-"):
        return Skip.CLIENT
    if time_us is None:
        return Skip.TIME
    code = _status_of(status)
    if code is None:
        return Skip.STATUS
    return AccessRecord(time_us, without_port(client), *request, code, given(agent), _host_of(given(host)), headers)


def without_port(client: str) -> str:
    """Return a client without its port, and without the brackets around an IPv6 address.

    Some servers log the port of each connection: ``192.0.2.1:5123``, ``[2001:db8::1]:443``.
    """
    match = _WITH_PORT.fullmatch(client)
    return client if match is None else match[1] or match[2]


def given(value: object) -> str | None:
    """Return a logged text; None if it is empty or the hyphen for a missing value."""
    return value if isinstance(value, str) and value not in ("", "-") else None


def _request_of(field: str) -> tuple[str, str]:
    """Split a request line into method and target; the method is ``""`` if it is not an HTTP request."""
    match = _REQUEST.fullmatch(field)
    return (match[1], match[2]) if match else ("", field)


def _status_of(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 999 else None


def _host_of(host: str | None) -> str | None:
    if host is None:
        return None
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or name.endswith("]")) else host


@lru_cache(maxsize=1_024)
def text_time_us(text: str) -> int | None:
    """Parse ``12/May/2024:00:00:17 +0000``, ISO 8601 with a zone, or a number; return None for any other text.

    A time without a zone is rejected: it is in the local time of an unknown server.
    """
    if len(text) > MAX_TIME_CHARACTERS:
        return None
    match = _CLF_TIME.fullmatch(text)
    if match is not None:
        day, month, year, time, zone = match.groups()
        text = f"{year}-{_MONTHS.find(month) // 3 + 1:02}-{day}T{time}{zone}"
    elif _NUMBER.fullmatch(text):
        whole, _, decimals = text.partition(".")
        # Not as a float, which cannot represent the nanoseconds that some servers write.
        return _number_time_us(int(whole), int(decimals[:6].ljust(6, "0")))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    time_us = (moment - _EPOCH) // _US if moment.tzinfo is not None else -1
    return time_us if time_us >= 0 else None


def _number_time_us(value: object, millionths: int = 0) -> int | None:
    """Convert seconds, milliseconds, microseconds or nanoseconds since 1970; the magnitude determines the unit."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_TIME_US * 1_000:
        return None
    for unit_us in (1_000_000, 1_000, 1):
        if value * unit_us < MAX_TIME_US:
            return round(value * unit_us) + millionths * unit_us // 1_000_000
    return round(value // 1_000)


def json_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None for anything else."""
    try:
        line = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject an object with a duplicate key, whose value is ambiguous."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("duplicate key")
    return values


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
