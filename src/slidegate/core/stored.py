"""What a store keeps by name: written as JSON, and read by later versions and earlier ones.

A later version may have written further fields, which are ignored, and stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

Named = TypeVar("Named", bound=tuple[Any, ...])
"""A class made by `NamedTuple`."""


def json_of(value: object) -> bytes:
    """Return the value of a row, mostly its fields by name, as JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def read_json(kind: type[Named], packed: bytes) -> Named:
    """Return the value whose fields are in a row of JSON.

    Raises:
        ValueError: The row is not JSON.
        KeyError: A field is missing.
    """
    return read_by_name(kind, json.loads(packed))


def read_by_name(kind: type[Named], fields: Mapping[str, Any]) -> Named:
    """Return the value whose fields are among those of a row.

    Raises:
        KeyError: A field is missing.
    """
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    values = [fields[name] for name in names]
    return kind(*values)
