"""Opening the files of an LMDB environment, under its gate: nobody else opens or writes them meanwhile."""

from __future__ import annotations

import fcntl
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from ...core.errors import ConfigurationError, StoreTimeout
from ...core.protocols import Event
from .clock import boot_id, boot_us, offset_us, wall_us, written
from .files import DATA, GATE, check_directory, check_file_system, damage, set_aside, unusable

SCHEMA_VERSION: Final = 1
PATIENCE_S: Final = 5.0
"""How long to wait for the gate where nobody else limits it."""
POLL_S: Final = 0.000_5
CLOCK: Final = b"clock"
# Without room taken beforehand, a full disk ends a process that writes through its map.
CAN_TAKE_ROOM: Final = hasattr(os, "posix_fallocate")

_MAX_READERS: Final = 1_022
_KEPT: Final = ("meta", "bans", "changes", "history")
_COUNTS: Final = ("windows", "cells", "ends", "standings", "struck", "policies")
_SCHEMA: Final = b"schema"
_SECRET: Final = b"secret"


class Databases(NamedTuple):
    """The databases of an environment, and its secret."""

    meta: Any
    bans: Any
    changes: Any
    history: Any
    windows: Any
    cells: Any
    ends: Any
    standings: Any
    struck: Any
    policies: Any
    secret: bytes


class Options(NamedTuple):
    """How an environment is opened; the same for all stores of a process that share it."""

    map_size: int
    max_map_size: int
    safe: bool


class Opened(NamedTuple):
    """An environment, and what was found out while it was opened.

    Attributes:
        lmdb: LMDB's environment.
        gate: The open file of the gate.
        dbs: The databases.
        offset_us: What to add to the boot clock.
        inode: The data file's.
        events: What is to be told.
        salvage: Damaged files that were set aside, and may hold bans.
    """

    lmdb: Any
    gate: int
    dbs: Databases
    offset_us: int
    inode: int
    events: list[Event]
    salvage: list[Path]


def open_files(path: Path, options: Options, suspect: tuple[int, str] = (0, "")) -> Opened:
    """Open an environment; make it if there is none.

    Args:
        path: Its directory, without symbolic links.
        options: How to open it.
        suspect: The inode of a data file that must not be used any more, and why.

    Raises:
        ConfigurationError: The files cannot be used; the message says what would help.
        StoreTimeout: Another process holds the gate.
    """
    check_directory(path)
    warning = check_file_system(path)
    events = [Event("store_doubtful", warning)] if warning else []
    try:
        gate = os.open(path / GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise unusable(path, error) from error
    try:
        _wait_for(gate, path)
        opened = _open(path, options, gate, suspect, events)
    except BaseException as error:
        os.close(gate)
        if isinstance(error, lmdb.Error):
            raise ConfigurationError(f"lmdb: {path} cannot be opened: {error}") from error
        if isinstance(error, OSError):
            raise unusable(path, error) from error
        raise
    fcntl.flock(gate, fcntl.LOCK_UN)
    return opened


def take_room(path: Path, size: int, options: Options) -> None:
    """Have the disk give all room at once: with a writable map, a disk that is full later would end the process.

    Raises:
        OSError: The disk is full.
    """
    if CAN_TAKE_ROOM and not options.safe:
        file = os.open(path / DATA, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(file, 0, size)
        finally:
            os.close(file)


def _wait_for(gate: int, path: Path) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise StoreTimeout(
                    f"lmdb: another process has held {path} for {PATIENCE_S:g} s; is it stopped?"
                ) from None
        time.sleep(POLL_S)


def _open(path: Path, options: Options, gate: int, suspect: tuple[int, str], events: list[Event]) -> Opened:
    data, salvage = path / DATA, []
    wrong = damage(data) or (suspect[1] if data.exists() and data.stat().st_ino == suspect[0] else "")
    wrong = wrong or _after_power_loss(data, gate, options)
    if wrong:
        kept = set_aside(data)
        salvage.append(kept)
        message = f"{data} was damaged ({wrong}): it is kept as {kept.name}, and counting starts afresh"
        events.append(Event("store_set_aside", message, {"path": str(kept), "damage": wrong}))
    environment = lmdb.open(
        str(path),
        map_size=options.map_size,
        max_dbs=len(_KEPT) + len(_COUNTS),
        max_readers=_MAX_READERS,
        sync=options.safe,
        metasync=options.safe,
        writemap=CAN_TAKE_ROOM and not options.safe,
        mode=0o600,
        max_spare_txns=0,  # a place among the readers that is kept between reads does not survive a fork
    )
    try:
        environment.reader_check()
        take_room(path, environment.info()["map_size"], options)
        dbs, offset = _load(path, environment, events)
        return Opened(environment, gate, dbs, offset, data.stat().st_ino, events, salvage)
    except BaseException:
        environment.close()
        raise


def _after_power_loss(data: Path, gate: int, options: Options) -> str:
    """Return what is wrong with a file that was in use when the machine went down; see `durability`.

    The gate holds the boot id of the last opening. Where py-lmdb brings its verifier, every page is looked at.
    """
    before, boot = os.pread(gate, 16, 0), boot_id()
    os.pwrite(gate, boot, 0)
    if options.safe or before in (b"", boot) or not data.exists() or not data.stat().st_size:
        return ""
    try:
        verifier: Any = import_module("lmdb.verify")
    except ImportError:
        return ""
    try:
        return "; ".join(verifier.verify(str(data), subdir=False)[:1])
    except verifier.VerifyError as error:
        return str(error)


def _load(path: Path, environment: Any, events: list[Event]) -> tuple[Databases, int]:
    """Read what stands in `meta`, or write it; return the databases and the clock's offset."""
    with environment.begin(write=True) as txn:
        version = _version(path, environment, txn)
        meta = environment.open_db(b"meta", txn)
        kept = [environment.open_db(name.encode(), txn) for name in _KEPT]
        counts = [environment.open_db(name.encode(), txn) for name in _COUNTS]
        if version < SCHEMA_VERSION:
            for dbi in counts:
                txn.drop(dbi, delete=False)
            message = f"{path} had layout version {version}: bans were taken over, and counting starts afresh"
            events.append(Event("store_migrated", message, {"from": version, "to": SCHEMA_VERSION}))
        txn.put(_SCHEMA, bytes([SCHEMA_VERSION]), db=meta)
        secret = txn.get(_SECRET, None, meta)
        if secret is None:
            secret = os.urandom(32)
            txn.put(_SECRET, secret, db=meta)
        record, boot = txn.get(CLOCK, None, meta), boot_id()
        offset = offset_us(record, boot, boot_us(), wall_us())
        txn.put(CLOCK, written(record, boot, offset, boot_us(), wall_us()), db=meta)
    return Databases._make([*kept, *counts, secret]), offset


def _version(path: Path, environment: Any, txn: Any) -> int:
    """Return the layout's version; that of this module in an environment without anything.

    Raises:
        ConfigurationError: The environment belongs to something else, or to a newer version.
    """
    if txn.stat()["entries"] == 0:
        return SCHEMA_VERSION
    version = None
    if txn.get(b"meta") is not None:
        version = txn.get(_SCHEMA, None, environment.open_db(b"meta", txn))
    if version is None:
        raise ConfigurationError(f"lmdb: {path} holds other data; choose a directory for slidegate alone")
    if version[0] > SCHEMA_VERSION:
        raise ConfigurationError(
            f"lmdb: {path} was written with layout version {version[0]}, and this slidegate reads {SCHEMA_VERSION}; "
            "upgrade slidegate, or choose another path"
        )
    return int(version[0])
