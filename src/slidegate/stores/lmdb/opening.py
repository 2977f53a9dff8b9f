"""Opening the files of an LMDB environment under its gate, so that no other process opens or writes them meanwhile.

Opening for writing creates missing files, and sets a damaged file aside. Opening for reading only creates, repairs and
writes nothing, except for a slot in LMDB's lock file, which keeps writers from reusing the pages that it reads. If the
files are missing, damaged or of an older version it raises an error, and leaves the repair to the workers.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Final, NamedTuple, TypeVar

import lmdb

from ...core.errors import ConfigurationError, StoreTimeout, StoreUnavailable
from ...core.store import Event
from ..system_clock import system_us
from .ban_rows import rescue
from .checking import (
    DATA,
    LOCK,
    Damaged,
    check_data,
    check_directory,
    check_file_system,
    check_files,
    check_kind,
    is_file_at,
    nobody_else_has,
    set_aside,
    unusable,
)
from .layout import NAMES, Databases, load

T = TypeVar("T")

PATIENCE_S: Final = 5.0
"""How long to wait for the gate without a deadline."""
POLL_S: Final = 0.000_5
CHECKED_PER_S: Final = 32 * 2**20
"""The least bytes per second at which a file is verified; other processes extend their wait accordingly."""
# Without allocated disk space, a full disk kills a process that writes through its map.
CAN_TAKE_ROOM: Final = hasattr(os, "posix_fallocate")

# LMDB raises these errors for pages that it cannot have written.
BROKEN: Final = (
    *(lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.PageFullError),
    *(lmdb.CursorFullError, lmdb.IncompatibleError),
)

MAX_READERS: Final = 1_022
_ATTEMPTS: Final = 10
_PAGE: Final = max(ALLOCATIONGRANULARITY, 2**16)
_ROOM_TO_OPEN: Final = 2**20


class Options(NamedTuple):
    """The options of an environment; all stores of a process that share it have to use the same."""

    map_size: int
    max_map_size: int
    safe: bool
    read_only: bool = False


class _Moved(StoreUnavailable):
    """The data file was deleted or replaced while this process was opening it."""


class Opened(NamedTuple):
    """An open environment, and the events of its opening.

    Attributes:
        lmdb: LMDB's environment.
        file: A descriptor of the data file, for the gate and for allocating disk space.
        dbs: The databases.
        offset_us: The store's time minus the boot clock, in microseconds.
        inodes: The inodes of the data file and of LMDB's lock file.
        events: The events to emit.
    """

    lmdb: Any
    file: int
    dbs: Databases
    offset_us: int
    inodes: tuple[int, int]
    events: list[Event]


def open_files(path: Path, options: Options, patience_s: float, suspect: tuple[int, str]) -> Opened:
    """Open an environment. For writing, create a missing one, and set a damaged one aside.

    Args:
        path: Its directory, without symbolic links.
        options: The options of the environment.
        patience_s: How long to wait for another process that is writing or opening it, in seconds.
        suspect: The inode of a data file that may be damaged, and the known damage; if that is empty, it is checked.

    Raises:
        ConfigurationError: The files cannot be used; the message names the remedy.
        StoreUnavailable: They are opened for reading only, and do not exist.
        StoreTimeout: Another process holds the gate.
    """
    events: list[Event] = []
    damaged: list[Path] = []
    if options.read_only:
        check_files(path)
    else:
        check_directory(path)
        warning = check_file_system(path)
        events += [Event("store_doubtful", warning)] if warning else []
    for _ in range(_ATTEMPTS):
        file = _lock_data(path, options, patience_s)
        try:
            opened = _open(path, options, file, suspect, events, damaged)
        except BaseException as error:
            try:
                if not _handle_failure(path / DATA, options, file, error, events, damaged):
                    raise
            finally:
                os.close(file)
        else:
            fcntl.flock(file, fcntl.LOCK_UN)
            return opened
    raise ConfigurationError(f"lmdb: {path} is damaged again after each attempt to create it; check the disk")


def take_room(file: int, size: int, options: Options) -> None:
    """Allocate disk space for the whole map: with a writable map, a disk that becomes full would kill the process.

    Without a writable map, every commit would fail on a full disk, including those for known keys.

    Raises:
        OSError: The disk is full.
    """
    if takes_room(options):
        os.posix_fallocate(file, 0, size)


def takes_room(options: Options) -> bool:
    """Return whether disk space is allocated for the whole map, so that a full disk never fails a transaction."""
    return CAN_TAKE_ROOM and not options.read_only


def whole_size(file: int) -> int:
    """Return the size of a map that truncates nothing that another process may have mapped, in bytes.

    A writable map truncates the file to its own size. The file is never shorter than the largest map, so a map of the
    whole file is safe if no other process enlarges the file meanwhile; so a process holds the gate while it maps.
    """
    return -(-os.fstat(file).st_size // _PAGE) * _PAGE


def _lock_data(path: Path, options: Options, patience_s: float) -> int:
    """Open the data file and acquire its gate, which keeps other processes from writing and opening it.

    Raises:
        ConfigurationError: It cannot be opened.
        StoreUnavailable: It is opened for reading only, and does not exist.
        StoreTimeout: Another process has held the gate for too long.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK in case it is a FIFO or a device
    flags |= os.O_RDONLY if options.read_only else os.O_RDWR | os.O_CREAT
    until_s = time.monotonic() + patience_s
    while True:
        try:
            if options.read_only:
                _check_there(path)
            file = os.open(path / DATA, flags, 0o600)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            check_kind(path / DATA, os.fstat(file))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_file_at(file, path / DATA):
                return file
        except BlockingIOError:
            # Another process may be verifying the whole file before it opens it.
            if time.monotonic() > until_s + (patience_s >= PATIENCE_S and os.fstat(file).st_size / CHECKED_PER_S):
                os.close(file)
                raise StoreTimeout(
                    f"lmdb: another process has held {path} for {patience_s:g} s; is it stopped?"
                ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        time.sleep(POLL_S)


def _check_there(path: Path) -> None:
    """Check that the files exist; without LMDB's lock file, writers would not see the reader.

    Raises:
        StoreUnavailable: They do not exist, or the data file is empty.
    """
    try:
        sizes = {name: (path / name).stat().st_size for name in (DATA, LOCK)}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreUnavailable(
            f"lmdb: there is no store at {path}: {error.filename} does not exist; the first worker creates it"
        ) from None
    if not sizes[DATA]:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: {DATA} is empty")


def _handle_failure(
    data: Path, options: Options, file: int, error: BaseException, events: list[Event], damaged: list[Path]
) -> bool:
    """Handle an error of opening: set a damaged data file aside, and return whether another attempt may succeed.

    If the file is no longer at its path, it was moved or deleted, and the error has no other meaning.

    Raises:
        ConfigurationError: It is not damaged, but cannot be used.
        StoreUnavailable: It is damaged, and opened for reading only.
    """
    if isinstance(error, (_Moved, FileNotFoundError)) or (isinstance(error, Exception) and not is_file_at(file, data)):
        return True
    if isinstance(error, (Damaged, *BROKEN)):
        if options.read_only:
            raise StoreUnavailable(f"lmdb: {data.parent} is damaged: {error}") from error
        try:
            kept = set_aside(data)
        except OSError as failed:
            raise unusable(data, failed) from failed
        damaged.append(kept)
        message = f"{data} was damaged ({error}): it was renamed to {kept.name}, and counting starts from zero"
        events.append(Event("store_set_aside", message, {"path": str(kept), "damage": str(error)}))
        return True
    if isinstance(error, lmdb.LockError):  # LMDB locks one byte of its lock file for each process id
        raise ConfigurationError(
            f"lmdb: {data.parent} is in use by another process with the id {os.getpid()}, in another container; "
            "let the containers share a process namespace (--pid), or use RedisStore"
        ) from error
    if isinstance(error, lmdb.Error):
        raise ConfigurationError(f"lmdb: {data.parent} cannot be opened: {error}") from error
    if isinstance(error, OSError):
        raise unusable(data.parent, error) from error
    return False


def _open(
    path: Path, options: Options, file: int, suspect: tuple[int, str], events: list[Event], damaged: list[Path]
) -> Opened:
    inode, size, writes = os.fstat(file).st_ino, whole_size(file), not options.read_only
    if inode == suspect[0] and suspect[1]:
        raise Damaged(suspect[1])
    if size:
        check_data(path, every_page=inode == suspect[0] or nobody_else_has(path / LOCK))
        if not (path / LOCK).exists():
            if not options.read_only:
                _replace_by_copy(path, file)
            raise _Moved
    elif not options.read_only:
        # A lock file without data file is a leftover, and a stopped process may hold LMDB's own lock in it for ever.
        (path / LOCK).unlink(missing_ok=True)
    environment = _map(path, options, size if options.read_only else max(options.map_size, size))
    try:
        if not is_file_at(file, path / DATA):
            raise _Moved
        environment.reader_check()
        take_room(file, environment.info()["map_size"], options)
        dbs, offset_us = _with_room(environment, file, options, partial(load, path, environment, writes=writes))
        for kept in damaged:
            count = _with_room(environment, file, options, partial(_rescue, kept, environment, dbs))
            events.append(Event("bans_rescued", f"{count} bans were recovered from {kept}", {"bans": count}))
        return Opened(environment, file, dbs, offset_us, (inode, (path / LOCK).stat().st_ino), events)
    except BaseException:
        environment.close()
        raise


def _map(path: Path, options: Options, size: int) -> Any:
    """Return LMDB's environment."""
    return lmdb.open(
        str(path),
        map_size=size,
        max_dbs=len(NAMES),
        max_readers=MAX_READERS,
        readonly=options.read_only,
        create=not options.read_only,
        sync=options.safe,
        metasync=options.safe,
        writemap=takes_room(options) and not options.safe,
        mode=0o600,
        max_spare_txns=0,  # reader slots that are kept between reads do not survive a fork
    )


def _replace_by_copy(path: Path, file: int) -> None:
    """Replace a data file that other processes have open by a copy of it, because LMDB's lock file was deleted.

    Those processes still coordinate through the deleted lock file, and would not see readers and writers of a new one.
    They notice within a second that the path has another data file, and open it.
    """
    fresh = path / f"{DATA}.new"
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as copy:
        with open(file, "rb", closefd=False) as data:
            data.seek(0)
            copyfileobj(data, copy, 2**20)
        os.fsync(copy.fileno())
    (path / LOCK).unlink(missing_ok=True)
    os.close(os.open(path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    fresh.replace(path / DATA)


def _rescue(damaged: Path, environment: Any, dbs: Databases) -> int:
    """Import the bans that are found in a damaged file into the new one; return how many are in force."""
    with environment.begin(write=True) as txn:
        return rescue(damaged, txn, dbs, system_us)


def _with_room(environment: Any, file: int, options: Options, do: Callable[[], T]) -> T:
    """Call `do`, enlarging the map if it is full: a full file that cannot be opened could never be emptied."""
    while True:
        try:
            return do()
        except lmdb.MapFullError:
            size = environment.info()["map_size"] + _ROOM_TO_OPEN
            take_room(file, size, options)
            environment.set_mapsize(size)
