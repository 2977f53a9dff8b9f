"""How rows of statistics are written: objects of JSON, read by name, in which what is 0 or empty is left out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any


def named_fields(one: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an object that are neither 0 nor empty."""
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(one, name)
        if value:
            found[name] = value
    return found


def known_fields(line: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that are known, of those that were written."""
    return {name: line[name] for name in names if name in line}


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON, compressed in the least time."""
    text = json.dumps(value, separators=(",", ":"))
    return zlib.compress(text.encode(), zlib.Z_BEST_SPEED)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    text = zlib.decompress(row)
    return json.loads(text)
