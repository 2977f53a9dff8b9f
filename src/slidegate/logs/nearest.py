"""The known format that a broken line is nearest to, for whoever has to say why a log cannot be read."""

from __future__ import annotations

import re
from typing import Final

from .access_record import Skip

_FIELD: Final = re.compile(r'"([A-Za-z_@][\w.@-]{0,40})"\s*:')
_SIGNS: Final = (
    (re.compile(r"\{"), "JSON lines"),
    (re.compile(r"#"), "the header of a log in the W3C format"),
    (re.compile(r"(?:https?|h2|grpcs|wss?) [0-9]{4}-[0-9]{2}-[0-9]{2}T"), "the log of a load balancer of AWS"),
    (
        re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?: |\\t)[0-9:]{8}(?: |\\t)"),
        "the W3C format, such as CloudFront's",
    ),
    (re.compile(r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9:]{8} \["), "the error log of nginx"),
    (re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [0-9 ]{2}"), "the error log of Apache"),
    (re.compile(r".*\[[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:"), "the Combined format"),
    (re.compile(r'.*"[A-Z]{3,10} \S+ HTTP/'), "the Combined format"),
)
_ADVICE: Final = {
    "the W3C format, such as CloudFront's": "whose header line, #Fields:, is missing in front of it",
    "the error log of nginx": "which holds no requests; expected the access log",
    "the error log of Apache": "which holds no requests; expected the access log",
}
_NOTHING: Final = (
    "looks like no known format; give the format string of the server, such as '%h %l %u %t \"%r\" %>s %b'"
)


def nearest(text: str, reason: Skip, *, custom: bool) -> str:
    """Return words that follow "line 1": the format that a line looks like, and what keeps it from being read.

    Args:
        text: The beginning of the line.
        reason: The reason for which it was skipped.
        custom: Whether the user gave a format, or names of fields.
    """
    if reason is Skip.BINARY:
        return f"is {reason}"
    if reason is Skip.TOO_LONG:
        return "is longer than any line of an access log"
    format = next((name for pattern, name in _SIGNS if pattern.match(text)), None)
    if format is None:
        return "does not fit the format that was given" if custom else _NOTHING
    found = f"looks like {format}"
    if reason is not Skip.FORMAT:
        return f"{found}, but has {_lacking(reason)}"
    if custom:
        return f"{found}, and does not fit the format that was given"
    if format == "JSON lines":
        return _about_json(text)
    return f"{found}, {_ADVICE.get(format, 'but is not quite that; give the format string of the server')}"


def _lacking(reason: Skip) -> str:
    return {Skip.JSON: "broken JSON", Skip.TIME: "a time that cannot be read"}.get(reason, str(reason))


def _about_json(text: str) -> str:
    names = list(dict.fromkeys(_FIELD.findall(text)))[:6]
    named = f" with the fields {', '.join(names)}" if names else ""
    return f"looks like JSON lines{named}, of no known server; say which fields hold time, client, status and request"
