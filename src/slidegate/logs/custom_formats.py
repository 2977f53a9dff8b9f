"""Access logs in a format of their own: a format string of nginx, or JSON lines by the names of their fields.

Either becomes a reader that finds the values of nginx's variables in a line; `formats.nginx_record` makes a record of
them. In a format string each variable ends where the text behind it begins, so two variables side by side have no end
between them and are refused, except a path and its query, which a question mark separates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from ..core.errors import ConfigurationError, closest, quoted
from .formats import QUOTED_TEXT, Parse, json_object, nginx_record
from .record import AccessRecord, Skip

_MAX_CHARACTERS: Final = 8_192
_EXAMPLE: Final = "such as '$remote_addr - $remote_user [$time_local] \"$request\" $status'"
_LOG_FORMAT: Final = re.compile(r"\s*log_format\s+\S+\s+(?:escape=\w+\s+)?(.*?);?\s*", re.DOTALL)
_QUOTED_PARTS: Final = re.compile(r"'([^']*)'")
_VARIABLE: Final = re.compile(r"\$(\{[a-z0-9_]+\}|[a-z0-9_]+)")
_TIMES: Final = frozenset({"time_local", "time_iso8601", "msec"})
_NEEDED: Final = (
    (
        "the client ($remote_addr)",
        (
            {"remote_addr"},
            {"realip_remote_addr"},
            {"proxy_protocol_addr"},
            {"http_x_real_ip"},
            {"http_x_forwarded_for"},
        ),
    ),
    ("the time ($time_local, $time_iso8601 or $msec)", tuple({name} for name in _TIMES)),
    ("the request ($request)", ({"request"}, {"request_method", "request_uri"}, {"request_method", "uri"})),
    ("the status ($status)", ({"status"},)),
)
"""What a format has to log, and the sets of variables each of which is enough for that."""
_VARIABLES: Final = {
    **{"time": "msec", "client": "remote_addr", "status": "status", "request": "request"},
    **{"method": "request_method", "path": "request_uri", "user_agent": "http_user_agent", "host": "host"},
}
"""The variable of nginx for each part of a record that a field of JSON lines may hold."""
_HEADER: Final = "header:"
_FIELDS_EXAMPLE: Final = '{"time": "ts", "client": "http.client_ip", "status": "code", "request": "line"}'


def parse_by_format(template: str) -> Parse:
    """Return a function that reads lines of a custom format of nginx.

    Args:
        template: The format string, or the whole ``log_format`` line of the configuration.

    Raises:
        ConfigurationError: It is no format string, its lines lack a part of a request, or the end of one of its
            variables cannot be known.
    """
    if not isinstance(template, str) or len(template) > _MAX_CHARACTERS or not _VARIABLE.search(template):
        raise ConfigurationError(f"{quoted(template)} is no format string of nginx; expected one, {_EXAMPLE}")
    wrapped = _LOG_FORMAT.fullmatch(template)
    text = template if wrapped is None else "".join(_QUOTED_PARTS.findall(wrapped[1])) or wrapped[1]
    pieces = [piece.strip("{}") if index % 2 else piece for index, piece in enumerate(_VARIABLE.split(text))]
    logged = set(pieces[1::2])
    missing = [what for what, enough in _NEEDED if not any(names <= logged for names in enough)]
    if missing:
        raise ConfigurationError(f"the format {quoted(template)} lacks {', '.join(missing)}; expected one, {_EXAMPLE}")
    pattern = _pattern(template, pieces)

    def parse(line: str) -> AccessRecord | Skip:
        match = pattern.fullmatch(line)
        return Skip.FORMAT if match is None else nginx_record(match.groupdict())

    return parse


def _pattern(template: str, pieces: list[str]) -> re.Pattern[str]:
    """Return the pattern of a line, whose groups are variables.

    Args:
        template: The format string, for messages.
        pieces: Its texts, with the names of its variables between them.
    """
    pattern, known = re.escape(pieces[0]), set[str]()
    followers = [*pieces[3::2], ""]
    for (before, after), name, follower in zip(pairwise(pieces[::2]), pieces[1::2], followers, strict=True):
        if follower and not after and "is_args" not in (name, follower):
            raise ConfigurationError(
                f"it cannot be known where ${name} ends and ${follower} begins in {quoted(template)}; expected text "
                f"between them, {_EXAMPLE}"
            )
        shape = _shape(name, before, after, follower)
        pattern += f"({'?:' if name in known else f'?P<{name}>'}{shape}){re.escape(after)}"
        known.add(name)
    return re.compile(pattern)


def _shape(name: str, before: str, after: str, follower: str) -> str:
    """Return the pattern of the text that a variable stands for."""
    if name == "is_args":
        return r"\??"
    if not after and follower:
        return r"[^\s?\"]*+"
    if name in _TIMES:
        return r'[^]["]{1,64}?'
    if before.endswith('"') and after.startswith('"'):
        return QUOTED_TEXT
    if not after:
        return r".*+"
    if name == "remote_user":
        return r'[^"]{0,256}?'  # it may hold spaces
    # An address list has spaces behind its commas, also where no quotation marks are around it.
    return r"(?:[^, ]++|, ?+)*" if after[0] == " " else f"[^{re.escape(after[0])}]*+"


def parse_by_fields(fields: Mapping[str, str]) -> Parse:
    """Return a function that reads JSON lines by the names that their fields have.

    Args:
        fields: For each part of a record the field that holds it, with dots between the names of nested objects:
            ``time``, ``client``, ``status``, and ``request`` or ``method`` and ``path``; also ``user_agent``, ``host``,
            and ``header:NAME`` for any header field.

    Raises:
        ConfigurationError: A part is missing, or is unknown.
    """
    _check_fields(fields)
    paths = {_variable(part): path.split(".") for part, path in fields.items()}

    def parse(text: str) -> AccessRecord | Skip:
        line = json_object(text)
        return Skip.JSON if line is None else nginx_record({name: _below(line, path) for name, path in paths.items()})

    return parse


def _variable(part: str) -> str:
    """Return the variable of nginx that holds a part of a record; empty for an unknown part."""
    name = part.removeprefix(_HEADER).strip().lower()
    return _VARIABLES.get(part, "") if part == name or not name else f"http_{name.replace('-', '_')}"


def _check_fields(fields: Mapping[str, str]) -> None:
    for part, path in fields.items():
        if not _variable(part):
            choices = (*_VARIABLES, f"{_HEADER}X-API-Key")
            raise ConfigurationError(
                f"no part of a record is called {quoted(part)}; expected one of {', '.join(choices)}"
                f"{closest(part, choices)}"
            )
        if not isinstance(path, str) or "" in path.split("."):
            raise ConfigurationError(
                f"{quoted(path)} is no name of a field; expected names with dots between them, such as 'http.client_ip'"
            )
    missing = [part for part in ("time", "client", "status") if part not in fields]
    if "request" not in fields and not {"method", "path"} <= fields.keys():
        missing.append("request (or method and path)")
    if missing:
        raise ConfigurationError(f"the fields of the log lack {', '.join(missing)}; expected such as {_FIELDS_EXAMPLE}")


def _below(line: Mapping[str, Any], path: list[str]) -> Any:
    value: Any = line.get(".".join(path))  # some writers put the dots into the names themselves
    if value is not None:
        return value
    value = line
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    # A header field may be a list of its values, as in Caddy's logs.
    return value[0] if isinstance(value, list) and value else value
