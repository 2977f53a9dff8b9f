"""The rows that survive a restart of the machine: written from the lines of the journal, and read for them.

A quota, whose period may be longer than machines run, gets a line when the count of a key passes a multiple of a 64th
of its amount, or when it changes and the last line is a minute old; so a restart of the machine forgets less than a
64th, or what was spent in the last minute. All processes together write at most `MOST_A_SECOND` of these lines, so that
a flood of keys does not fill the disk. Counts in shared cells get none: they are those of many keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

from ...core.bans.strikes import Level
from ...core.packing import pack_head, read_head
from ..shared import WINDOW_DIGEST_BYTES
from .ban_rows import LmdbBanRows
from .journal import Fields, Line, Name, Noted, line_of
from .layout import BETWEEN, Databases, TransactionRows, row_of

QUOTA: Final = "quota"
"""The kind of what a request charges. On a full disk it is charged without a line."""
QUOTA_RESET: Final = "quota_reset"
"""The kind of a reset, whose line is like the other; without it the reset fails."""
PARTS: Final = 64
MAX_AGE_US: Final = 60_000_000
MOST_A_SECOND: Final = 500

HEAD: Final = Struct("=q")
"""The head of the value of a window: its life, or for a quota minus the Unix time of its last line."""
HEAD_BYTES: Final = HEAD.size

_NO_LEVEL: Final = Level(0, 0, 0)
_BUDGET: Final = b"quota_lines"
_WRITTEN: Final = Struct("=qI")  # a second of Unix time, and how many lines were written in it


def write_rows(txn: Any, dbs: Databases, kept: Iterable[tuple[Name, Line]]) -> None:
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
            row = quota_row(fields)
            spent, until_us = fields["spent"], fields["until_us"]
            window = pack_head(spent, spent, until_us, until_us)
            txn.put(row, HEAD.pack(0) + window, db=dbs.windows)
            rows.recheck_at(dbs.ends, 0, row, "windows")


def lines_as_stored(txn: Any, dbs: Databases, noted: Noted) -> list[bytes]:
    """Return lines that say of some rows what is stored.

    Args:
        txn: A transaction.
        dbs: The databases.
        noted: The rows.
    """
    bans = LmdbBanRows(_rows(txn, dbs), {})
    lines: list[bytes] = []
    for kind, fields in noted:
        if kind == "ban":
            lines += _lines_of_bans(bans, fields)
        elif kind == "level":
            level = bans.fields_of_level(fields["policy"], fields["key"])
            if level is None:
                level = _NO_LEVEL._asdict()
            lines.append(line_of(kind, {**fields, **level}))
        elif kind in (QUOTA, QUOTA_RESET):
            stored = txn.get(quota_row(fields), b"", dbs.windows)
            lines.append(line_of(QUOTA, {**fields, **quota_state(stored)}))
        else:
            lines.append(line_of(kind, fields))
    return lines


def _lines_of_bans(bans: LmdbBanRows, fields: Fields) -> list[bytes]:
    """Return a line for each ban of a key, behind one that says that it was lifted."""
    lines: list[bytes] = []
    states = bans.fields_of_bans(fields["key"])
    # A network may have had a ban as a network and another as a key, of which one is left.
    if not states or "/" in fields["key"]:
        lines.append(line_of("ban", {**fields, "lifted": True}))
    for state in states:
        lines.append(line_of("ban", {**fields, **state}))
    return lines


def _rows(txn: Any, dbs: Databases) -> TransactionRows:
    """Return the rows of a transaction that does not know the clock of the store: it is late in all of them."""
    return TransactionRows(txn, dbs, 0, lambda: 2**62)


# -- quotas ------------------------------------------------------------------------------------------------------------


def quota_fields(row: bytes) -> Fields:
    """Return the fields of a line that identify its row."""
    key, digest = row[:-WINDOW_DIGEST_BYTES], row[-WINDOW_DIGEST_BYTES:]
    return {"key": key.removesuffix(BETWEEN).decode(), "window": digest.hex()}


def quota_row(fields: Fields) -> bytes:
    """Return the row of a line."""
    return row_of(fields["key"], bytes.fromhex(fields["window"]))


def quota_state(stored: bytes) -> Fields:
    """Return the other fields of a line, given the value of its row, which is empty if there is none."""
    if len(stored) <= HEAD_BYTES:
        return {"spent": 0, "until_us": 0}
    spent, _, until_us, _ = read_head(stored[HEAD_BYTES:])
    return {"spent": spent, "until_us": until_us}


def is_line_due(rows: TransactionRows, unix_us: int, stored: bytes, window: bytes, amount: int) -> bool:
    """Return whether a row that changes gets a line, and count it for those of this second.

    Args:
        rows: The rows of the transaction.
        unix_us: The Unix time in microseconds.
        stored: The value of the row until now; empty if it is new.
        window: Its window from now on.
        amount: The amount of the quota.
    """
    written_us = 0
    if stored:
        written_us = -HEAD.unpack_from(stored)[0]
    is_recent = unix_us - MAX_AGE_US < written_us <= unix_us
    if is_recent and _part(stored[HEAD_BYTES:], amount) == _part(window, amount):
        return False
    return _count_line(rows, unix_us // 1_000_000)


def _count_line(rows: TransactionRows, second: int) -> bool:
    """Count a line for those of a second of Unix time; return False if it would be one too many."""
    txn, meta = rows.txn, rows.dbs.meta
    counted = 0
    packed = txn.get(_BUDGET, None, meta)
    if packed is not None:
        of_second, lines = _WRITTEN.unpack(packed)
        if of_second == second:
            counted = lines
    if counted >= MOST_A_SECOND:
        return False
    txn.put(_BUDGET, _WRITTEN.pack(second, counted + 1), db=meta)
    return True


def _part(window: bytes, amount: int) -> int:
    """Return how many 64ths of an amount are spent."""
    if not window:
        return 0
    spent, _, _, _ = read_head(window)
    return spent * PARTS // amount
