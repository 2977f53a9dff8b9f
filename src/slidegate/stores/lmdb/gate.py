"""The gate, behind which one process at a time uses the file, and the list of those who live.

    gate     locked exclusively by whoever reads or writes, for microseconds; it is tried, and never waited for
    users    locked shared by every process while its store is open; whoever gets it exclusively knows that nobody lives

Both locks are advisory (`flock`): the kernel releases those of a process that dies. They belong to open files, which a
forked child has too; so a child closes its descriptors before anything else, or a gate that its parent held when it
died would stay closed as long as the child lives.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError, StoreUnavailable
from .checking import is_file_at, unusable

GATE: Final = "gate"
USERS: Final = "users"

_OURS: Final = b"slidegate gate \n"
"""How the gate begins."""


class Gate:
    """The gate of a directory, and its list of users.

    Args:
        path: The directory.
        create: Whether to create the files if there are none; who does not is a tool, and none of those who live.

    Attributes:
        file: The descriptor of the gate; whoever has entered leaves by unlocking it.
        is_open: Whether the files are open.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self._path = path
        self._create = create
        self.file = self._users = -1
        self.is_open = self._lives = False

    def open(self) -> None:
        """Open the files.

        Raises:
            ConfigurationError: They cannot be opened, or are not ours.
            StoreUnavailable: They do not exist, and nothing may be created.
        """
        self.close()  # the first file, where the second one could not be opened
        self.file = self._opened(GATE, _OURS)
        self._users = self._opened(USERS, b"")
        self.is_open = True

    def enter(self) -> bool:
        """Enter without waiting; return False if another process is inside."""
        return _try_flock(self.file, fcntl.LOCK_EX)

    def is_alone(self) -> bool:
        """Return whether no process lives; then nobody else can join until this one does. Called inside the gate."""
        return not self._lives and _try_flock(self._users, fcntl.LOCK_EX)

    def join(self) -> None:
        """Become one of those who live; a tool only lets them join again. Called inside the gate, after `is_alone`."""
        operation = fcntl.LOCK_UN
        if self._create:
            operation = fcntl.LOCK_SH
        _try_flock(self._users, operation)
        self._lives = self._create

    def is_in_place(self) -> bool:
        """Return whether both files are still those at their paths."""
        return is_file_at(self.file, self._path / GATE) and is_file_at(self._users, self._path / USERS)

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

    def _opened(self, name: str, content: bytes) -> int:
        """Open a file; if it is empty, give it its content."""
        place = self._path / name
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK in case it is a FIFO or a device
        if self._create:
            flags |= os.O_CREAT
        try:
            file = os.open(place, flags, 0o600)
        except OSError as error:
            if not self._create and isinstance(error, FileNotFoundError):
                raise self._missing(place) from None
            raise unusable(self._path, error) from error
        try:
            found = os.pread(file, len(content) + 1, 0)
            if not found and content and self._create:
                os.pwrite(file, content, 0)
                found = content
        except OSError as error:
            os.close(file)
            raise unusable(self._path, OSError(error.errno, error.strerror, str(place))) from error
        if found[: len(_OURS)] != content:
            os.close(file)
            raise ConfigurationError(
                f"lmdb: {self._path} contains other data, such as {place}; choose a directory for slidegate alone"
            )
        return file

    def _missing(self, place: Path) -> StoreUnavailable:
        missing, remedy = place, "the first worker creates it"
        if not self._path.parent.exists():
            missing, remedy = self._path.parent, "create it, or choose another path"
        return StoreUnavailable(f"lmdb: there is no store at {self._path}: {missing} does not exist; {remedy}")


def _try_flock(file: int, operation: int) -> bool:
    """Lock or unlock a file without waiting; return False if another process has it."""
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
