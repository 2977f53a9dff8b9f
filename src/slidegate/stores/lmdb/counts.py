"""The open file of this start of the machine, and how much room is left in it.

On a block device (ext4, XFS) the file has its whole size from the start, and so has its disk space: LMDB writes through
the map, and a process that writes to a hole on a full disk is killed. Elsewhere it is sparse, and LMDB writes to it
with calls that can fail: in memory (tmpfs) it would take that at once, and where changed blocks are written to new
places (btrfs, ZFS, overlay) space that was taken ahead does not help when the disk is full.

What is left when the map is nearly full is kept: a half for deletions, which copy pages, and of the other half most for
keys that are known::

    0                                        last page                                      size of the map
    |========================================|. . . . . . . . .|- NO_WINDOWS -|- NO_CELLS -|- NO_CHANGES ---|
"""

from __future__ import annotations

import os
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from .gate import is_file_at
from .layout import NAMES, Databases

LEAD: Final = 4 * 2**20
"""What is kept, if the file is large. A transaction has at most `batching.MOST_TOGETHER` jobs, and copies fewer pages
than that; `CHECK_EVERY` of them come between two checks. A row of other workers' has 1 MiB at most."""
CHECK_EVERY: Final = 16
CAN_TAKE: Final = hasattr(os, "posix_fallocate")
_BLOCK_BYTES: Final = 512


class Room(IntEnum):
    """What there is no room for any more."""

    PLENTY = 0
    NO_WINDOWS = 1
    """New keys share cells."""
    NO_CELLS = 2
    """A key whose cell does not exist yet is not counted: `on_error` decides."""
    NO_CHANGES = 3
    """All changes fail but those that delete or hand back."""


class CountsFile:
    """The open file of this start of the machine.

    Args:
        path: Its path.
        environment: LMDB's environment.
        file: A descriptor of the file, to take disk space and to find that it was replaced.
        takes_space: Whether the file takes its disk space when it is made.

    Attributes:
        check_from: The id of the transaction in which `check` has to be called next.
        dbs: The databases.
        identity: What no other file has.
        lmdb: LMDB's environment.
        path: The argument.
        room: What there is no room for.
        size: The size of the map, in bytes.
        takes_space: The argument.
    """

    def __init__(self, path: Path, environment: Any, file: int, *, takes_space: bool) -> None:
        self.path = path
        self.takes_space = takes_space
        self.lmdb = environment
        self.dbs: Databases
        self._file = file
        status = os.fstat(file)
        self.identity = status.st_dev, status.st_ino
        self._page_bytes = int(environment.stat()["psize"])
        self.size = int(environment.info()["map_size"])
        self._lead = min(LEAD, self.size // 4)
        self.check_from = 0
        self.room = Room.PLENTY

    def is_in_place(self) -> bool:
        """Return whether it is still the file at its path."""
        return is_file_at(self._file, self.path)

    def close(self) -> None:
        """Close it."""
        self.lmdb.close()
        os.close(self._file)

    def take_space(self) -> None:
        """Take the disk space of the whole file, unless it has that.

        Raises:
            OSError: There is not enough.
        """
        taken = os.fstat(self._file).st_blocks * _BLOCK_BYTES
        if taken < self.size:  # XFS would want the room once more, even for a file that has all of it
            os.posix_fallocate(self._file, 0, self.size)

    def used(self) -> int:
        """Return how many bytes of the file have ever been used."""
        return int(self.lmdb.info()["last_pgno"] + 1) * self._page_bytes

    def check(self, txn: Any) -> None:
        """Find out how much room is left, before the commit of a transaction."""
        used = self.used()
        left = self.size - used
        if left < self._lead:  # the last page stays where it was, but pages before it may be free
            stats = [txn.stat(getattr(self.dbs, name)) for name in NAMES]
            pages = sum([stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"] for stat in stats])
            left += max(used - pages * self._page_bytes, 0)
        self.room = Room.PLENTY
        self.check_from = txn.id() + CHECK_EVERY
        if left < self._lead:
            quarters = 4 * (self._lead - left) // self._lead
            self.room = Room(min(Room.NO_WINDOWS + quarters, Room.NO_CHANGES))
            self.check_from = txn.id() + 1


def takes_space(path: Path) -> bool:
    """Return whether a file at a path takes its disk space when it is made."""
    return CAN_TAKE and os.major(path.stat().st_dev) != 0  # 0 is that of a file system without a device of its own
