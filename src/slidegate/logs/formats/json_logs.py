"""JSON lines: nginx (``escape=json``, keys named after nginx's variables), Caddy, Traefik, and any by their fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ...core.errors import ConfigurationError, closest, quoted
from ..access_record import AccessRecord, Skip
from ..log_times import any_time_us
from .parts import given, record, request_of, request_of_parts, scaled, size_of, status_of

DURATIONS: Final = {"duration_s": 1_000_000.0, "duration_ms": 1_000.0, "duration_us": 1.0, "duration_ns": 0.001}
NAMES: Final = (
    "time", "client", "status", "request", "method", "path", "user_agent", "host", "referer", "sent_bytes", *DURATIONS,
)  # fmt: skip
_EXAMPLE: Final = '{"time": "ts", "client": "http.client_ip", "status": "code", "method": "verb", "path": "url"}'


def parse_json(text: str) -> AccessRecord | Skip:
    """Read a line of nginx, Caddy or Traefik."""
    line = _decoded(text)
    if line is None:
        return Skip.JSON
    request = line.get("request")
    if isinstance(request, dict):
        return _parse_caddy(line, request)
    if "ClientHost" in line:
        return _parse_traefik(line)
    if "remote_addr" in line:
        return _parse_nginx(line)
    return Skip.FORMAT


def parse_by_fields(fields: Mapping[str, str]) -> Callable[[str], AccessRecord | Skip]:
    """Return a function that reads JSON lines by the names that their fields have.

    Args:
        fields: For each part of a record the field that holds it, with dots between the names of objects in objects:
            ``time``, ``client``, ``status``, and ``request`` or ``method`` and ``path``; also ``user_agent``, ``host``,
            ``referer``, ``sent_bytes``, one of ``duration_s``, ``duration_ms``, ``duration_us`` and ``duration_ns``,
            and ``header:NAME`` for any header field.

    Raises:
        ConfigurationError: A part is missing, or is unknown.
    """
    _check(fields)
    paths = {name: tuple(path.split(".")) for name, path in fields.items()}
    headers = tuple((name[7:].strip().lower(), path) for name, path in paths.items() if name.startswith("header:"))
    duration = next((name for name in paths if name in DURATIONS), None)

    def parse(text: str) -> AccessRecord | Skip:
        line = _decoded(text)
        if line is None:
            return Skip.JSON
        found = {name: _below(line, path) for name, path in paths.items()}
        request = found.get("request")
        if isinstance(request, str):
            asked = request_of(request)
        elif isinstance(found.get("method"), str) and isinstance(found.get("path"), str):
            asked = request_of_parts(found["method"], found["path"])
        else:
            return Skip.FORMAT
        client = found["client"]
        return record(
            any_time_us(found["time"]), client if isinstance(client, str) else "", asked, status_of(found["status"]),
            given(found.get("user_agent")), given(found.get("host")), given(found.get("referer")),
            size_of(found.get("sent_bytes")), scaled(found[duration], DURATIONS[duration]) if duration else None,
            tuple(_headers((name, _below(line, path)) for name, path in headers)),
        )  # fmt: skip

    return parse


def _check(fields: Mapping[str, str]) -> None:
    for name, path in fields.items():
        if name not in NAMES and not (name.startswith("header:") and name[7:].strip()):
            choices = (*NAMES, "header:X-API-Key")
            raise ConfigurationError(
                f"no part of a record is called {quoted(name)}; expected one of {', '.join(choices)}"
                f"{closest(name, choices)}"
            )
        if not isinstance(path, str) or not path or "" in path.split("."):
            raise ConfigurationError(
                f"{quoted(path)} is no name of a field; expected names with dots between them, such as 'http.client_ip'"
            )
    missing = [name for name in ("time", "client", "status") if name not in fields]
    if "request" not in fields and not {"method", "path"} <= fields.keys():
        missing.append("request (or method and path)")
    if missing:
        raise ConfigurationError(f"the fields of the log lack {', '.join(missing)}; expected such as {_EXAMPLE}")
    if len(DURATIONS.keys() & fields.keys()) > 1:
        raise ConfigurationError(f"expected one duration, not {' and '.join(sorted(DURATIONS.keys() & fields.keys()))}")


def _below(line: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = line.get(".".join(path))  # some writers put the dots into the names themselves
    if found is not None:
        return found
    found = line
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    # A header field may be a list of its values, as in Caddy's logs.
    return found[0] if isinstance(found, list) and found else found


def _headers(pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        text = given(value)
        if text is not None:
            yield name, text


def _parse_caddy(line: dict[str, Any], request: dict[str, Any]) -> AccessRecord | Skip:
    # Caddy logs an error while handling a request a second time, under http.log.error.
    if not str(line.get("logger", "http.log.access")).startswith("http.log.access"):
        return Skip.FORMAT
    peer = str(request.get("remote_addr", "")).rpartition(":")[0].strip("[]")  # as older versions write it
    client = request.get("client_ip") or request.get("remote_ip") or peer
    sent = request.get("headers")
    fields = {
        name.lower(): values[0]
        for name, values in (sent.items() if isinstance(sent, dict) else ())
        if isinstance(values, list) and values
    }
    return _json_record(
        line.get("ts"), client, request.get("method"), request.get("uri"), line.get("status"),
        fields.pop("user-agent", None), request.get("host"), fields.pop("referer", None), line.get("size"),
        scaled(line.get("duration"), 1_000_000), tuple(_headers(iter(fields.items()))),
    )  # fmt: skip


def _parse_traefik(line: dict[str, Any]) -> AccessRecord | Skip:
    client = line["ClientHost"]
    if isinstance(client, str):
        # Traefik repeats X-Forwarded-For here; only its last entry was not written by the client itself.
        client = client.rpartition(",")[2].strip()
    fields = {name[8:].lower(): value for name, value in line.items() if name.startswith("request_")}
    return _json_record(
        line.get("StartUTC", line.get("time")), client, line.get("RequestMethod"), line.get("RequestPath"),
        line.get("DownstreamStatus", line.get("OriginStatus")), fields.pop("user-agent", None),
        line.get("RequestHost"), fields.pop("referer", None), line.get("DownstreamContentSize"),
        scaled(line.get("Duration"), 0.001), tuple(_headers(iter(fields.items()))),
    )  # fmt: skip


def _parse_nginx(line: dict[str, Any]) -> AccessRecord | Skip:
    time = next((line[name] for name in ("msec", "time_iso8601", "time_local") if name in line), None)
    method, path = line.get("request_method"), line.get("request_uri")
    request = line.get("request")
    if isinstance(request, str):
        method, path = request_of(request)
    elif path is None:
        path = line.get("uri")
        if isinstance(path, str) and isinstance(line.get("args"), str) and line["args"]:
            path = f"{path}?{line['args']}"
    fields = {name[5:].replace("_", "-"): value for name, value in line.items() if name.startswith("http_")}
    agent, referer, host = (fields.pop(name, None) for name in ("user-agent", "referer", "host"))
    return _json_record(
        time, line["remote_addr"], method, path, line.get("status"), agent,
        line.get("host") or host or line.get("server_name"), referer,
        line.get("body_bytes_sent", line.get("bytes_sent")), scaled(line.get("request_time"), 1_000_000),
        tuple(_headers(iter(fields.items()))),
    )  # fmt: skip


def _json_record(
    time: object, client: object, method: object, path: object, status: object, agent: object, host: object,
    referer: object, sent_bytes: object, duration_us: int | None, headers: tuple[tuple[str, str], ...],
) -> AccessRecord | Skip:  # fmt: skip
    if not (isinstance(client, str) and isinstance(method, str) and isinstance(path, str)):
        return Skip.FORMAT
    return record(
        any_time_us(time), client, request_of_parts(method, path), status_of(status), given(agent), given(host),
        given(referer), size_of(sent_bytes), duration_us, headers,
    )  # fmt: skip


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        line = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a key twice, because nobody knows which of the values the server meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
