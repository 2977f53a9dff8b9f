"""The rows that survive a restart of the machine: written from the lines of the journal, and read for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.bans.ban import Ban
from ...core.bans.strikes import Level
from .ban_rows import LmdbBanRows
from .journal import Fields, Name, Noted, line_of
from .layout import Databases, recheck_at
from .quota_lines import quota_row, quota_state, quota_value

NO_LEVEL = Level(0, 0, 0)


def write(txn: Any, dbs: Databases, rows: Iterable[tuple[Name, Fields]]) -> None:
    """Write rows; those that have expired are found by the next sweeps, which know the clock of the store."""
    bans = _bans(txn, dbs)
    for (kind, *_), fields in rows:
        if kind == "ban":
            bans.put_ban(Ban(*(fields[name] for name in Ban._fields)))
        elif kind == "level":
            level = Level(*(fields[name] for name in Level._fields))
            bans.put_level(fields["policy"], fields["key"], level)
        else:
            row = quota_row(fields)
            txn.put(row, quota_value(fields), db=dbs.windows)
            recheck_at(txn, dbs.ends, 0, row, b"windows")


def lines_as_stored(txn: Any, dbs: Databases, noted: Noted) -> list[bytes]:
    """Return lines that say of some rows what is stored.

    Args:
        txn: A transaction.
        dbs: The databases.
        noted: The rows.
    """
    bans, lines = _bans(txn, dbs), []
    for kind, fields in noted:
        states: list[Fields] = [{}]
        if kind == "ban":
            states = [ban._asdict() for ban in bans.bans_of(fields["key"])]
            if not states or "/" in fields["key"]:  # a network may have had two
                states.insert(0, {"lifted": True})
        elif kind == "level":
            states = [(bans.level(fields["policy"], fields["key"]) or NO_LEVEL)._asdict()]
        elif kind == "quota":
            states = [quota_state(txn.get(quota_row(fields), b"", dbs.windows))]
        lines += [line_of(kind, {**fields, **state}) for state in states]
    return lines


def _bans(txn: Any, dbs: Databases) -> LmdbBanRows:
    """Return the rows of bans in a transaction that does not know the clock of the store: it is late in all of them."""
    return LmdbBanRows(txn, dbs, lambda: 2**62, {}, [])
