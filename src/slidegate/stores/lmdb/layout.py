"""The layout of an LMDB environment: its databases, the version of its rows, and the clock of the host.

A row of a window begins with a version of its own, and a row of another version is no window: two versions may write to
one file for a second, while workers are replaced. The file as a whole has the layout version, which stands in `meta`.
It goes up whenever the bytes or the meaning of any row change. A file of another version is refused and left alone.

All processes of a host have one clock. It runs as fast as the machine's boot clock (Linux: `CLOCK_BOOTTIME`, which no
NTP step touches and which counts while the machine sleeps), so they read the same time without asking each other. Its
offset stands in the file::

    time = boot clock + offset

After a reboot the boot clock starts from 0. The first process then finds another boot id, and sets a new offset. Time
goes on from the last recorded moment plus the time that has passed since then by the system's clock, and never from
before that moment. The moment is recorded about once a second; a reboot takes longer.
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

SCHEMA_VERSION: Final = 9
SCHEMA: Final = b"schema"
CLOCK: Final = b"clock"
WRITTEN_SCHEMA: Final = bytes([SCHEMA_VERSION, 255 - SCHEMA_VERSION])

_OURS: Final = 5  # another program does not have more of these names by chance
CELL_KEY: Final = b"cell_key"
RESET: Final = b"reset"
"""Under it stands the moment at which all windows were forgotten last."""
NETWORKS: Final = b"networks"
"""Under it stand the keys of the banned networks, behind bytes that are others after each change."""
BAN_NUMBER: Final = b"ban_number"
"""Under it stands the number of the last change of bans."""

DUE: Final = Struct(">q")
BETWEEN: Final = b"\xff"
"""Stands behind the key in a row of several that a key may have; no text contains it."""

_RECORD: Final = Struct("=16sqqq")  # boot id, offset, last recorded moment, Unix time of that moment
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the same for all processes and counts while the machine sleeps.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Databases(NamedTuple):
    """The databases of an environment, and the random number by which shared cells are chosen."""

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
"""Returns when to delete a row, None for never, given the name of its database, the row and its value."""


def row_of(key: str, name: bytes = b"") -> bytes:
    """Return the row of a key under a name; without one what all rows of the key begin with, and no other key's."""
    return key.encode() + BETWEEN + name


def due_row(due_us: int, row: bytes) -> bytes:
    """Return the entry of a row in an index by time, which says when to look at the row again."""
    return DUE.pack(due_us) + row


def look_later(txn: Any, index: Any, due_us: int, row: bytes, kind: bytes) -> None:
    """Have a row looked at when its time has come.

    Args:
        txn: The transaction.
        index: The index, `ends` or `ban_ends`.
        due_us: The time.
        row: The row.
        kind: The name of its database.
    """
    txn.put(due_row(due_us, row), kind, db=index)


def sweep(txn: Any, dbs: Databases, index: Any, now_us: int, max_count: int, due_us: DueAt) -> tuple[list[bytes], bool]:
    """Look at rows whose time has come, and delete those that hold nothing any more.

    Args:
        txn: The transaction.
        dbs: The databases.
        index: The index, `ends` or `ban_ends`.
        now_us: The time.
        max_count: How many rows to look at.
        due_us: Says when to delete a row.

    Returns:
        The databases of the rows that were deleted; and whether the time of others may have come.
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
    """Return the rows of a database that begin with some bytes, and their values."""
    with txn.cursor(database) as cursor:
        found = cursor.iternext() if cursor.set_range(first) else ()
        return list(takewhile(lambda pair: pair[0].startswith(first), found))


def load(path: Path, environment: Any, *, writes: bool) -> tuple[Databases, int]:
    """Open the databases; return them and the clock's offset.

    Args:
        path: The directory.
        environment: LMDB's environment.
        writes: Whether to make what is missing, and to record the time.

    Raises:
        ConfigurationError: The environment belongs to something else, or to another version.
        StoreUnavailable: There are no databases to read, or not all yet.
        Damaged: It is ours, and its version cannot be read.
    """
    if not writes and environment.stat()["entries"] == 0:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: its file holds nothing")
    with environment.begin(write=writes) as txn:
        _check_version(path, environment, txn)
        if writes:
            txn.put(SCHEMA, WRITTEN_SCHEMA, db=environment.open_db(b"meta", txn))
    # In transactions of their own: a handle goes with the one that it was opened in, unless that is committed.
    dbs = {name: environment.open_db(name.encode(), create=writes) for name in NAMES}
    with environment.begin(write=writes) as txn:
        cell_key, record = txn.get(CELL_KEY, None, dbs["meta"]), txn.get(CLOCK, None, dbs["meta"])
        boot = boot_id()
        offset = offset_us(record, boot, boot_us(), system_us())
        if cell_key is None and not writes:
            raise StoreUnavailable(f"lmdb: {path} is not made yet; is another process at it?")
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
        raise ConfigurationError(f"lmdb: {path} holds other data; choose a directory for slidegate alone")
    if sum(version) != 255 and len(version) > 1:
        raise Damaged(f"its layout version is {version.hex()}")
    if version[0] != SCHEMA_VERSION:
        way_out = (
            "upgrade slidegate, or choose another path"
            if version[0] > SCHEMA_VERSION
            else "choose another path; to take its bans along, run `slidegate bans export` of the version that wrote "
            "it, and `slidegate bans import` of this one"
        )
        raise ConfigurationError(
            f"lmdb: {path} was written with layout version {version[0]}, and this slidegate reads {SCHEMA_VERSION}; "
            f"{way_out}"
        )


def boot_us() -> int:
    """Return microseconds since the machine was started."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def boot_id() -> bytes:
    """Return 16 bytes that are different after each start of the machine; zeros where the system has none."""
    try:
        return bytes.fromhex(_BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


def offset_us(record: bytes | None, boot: bytes, machine_us: int, unix_us: int) -> int:
    """Return the offset: the time minus the boot clock.

    Args:
        record: The bytes that `written` returned last, perhaps before a reboot; None in a new environment.
        boot: The boot id.
        machine_us: The boot clock.
        unix_us: Unix time, with which a new environment starts.
    """
    if record is None:
        return unix_us - machine_us
    before, offset, last_us, last_unix_us = _RECORD.unpack(record)
    if before == boot and machine_us + offset >= last_us:
        return int(offset)
    return int(last_us + max(unix_us - last_unix_us, 0) - machine_us)


def written(record: bytes | None, boot: bytes, offset: int, machine_us: int, unix_us: int) -> bytes:
    """Return the record to write; its moment is never earlier than that of the record before."""
    last_us = machine_us + offset
    if record is not None:
        last_us = max(last_us, _RECORD.unpack(record)[2])
    return _RECORD.pack(boot, offset, last_us, unix_us)
