"""The gate, behind which one process at a time uses the file, and the list of those who live.

    gate     locked exclusively by whoever reads or writes, for microseconds; it is tried, and never waited for
    users    locked shared by every process while its store is open; whoever gets it exclusively knows that nobody lives

Both are empty files, and both locks are advisory (`flock`): the kernel releases those of a process that dies. They
belong to open files, which a forked child has too; so a child closes its descriptors before anything else, or a gate
that its parent held when it died would stay closed as long as the child lives.
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


class Gate:
    """The gate of a directory, and its list of users.

    Args:
        path: The directory.
        create: Whether to create the files if there are none; who does not is a tool, and none of those who live.

    Attributes:
        is_open: Whether the files are open.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        self._path = path
        self._create = create
        self._gate = self._users = -1
        self.is_open = self._lives = False

    def enter(self) -> bool:
        """Enter without waiting; return False if another process is inside.

        Raises:
            ConfigurationError: The files cannot be opened, or are not ours.
            StoreUnavailable: They do not exist, and nothing may be created.
        """
        is_new = not self.is_open
        if is_new:
            self.close()  # the first file, where the second one could not be opened
            self._gate = self._opened(GATE)
            self._users = self._opened(USERS)
            self.is_open = True
        if not _locked(self._gate, fcntl.LOCK_EX):
            return False
        if is_new and not self.is_in_place():
            self.close()  # it was deleted while it was opened
        return self.is_open

    def leave(self) -> None:
        """Leave."""
        if self.is_open:
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def is_alone(self) -> bool:
        """Return whether no process lives, inside the gate; `join` afterwards."""
        return not self._lives and _locked(self._users, fcntl.LOCK_EX)

    def join(self) -> None:
        """Become one of those who live, inside the gate."""
        _locked(self._users, fcntl.LOCK_SH if self._create else fcntl.LOCK_UN)
        self._lives = self._create

    def is_in_place(self) -> bool:
        """Return whether both files are still those at their paths."""
        return is_file_at(self._gate, self._path / GATE) and is_file_at(self._users, self._path / USERS)

    def identity(self) -> bytes:
        """Return bytes that differ for each file that has been the gate."""
        status = os.fstat(self._gate)
        return b"%d:%d:" % (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Close the files, which releases the locks unless another process has inherited them."""
        for file in (self._gate, self._users):
            if file >= 0:
                os.close(file)
        self._gate = self._users = -1
        self.is_open = self._lives = False

    def _opened(self, name: str) -> int:
        place = self._path / name
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK in case it is a FIFO or a device
        if self._create:
            flags |= os.O_CREAT
        try:
            file = os.open(place, flags, 0o600)
        except OSError as error:
            if not self._create and isinstance(error, FileNotFoundError):
                missing, remedy = place, "the first worker creates it"
                if not self._path.parent.exists():
                    missing, remedy = self._path.parent, "create it, or choose another path"
                why = f"there is no store at {self._path}: {missing} does not exist"
                raise StoreUnavailable(f"lmdb: {why}; {remedy}") from None
            raise unusable(self._path, error) from error
        if os.fstat(file).st_size:
            os.close(file)
            raise ConfigurationError(
                f"lmdb: {self._path} contains other data, such as {place}; choose a directory for slidegate alone"
            )
        return file


def _locked(file: int, operation: int) -> bool:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
