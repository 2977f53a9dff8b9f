"""The open file and its room: the map has the largest size from the start, and disk space is taken ahead of its use.

The file is sparse. LMDB writes through the map, and a process that writes to a hole on a full disk is killed; so space
is taken in steps, always some megabytes beyond the last page::

    0                  last page          taken                                     size of the map
    |======================|---- LEAD ------|. . . . . . . . . . . . . . . . . . . . . . . .|

Where no more can be taken, or the map ends, new keys share cells, and known ones go on in the first half of what is
left, of which cells may use a quarter. The other half is for the deletion of expired rows, which copies pages.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from .checking import is_file_at
from .layout import NAMES, Databases

MIB: Final = 2**20
STEP: Final = 4 * MIB
LEAD: Final = 4 * MIB
"""How much is taken beyond the last page. A transaction has at most `batching.MOST_TOGETHER` jobs, and copies fewer
pages than that; `CHECK_EVERY` of them come between two checks. A row of statistics has 1 MiB at most."""
CHECK_EVERY: Final = 16
_AGAIN_S: Final = 1.0
CAN_TAKE: Final = hasattr(os, "posix_fallocate")

FULL: Final = 1
"""New keys share cells."""
NO_CELLS: Final = 2
"""There is no room for further cells."""
NO_CHANGES: Final = 3
"""All changes fail until expired rows have been deleted."""


class Counts:
    """The open file of this start of the machine.

    Args:
        path: Its path.
        environment: LMDB's environment.
        file: A descriptor of the file, to take disk space and to find that it was replaced.
        takes: Whether to take disk space; without a writable map, a full disk fails a transaction and kills nobody.

    Attributes:
        dbs: The databases.
        fullness: 0, `FULL`, `NO_CELLS` or `NO_CHANGES`.
        lmdb: LMDB's environment.
        path: The argument.
        stuck: Why no space could be taken at the last attempt; empty if it could.
    """

    def __init__(self, path: Path, environment: Any, file: int, *, takes: bool) -> None:
        self.path = path
        self.lmdb = environment
        self.dbs: Databases
        self._file = file
        self._takes = takes
        self._page_bytes = int(environment.stat()["psize"])
        self._size = int(environment.info()["map_size"])
        self._lead = min(LEAD, self._size // 4)  # a small file is taken whole when it is opened
        self._taken = self._checked_id = 0
        self._again_s = 0.0
        self.fullness = 0
        self.stuck = ""
        self._take_ahead(self.used())

    def is_in_place(self) -> bool:
        """Return whether it is still the file at its path."""
        return is_file_at(self._file, self.path)

    def close(self) -> None:
        """Close it."""
        self.lmdb.close()
        os.close(self._file)

    def used(self) -> int:
        """Return how many bytes of the file have ever been used."""
        return int(self.lmdb.info()["last_pgno"] + 1) * self._page_bytes

    def check(self, txn: Any, *, always: bool) -> None:
        """Take space ahead, before the commit of a transaction that belongs to every 16th of all processes.

        Args:
            txn: The transaction.
            always: Whether to check now, because the transaction is large.
        """
        if not (always or self.stuck or self.fullness or txn.id() - self._checked_id >= CHECK_EVERY):
            return
        self._checked_id = txn.id()
        used = self.used()
        self._take_ahead(used)
        left = (self._taken if self.stuck else self._size) - used
        if left < self._lead:  # the last page stays where it was, but pages before it may be free
            stats = [txn.stat(getattr(self.dbs, name)) for name in NAMES]
            pages = sum(stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"] for stat in stats)
            left += max(used - pages * self._page_bytes, 0)
        self.fullness = 0 if left >= self._lead else min(1 + 4 * (self._lead - left) // self._lead, NO_CHANGES)

    def why_full(self) -> str:
        """Return why new keys share cells, and what to do."""
        return f"cannot take disk space ({self.stuck}); free some" if self.stuck else "is full; raise max_map_size"

    def _take_ahead(self, used: int) -> None:
        until = min(-(-(used + self._lead) // STEP) * STEP, self._size)
        if not self._takes or self._taken >= until or (self.stuck and time.monotonic() < self._again_s):
            return
        try:
            while self._taken < until:  # other processes may have taken some steps before the disk became full
                step = min(STEP, until - self._taken)
                os.posix_fallocate(self._file, self._taken, step)
                self._taken += step
            self.stuck = ""
        except OSError as error:
            self.stuck = error.strerror or "no room"
            self._again_s = time.monotonic() + _AGAIN_S
