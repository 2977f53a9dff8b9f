"""Logs of other formats: a format string of nginx or Apache, or JSON lines by the names of their fields.

A format string becomes one pattern, made once. Each variable ends where the text behind it begins, so two variables
side by side have no end between them and are refused, but for a path and its query, which a question mark parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from ..core.errors import ConfigurationError, closest, quoted
from .formats import (
    QUOTED_TEXT,
    Parse,
    any_time_us,
    given,
    headers_of,
    json_object,
    record,
    request_of,
    request_of_parts,
    text_time_us,
)
from .record import AccessRecord, Skip

_MAX_CHARACTERS: Final = 8_192
_EXAMPLES: Final = (
    "such as '$remote_addr - $remote_user [$time_local] \"$request\" $status' or '%h %l %u %t \"%r\" %>s'"
)
_LOG_FORMAT: Final = re.compile(r"\s*log_format\s+\S+\s+(?:escape=\w+\s+)?(.*?);?\s*", re.DOTALL)
_APACHE_LOG_FORMAT: Final = re.compile(r'\s*(?:LogFormat|CustomLog\s+\S+)\s+"((?:[^"\\]|\\.)*)".*', re.DOTALL)
_QUOTED_PARTS: Final = re.compile(r"'([^']*)'")
_NGINX: Final = re.compile(r"\$(?:\{([a-z0-9_]+)\}|([a-z0-9_]+))")
_APACHE: Final = re.compile(r"%[!0-9,]*[<>]?(?:\{([^}]*)\})?(%|\^[a-zA-Z]{2}|[a-zA-Z])")
_NGINX_PARTS: Final = {
    **{"remote_addr": "client", "realip_remote_addr": "peer", "proxy_protocol_addr": "peer", "status": "status"},
    **{"request": "request", "request_method": "method", "request_uri": "path", "uri": "uri", "args": "query"},
    **{"query_string": "query", "is_args": "mark", "host": "host", "server_name": "server"},
    **{"time_local": "time", "time_iso8601": "time", "msec": "time"},
}
_APACHE_PARTS: Final = {
    **{"h": "client", "a": "client", "r": "request", "m": "method", "U": "uri", "q": "marked_query", "s": "status"},
    **{"v": "server", "V": "host", "t": "time"},
}
_PARTS_OF_JSON: Final = ("time", "client", "status", "request", "method", "path", "user_agent", "host")
_JSON_EXAMPLE: Final = '{"time": "ts", "client": "http.client_ip", "status": "code", "request": "line"}'


class _Piece(NamedTuple):
    """A variable of a format string, or text between two of them."""

    text: str
    """The text; for a variable the spelling that it has in the format string."""
    part: str | None = None
    """For a variable the part of a record that it gives; ``""`` for one that nobody needs. None for text."""


def parse_by_format(template: str) -> Parse:
    """Return a function that reads lines of a custom format.

    Args:
        template: The format string of nginx, with ``$variables``, or Apache, with ``%directives``; the whole
            ``log_format`` or ``LogFormat`` line will do as well.

    Raises:
        ConfigurationError: It is no format string, or its lines tell too little about a request, or nobody could tell
            where one of its variables ends.
    """
    if not isinstance(template, str) or not template.strip() or len(template) > _MAX_CHARACTERS:
        raise ConfigurationError(f"{quoted(template)} is no format string of a log; expected one, {_EXAMPLES}")
    pieces = _pieces(_unwrapped(template))
    _check(template, {piece.part for piece in pieces if piece.part})
    pattern = _pattern(template, pieces)

    def parse(text: str) -> AccessRecord | Skip:
        match = pattern.fullmatch(text)
        if match is None:
            return Skip.FORMAT
        parts = {name: value for name, value in match.groupdict().items() if value is not None}
        return _record(text_time_us(parts["time"].strip("[]")), parts)

    return parse


def _unwrapped(template: str) -> str:
    """Take a format string out of the line of a configuration in which it stands."""
    nginx = _LOG_FORMAT.fullmatch(template)
    if nginx is not None:
        return "".join(_QUOTED_PARTS.findall(nginx[1])) or nginx[1]
    apache = _APACHE_LOG_FORMAT.fullmatch(template)
    template = (apache[1] if apache is not None else template).strip()
    return template.replace('\\"', '"').replace("\\t", "\t") if "%" in template else template


def _pieces(template: str) -> list[_Piece]:
    is_nginx = "$" in template and not re.search(r"%[>{]?[a-z]", template)
    pieces, start = [], 0
    for match in (_NGINX if is_nginx else _APACHE).finditer(template):
        if match.start() > start:
            pieces.append(_Piece(template[start : match.start()]))
        pieces.append(_nginx_piece(match) if is_nginx else _apache_piece(match))
        start = match.end()
    if start < len(template):
        pieces.append(_Piece(template[start:]))
    return pieces


def _nginx_piece(match: re.Match[str]) -> _Piece:
    name = match[1] or match[2]
    header = f"header:{name[5:].replace('_', '-')}" if name.startswith("http_") else ""
    return _Piece(match[0], _NGINX_PARTS.get(name, header))


def _apache_piece(match: re.Match[str]) -> _Piece:
    argument, letter = match.groups()
    if letter == "%":
        return _Piece("%")
    if letter == "i" and argument:
        return _Piece(match[0], f"header:{argument.lower()}")
    if letter == "t" and argument and "%" in argument and not _is_readable(argument):
        raise ConfigurationError(
            f"the time {quoted(argument)} cannot be read, or has no zone, so nobody knows which moment it means; "
            "expected %t, %{msec}t, or ISO 8601 in one directive, %{%Y-%m-%dT%H:%M:%S%z}t"
        )
    return _Piece(match[0], _APACHE_PARTS.get(letter, ""))


def _is_readable(time_format: str) -> bool:
    moment = datetime(2024, 5, 12, tzinfo=UTC)
    try:
        return text_time_us(moment.strftime(time_format.removeprefix("begin:").removeprefix("end:"))) is not None
    except ValueError:  # as on systems that do not know a letter
        return False


def _check(template: str, parts: set[str]) -> None:
    if not parts:
        raise ConfigurationError(f"{quoted(template)} is no format string of a log; expected one, {_EXAMPLES}")
    missing = []
    if not parts & {"client", "peer", "header:x-forwarded-for", "header:x-real-ip"}:
        missing.append("the client ($remote_addr, %h or %a)")
    if "time" not in parts:
        missing.append("the time ($time_local, $time_iso8601, $msec or %t)")
    if "request" not in parts and not ("method" in parts and parts & {"path", "uri"}):
        missing.append("the request ($request or %r)")
    if "status" not in parts:
        missing.append("the status ($status or %>s)")
    if missing:
        raise ConfigurationError(f"the format {quoted(template)} lacks {', '.join(missing)}; expected {_EXAMPLES}")


def _pattern(template: str, pieces: list[_Piece]) -> re.Pattern[str]:
    """Return the pattern of a line, whose groups are parts of a record; the first variable for a part counts."""
    pattern = ""
    groups: set[str] = set()
    for index, piece in enumerate(pieces):
        if piece.part is None:
            pattern += re.escape(piece.text)
            continue
        after = pieces[index + 1] if index + 1 < len(pieces) else _Piece("")
        before = pieces[index - 1].text if index and pieces[index - 1].part is None else ""
        shape = _shape(template, piece, before, after)
        group = _group(piece.part)
        pattern += f"(?P<{group}>{shape})" if group and group not in groups else f"(?:{shape})"
        groups.add(group)
    return re.compile(pattern)


def _group(part: str) -> str:
    """Return a name for the group of a part, which holds letters and digits alone."""
    name = part.removeprefix("header:")
    return part if name == part else "header_" + name.encode().hex()


def _shape(template: str, piece: _Piece, before: str, after: _Piece) -> str:
    """Return the pattern of the text that a variable stands for."""
    if piece.part == "marked_query":  # begins with its question mark; it is all of the rest of a path
        return r"(?:\?[^\s\"]*+)?"
    if piece.part == "mark":
        return r"\??"
    if after.part in ("mark", "marked_query"):
        return r"[^\s?\"]*+"
    if after.part is not None:
        raise ConfigurationError(
            f"nobody can tell where {piece.text} ends and {after.text} begins in {quoted(template)}; expected text "
            f"between them, {_EXAMPLES}"
        )
    if piece.part == "time":
        return r'\[?[^]["]{1,64}?\]?'
    if before.endswith('"') and after.text.startswith('"'):
        return QUOTED_TEXT
    if not after.text:
        return r".*+"
    if piece.text in ("$remote_user", "%u"):
        return r'[^"]{0,256}?'  # it may hold blanks
    # An address list has blanks behind its commas, also where no quotation marks are around it.
    return r"(?:[^, ]++|, ?+)*" if after.text[0] == " " else f"[^{re.escape(after.text[0])}]*+"


def _record(time_us: int | None, parts: Mapping[str, str]) -> AccessRecord | Skip:
    headers = {
        bytes.fromhex(name[7:]).decode(): value
        for name, value in parts.items()
        if name.startswith("header_") and given(value)
    }
    client = next((text for text in _clients(parts, headers) if given(text)), "")
    if "request" in parts:
        request = request_of(parts["request"])
    else:
        path = parts.get("path", parts.get("uri", ""))
        query = parts.get("query", "").removeprefix("-") or parts.get("marked_query", "").removeprefix("?")
        request = request_of_parts(parts["method"], f"{path}?{query}" if "path" not in parts and query else path)
    agent, asked_host = headers.pop("user-agent", None), headers.pop("host", None)
    host = parts.get("host") or asked_host or parts.get("server")
    return record(time_us, client, request, parts["status"], agent, host, tuple(headers.items()))


def _clients(parts: Mapping[str, str], headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts that may name the client, the most trustworthy first."""
    forwarded = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    yield from (parts.get("client", ""), parts.get("peer", ""), headers.get("x-real-ip", ""), forwarded)


def parse_by_fields(fields: Mapping[str, str]) -> Parse:
    """Return a function that reads JSON lines by the names that their fields have.

    Args:
        fields: For each part of a record the field that holds it, with dots between the names of objects in objects:
            ``time``, ``client``, ``status``, and ``request`` or ``method`` and ``path``; also ``user_agent``, ``host``,
            and ``header:NAME`` for any header field.

    Raises:
        ConfigurationError: A part is missing, or is unknown.
    """
    _check_fields(fields)
    paths = {name: tuple(path.split(".")) for name, path in fields.items()}
    headers = [(name[7:].strip().lower(), path) for name, path in paths.items() if name.startswith("header:")]

    def parse(text: str) -> AccessRecord | Skip:
        line = json_object(text)
        if line is None:
            return Skip.JSON
        parts = {name: _below(line, path) for name, path in paths.items()}
        method, path = parts.get("method"), parts.get("path")
        if isinstance(parts.get("request"), str):
            request = request_of(parts["request"])
        elif isinstance(method, str) and isinstance(path, str):
            request = request_of_parts(method, path)
        else:
            return Skip.FORMAT
        client = parts["client"] if isinstance(parts["client"], str) else ""
        sent = headers_of((name, _below(line, path)) for name, path in headers)
        time_us = any_time_us(parts["time"])
        return record(time_us, client, request, parts["status"], parts.get("user_agent"), parts.get("host"), sent)

    return parse


def _check_fields(fields: Mapping[str, str]) -> None:
    for name, path in fields.items():
        if name not in _PARTS_OF_JSON and not (name.startswith("header:") and name[7:].strip()):
            choices = (*_PARTS_OF_JSON, "header:X-API-Key")
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
        raise ConfigurationError(f"the fields of the log lack {', '.join(missing)}; expected such as {_JSON_EXAMPLE}")


def _below(line: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = line.get(".".join(path))  # some writers put the dots into the names themselves
    if value is not None:
        return value
    value = line
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    # A header field may be a list of its values, as in Caddy's logs.
    return value[0] if isinstance(value, list) and value else value
