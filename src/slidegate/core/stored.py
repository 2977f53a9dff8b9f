"""Reading by name what a store keeps: a later version may have written further fields, which stay where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Named = TypeVar("Named", bound=tuple[Any, ...])
"""A class made by `NamedTuple`."""


def read_by_name(kind: type[Named], fields: Mapping[str, Any]) -> Named:
    """Return the value whose fields are among those of a row.

    Args:
        kind: Its class.
        fields: The fields of the row by name.

    Raises:
        KeyError: A field is missing.
    """
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(*[fields[name] for name in names])
