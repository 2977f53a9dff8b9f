"""The layout of an LMDB environment: its databases, the version of its rows, and the clock of the host.

Each window row begins with a row version, and rows of other versions are ignored, because two versions may write to one
file for a second while workers are replaced. The file has a layout version, stored in `meta`, which increases whenever
the bytes or the meaning of any row change. A file of another version is rejected and not modified.

All processes of a host share one clock. It is based on the machine's boot clock (Linux: `CLOCK_BOOTTIME`, which ignores
NTP steps and includes sleep), so they read the same time without communication. Its offset is stored in the file::

    time = boot clock + offset

After a reboot the boot clock starts at 0. The first process then finds another boot id, and sets a new offset: time
continues from the last recorded time plus the time that has passed since then according to the system clock, and never
from before the last recorded time. It is recorded about once a second; a reboot takes longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.errors import ConfigurationError, StoreUnavailable
from ..system_clock import system_us
from .checking import Damaged

SCHEMA_VERSION: Final = 11
SCHEMA: Final = b"schema"
CLOCK: Final = b"clock"
WRITTEN_SCHEMA: Final = bytes([SCHEMA_VERSION, 255 - SCHEMA_VERSION])

_OURS: Final = 5  # no other program's environment has more of these names by chance
CELL_KEY: Final = b"cell_key"
NETWORKS: Final = b"networks"
"""The key of the list of banned networks, which begins with random bytes that differ after each change."""
BAN_NUMBER: Final = b"ban_number"
"""The key of the number of the last change of bans."""

DUE: Final = Struct(">q")
BETWEEN: Final = b"\xff"
"""Separates a key from the rest of its row; it never occurs in UTF-8 text."""

_RECORD: Final = Struct("=16sqqq")  # boot id, offset, last recorded time, Unix time at that time
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the same for all processes and includes sleep.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Databases(NamedTuple):
    """The databases of an environment, and the random key of the hash that selects shared cells."""

    meta: Any
    windows: Any
    cells: Any
    permits: Any
    bans: Any
    strikes: Any
    stats: Any
    ends: Any
    ban_ends: Any
    cell_key: bytes


NAMES: Final = Databases._fields[:-1]

DueAt: TypeAlias = Callable[[bytes, bytes, bytes], int | None]
"""Returns when to delete a row (None for never), given the name of its database, the row and its value."""


def row_of(key: str, name: bytes = b"") -> bytes:
    """Return the row of a key under a name; without a name, the common prefix of all rows of this key only."""
    return key.encode() + BETWEEN + name


def due_row(due_us: int, row: bytes) -> bytes:
    """Return the entry of a row in an index by time, which determines when the row is checked again."""
    return DUE.pack(due_us) + row


def look_later(txn: Any, index: Any, due_us: int, row: bytes, kind: bytes) -> None:
    """Schedule a check of a row.

    Args:
        txn: The transaction.
        index: The index, `ends` or `ban_ends`.
        due_us: When to check the row, in microseconds.
        row: The row.
        kind: The name of its database.
    """
    txn.put(due_row(due_us, row), kind, db=index)


def sweep(txn: Any, dbs: Databases, index: Any, now_us: int, max_count: int, due_us: DueAt) -> tuple[list[bytes], bool]:
    """Check rows that are due, and delete those that have expired.

    Args:
        txn: The transaction.
        dbs: The databases.
        index: The index, `ends` or `ban_ends`.
        now_us: The store's time, in microseconds.
        max_count: The most rows to check.
        due_us: Returns when to delete a row.

    Returns:
        The databases of the deleted rows; and whether more rows may be due.
    """
    deleted: list[bytes] = []
    for _ in range(max_count):
        with txn.cursor(index) as cursor:
            if not cursor.first() or DUE.unpack_from(cursor.key())[0] > now_us:
                return deleted, False
            row, kind = cursor.key()[DUE.size :], cursor.value()
            cursor.delete()
        database = getattr(dbs, kind.decode())
        stored = txn.get(row, None, database)
        moment_us = None if stored is None else due_us(kind, row, stored)
        if moment_us is not None and moment_us > now_us:
            look_later(txn, index, moment_us, row, kind)
        elif moment_us is not None:
            txn.delete(row, b"", database)
            deleted.append(kind)
    return deleted, True


def rows_with(txn: Any, database: Any, first: bytes) -> list[tuple[bytes, bytes]]:
    """Return the rows of a database that begin with `first`, and their values."""
    with txn.cursor(database) as cursor:
        found = cursor.iternext() if cursor.set_range(first) else ()
        return list(takewhile(lambda pair: pair[0].startswith(first), found))


def load(path: Path, environment: Any, *, writes: bool) -> tuple[Databases, int]:
    """Open the databases; return them and the clock's offset.

    Args:
        path: The directory.
        environment: LMDB's environment.
        writes: Whether to create missing databases, and to record the time.

    Raises:
        ConfigurationError: The environment belongs to another program, or to another version.
        StoreUnavailable: It is opened for reading, and databases are missing.
        Damaged: It belongs to slidegate, but its version is invalid.
    """
    if not writes and environment.stat()["entries"] == 0:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: its file is empty")
    with environment.begin(write=writes) as txn:
        _check_version(path, environment, txn)
        if writes:
            txn.put(SCHEMA, WRITTEN_SCHEMA, db=environment.open_db(b"meta", txn))
    # In separate transactions, because a handle is only valid if the transaction that opened it was committed.
    dbs = {name: environment.open_db(name.encode(), create=writes) for name in NAMES}
    with environment.begin(write=writes) as txn:
        cell_key, record = txn.get(CELL_KEY, None, dbs["meta"]), txn.get(CLOCK, None, dbs["meta"])
        boot = boot_id()
        offset = offset_us(record, boot, boot_us(), system_us())
        if cell_key is None and not writes:
            raise StoreUnavailable(f"lmdb: {path} is incomplete; is another process creating it? try again")
        if cell_key is None:
            cell_key = os.urandom(32)
            txn.put(CELL_KEY, cell_key, db=dbs["meta"])
        if writes:
            txn.put(CLOCK, written(record, boot, offset, boot_us(), system_us()), db=dbs["meta"])
        return Databases(**dbs, cell_key=bytes(cell_key)), offset


def _check_version(path: Path, environment: Any, txn: Any) -> None:
    with txn.cursor() as cursor:
        names = {bytes(name) for name in cursor.iternext(values=False)}
    if not names:
        return
    version = None
    if b"meta" in names:
        version = txn.get(SCHEMA, None, environment.open_db(b"meta", txn))
    if not version:
        if len(names.intersection(name.encode() for name in NAMES)) > _OURS:
            raise Damaged("it has no layout version")
        raise ConfigurationError(f"lmdb: {path} contains other data; choose a directory for slidegate alone")
    if sum(version) != 255 and len(version) > 1:
        raise Damaged(f"its layout version is {version.hex()}")
    if version[0] != SCHEMA_VERSION:
        way_out = (
            "upgrade slidegate, or choose another path"
            if version[0] > SCHEMA_VERSION
            else "choose another path; to keep its bans, write the lines of `limiter.export_bans()` with the version "
            "that wrote it, and pass them to `limiter.import_bans()` of this one"
        )
        raise ConfigurationError(
            f"lmdb: {path} has layout version {version[0]}, and this slidegate reads only {SCHEMA_VERSION}; {way_out}"
        )


def boot_us() -> int:
    """Return the time since the machine was started, in microseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def boot_id() -> bytes:
    """Return 16 bytes that differ after each start of the machine; zeros if the system has no boot id."""
    try:
        return bytes.fromhex(_BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


def offset_us(record: bytes | None, boot: bytes, machine_us: int, unix_us: int) -> int:
    """Return the offset, which is the store's time minus the boot clock, in microseconds.

    Args:
        record: The last result of `written`, perhaps from before a reboot; None in a new environment.
        boot: The boot id.
        machine_us: The boot clock.
        unix_us: The Unix time, which is the initial time of a new environment.
    """
    if record is None:
        return unix_us - machine_us
    before, offset, last_us, last_unix_us = _RECORD.unpack(record)
    if before == boot and machine_us + offset >= last_us:
        return int(offset)
    return int(last_us + max(unix_us - last_unix_us, 0) - machine_us)


def written(record: bytes | None, boot: bytes, offset: int, machine_us: int, unix_us: int) -> bytes:
    """Return the clock record to write; its time is never earlier than that of the previous record."""
    last_us = machine_us + offset
    if record is not None:
        last_us = max(last_us, _RECORD.unpack(record)[2])
    return _RECORD.pack(boot, offset, last_us, unix_us)
