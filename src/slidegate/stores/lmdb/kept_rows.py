"""The rows that survive a restart of the machine: written from the lines of the journal, and read for them.

A quota, whose period may be longer than machines run, gets a line when the count of a key passes a multiple of a 64th
of its amount, or when it changes and the last line is a minute old; so a restart of the machine forgets less than a
64th, or what was spent in the last minute. All processes together write at most `MOST_A_SECOND` of these lines, so that
a flood of keys does not fill the disk. Counts in shared cells get none: they are those of many keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from ...core.bans.strikes import Level
from ...core.packing import pack_head, read_head
from .ban_rows import LmdbBanRows
from .journal import Fields, Line, Name, Noted, line_of
from .layout import BETWEEN, Databases, Rows, row_of

QUOTA: Final = "quota"
QUOTA_RESET: Final = "quota_reset"
"""The kind of a change that fails without its line, which is like that of what a request charges."""
PARTS: Final = 64
MAX_AGE_US: Final = 60_000_000
MOST_A_SECOND: Final = 500

HEAD: Final = Struct("=q")
"""The head of the value of a window: its life, or for a quota minus the Unix time of its last line."""
HEAD_BYTES: Final = HEAD.size

_DIGEST_BYTES: Final = 8
_NO_LEVEL: Final = Level(0, 0, 0)
_BUDGET: Final = b"quota_lines"
_WRITTEN: Final = Struct("=qI")  # a second of Unix time, and how many lines were written in it


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
        elif kind == "quota":
            row, spent, until_us = quota_row(fields), fields["spent"], fields["until_us"]
            txn.put(row, HEAD.pack(0) + pack_head(spent, spent, until_us, until_us), db=dbs.windows)
            rows.recheck_at(dbs.ends, 0, row, "windows")


def lines_as_stored(txn: Any, dbs: Databases, noted: Noted) -> list[bytes]:
    """Return lines that say of some rows what is stored.

    Args:
        txn: A transaction.
        dbs: The databases.
        noted: The rows.
    """
    bans, lines = LmdbBanRows(_rows(txn, dbs), {}), []
    for kind, fields in noted:
        states: list[Fields] = [{}]
        if kind == "ban":
            states = bans.fields_of_bans(fields["key"])
            if not states or "/" in fields["key"]:  # a network may have had two
                states.insert(0, {"lifted": True})
        elif kind == "level":
            states = [bans.fields_of_level(fields["policy"], fields["key"]) or _NO_LEVEL._asdict()]
        elif kind in (QUOTA, QUOTA_RESET):
            kind = QUOTA
            states = [quota_state(txn.get(quota_row(fields), b"", dbs.windows))]
        lines += [line_of(kind, {**fields, **state}) for state in states]
    return lines


def _rows(txn: Any, dbs: Databases) -> Rows:
    """Return the rows of a transaction that does not know the clock of the store: it is late in all of them."""
    return Rows(txn, dbs, 0, lambda: 2**62)


# -- quotas ------------------------------------------------------------------------------------------------------------


def digest_of(rule: str, *identity: object) -> bytes:
    """Return the digest in the names of the rows of a limit, by its rule and `AnyLimit.same_window`."""
    return blake2b("\n".join((rule, *map(str, identity))).encode(), digest_size=_DIGEST_BYTES).digest()


def quota_fields(row: bytes) -> Fields:
    """Return the fields of a line that identify its row."""
    return {"key": row[: -_DIGEST_BYTES - len(BETWEEN)].decode(), "window": row[-_DIGEST_BYTES:].hex()}


def quota_row(fields: Fields) -> bytes:
    """Return the row of a line."""
    return row_of(fields["key"], bytes.fromhex(fields["window"]))


def quota_state(stored: bytes) -> Fields:
    """Return the other fields of a line, given the value of its row; empty if there is none."""
    spent, _, until_us, _ = read_head(stored[HEAD_BYTES:]) if len(stored) > HEAD_BYTES else (0, 0, 0, 0)
    return {"spent": spent, "until_us": until_us}


def is_line_due(rows: Rows, unix_us: int, stored: bytes, window: bytes, amount: int) -> bool:
    """Return whether a row that changes gets a line, and count it for those of this second.

    Args:
        rows: The rows of the transaction.
        unix_us: The Unix time in microseconds.
        stored: The value of the row until now; empty if it is new.
        window: Its window from now on.
        amount: The amount of the quota.
    """
    written_us = -HEAD.unpack_from(stored)[0] if stored else 0
    is_recent = unix_us - MAX_AGE_US < written_us <= unix_us
    if is_recent and _part(stored[HEAD_BYTES:], amount) == _part(window, amount):
        return False
    second, txn, meta = unix_us // 1_000_000, rows.txn, rows.dbs.meta
    of_second, written = _WRITTEN.unpack(txn.get(_BUDGET, _WRITTEN.pack(second, 0), meta))
    written = written if of_second == second else 0
    if written < MOST_A_SECOND:
        txn.put(_BUDGET, _WRITTEN.pack(second, written + 1), db=meta)
    return bool(written < MOST_A_SECOND)


def _part(window: bytes, amount: int) -> int:
    """Return how many 64ths of an amount are spent."""
    return (read_head(window)[0] if window else 0) * PARTS // amount
