"""The fields of requests to the dashboard: which there are, and sentences for those that are wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...core import ConfigurationError
from ...core.errors import closest, quoted

WINDOWS: Final = ("1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h")
MAX_TEXT: Final = 1_024


class Field(NamedTuple):
    """A field of a request.

    Attributes:
        expected: Its valid values in words.
        is_required: Whether it must be there.
        kind: The type of its value.
        choices: The valid values; empty if any text is.
    """

    expected: str
    is_required: bool = False
    kind: type = str
    choices: tuple[str, ...] = ()


_REASON: Final = Field(f"at most {MAX_TEXT} characters for operators")
_LIMIT_NAME: Final = Field('the name of a limit as response headers show it, for example "api"', is_required=True)

STATISTICS: Final = {"window": Field(f"one of {', '.join(WINDOWS)}", choices=WINDOWS)}
CLIENT: Final = {
    "key": Field('an address, a network or a key, for example "203.0.113.7" or "user:42"', is_required=True)
}
BANS: Final = {
    "q": Field('a text in key, reason or by, for example "203.0.113."'),
    "limit": Field("a whole number from 1 to 1000", choices=tuple(map(str, range(1, 1_001)))),
}
BAN: Final = {
    "key": Field('an address, a network or a key, for example "203.0.113.7", "198.51.100.0/24" or "user:42"'),
    "kind": Field("header, cookie or query, in place of a key", choices=("header", "cookie", "query")),
    "name": Field('the name of the header, cookie or query parameter, for example "X-API-Key"'),
    "value": Field("the value that the client sends"),
    "duration": Field('a length of time up to 400 days, for example "1h", or "permanent"', is_required=True),
    "reason": _REASON,
    "force": Field("true or false", kind=bool),
}
LIMIT: Final = {"name": _LIMIT_NAME}
CHANGE: Final = {
    "name": _LIMIT_NAME,
    "limit": Field('the limit with another amount, for example "50/minute"', is_required=True),
    "duration": Field('a length of time from 1s to 30 days, for example "2h"', is_required=True),
    "reason": _REASON,
}


def read(fields: Mapping[str, Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a request.

    Args:
        fields: The fields that it may have.
        values: The values that it has.

    Raises:
        ConfigurationError: A field is unknown or missing, or its value is invalid.
    """
    for name in values:
        if name not in fields:
            raise ConfigurationError(f"there is no field {quoted(name)}{closest(name, fields)}")
    for name, field in fields.items():
        if name not in values:
            if field.is_required:
                raise ConfigurationError(f"it is missing; expected {field.expected}", name)
        elif not _fits(field, values[name]):
            # A value that clients send may be a secret, so its error does not contain it.
            shown = "" if name == "value" else f", not {_in_json(values[name])}"
            raise ConfigurationError(f"expected {field.expected}{shown}", name)
    return dict(values)


def _fits(field: Field, value: object) -> bool:
    if not isinstance(value, field.kind):
        return False
    if isinstance(value, str):
        # JSON can name lone surrogates, which UTF-8 cannot encode.
        is_encodable = not any("\ud800" <= character <= "\udfff" for character in value)
        return is_encodable and len(value) <= MAX_TEXT and (not field.choices or value in field.choices)
    return True


def _in_json(value: object) -> str:
    """Describe a value of JSON, cut to 80 characters."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    return json.dumps(value)[:80]
