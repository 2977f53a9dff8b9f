"""Opening the files of an LMDB environment, under its gate: nobody else opens them or writes meanwhile.

Who opens them to write makes what is missing, and sets aside what is damaged. Who opens them to read makes, mends and
writes nothing, but takes a slot in LMDB's lock file, as every reader does, so that writers leave alone the pages that
it reads: a file that is missing, damaged or older is refused with a sentence, and to put it right is for the workers.
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
from .layout import NAMES, Databases, boot_us, load

T = TypeVar("T")

PATIENCE_S: Final = 5.0
"""How long to wait for the gate if no deadline is shorter."""
POLL_S: Final = 0.000_5
CHECKED_PER_S: Final = 32 * 2**20
"""The least bytes of a file that are verified in a second; another process waits accordingly longer."""
# If the room was not taken beforehand, a full disk ends a process that writes through its map.
CAN_TAKE_ROOM: Final = hasattr(os, "posix_fallocate")

# LMDB raises these errors for pages that it never wrote in this form.
BROKEN: Final = (
    *(lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.PageFullError),
    *(lmdb.CursorFullError, lmdb.IncompatibleError),
)

MAX_READERS: Final = 1_022
_ATTEMPTS: Final = 10
_PAGE: Final = max(ALLOCATIONGRANULARITY, 2**16)
_ROOM_TO_OPEN: Final = 2**20


class Options(NamedTuple):
    """How an environment is opened; the same for all stores of a process that share it."""

    map_size: int
    max_map_size: int
    safe: bool
    read_only: bool = False


class _Moved(StoreUnavailable):
    """The data file was deleted or replaced while it was opened."""


class Opened(NamedTuple):
    """An open environment, and the findings of its opening.

    Attributes:
        lmdb: LMDB's environment.
        file: The data file, open for the gate and for taking room.
        dbs: The databases.
        offset_us: What to add to the boot clock.
        inodes: The inodes of the data file and of LMDB's lock file.
        events: Events to tell.
    """

    lmdb: Any
    file: int
    dbs: Databases
    offset_us: int
    inodes: tuple[int, int]
    events: list[Event]


def open_files(path: Path, options: Options, patience_s: float, suspect: tuple[int, str]) -> Opened:
    """Open an environment. To write, make one if there is none, and set a damaged one aside.

    Args:
        path: Its directory, without symbolic links.
        options: How to open it.
        patience_s: How long to wait for another process that writes or opens it.
        suspect: The inode of a data file that must not be used any more, and why; without a reason it is checked.

    Raises:
        ConfigurationError: The files cannot be used; the message says what would help.
        StoreUnavailable: They are to be read only, and are not there.
        StoreTimeout: Another process holds the files.
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
                if not _put_right(path / DATA, options, file, error, events, damaged):
                    raise
            finally:
                os.close(file)
        else:
            fcntl.flock(file, fcntl.LOCK_UN)
            return opened
    raise ConfigurationError(f"lmdb: {path} is damaged again as soon as it is made; is the disk in order?")


def take_room(file: int, size: int, options: Options) -> None:
    """Take all room from the disk at once: with a writable map, a disk that is full later would end the process.

    Where pages are written by calls, every commit would fail on it, also those of keys that are known.

    Raises:
        OSError: The disk is full.
    """
    if takes_room(options):
        os.posix_fallocate(file, 0, size)


def takes_room(options: Options) -> bool:
    """Return whether the file has room for the whole map, so that a full disk never ends a transaction."""
    return CAN_TAKE_ROOM and not options.read_only


def whole_size(file: int) -> int:
    """Return how large a map has to be, so that it cuts nothing off that another process may have mapped.

    A writable map cuts the file to its own size. The file is never shorter than the largest map, so a map of the whole
    file is safe as long as nobody else makes the file larger meanwhile. That is why a process holds the gate to map it.
    """
    return -(-os.fstat(file).st_size // _PAGE) * _PAGE


def _lock_data(path: Path, options: Options, patience_s: float) -> int:
    """Open the data file and take its gate, which keeps everybody else from writing to it and from opening it.

    Raises:
        ConfigurationError: It cannot be opened.
        StoreUnavailable: It is to be read only, and is not there.
        StoreTimeout: Another process has held the gate for too long.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last for what is no file
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
            # Another process may be checking the whole file before it opens it.
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
    """Check that there are files to read; without LMDB's lock file nobody would see who reads.

    Raises:
        StoreUnavailable: There are none.
    """
    try:
        sizes = {name: (path / name).stat().st_size for name in (DATA, LOCK)}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreUnavailable(
            f"lmdb: there is no store at {path}: {error.filename} is not there; a worker that opens it makes one"
        ) from None
    if not sizes[DATA]:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: {DATA} is empty")


def _put_right(
    data: Path, options: Options, file: int, error: BaseException, events: list[Event], damaged: list[Path]
) -> bool:
    """Set a damaged data file aside; return whether another attempt may succeed.

    A file that is not at its path any more was moved or deleted meanwhile, whatever the error says.

    Raises:
        ConfigurationError: It is not damaged, and cannot be used.
        StoreUnavailable: It is damaged, and to be read only.
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
        message = f"{data} was damaged ({error}): it is kept as {kept.name}, and counting starts afresh"
        events.append(Event("store_set_aside", message, {"path": str(kept), "damage": str(error)}))
        return True
    if isinstance(error, lmdb.LockError):  # LMDB locks a byte of its lock file for each process, by its number
        raise ConfigurationError(
            f"lmdb: {data.parent} is in use by another process with the number {os.getpid()}, in another container; "
            "let the containers share one namespace of process ids, or use RedisStore"
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
                _start_apart(path, file)
            raise _Moved
    elif not options.read_only:
        # This lock file belongs to a data file that is gone; a stopped process may hold LMDB's own lock in it for ever.
        (path / LOCK).unlink(missing_ok=True)
    environment = _map(path, options, size if options.read_only else max(options.map_size, size))
    try:
        if not is_file_at(file, path / DATA):
            raise _Moved
        environment.reader_check()
        take_room(file, environment.info()["map_size"], options)
        dbs, offset_us = _with_room(environment, file, options, partial(load, path, environment, writes=writes))
        for kept in damaged:
            count = _with_room(environment, file, options, partial(_rescue, kept, environment, dbs, offset_us))
            events.append(Event("bans_rescued", f"{count} bans were found in {kept}", {"bans": count}))
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
        max_spare_txns=0,  # a reader's slot that is kept between reads does not survive a fork
    )


def _start_apart(path: Path, file: int) -> None:
    """Go on in a copy of a data file that others have open, and leave them the one that they have.

    That is done where LMDB's lock file was deleted: they still know of each other by the deleted one, and with another
    lock file nobody would see who writes or reads. They notice within a second that the path has another file.
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


def _rescue(damaged: Path, environment: Any, dbs: Databases, offset_us: int) -> int:
    """Write the bans that are found in a damaged file into the new one, and return how many they are."""
    with environment.begin(write=True) as txn:
        return rescue(damaged, txn, dbs, boot_us() + offset_us, system_us())


def _with_room(environment: Any, file: int, options: Options, do: Callable[[], T]) -> T:
    """Do something, and make room for it if need be: a full file that cannot be opened can never be emptied."""
    while True:
        try:
            return do()
        except lmdb.MapFullError:
            size = environment.info()["map_size"] + _ROOM_TO_OPEN
            take_room(file, size, options)
            environment.set_mapsize(size)
