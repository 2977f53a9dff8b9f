"""The layout of an LMDB environment: its databases, how rows are named and swept, and the clock of the host.

All processes of a host share one clock, the machine's boot clock (Linux: `CLOCK_BOOTTIME`, which ignores NTP steps and
includes sleep), so they read the same time without communication. It starts at 0 with the machine, as the file does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from ...core.store import Clock

LAYOUT: Final = 22
"""The version of the file. It increases whenever the bytes or the meaning of any row change."""
NETWORKS: Final = b"networks"
"""The key of the list of banned networks, which begins with random bytes that differ after each change."""

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)
"""What LMDB reports of a damaged file. All other errors are those of this process, and the file stays."""

HEAD: Final = Struct("=q")
"""The head of the value of a window: its life, or 0 for a quota."""
NO_LIFE: Final = HEAD.pack(0)
ALL_WINDOWS: Final = b"a"
"""The name under which it is noted that all windows were deleted; it comes before those of windows."""
DUE: Final = Struct(">q")
BETWEEN: Final = b"\xff"
"""Separates a key from the rest of its row; it never occurs in UTF-8 text."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MACOS_BOOT_ID: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the same for all processes and includes sleep.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Databases(NamedTuple):
    """The databases of an environment, and the random key of the hash that selects shared cells."""

    meta: Any
    windows: Any
    cells: Any
    permits: Any
    strikes: Any
    bans: Any
    levels: Any
    worker_rows: Any
    ends: Any
    ban_ends: Any
    unkept: Any
    cell_key: bytes


NAMES: Final = Databases._fields[:-1]

Fields: TypeAlias = Mapping[str, Any]
"""What a ban or a level says, by name."""
DueAt: TypeAlias = Callable[[str, bytes, bytes], int | None]
"""Returns when a row ends (None for never), given the name of its database, the row and its value."""


def row_of(key: str, name: bytes = b"") -> bytes:
    """Return the row of a key under a name; without a name, the common prefix of all rows of this key only."""
    return key.encode() + BETWEEN + name


def rows_from(cursor: Any, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a database from `first` on, in order, and their values."""
    if cursor.set_range(first):
        yield from cursor.iternext()


class TransactionRows:
    """The rows in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        now_us: The store's time, in microseconds.
        unix_us: Returns Unix time in microseconds.

    Attributes:
        noted: The names of rows that have changed and survive a restart of the machine, see `kept`: the first letter of
            their database, and the row.
    """

    __slots__ = ("dbs", "noted", "now_us", "txn", "unix_us")

    def __init__(self, txn: Any, dbs: Databases, now_us: int, unix_us: Clock) -> None:
        self.txn = txn
        self.dbs = dbs
        self.now_us = now_us
        self.unix_us = unix_us
        self.noted: list[bytes] = []

    def note(self, kind: str, row: bytes) -> None:
        """Note that a row has changed, which survives a restart of the machine."""
        self.noted.append(kind[0].encode() + row)

    def starting_with(self, first: bytes, database: Any) -> list[tuple[bytes, bytes]]:
        """Return the rows of a database that begin with `first`, and their values."""
        found: list[tuple[bytes, bytes]] = []
        with self.txn.cursor(database) as cursor:
            for row, stored in rows_from(cursor, first):
                if not row.startswith(first):
                    break
                found.append((row, stored))
        return found

    def recheck_at(self, index: Any, due_us: int, row: bytes, kind: str) -> None:
        """Schedule a check of a row.

        Args:
            index: The index by time, `ends` or `ban_ends`.
            due_us: When to check the row, in microseconds.
            row: The row.
            kind: The name of its database.
        """
        self.txn.put(DUE.pack(due_us) + row, kind.encode(), db=index)

    def check_due(self, index: Any, now_us: int, max_count: int, due_us: DueAt) -> bool:
        """Check rows that are due, and delete those that have expired; return whether more rows may be due.

        Args:
            index: The index by time, `ends` or `ban_ends`.
            now_us: The time, in microseconds.
            max_count: The most rows to check.
            due_us: Returns when a row ends: it is deleted then, and checked again if that is later.
        """
        for _ in range(max_count):
            with self.txn.cursor(index) as cursor:
                if not cursor.first():
                    return False
                entry = cursor.key()
                if DUE.unpack_from(entry)[0] > now_us:
                    return False
                row = entry[DUE.size :]
                kind = cursor.value().decode()
                cursor.delete()
            database = getattr(self.dbs, kind)
            stored = self.txn.get(row, None, database)
            if stored is None:
                continue
            moment_us = due_us(kind, row, stored)
            if moment_us is None:
                continue
            if moment_us > now_us:
                self.recheck_at(index, moment_us, row, kind)
            else:
                self.txn.delete(row, b"", database)
                if kind in ("bans", "levels") or (kind == "windows" and stored.startswith(NO_LIFE)):
                    self.note(kind, row)
        return True


def boot_us() -> int:
    """Return the time since the machine was started, in microseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def boot_id() -> str:
    """Return 32 hexadecimal digits that differ after each start of the machine; empty if the system has no boot id."""
    try:
        if sys.platform == "darwin":
            said = subprocess.run(_MACOS_BOOT_ID, capture_output=True, text=True, check=True, timeout=10).stdout
        else:
            said = _BOOT_ID.read_text(encoding="ascii")
        return f"{int(said.strip().replace('-', ''), 16):032x}"
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
