"""Reads lines of access logs: when which client requested what, and the status of the response.

Each line is read by itself, because concatenated files mix formats:

* Combined and Common, also with more in front or behind: ``ADDRESS IDENT USER [TIME] "REQUEST" STATUS ...``. The time
  is what stands in brackets before the request. `client_of` finds the client among the words before the time, whatever
  Kubernetes, Docker, syslog or journald has written in front.
* The logs of uvicorn and granian: ``TIME ... ADDRESS - "REQUEST" STATUS``.
* JSON of nginx, Caddy and Traefik, with one of `PRESETS`.
* Any line, by a regular expression with named groups.

Log content is untrusted and never raises: a line becomes a record, or the reason why it does not. Each pattern matches
a text in one way only, so a hostile line cannot make it slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ...core import ConfigurationError, parse_address
from ...core.errors import quoted

Preset: TypeAlias = Literal["nginx", "caddy", "traefik"]
NO_CLIENT: Final = "it contains no address of a client"
NO_REQUEST: Final = "it contains no request of an access log"
NO_TIME: Final = "it contains no time"
ODD_TIME: Final = (
    "its time cannot be read (expected 12/May/2024:00:00:17 +0000, 2024-05-12T00:00:17Z or 1715472017.5, for example)"
)
PRESETS: Final[dict[Preset, str]] = {
    "nginx": "time=msec|time_iso8601|time_local client=remote_addr request=request method=request_method "
    "path=request_uri|uri status=status headers=http_",
    "caddy": "time=ts client=request.client_ip|request.remote_ip method=request.method path=request.uri status=status "
    "headers=request.headers.",
    "traefik": "time=StartUTC client=ClientHost method=RequestMethod path=RequestPath status=DownstreamStatus "
    "headers=request_",
}
"""Where the JSON lines of servers have what a record needs; ``|`` separates alternatives. Of header fields it is how
their names begin."""
_FIELDS: Final = {name: dict(pair.split("=") for pair in text.split()) for name, text in PRESETS.items()}
_MAX_TIME_S: Final = 253_402_300_800  # the year 10000
_MAX_WORD: Final = 64  # no address and no time is longer
# No group is possessive: CPython before 3.11.5 matches such groups incorrectly.
_QUOTED: Final = r'"([^"\\]*+(?:\\.[^"\\]*+)*)"'
_REQUEST_AND_STATUS: Final = re.compile(rf"{_QUOTED} ([0-9]{{3}})(?= |$)(?: \S++ {_QUOTED} {_QUOTED}(?= |$))?")
_REQUEST_LINE: Final = re.compile(r"([A-Za-z][\w-]*+) (\S++) (?:HTTP/)?[0-9](?:\.[0-9])?", re.ASCII)
_WITHOUT_DURATION: Final = re.compile(r'" [0-9]{3}(?! ?[0-9])')
_STATUS: Final = re.compile(r"[0-9]{1,3}")
_ISO_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?: ?[+-][0-9]{2}:?[0-9]{2}|Z)?"
)
# RFC 5424 has a host and three fields in front of the message that may be "-", as an ident is.
_SYSLOG: Final = re.compile(r"(?:<[0-9]{1,3}>)?1 \S+ \S+ \S+ \S+ \S+ (?:-|(?:\[[^]]*\])+) ")


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
    """Parse a line of text in one of the known formats other than JSON."""
    if prefix := _SYSLOG.match(text):
        text = text[prefix.end() :]
    # A user name may contain anything but an unescaped quotation mark, so the first of these ends the time.
    end = text.find('] "')
    start = -1
    if end > 0:
        start = text.rfind("[", 0, end)
    if start >= 0 and text[start + 1].isdigit():
        time, before, behind = text[start + 1 : end], text[:start], text[end + 2 :]
    else:
        before, _, request = text.partition(' - "')
        # Kubernetes and others write a time in front; the last one is that of the server.
        time, behind = next(reversed(_ISO_TIME.findall(before)), ""), f'"{request}'
        # uvicorn writes a port behind each address, of IPv6 without brackets; granian none, but a duration at the end.
        if _WITHOUT_DURATION.search(behind):
            before = re.sub(":[0-9]+$", "", before)
    match = _REQUEST_AND_STATUS.match(behind)
    if match is None:
        return NO_REQUEST
    request, status, referer, agent = match.groups()
    headers = {"referer": referer, "user-agent": agent}
    return _record(time, client_of(before.split()), _request_of(request), status, headers)


def client_of(words: Sequence[str]) -> str | None:
    """Return the address of the client from the words before the time of a line; None if there is none.

    It is the last address, whatever stands in front of it or behind it; of a list from X-Forwarded-For the last one as
    well, which the nearest proxy has added. Clients choose their user names, which may look like addresses: so if an
    address has an ident of ``-`` behind it, the first such address is the client.
    """
    last = None
    for index, word in enumerate(words):
        address = address_in(word)
        if address is None:
            continue
        if words[index + 1 : index + 2] == ["-"]:
            return address
        last = address
    return last


def address_in(word: str) -> str | None:
    """Return the address in a word, without a port, brackets, quotation marks, and what precedes a comma."""
    word = word.rpartition(",")[2].strip(' "')
    if len(word) > _MAX_WORD:
        return None
    return _address_in(word)


@lru_cache(maxsize=4_096)
def _address_in(word: str) -> str | None:
    bare = word.removeprefix("[").partition("]")[0]
    if parse_address(bare) is not None:
        return bare
    host, _, port = bare.rpartition(":")
    if port.isdecimal() and parse_address(host) is not None:
        return host
    return None


# -- JSON, and other formats -------------------------------------------------------------------------------------------


def line_parser(*, regex: str | None = None, preset: Preset | None = None) -> Callable[[str], Parsed]:
    """Return a function that parses the text of a line; by default `parse_line`.

    Args:
        regex: A regular expression that is searched in each line. Its named groups are ``time``, ``client``,
            ``request`` or ``method`` and ``path``, and optionally ``status`` and ``header_NAME``.
        preset: One of `PRESETS`: reads JSON with the fields of this server.

    Raises:
        ConfigurationError: The regular expression is invalid, or a required group is missing; or both are given.
    """
    if preset is not None:
        if regex is not None:
            raise ConfigurationError(f"cannot be combined with preset {preset!r}; give one of them", "regex")
        return partial(_parse_json, fields=_FIELDS[preset])
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
    return partial(_parse_by, pattern=pattern, fields=dict(zip(groups, groups, strict=True)) | {"headers": "header_"})


def _parse_by(text: str, pattern: re.Pattern[str], fields: Mapping[str, str]) -> Parsed:
    match = pattern.search(text)
    if match is None:
        return NO_REQUEST
    return _record_of_fields(match.groupdict(), fields)


def _parse_json(text: str, fields: Mapping[str, str]) -> Parsed:
    try:
        line = _flat(json.loads(text[text.find("{") :]))
    except (ValueError, RecursionError, AttributeError):  # the last one if it is JSON of another kind
        return "it is not a valid JSON object"
    # Caddy logs a failed request a second time, as an error.
    if str(line.get("logger")).startswith("http.log.error"):
        return NO_REQUEST
    return _record_of_fields(line, fields)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a nested object by names with dots between them."""
    values: dict[str, Any] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            values |= {f"{name}.{below}": inner for below, inner in _flat(value).items()}
        else:
            values[name] = value
    return values


def _record_of_fields(line: Mapping[str, Any], fields: Mapping[str, str]) -> Parsed:
    values = {part: _first_given(line, names) for part, names in fields.items()}
    client, method, path = values["client"], values.get("method", "GET"), values.get("path")
    target = "", "-"
    if isinstance(values.get("request"), str):
        target = _request_of(values["request"])
    elif isinstance(method, str) and isinstance(path, str):
        target = method, path
    address = None
    if isinstance(client, str):
        address = address_in(client)
    prefix = fields["headers"]
    headers = {name.removeprefix(prefix): value for name, value in line.items() if name.startswith(prefix)}
    return _record(values["time"], address, target, values.get("status", 0), headers)


def _first_given(line: Mapping[str, Any], names: str) -> Any:
    for name in names.split("|"):
        value = line.get(name)
        if value not in (None, "", "-"):
            return value
    return None


def _request_of(text: str) -> tuple[str, str]:
    """Split a request line into method and target; the method is empty if it is not an HTTP request."""
    match = _REQUEST_LINE.fullmatch(text)
    if match is None:
        return "", text
    return match[1], match[2]


def _record(
    time: object, client: str | None, request: tuple[str, str], status: object, headers: Mapping[str, object]
) -> Parsed:
    if client is None:
        return NO_CLIENT
    if time in ("", None):
        return NO_TIME
    time_us = time_us_of(str(time))
    if time_us is None:
        return ODD_TIME
    if _STATUS.fullmatch(str(status)) is None:
        return "it contains no status"
    fields: dict[str, str] = {}
    for name, value in headers.items():
        if isinstance(value, list) and value:  # Caddy logs all fields of a name
            value = value[0]
        if isinstance(value, str) and value not in ("", "-"):
            fields[name.lower().replace("_", "-")] = value
    return AccessRecord(time_us, client, *request, int(str(status)), tuple(fields.items()))


@lru_cache(maxsize=1_024)
def time_us_of(text: str) -> int | None:
    """Parse ``12/May/2024:00:00:17 +0000``, ISO 8601 or a number of seconds; return None for any other text.

    A time without a zone counts as UTC: limits depend on differences of times alone.
    """
    if len(text) > _MAX_WORD:
        return None
    try:
        if text.replace(".", "", 1).isdecimal():
            time_s = float(text)
        elif "/" in text:
            time_s = datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp()
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
