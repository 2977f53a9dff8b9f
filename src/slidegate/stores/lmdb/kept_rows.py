"""The rows that survive a restart of the machine: written from the lines of the journal, and read for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...core.bans.strikes import Level
from . import quota_rows
from .ban_rows import LmdbBanRows
from .journal import Fields, Line, Name, Noted, line_of
from .layout import Databases, Rows
from .quota_rows import QUOTA, QUOTA_RESET

_NO_LEVEL: Final = Level(0, 0, 0)


def write(txn: Any, dbs: Databases, kept: Iterable[tuple[Name, Line]]) -> None:
    """Write the rows of lines; those that have expired are found by the next sweeps, which know the clock of the store.

    Lines of kinds that only a later version knows stay in the journal.
    """
    rows = _rows(txn, dbs)
    bans = LmdbBanRows(rows, {})
    for (kind, *_), line in kept:
        fields = line.get(kind, {})
        if kind == "ban":
            bans.restore_ban(fields)
        elif kind == "level":
            bans.restore_level(fields["policy"], fields["key"], fields)
        elif kind == QUOTA:
            quota_rows.restore(rows, fields)


def lines_as_stored(txn: Any, dbs: Databases, noted: Noted) -> list[bytes]:
    """Return lines that say of some rows what is stored.

    Args:
        txn: A transaction.
        dbs: The databases.
        noted: The rows.
    """
    bans, lines = LmdbBanRows(_rows(txn, dbs), {}), list[bytes]()
    for kind, fields in noted:
        if kind == "ban":
            lines += [line_of(kind, {**fields, **state}) for state in _bans_as_stored(bans, fields["key"])]
        elif kind == "level":
            level = bans.fields_of_level(fields["policy"], fields["key"]) or _NO_LEVEL._asdict()
            lines.append(line_of(kind, {**fields, **level}))
        elif kind in (QUOTA, QUOTA_RESET):
            lines.append(line_of(QUOTA, {**fields, **quota_rows.as_stored(txn, dbs, fields)}))
        else:
            lines.append(line_of(kind, fields))
    return lines


def _bans_as_stored(bans: LmdbBanRows, key: str) -> list[Fields]:
    """Return the fields of the bans of a key, after those that lift what there was before."""
    states = bans.fields_of_bans(key)
    if not states or "/" in key:  # a network may have had two
        states.insert(0, {"lifted": True})
    return states


def _rows(txn: Any, dbs: Databases) -> Rows:
    """Return the rows of a transaction that does not know the clock of the store: it is late in all of them."""
    return Rows(txn, dbs, 0, lambda: 2**62)
