"""Reads one line of an access log in any known format: Combined, Common, or JSON of nginx, Caddy or Traefik.

The format is detected anew for every line, because rotated files are concatenated and formats change on the way. The
prefix that syslog writes before a line is dropped. Clients choose what a log contains: each line becomes a record or
the reason why it is skipped, and no line raises.
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
"""Reads the text of one line."""

MAX_TIME_CHARACTERS: Final = 64
MAX_TIME_US: Final = 253_402_300_800_000_000  # the year 10000
# Each text matches in exactly one way, so that a hostile line cannot make the pattern backtrack. No group is
# possessive: CPython before 3.11.5 matches such groups wrongly.
QUOTED_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_QUOTED: Final = f'"({QUOTED_TEXT})"'
_BOM: Final = b"\xef\xbb\xbf"
# As nginx writes to syslog, and as syslog writes to files: RFC 3164 with or without a host, RFC 5424, ISO times.
_SYSLOG: Final = re.compile(
    r"(?:<[0-9]{1,3}>)?(?:1 )?"
    r"(?:[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9:]{4,6})) "
    r"(?:(?:[^\s:\[]{1,255} )?[\w./-]{1,64}(?:\[[0-9]{1,10}\])?:|[^\s:]{1,255} [\w./-]{1,64} \S{1,10} \S{1,32} -) ",
    re.ASCII,
)
# A user name may hold anything but a bare quotation mark, so the time stands in front of the first one of these.
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
    """Read one line.

    Args:
        line: The line, with or without its end.
        parse: Reads its text; by default any known format will do.
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
    """Read a line of Combined or Common, with or without a virtual host in front; more may follow."""
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
    """Return whether a virtual host is in front of the client: a user name with a space is a fourth word too.

    An address in front is the client: the second word may be what the client's own identd says.
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
    # Caddy logs an error while handling a request a second time, under http.log.error.
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
        # Traefik repeats X-Forwarded-For here; only its last entry was not written by the client itself.
        client = client.rpartition(",")[2].strip()
    time, status = line.get("StartUTC", line.get("time")), line.get("DownstreamStatus", line.get("OriginStatus"))
    fields = {name[8:].lower(): value for name, value in line.items() if name.startswith("request_")}
    host = line.get("RequestHost")
    return _of_json(time, client, line.get("RequestMethod"), line.get("RequestPath"), status, host, fields)


def nginx_record(values: Mapping[str, Any]) -> AccessRecord | Skip:
    """Return the record of a line by nginx's variables, or the reason for which there is none.

    Args:
        values: What the line has for each variable, by its name without the dollar sign.
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
    # A method and a target that were logged apart.
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
    """Return a record of the parts of a line, or the first reason for which there is none."""
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
    """Return a text that the client sent; None for the hyphen that stands for nothing."""
    return value if isinstance(value, str) and value not in ("", "-") else None


def _request_of(field: str) -> tuple[str, str]:
    """Split a request line into method and target; one that is no HTTP request has the method ``""``."""
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
    """Read ``12/May/2024:00:00:17 +0000``, ISO 8601 with a zone, or a number; None for any other text.

    A time without a zone is the writer's local time, and nobody knows where that is: it is refused.
    """
    if len(text) > MAX_TIME_CHARACTERS:
        return None
    match = _CLF_TIME.fullmatch(text)
    if match is not None:
        day, month, year, time, zone = match.groups()
        text = f"{year}-{_MONTHS.find(month) // 3 + 1:02}-{day}T{time}{zone}"
    elif _NUMBER.fullmatch(text):
        whole, _, decimals = text.partition(".")
        # Not by way of a float, which has no room for the nanoseconds that some servers write.
        return _number_time_us(int(whole), int(decimals[:6].ljust(6, "0")))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    time_us = (moment - _EPOCH) // _US if moment.tzinfo is not None else -1
    return time_us if time_us >= 0 else None


def _number_time_us(value: object, millionths: int = 0) -> int | None:
    """Read a number of seconds, milliseconds, microseconds or nanoseconds since 1970, recognised by its size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MAX_TIME_US * 1_000:
        return None
    for unit_us in (1_000_000, 1_000, 1):
        if value * unit_us < MAX_TIME_US:
            return round(value * unit_us) + millionths * unit_us // 1_000_000
    return round(value // 1_000)


def json_object(text: str) -> dict[str, Any] | None:
    """Read a JSON object; None for anything else."""
    try:
        line = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a key twice, because nobody knows which of the values the server meant."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key comes twice")
    return values


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
