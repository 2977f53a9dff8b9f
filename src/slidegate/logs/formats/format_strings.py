"""Custom formats of nginx and Apache, by the format string that stands in the configuration of the server.

A format string becomes one pattern, made once. Each variable ends where the text behind it begins, so two variables
side by side have no end between them and are refused, but for a path and its query, which a question mark parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from ...core.errors import ConfigurationError, quoted
from ..access_record import AccessRecord, Skip
from .custom_times import NGINX_TIMES, TimePiece, apache_time, time_of_pieces
from .parts import QUOTED_TEXT, record, request_of, request_of_parts, scaled, size_of, status_of

_MOST_CHARACTERS: Final = 8_192
_EXAMPLES: Final = (
    "such as '$remote_addr - $remote_user [$time_local] \"$request\" $status' or '%h %l %u %t \"%r\" %>s'"
)
_LOG_FORMAT: Final = re.compile(r"\s*log_format\s+\S+\s+(?:escape=\w+\s+)?(.*?);?\s*", re.DOTALL)
_APACHE_LOG_FORMAT: Final = re.compile(r'\s*(?:LogFormat|CustomLog\s+\S+)\s+"((?:[^"\\]|\\.)*)".*', re.DOTALL)
_PIECES: Final = re.compile(r"'([^']*)'")
_NGINX: Final = re.compile(r"\$(?:\{([a-z0-9_]+)\}|([a-z0-9_]+))")
_APACHE: Final = re.compile(r"%[!0-9,]*[<>]?(?:\{([^}]*)\})?(%|\^[a-zA-Z]{2}|[a-zA-Z])")

_NGINX_PARTS: Final = {
    "remote_addr": "client", "realip_remote_addr": "peer", "proxy_protocol_addr": "peer",
    "request": "request", "request_method": "method", "request_uri": "path", "uri": "uri", "args": "query",
    "query_string": "query", "is_args": "mark", "status": "status", "body_bytes_sent": "sent_bytes",
    "bytes_sent": "sent_bytes", "request_time": "duration_s", "host": "host", "server_name": "server",
    "time_local": "time", "time_iso8601": "time", "msec": "time",
}  # fmt: skip
_APACHE_PARTS: Final = {
    "h": "client", "a": "client", "r": "request", "m": "method", "U": "uri", "q": "marked_query", "s": "status",
    "b": "sent_bytes", "B": "sent_bytes", "O": "sent_bytes", "D": "duration_us", "T": "duration_s", "v": "server",
    "V": "host",
}  # fmt: skip
_FACTORS: Final = {"duration_s": 1_000_000, "duration_ms": 1_000, "duration_us": 1}


class _Piece(NamedTuple):
    """A variable of a format string, or text between two of them."""

    text: str
    """The text; for a variable the spelling that it has in the format string."""
    part: str | None = None
    """For a variable the part of a record that it gives; ``""`` for one that nobody needs. None for text."""
    time: TimePiece | None = None


def parse_by_format(template: str) -> Callable[[str], AccessRecord | Skip]:
    """Return a function that reads lines of a custom format.

    Args:
        template: The format string of nginx, with ``$variables``, or Apache, with ``%directives``; the whole
            ``log_format`` or ``LogFormat`` line will do as well.

    Raises:
        ConfigurationError: It is no format string, or its lines tell too little about a request, or nobody could tell
            where one of its variables ends.
    """
    if not isinstance(template, str) or not template.strip() or len(template) > _MOST_CHARACTERS:
        raise ConfigurationError(f"{quoted(template)} is no format string of a log; expected one, {_EXAMPLES}")
    pieces = _pieces(_unwrapped(template))
    _check(template, [piece.part for piece in pieces if piece.part])
    pattern, times = _pattern(template, pieces)
    time_us = time_of_pieces(list(times.values()))

    def parse(text: str) -> AccessRecord | Skip:
        match = pattern.fullmatch(text)
        if match is None:
            return Skip.FORMAT
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        return _record(time_us([match[name] for name in times]), found)

    return parse


def _unwrapped(template: str) -> str:
    """Take a format string out of the line of a configuration in which it stands."""
    nginx = _LOG_FORMAT.fullmatch(template)
    if nginx is not None:
        return "".join(_PIECES.findall(nginx[1])) or nginx[1]
    apache = _APACHE_LOG_FORMAT.fullmatch(template)
    template = (apache[1] if apache is not None else template).strip()
    return template.replace('\\"', '"').replace("\\t", "\t") if "%" in template else template


def _pieces(template: str) -> list[_Piece]:
    is_nginx = "$" in template and not re.search(r"%[>{]?[a-z]", template)
    found, start = [], 0
    for match in (_NGINX if is_nginx else _APACHE).finditer(template):
        if match.start() > start:
            found.append(_Piece(template[start : match.start()]))
        found.append(_nginx_piece(match) if is_nginx else _apache_piece(match))
        start = match.end()
    if start < len(template):
        found.append(_Piece(template[start:]))
    return found


def _nginx_piece(match: re.Match[str]) -> _Piece:
    name = match[1] or match[2]
    part = _NGINX_PARTS.get(name, f"header:{name[5:].replace('_', '-')}" if name.startswith("http_") else "")
    return _Piece(match[0], part, NGINX_TIMES[name] if part == "time" else None)


def _apache_piece(match: re.Match[str]) -> _Piece:
    argument, letter = match.groups()
    if letter == "%":
        return _Piece("%")
    if letter == "t":
        return _Piece(match[0], "time", apache_time(argument))
    if letter == "i" and argument:
        return _Piece(match[0], f"header:{argument.lower()}")
    if letter == "T" and argument in ("ms", "us"):
        return _Piece(match[0], f"duration_{argument}")
    return _Piece(match[0], _APACHE_PARTS.get(letter, ""))


def _check(template: str, parts: list[str]) -> None:
    if not parts:
        raise ConfigurationError(f"{quoted(template)} is no format string of a log; expected one, {_EXAMPLES}")
    there = set(parts)
    missing = []
    if not there & {"client", "peer", "header:x-forwarded-for", "header:x-real-ip"}:
        missing.append("the client ($remote_addr, %h or %a)")
    if "time" not in there:
        missing.append("the time ($time_local, $time_iso8601, $msec or %t)")
    if "request" not in there and not ("method" in there and there & {"path", "uri"}):
        missing.append("the request ($request or %r)")
    if "status" not in there:
        missing.append("the status ($status or %>s)")
    if missing:
        raise ConfigurationError(f"the format {quoted(template)} lacks {', '.join(missing)}; expected {_EXAMPLES}")


def _pattern(template: str, pieces: list[_Piece]) -> tuple[re.Pattern[str], dict[str, TimePiece]]:
    """Return the pattern of a line, whose groups are parts of a record, and how to read those that are times."""
    pattern = ""
    times: dict[str, TimePiece] = {}
    groups: set[str] = set()
    for place, piece in enumerate(pieces):
        if piece.part is None:
            pattern += re.escape(piece.text)
            continue
        after = pieces[place + 1] if place + 1 < len(pieces) else _Piece("")
        before = pieces[place - 1].text if place and pieces[place - 1].part is None else ""
        shape = piece.time.shape if piece.time else _shape(template, piece, before, after)
        group = _group(piece.part)
        if piece.time is not None:
            group = f"time_{len(times)}"
            times[group] = piece.time
        # The first of two variables for one part counts.
        pattern += f"(?P<{group}>{shape})" if piece.part and group not in groups else f"(?:{shape})"
        groups.add(group)
    return re.compile(pattern), times


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
    if before.endswith('"') and after.text.startswith('"'):
        return QUOTED_TEXT
    if not after.text:
        return r".*+"
    if piece.text in ("$remote_user", "%u"):
        return r'[^"]{0,256}?'  # it may hold blanks
    # An address list has blanks behind its commas, also where no quotation marks are around it.
    return r"(?:[^, ]++|, ?+)*" if after.text[0] == " " else f"[^{re.escape(after.text[0])}]*+"


def _record(time_us: int | None, found: Mapping[str, str]) -> AccessRecord | Skip:
    headers = {
        bytes.fromhex(name[7:]).decode(): value
        for name, value in found.items()
        if name.startswith("header_") and value not in ("", "-")
    }
    forwarded = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    client = next((text for text in _clients(found, headers, forwarded) if text not in ("", "-")), "")
    request = found.get("request")
    if request is None:
        path = found.get("path", found.get("uri", ""))
        query = found.get("query", "").removeprefix("-") or found.get("marked_query", "").removeprefix("?")
        if "path" not in found and query:
            path = f"{path}?{query}"
        asked = request_of_parts(found["method"], path)
    else:
        asked = request_of(request)
    agent, referer, asked_host = (headers.pop(name, None) for name in ("user-agent", "referer", "host"))
    host = found.get("host") or asked_host or found.get("server")
    duration = next((part for part in _FACTORS if part in found), None)
    return record(
        time_us, client, asked, status_of(found["status"]), agent, host, referer, size_of(found.get("sent_bytes")),
        scaled(found[duration], _FACTORS[duration]) if duration else None, tuple(headers.items()),
    )  # fmt: skip


def _clients(found: Mapping[str, str], headers: Mapping[str, str], forwarded: str) -> Iterator[str]:
    """Yield the texts that may name the client, the most trustworthy first."""
    yield from (found.get("client", ""), found.get("peer", ""), headers.get("x-real-ip", ""), forwarded)
