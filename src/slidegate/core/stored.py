"""What a store keeps by name: written as JSON, and read by later versions and earlier ones.

A later version may have written further fields, which are ignored, and stay where they are. A row that cannot be read,
because it was damaged or somebody else wrote it, costs this row and no other, and a line in the log names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from struct import error as StructError
from typing import Any, Final, TypeVar

from .logs import escaped, logger

T = TypeVar("T")
Named = TypeVar("Named", bound=tuple[Any, ...])
"""A class made by `NamedTuple`."""

UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, StructError)
"""The errors in reading a row that is not what was written, or is of a later version."""
_MOST: Final = 2**57
"""In microseconds of Unix time, a date that can still be written; more is not packed into a row."""
_MAX_SHOWN: Final = 200
_MAX_NAMED: Final = 1_024
"""Of so many rows it is remembered that the log has named them."""


def readable(read: Callable[[bytes], T], stored: bytes) -> T | None:
    """Return what a row says; None if it cannot be read."""
    try:
        return read(stored)
    except UNREADABLE as error:
        _name(stored, type(error).__name__)
        return None


def all_readable(read: Callable[[bytes], T], rows: Iterable[bytes]) -> list[T]:
    """Return what rows say, without those that cannot be read."""
    values = [readable(read, row) for row in rows]
    return [value for value in values if value is not None]


@lru_cache(_MAX_NAMED)
def _name(stored: bytes, error: str) -> None:
    """Log that a row cannot be read, once."""
    row = escaped(repr(stored[:_MAX_SHOWN]))
    logger.warning("a row of the store cannot be read (%s), and is left out: %s", error, row)


def check_numbers(*numbers: object) -> None:
    """Check the numbers of a row.

    Raises:
        ValueError: One is no whole number, or too large.
    """
    for number in numbers:
        if type(number) is not int or not 0 <= number < _MOST:
            raise ValueError("expected a number")


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
