"""Quotas, whose counts survive a restart of the machine: which of their changes get a line in the journal.

A quota, whose period may be longer than machines run, gets a line when the count of a key passes a multiple of a 64th
of its amount, or when it changes and the last line is a minute old; so a restart of the machine forgets less than a
64th, or what was spent in the last minute. All processes together write at most `MOST_A_SECOND` of these lines, so that
a flood of keys does not fill the disk. Counts in shared cells get none: they are those of many keys.

A count that is read from a line has had its last line long ago; so the next change gets one.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from ...core.packing import pack_head, read_head
from .journal import Fields
from .layout import BETWEEN, DIGEST_BYTES, HEAD_BYTES, Databases, Rows, head_of_quota, last_line_us, row_of

QUOTA: Final = "quota"
QUOTA_RESET: Final = "quota_reset"
"""The kind of a change that fails without its line, unlike that of what a request charges."""
PARTS: Final = 64
MAX_AGE_US: Final = 60_000_000
MOST_A_SECOND: Final = 500

_BUDGET: Final = b"quota_lines"
"""The row of `meta` with the second in which the last of these lines was written, and how many were in it."""
_WRITTEN: Final = Struct("=qI")


def fields_of(row: bytes) -> Fields:
    """Return the fields of a line that identify its row."""
    return {"key": row[: -DIGEST_BYTES - len(BETWEEN)].decode(), "window": row[-DIGEST_BYTES:].hex()}


def row_of_line(fields: Fields) -> bytes:
    """Return the row of a line."""
    return row_of(fields["key"], bytes.fromhex(fields["window"]))


def restore(rows: Rows, fields: Fields) -> None:
    """Write the row of a line."""
    row, spent, until_us = row_of_line(fields), fields["spent"], fields["until_us"]
    window = pack_head(spent, spent, until_us, until_us)
    rows.txn.put(row, head_of_quota(line_us=0) + window, db=rows.dbs.windows)
    rows.recheck_at(rows.dbs.ends, 0, row, "windows")


def as_stored(txn: Any, dbs: Databases, fields: Fields) -> Fields:
    """Return the other fields of a line as they are stored: nothing is spent where there is no row."""
    stored = txn.get(row_of_line(fields), b"", dbs.windows)
    if len(stored) <= HEAD_BYTES:
        return {"spent": 0, "until_us": 0}
    spent, _, until_us, _ = read_head(stored[HEAD_BYTES:])
    return {"spent": spent, "until_us": until_us}


def gets_line(rows: Rows, unix_us: int, stored: bytes, window: bytes, amount: int) -> bool:
    """Return whether a row that changes gets a line; then it is counted as one of this second.

    Args:
        rows: The rows of the transaction.
        unix_us: The Unix time in microseconds.
        stored: The value of the row until now; empty if it is new.
        window: Its window from now on.
        amount: The amount of the quota.
    """
    if stored:
        is_recent = unix_us - MAX_AGE_US < last_line_us(stored) <= unix_us
        if is_recent and _part(stored[HEAD_BYTES:], amount) == _part(window, amount):
            return False
    return _takes_one(rows, unix_us // 1_000_000)


def _part(window: bytes, amount: int) -> int:
    """Return how many 64ths of an amount are spent."""
    if not window:
        return 0
    return int(read_head(window)[0]) * PARTS // amount


def _takes_one(rows: Rows, second: int) -> bool:
    """Count a line for those of a second; return whether there may be one more."""
    txn, meta = rows.txn, rows.dbs.meta
    of_second, written = _WRITTEN.unpack(txn.get(_BUDGET, _WRITTEN.pack(second, 0), meta))
    if of_second != second:
        written = 0
    if written >= MOST_A_SECOND:
        return False
    txn.put(_BUDGET, _WRITTEN.pack(second, written + 1), db=meta)
    return True
