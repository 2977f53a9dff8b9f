"""Lines of the journal about quotas, whose periods are longer than machines run.

A line is written when the count of a key passes a multiple of a 64th of its amount, or when it changes and the last
line is a minute old; so a restart of the machine forgets less than a 64th, or what was spent in the last minute. All
processes together write at most `MOST_A_SECOND`, so that a flood of keys does not fill the disk.

Counts in shared cells get no lines: they are those of many keys.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from ...core.packing import pack_head, read_head
from ...core.quotas import Quota
from .journal import Fields, Note
from .layout import BETWEEN, Databases, row_of

PARTS: Final = 64
MAX_AGE_US: Final = 60_000_000
MOST_A_SECOND: Final = 500

HEAD: Final = Struct("=q")
"""The head of the value of a window: its life, or for a quota minus the Unix time of its last line."""
HEAD_BYTES: Final = HEAD.size

_DIGEST_BYTES: Final = 8
_BUDGET: Final = b"quota_lines"
_WRITTEN: Final = Struct("=qI")  # a second of Unix time, and how many lines were written in it


def digest_of(rule: str, *identity: object) -> bytes:
    """Return the digest in the names of the rows of a limit, by its rule and `AnyLimit.same_window`."""
    return blake2b("\n".join((rule, *map(str, identity))).encode(), digest_size=_DIGEST_BYTES).digest()


def quota_fields(row: bytes, window: bytes, rule: str = "", limit: Quota | None = None) -> Fields:
    """Return the fields of a line about a row; rule and period are for versions that name rows in another way."""
    spent, _, until_us, _ = read_head(window) if window else (0, 0, 0, 0)
    fields = {"key": row[: -_DIGEST_BYTES - len(BETWEEN)].decode(), "window": row[-_DIGEST_BYTES:].hex()}
    named = {} if limit is None else {"rule": rule, "period": limit.same_window[1]}
    return {**fields, "spent": spent, "until_us": until_us, **named}


def quota_row(fields: Fields) -> tuple[bytes, bytes]:
    """Return the row of a line, and its value."""
    spent, until_us = fields["spent"], fields["until_us"]
    value = HEAD.pack(0) + pack_head(spent, spent, until_us, until_us)
    return row_of(fields["key"], bytes.fromhex(fields["window"])), value


class QuotaLines:
    """Decides about lines in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        unix_us: The Unix time in microseconds.
        note: Takes the lines.
    """

    def __init__(self, txn: Any, dbs: Databases, unix_us: int, note: Note) -> None:
        self._txn = txn
        self._dbs = dbs
        self._unix_us = unix_us
        self._note = note

    def head(self, row: bytes, head: bytes, before: bytes, after: bytes, rule: str, limit: Quota) -> bytes:
        """Return the head of a row that changes, after noting a line if one is due.

        Args:
            row: The row.
            head: Its head until now.
            before: The window until now.
            after: The window from now on.
            rule: The name of the rule.
            limit: The quota.
        """
        parts = {(read_head(window)[0] if window else 0) * PARTS // limit.amount for window in (before, after)}
        written_us = -HEAD.unpack(head)[0]
        is_due = len(parts) > 1 or not self._unix_us - MAX_AGE_US < written_us <= self._unix_us
        if not is_due or not self._take_one():
            return head
        self._note("quota", quota_fields(row, after, rule, limit))
        return HEAD.pack(-self._unix_us)

    def _take_one(self) -> bool:
        """Count a line; return False if all processes have written enough in this second."""
        second = self._unix_us // 1_000_000
        stored = self._txn.get(_BUDGET, None, self._dbs.meta)
        last, written = (second, 0) if stored is None else _WRITTEN.unpack(stored)
        if last != second:
            written = 0
        if written >= MOST_A_SECOND:
            return False
        self._txn.put(_BUDGET, _WRITTEN.pack(second, written + 1), db=self._dbs.meta)
        return True
