"""Bans, changed limits and windows as JSON shows them, in commands and in the dashboard; and texts and keys of both.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from .. import ConfigurationError
from ..core import AnyLimit
from .kinds import SHOWN, named_kind

_S: Final = 1_000_000
_IN_SECONDS: Final = {
    "since_us": "since_at",
    "until_us": "until_at",
    "at_us": "at",
    "now_us": "at",
    "time_us": "at",
    "retry_after_us": "retry_after_s",
    "more_after_us": "more_after_s",
    "reset_after_us": "reset_after_s",
}
"""The names in JSON of what is in microseconds."""
_UNITS: Final = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))
"""The units of a length of time, with the next smaller one, in seconds."""
NO_VALUE: Final = "\u2013"
_LISTED: Final = 5
"""How many names are in one line."""


def as_json(value: Any) -> Any:
    """Return a tuple with names, such as a ban, or a list of them, as JSON shows it, and so the values in it."""
    if hasattr(value, "_asdict"):
        row = {}
        for name, part in value._asdict().items():
            if name in _IN_SECONDS:
                row[_IN_SECONDS[name]] = seconds(part)
            else:
                row[name] = as_json(part)
        return row
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, AnyLimit):
        return str(value)
    return value


def seconds(value_us: int | None) -> float | None:
    """Return a time or a length of time in seconds; None for None."""
    if value_us is None:
        return None
    return value_us / _S


def time_of(unix_s: float) -> str:
    """Return a Unix time as ``2026-01-31T12:00:00Z``."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def span(span_s: float) -> str:
    """Return a length of time in its two largest units, rounded up: ``22 min 30 s``, ``1.5 s``; of one below 0, 0."""
    span_us = round(max(span_s, 0) * _S)
    for unit, unit_s, part, part_s in _UNITS:
        parts = -(-span_us // (part_s * _S))
        whole, rest = divmod(parts, unit_s // part_s)
        if whole and rest:
            return f"{whole} {unit} {rest} {part}"
        if whole:
            return f"{whole} {unit}"
    return f"{-(-span_us // 100_000) / 10:g} s"


def share(part: float, whole: float) -> str:
    """Return a share in percent."""
    if not whole:
        return NO_VALUE
    if part and part < whole / 10_000:
        return "< 0.01 %"
    return f"{100 * part / whole:.3g} %"


def listed(names: Collection[str]) -> str:
    """Return some names in one line: ``api, login``; of many, the first and how many more there are."""
    text = ", ".join([*names][:_LISTED])
    if len(names) > _LISTED:
        text += f" and {len(names) - _LISTED} more"
    return text


def named(values: object, *names: str) -> dict[str, Any]:
    """Return some attributes of an object by name."""
    return {name: getattr(values, name) for name in names}


def key_of(key: str, value: str | None = None) -> Any:
    """Return the key for a limiter.

    Args:
        key: An address, a network or another key; ``header:NAME``, ``cookie:NAME`` and ``query:NAME`` need a value, or
            its digest behind a ``#``.
        value: The value that the client sends.

    Raises:
        ConfigurationError: The key needs a value and has none, or takes none, or no request can have this value.
    """
    kind, _, rest = key.partition(":")
    name, _, digest = rest.partition("#")
    source = named_kind(kind.lower()).named
    if value is not None and (source is None or not name or digest):
        raise ConfigurationError(
            f"expected a key such as header:X-API-Key, cookie:device or query:token beside it, not {key!a}", "value"
        )
    if source is None or not name:
        return key
    if digest:
        # Stores have the name of a header field in small letters, and an operator may type others.
        return f"{source(name).identity[:SHOWN]}#{digest}"
    if value is None:
        raise ConfigurationError(
            f"{key!a} names no client without its value; pass that as value, or the key as the dashboard shows it, for "
            f'example "{key}#1f3a..."'
        )
    return source(name).of(value)
