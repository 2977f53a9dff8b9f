"""What lets one at a time use the file: the directory that is ours alone, the gate, and the turns of threads.

    gate     locked exclusively by whoever reads or writes, for microseconds; it is tried, and never waited for
    users    locked shared by every process while its store is open; whoever gets it exclusively knows that nobody lives

Both locks are advisory (`flock`): the kernel releases those of a process that dies. They belong to open files, which a
forked child has too; so a child closes its descriptors before anything else, or a gate that its parent held when it
died would stay closed as long as the child lives.

Within a process a thread needs its *turn* before it tries a gate, see `Turns`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
import time
from os import PathLike
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError, StoreTimeout, quoted
from ..shared import on_loop

GATE: Final = "gate"
USERS: Final = "users"
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
POLL_S: Final = 0.000_5
TRY_S: Final = 0.005
"""How long a thread with an event loop may wait for others."""
WAIT_S: Final = 1.0
"""How long one without a loop does: the others may be many, which all want to run Python code."""
FORK_S: Final = 5.0
"""How long a fork waits for a transaction, or for files that are opened."""

_FILES: Final = (GATE, USERS, "kept.mdb*", "counts-*")
"""The names of our files, as patterns."""
_OTHER: Final = "data.mdb"
"""The file of another program's environment, or of a slidegate before layout 12."""
_REMEDIES: Final = {
    **dict.fromkeys(DISK_FULL, "free some space, or "),
    errno.EROFS: "mount its file system for writing, or ",
    errno.EACCES: "run all workers as the user that it belongs to, or ",
}
_ADDRESS: Final = re.compile(r"\w[\w+.-]*:/")
"""How an address begins, also one that was made a path; it may have a password, which a directory's name would show."""
_CLAIM_AFTER_S: Final = 0.002
_CLAIM_UNTIL_S: Final = 0.05


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


def is_file_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the file at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError:
        return False


# -- the gate ----------------------------------------------------------------------------------------------------------


class Gate:
    """The gate of a directory, and its list of users.

    Args:
        path: The directory.
        create: Whether to create the files if there are none; who does not is a tool, and none of those who live.

    Attributes:
        path: The argument.
        file: The descriptor of the gate; whoever has entered leaves by unlocking it.
        is_open: Whether the files are open.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self.path = path
        self._create = create
        self.file = self._users = -1
        self.is_open = self._lives = False

    def open(self) -> None:
        """Open the files.

        Raises:
            OSError: They cannot be opened.
        """
        self.close()  # the first file, where the second one could not be opened
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK in case it is a FIFO or a device
        if self._create:
            flags |= os.O_CREAT
        self.file = os.open(self.path / GATE, flags, 0o600)
        self._users = os.open(self.path / USERS, flags, 0o600)
        self.is_open = True

    def enter(self) -> bool:
        """Enter without waiting; return False if another process is inside."""
        return try_flock(self.file, fcntl.LOCK_EX)

    def is_alone(self) -> bool:
        """Return whether no process lives; then nobody else can join until this one does. Called inside the gate."""
        return not self._lives and try_flock(self._users, fcntl.LOCK_EX)

    def join(self) -> None:
        """Become one of those who live; a tool only lets them join again. Called inside the gate, after `is_alone`."""
        operation = fcntl.LOCK_UN
        if self._create:
            operation = fcntl.LOCK_SH
        try_flock(self._users, operation)
        self._lives = self._create

    def is_in_place(self) -> bool:
        """Return whether both files are still those at their paths."""
        return is_file_at(self.file, self.path / GATE) and is_file_at(self._users, self.path / USERS)

    def identity(self) -> bytes:
        """Return bytes that differ for each file that has been the gate."""
        status = os.fstat(self.file)
        return b"%d:%d:" % (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Close the files, which releases the locks unless another process has inherited them."""
        for file in (self.file, self._users):
            if file >= 0:
                os.close(file)
        self.file = self._users = -1
        self.is_open = self._lives = False


def try_flock(file: int, operation: int) -> bool:
    """Lock or unlock a file without waiting; return False if another process has it."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# -- the turns of threads ----------------------------------------------------------------------------------------------


class Turns:
    """Hands out the turns: one thread of this process at a time is behind a gate, or opens or closes files.

    A thread without an event loop waits for the others. One with a loop only tries: others may hang, as on a disk. But
    threads let the interpreter go while they have their turn, so by tries alone a loop would hardly ever get one beside
    busy threads. So a loop that was refused claims the next turn, and soon all others leave it to it, for as long as it
    may need to come back::

        refused                the turn is left to the loop
           |------ 2 ms ------|------------ 48 ms ------------|

    Attributes:
        lock: Held by the thread whose turn it is; no other thread can release it. It can be acquired again by a signal
            handler, which runs in the middle of what that thread does.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Make a new lock, in a child of fork, which has none of the threads that may hold the old one."""
        self.lock = threading.RLock()
        self._claimed_by = 0  # a thread
        self._claimed_s = 0.0

    def take(self, wait_s: float) -> bool:
        """Take the turn of this thread; return False if others have it, or have claimed it, for so long."""
        if not self._claimed_by and self.lock.acquire(blocking=False):
            return True
        until_s = time.monotonic() + wait_s
        while self._is_left_to_another():
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_S)
        if not self.lock.acquire(timeout=max(until_s - time.monotonic(), 0.0)):
            return False
        if self._claimed_by == threading.get_ident():
            self._claimed_by = 0
        return True

    def claim(self) -> None:
        """Claim the next turn for this thread, which was refused, unless another one has claimed it."""
        now_s = time.monotonic()
        if not self._claimed_by or now_s - self._claimed_s >= _CLAIM_UNTIL_S:
            self._claimed_by, self._claimed_s = threading.get_ident(), now_s

    def _is_left_to_another(self) -> bool:
        """Return whether this thread leaves the turn to the one that has claimed it."""
        if self._claimed_by in (0, threading.get_ident()):
            return False
        return _CLAIM_AFTER_S <= time.monotonic() - self._claimed_s < _CLAIM_UNTIL_S


def patience_s() -> float:
    """Return how long this thread may wait for others where nobody has set a deadline."""
    if on_loop():
        return TRY_S
    return WAIT_S


def pause(until_s: float) -> None:
    """Wait a moment for others.

    Raises:
        StoreTimeout: It is too late for that.
    """
    if time.monotonic() >= until_s:
        raise StoreTimeout("lmdb: another process or thread has held the files for too long; is it stopped?")
    time.sleep(POLL_S)


TURNS: Final = Turns()
"""Those of this process, over all environments: no thread is in a transaction of any without its turn."""
COPYING: Final = Turns()
"""The turn of the thread that has `kept.mdb` open: LMDB opens no file twice."""

_fork: Final = threading.local()
"""Has as `held` the locks that this thread keeps from others over its fork."""


def _before_fork() -> None:
    """Wait until nobody copies, or is in a transaction."""
    _fork.held = [turns.lock for turns in (COPYING, TURNS) if turns.lock.acquire(timeout=FORK_S)]


def _after_fork() -> None:
    for lock in _fork.held:
        lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
