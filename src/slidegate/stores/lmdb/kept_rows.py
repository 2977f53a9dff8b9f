"""The rows that survive a restart of the machine: written from the lines of the journal, and read for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.bans.ban import Ban
from ...core.bans.strikes import Level
from .ban_rows import NO_LEVEL, KnownNetworks, LmdbBanRows, level_fields, lifted
from .journal import Fields, Name, line_of, name_of
from .layout import Databases, recheck_at
from .quota_lines import HEAD_BYTES, quota_fields, quota_row


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
            row, stored = quota_row(fields)
            txn.put(row, stored, db=dbs.windows)
            recheck_at(txn, dbs.ends, 0, row, b"windows")


def lines_as_stored(txn: Any, dbs: Databases, noted: Iterable[tuple[str, Fields]]) -> list[bytes]:
    """Return lines that take back others: they say of the same rows what is stored."""
    bans, lines = _bans(txn, dbs), []
    for kind, fields in noted:
        if kind == "ban":
            stored_bans = [ban._asdict() for ban in bans.bans_of(fields["key"])]
            lines += [line_of(kind, one) for one in (lifted(fields["key"]), *stored_bans)]
        elif kind == "level":
            _, policy, key = name_of(kind, fields)
            lines.append(line_of(kind, level_fields(policy, key, bans.level(policy, key) or NO_LEVEL)))
        elif kind == "quota":
            row, _ = quota_row(fields)
            stored = txn.get(row, None, dbs.windows) or b""
            lines.append(line_of(kind, quota_fields(row, stored[HEAD_BYTES:])))
    return lines


def _bans(txn: Any, dbs: Databases) -> LmdbBanRows:
    """Return the rows of bans in a transaction that does not know the clock of the store: it is late in all of them."""
    return LmdbBanRows(txn, dbs, lambda: 2**62, KnownNetworks(), lambda *_: None)
