"""Where a memory store keeps the windows of one limit.

A table holds the windows of one identity (rule, window, resolution) and kind of ring, so that rules never mix, whatever
bytes their keys are made of, and everything in it expires after the same span.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeAlias

from ..core.bookings import BookedWindow
from ..core.limits import Limit
from ..core.rings import Ring, convert

SHARED_CELLS: Final = 4_096

Entry: TypeAlias = Ring | BookedWindow


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Counters of a `MemoryStore`.

    Attributes:
        keys: Windows held now, shared cells not included.
        evictions: Empty windows let go so far.
        shared_hits: Hits that were counted in a shared cell so far.
    """

    keys: int
    evictions: int
    shared_hits: int


class Table:
    """Windows by key, and the shared cells by their number.

    None stands where a window moved to the twin, so that `queue` names each entry exactly once.
    """

    __slots__ = ("due_us", "limit", "queue", "to_visit", "twin", "windows")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.windows: dict[str | int, Entry | None] = {}
        self.queue: deque[str | int] = deque()  # the longest unvisited first
        self.to_visit = 0
        self.due_us = 0
        self.twin: Table | None = None  # the other kind of ring, once an amount has crossed the resolution

    def holds(self, window: Entry, now_us: int) -> bool:
        """Tell whether anything spent in `window` is still in it."""
        return window.spent > 0 and now_us < window.newest_us + self.limit.span_us

    def replace(self, key: str, window: Entry, by: Entry) -> None:
        """Put another window where `key` is counted, which is where `window` is."""
        self.windows[key if self.windows.get(key) is window else cell_of(key)] = by

    def put(self, key: str | int, window: Entry) -> Entry:
        """Keep a window, and see that it is visited."""
        if key not in self.windows:
            self.queue.append(key)
        self.windows[key] = window
        return window

    def find(self, key: str | int, now_us: int) -> Entry | None:
        """Return the window of `key`, or a converted copy of what the twin holds, if there is one."""
        window = self.windows.get(key)
        if window is None and self.twin is not None and (moved := self.twin.windows.get(key)) is not None:
            if isinstance(moved, BookedWindow):
                return copy(moved).converted(self.limit, now_us)
            return convert(moved, self.limit, now_us)
        return window

    def fetch(self, key: str | int, now_us: int) -> Entry | None:
        """Do what `find` does, and take over what the twin holds."""
        window = self.find(key, now_us)
        if window is not None and self.windows.get(key) is None and self.twin is not None:
            self.twin.windows[key] = None
            self.put(key, window)
        return window

    def visit(self, now_us: int, most: int) -> int:
        """Let go of what is empty among the next entries, at most `most`; return how many keys that were."""
        if not self.to_visit:
            self.to_visit = len(self.queue)
        visits = min(most, self.to_visit)
        self.to_visit -= visits
        gone = 0
        for _ in range(visits):
            key = self.queue.popleft()
            window = self.windows[key]
            if isinstance(window, BookedWindow):
                if window.settle(now_us):
                    self.queue.append(key)
                    continue
                self.windows[key] = window = window.ring
            if window is not None and self.holds(window, now_us):
                self.queue.append(key)
                continue
            del self.windows[key]
            gone += window is not None and isinstance(key, str)
        return gone


def cell_of(key: str) -> int:
    """Return the number of the shared cell of a key; nobody outside the process can predict it."""
    return hash(key) % SHARED_CELLS
