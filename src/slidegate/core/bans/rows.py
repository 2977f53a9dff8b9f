"""Bans as rows of plain values, for export from one store and import into another.

A row has the key and the five other fields of a ban, as they are: times are Unix time, so a ban ends at the same moment
in whatever store it is. Strikes, and the levels of bans that have ended, are not exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from ..arguments import check_whole
from ..errors import ConfigurationError, quoted
from ..logs import escaped
from .ban import MAX_KEY_BYTES, MAX_REASON, Ban, ban_key, clean_reason

ExportedBan: TypeAlias = Mapping[str, Any]
"""A row."""

HEADER: Final = {"slidegate": "bans", "version": 4}
_MOST: Final = 2**53
_MAX_LEVEL: Final = 2**31
"""Higher levels are reduced to this one on import, so that they can still be incremented."""


def from_rows(rows: Iterable[ExportedBan]) -> Iterator[Ban]:
    """Yield the bans in the rows of an export, perhaps of another store, and also those that are over.

    Raises:
        ConfigurationError: A row is invalid; the message has its number, counted from 1.
    """
    number = 0
    for number, row in enumerate(rows, start=1):
        try:
            if not isinstance(row, Mapping):
                raise ValueError(f"expected an object with the fields of a ban, not {quoted(row)}")
            if number == 1:
                if row["slidegate"] != HEADER["slidegate"] or row["version"] != HEADER["version"]:
                    raise ValueError(f"not an export of bans of version {HEADER['version']}")
                continue
            ban = _ban(row)
        except (KeyError, TypeError, ValueError) as error:
            why = str(error)
            if isinstance(error, KeyError):
                why = f"field {error} is missing"
            raise ConfigurationError(f"bans, row {number}: cannot be read: {escaped(why, MAX_REASON)}") from None
        yield ban
    if not number:
        raise ConfigurationError("bans: there are no rows, not even the header row of an export")


def _ban(row: ExportedBan) -> Ban:
    # Stores replace longer keys by digests. Handwritten rows cannot contain these, because they depend on a secret.
    key = ban_key(row["key"])
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"expected a key of at most {MAX_KEY_BYTES} bytes, not {quoted(key)}")
    ban = Ban(
        key,
        clean_reason(row["reason"]),
        clean_reason(row["by"], "by"),
        min(_whole(row, "level", 0), _MAX_LEVEL),
        _whole(row, "since_us"),
        None,
    )
    if row["until_us"] is None:
        return ban
    return ban._replace(until_us=_whole(row, "until_us"))


def _whole(row: ExportedBan, field: str, least: int = -_MOST) -> int:
    return check_whole(row[field], least, _MOST, field, "for example 0")
