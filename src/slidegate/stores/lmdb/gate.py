"""Mutual exclusion: the checks of the directory, the gate between processes, and the locks between threads.

    gate     locked exclusively by the process that reads or writes, for microseconds; it is tried, and never waited for
    users    locked shared by every process while its store is open; who gets it exclusively is the only process

Both locks are advisory (`flock`): the kernel releases those of a process that dies. They belong to open files, which a
forked child has too; so a child closes its descriptors before anything else, or a gate that its parent held when it
died would stay closed as long as the child lives.

Within a process a thread acquires a `ThreadLock` before it tries a gate.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError, StoreTimeout, quoted
from ..forks import POLL_S, ThreadLock
from ..shared import on_loop

GATE: Final = "gate"
USERS: Final = "users"
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TRY_S: Final = 0.005
"""How long a thread with an event loop may wait for others."""
WAIT_S: Final = 1.0
"""How long one without a loop does: the others may be many, which all want to run Python code."""
FORK_S: Final = 5.0
"""How long a fork waits for a transaction, or for files that are opened."""

TOO_LONG: Final = "lmdb: another process or thread has held the files for too long; is it stopped?"

OPEN_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""How each of our files is opened; without waiting in case it is a FIFO or a device."""

_FILES: Final = (GATE, USERS, "kept.mdb*", "counts-*")
"""The names of our files, as patterns."""
_OTHER: Final = "data.mdb"
"""The file of another program's environment, or of a slidegate before layout 12."""
_REMEDIES: Final = {
    **dict.fromkeys(DISK_FULL, "free some space, or "),
    errno.EROFS: "mount its file system for writing, or ",
    errno.EACCES: "run all workers as the user that it belongs to, or ",
}
_ADDRESS: Final = re.compile(r"\w[\w+.-]*:/|//|:")
"""How an address begins, also one that was made a path, or without its scheme; it may have a password, which a
directory's name would show."""


# -- the directory -----------------------------------------------------------------------------------------------------


def find_path(path: str | PathLike[str]) -> Path:
    """Return a path without symbolic links.

    Raises:
        ConfigurationError: It is no path.
    """
    try:
        if path and not _ADDRESS.match(os.fsdecode(path)):
            return Path(os.path.realpath(path))
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(f'path: expected a directory, for example "/var/lib/app/slidegate", not {quoted(path)}')


def check_directory(path: Path, *, create: bool) -> None:
    """Check that a directory can be used, and that its files are ours.

    Args:
        path: The directory.
        create: Whether to create it if it is missing.

    Raises:
        ConfigurationError: It cannot be used; the message names the reason and the remedy.
        OSError: It cannot be read.
    """
    try:
        path.parent.stat()
        if create:
            path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        raise ConfigurationError(f"lmdb: {path.parent} does not exist; create it, or choose another path") from None
    except FileExistsError:
        raise ConfigurationError(
            f"lmdb: {path} is a file; expected a directory, or a path where one can be created"
        ) from None
    if (path / _OTHER).exists():
        raise ConfigurationError(
            f"lmdb: {path} contains {_OTHER} of another program or an earlier slidegate; choose another path; to keep "
            "its bans, write the lines of `limiter.export_bans()` with the version that wrote it, and pass them to "
            "`limiter.import_bans()` of this one"
        )
    _check_files(path)
    if not create and not (path / GATE).exists():
        raise ConfigurationError(
            f"lmdb: there is no store at {path}: {path / GATE} does not exist; the first worker creates it"
        )


def _check_files(path: Path) -> None:
    """Check that files are regular ones, to which no other user can write.

    Opening another kind, such as a FIFO, could block. Another user with write access could truncate a mapped file, and
    so crash the process.
    """
    for place in [path, *[file for pattern in _FILES for file in path.glob(pattern)]]:
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            continue  # another process has just deleted it
        if place != path and not stat.S_ISREG(mode):
            raise ConfigurationError(
                f"lmdb: {place} is not a regular file ({stat.filemode(mode)}); remove it, or choose another path"
            )
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(
                f"lmdb: other users may write to {place}, and change counts and bans; chmod go-w {place}"
            )


def unusable(path: Path, error: OSError) -> ConfigurationError:
    """Return the error for an unusable path, with the remedy."""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return ConfigurationError(
        f"lmdb: {error.filename or path} cannot be used: {error.strerror or error}; {remedy}choose another path"
    )


def identity_of(file: int) -> bytes:
    """Return bytes that differ for each file."""
    status = os.fstat(file)
    return b"%d:%d:" % (status.st_dev, status.st_ino)


def is_file_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the file at a path, as far as one can see."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # A permission that is missing, or a disk that fails, says nothing of the file. What is open can still be used,
        # and other processes do that; to close it would forget what it counts.
        return True


# -- the gate ----------------------------------------------------------------------------------------------------------


class Gate:
    """The gate of a directory, and its list of users.

    Args:
        path: The directory.
        create: Whether to create the files if there are none; if not, this is a tool, and not one of the users.

    Attributes:
        file: The descriptor of the gate, which is left by unlocking it.
        is_open: Whether the files are open.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._create = create
        self.file = self._users = -1
        self.is_open = self._is_user = False

    def open(self) -> None:
        """Open the files.

        Raises:
            OSError: They cannot be opened.
        """
        self.close()  # the first file, where the second one could not be opened
        flags = OPEN_FLAGS
        if self._create:
            flags |= os.O_CREAT
        self.file = os.open(self.path / GATE, flags, 0o600)
        self._users = os.open(self.path / USERS, flags, 0o600)
        self.is_open = True

    def enter(self) -> bool:
        """Enter without waiting; return False if another process is inside."""
        return try_flock(self.file, fcntl.LOCK_EX)

    def is_alone(self) -> bool:
        """Return whether there is no user; then no other process can join before this one. Called inside the gate."""
        return not self._is_user and try_flock(self._users, fcntl.LOCK_EX)

    def join(self) -> None:
        """Become a user; a tool only lets others join again. Called inside the gate, after `is_alone`."""
        operation = fcntl.LOCK_UN
        if self._create:
            operation = fcntl.LOCK_SH
        try_flock(self._users, operation)
        self._is_user = self._create

    def is_in_place(self) -> bool:
        """Return whether both files are still those at their paths."""
        return is_file_at(self.file, self.path / GATE) and is_file_at(self._users, self.path / USERS)

    def close(self) -> None:
        """Close the files, which releases the locks unless another process has inherited them."""
        gate, users = self.file, self._users
        self.file = self._users = -1  # first, because a signal handler may raise when others have these numbers
        self.is_open = self._is_user = False
        try:
            if gate >= 0:
                os.close(gate)
        finally:
            if users >= 0:
                os.close(users)


def try_flock(file: int, operation: int) -> bool:
    """Lock or unlock a file without waiting; return False if another process has it."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def patience_s() -> float:
    """Return how long this thread may wait for others where there is no deadline."""
    if on_loop():
        return TRY_S
    return WAIT_S


def pause(until_s: float, span_s: float = POLL_S) -> None:
    """Wait a moment for others.

    Raises:
        StoreTimeout: It is too late for that.
    """
    if time.monotonic() >= until_s:
        raise StoreTimeout(TOO_LONG)
    time.sleep(span_s)


THREAD_LOCK: Final = ThreadLock()
"""Held during transactions, and while files are opened or closed; one for all environments of this process."""
COPY_LOCK: Final = ThreadLock()
"""Held while `kept.mdb` is open: LMDB opens no file twice."""


def _before_fork() -> None:
    """Wait for the end of a copy and of a transaction."""
    for each in (COPY_LOCK, THREAD_LOCK):
        each.lock.acquire(timeout=FORK_S)


def _after_fork() -> None:
    for each in (COPY_LOCK, THREAD_LOCK):
        with suppress(RuntimeError):  # others held it for too long, or a signal handler has raised before
            each.lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
