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
from .journal import Fields, Noted
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


def quota_value(fields: Fields) -> bytes:
    """Return the value of the row of a line."""
    spent, until_us = fields["spent"], fields["until_us"]
    return HEAD.pack(0) + pack_head(spent, spent, until_us, until_us)


class QuotaLines:
    """Decides about lines in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        unix_us: The Unix time in microseconds.
        noted: Receives the rows that get a line.
    """

    def __init__(self, txn: Any, dbs: Databases, unix_us: int, noted: Noted) -> None:
        self._txn = txn
        self._dbs = dbs
        self._unix_us = unix_us
        self._noted = noted
        self._second = unix_us // 1_000_000
        second, written = _WRITTEN.unpack(txn.get(_BUDGET, _WRITTEN.pack(self._second, 0), dbs.meta))
        self._before = self._written = written if second == self._second else 0

    def head(self, row: bytes, stored: bytes, window: bytes, rule: str, limit: Quota) -> bytes:
        """Return the head of a row that changes, after noting a line if one is due.

        Args:
            row: The row.
            stored: Its value until now, which may be empty.
            window: The window from now on.
            rule: The name of the rule.
            limit: The quota.
        """
        head, before = stored[:HEAD_BYTES] or HEAD.pack(0), stored[HEAD_BYTES:]
        if self._written >= MOST_A_SECOND:
            return head
        written_us = -HEAD.unpack(head)[0]
        is_recent = self._unix_us - MAX_AGE_US < written_us <= self._unix_us
        if is_recent and _part(before, limit.amount) == _part(window, limit.amount):
            return head
        self._written += 1
        # Rule and period are for versions that name rows in another way.
        self._noted.append(("quota", {**quota_fields(row), "rule": rule, "period": limit.same_window[1]}))
        return HEAD.pack(-self._unix_us)

    def save(self) -> None:
        """Count the lines of this transaction for those of this second, of all processes."""
        if self._written != self._before:
            self._txn.put(_BUDGET, _WRITTEN.pack(self._second, self._written), db=self._dbs.meta)


def _part(window: bytes, amount: int) -> int:
    """Return how many 64ths of an amount are spent."""
    return (read_head(window)[0] if window else 0) * PARTS // amount
