"""Which processes are reading a file, and whether one of them stands still.

As long as a process reads, LMDB uses no page again that was freed since it began. A stopped reader makes the file grow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ....core.store import Event

_FAR_BEHIND: Final = 100  # transactions; a read takes as long as one or two


class Readers:
    """Compares the readers of one look with those of the look before it.

    Args:
        path: The directory of the environment.
        max_map_size: How many bytes the file may grow to.
    """

    def __init__(self, path: Path, max_map_size: int) -> None:
        self._path = path
        self._max_map_size = max_map_size
        self._behind: set[tuple[int, int]] = set()  # (process, transaction) of each that was far behind
        self._told: set[tuple[int, int]] = set()

    def look(self, environment: Any) -> list[Event]:
        """Return an event for each process that has been in the same transaction since an earlier look."""
        last = environment.info()["last_txnid"]
        behind = set()
        for line in environment.readers().splitlines()[1:]:
            pid, _, since = line.split()
            if since.isdecimal() and last - int(since) > _FAR_BEHIND:
                behind.add((int(pid), int(since)))
        stopped = (behind & self._behind) - self._told
        self._behind, self._told = behind, (self._told & behind) | stopped
        return [self._event(pid, last - since) for pid, since in sorted(stopped)]

    def _event(self, pid: int, transactions: int) -> Event:
        message = (
            f"process {pid} has been reading {self._path} for {transactions} transactions, is it stopped? "
            f"The file grows until it goes on or ends, up to {self._max_map_size} bytes"
        )
        return Event("reader_stopped", message, {"pid": pid, "transactions": transactions})
