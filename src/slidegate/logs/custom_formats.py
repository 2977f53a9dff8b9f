"""Custom log formats: an nginx format string, or JSON lines with configurable field names.

Both compile to a function that extracts the values of nginx variables from a line; `formats.nginx_record` turns them
into a record. In a format string, literal text must follow each variable to mark its end, so adjacent variables are
rejected, except a path and its query, which a question mark separates.
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
"""The parts that a format must log, each with the sets of variables that provide it."""
_VARIABLES: Final = {
    **{"time": "msec", "client": "remote_addr", "status": "status", "request": "request"},
    **{"method": "request_method", "path": "request_uri", "user_agent": "http_user_agent", "host": "host"},
}
"""The nginx variable for each part of a record that a JSON field can hold."""
_HEADER: Final = "header:"
_FIELDS_EXAMPLE: Final = '{"time": "ts", "client": "http.client_ip", "status": "code", "request": "line"}'


def parse_by_format(template: str) -> Parse:
    """Return a function that parses lines of a custom nginx format.

    Args:
        template: The format string, or the whole ``log_format`` line of the configuration.

    Raises:
        ConfigurationError: It is not a format string, lacks a required part of a request, or has adjacent variables.
    """
    if not isinstance(template, str) or len(template) > _MAX_CHARACTERS or not _VARIABLE.search(template):
        raise ConfigurationError(f"{quoted(template)} is not an nginx format string; expected one, {_EXAMPLE}")
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
    """Return the pattern of a line, with a group for each variable.

    Args:
        template: The format string, for error messages.
        pieces: Literal texts and names of variables, alternating.
    """
    pattern, known = re.escape(pieces[0]), set[str]()
    followers = [*pieces[3::2], ""]
    for (before, after), name, follower in zip(pairwise(pieces[::2]), pieces[1::2], followers, strict=True):
        if follower and not after and "is_args" not in (name, follower):
            raise ConfigurationError(
                f"${name} and ${follower} are adjacent in {quoted(template)}, so values cannot be split; expected text "
                f"between them, {_EXAMPLE}"
            )
        shape = _shape(name, before, after, follower)
        pattern += f"({'?:' if name in known else f'?P<{name}>'}{shape}){re.escape(after)}"
        known.add(name)
    return re.compile(pattern)


def _shape(name: str, before: str, after: str, follower: str) -> str:
    """Return the pattern of the values of a variable."""
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
        return r'[^"]{0,256}?'  # it may contain spaces
    # A list of addresses has spaces after its commas, even without quotation marks around it.
    return r"(?:[^, ]++|, ?+)*" if after[0] == " " else f"[^{re.escape(after[0])}]*+"


def parse_by_fields(fields: Mapping[str, str]) -> Parse:
    """Return a function that parses JSON lines with the given field names.

    Args:
        fields: The JSON field of each part of a record, with dots between the names of nested objects. Required parts:
            ``time``, ``client``, ``status``, and ``request`` or ``method`` and ``path``; optional: ``user_agent``,
            ``host``, and ``header:NAME`` for any header field.

    Raises:
        ConfigurationError: A part is missing or unknown.
    """
    _check_fields(fields)
    paths = {_variable(part): path.split(".") for part, path in fields.items()}

    def parse(text: str) -> AccessRecord | Skip:
        line = json_object(text)
        return Skip.JSON if line is None else nginx_record({name: _below(line, path) for name, path in paths.items()})

    return parse


def _variable(part: str) -> str:
    """Return the nginx variable of a part of a record; an empty string for an unknown part."""
    name = part.removeprefix(_HEADER).strip().lower()
    return _VARIABLES.get(part, "") if part == name or not name else f"http_{name.replace('-', '_')}"


def _check_fields(fields: Mapping[str, str]) -> None:
    for part, path in fields.items():
        if not _variable(part):
            choices = (*_VARIABLES, f"{_HEADER}X-API-Key")
            raise ConfigurationError(
                f"{quoted(part)} is not a part of a record; expected one of {', '.join(choices)}"
                f"{closest(part, choices)}"
            )
        if not isinstance(path, str) or "" in path.split("."):
            raise ConfigurationError(
                f"{quoted(path)} is not the name of a field; expected names joined by dots, such as 'http.client_ip'"
            )
    missing = [part for part in ("time", "client", "status") if part not in fields]
    if "request" not in fields and not {"method", "path"} <= fields.keys():
        missing.append("request (or method and path)")
    if missing:
        raise ConfigurationError(f"the fields lack {', '.join(missing)}; expected for example {_FIELDS_EXAMPLE}")


def _below(line: Mapping[str, Any], path: list[str]) -> Any:
    value: Any = line.get(".".join(path))  # some servers write field names that contain dots
    if value is not None:
        return value
    value = line
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    # Caddy logs a header field as a list of values.
    return value[0] if isinstance(value, list) and value else value
