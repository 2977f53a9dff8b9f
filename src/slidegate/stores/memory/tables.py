"""Where a memory store keeps the windows of one limit.

A table holds the windows of one identity (rule, window, resolution) and kind of ring, so that rules never mix, whatever
bytes their keys are made of, and everything in it expires after the same span.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

from ...core.limits import Limit
from ...core.windows.bookings import BookedWindow, Entry
from ...core.windows.rings import Ring, convert, new_window

SHARED_CELLS: Final = 4_096

Identity: TypeAlias = tuple[str, int, int, bool]
"""Rule, window, resolution, and whether times are kept."""


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

    Args:
        rule: The rule of the windows.
        limit: A limit that needs their kind of ring.
        secret: What nobody outside knows, so that nobody can tell which keys meet in a cell.
        due_us: When to look for empty windows first.
    """

    __slots__ = (
        "copies",
        "due_us",
        "idle",
        "limit",
        "queue",
        "rule",
        "secret",
        "to_visit",
        "twin",
        "waiters",
        "windows",
    )

    def __init__(self, rule: str, limit: Limit, secret: bytes, due_us: int) -> None:
        self.rule = rule
        self.limit = limit
        self.secret = secret
        self.due_us = due_us
        self.windows: dict[str | int, Entry | None] = {}
        self.queue: deque[str | int] = deque()  # the longest unvisited first
        self.to_visit = 0
        self.idle = False  # whether the last visit found nothing, and nothing has come since
        self.twin: Table | None = None  # the other kind of ring, once an amount has crossed the resolution
        self.copies: dict[str, tuple[Ring, Ring]] = {}  # keys that moved out of a cell: their ring, and the cell's
        self.waiters: dict[int, dict[str, int]] = {}  # by cell: the keys that wait there, and until when

    @property
    def identity(self) -> Identity:
        """The values that tell tables apart."""
        return self.rule, self.limit.window_us, self.limit.resolution, self.limit.exact

    def cell_of(self, key: str) -> int:
        """Return the number of the shared cell of a key."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), key=self.secret, digest_size=4).digest()
        return int.from_bytes(digest, "big") % SHARED_CELLS

    def new_window(self) -> Ring:
        """Return an empty window."""
        return new_window(self.limit)

    def holds(self, window: Entry, now_us: int) -> bool:
        """Tell whether anything spent in `window` is still in it."""
        return window.spent > 0 and now_us < window.newest_us + self.limit.span_us

    def replace(self, key: str, window: Entry, by: Entry) -> None:
        """Put another window where `key` is counted, which is where `window` is, unless it is there already."""
        own = self.windows.get(key)
        if own is not by:  # a demand may name a window twice
            self.windows[key if own is window else self.cell_of(key)] = by

    def put(self, key: str | int, window: Entry) -> Entry:
        """Keep a window, and see that it is visited."""
        if key not in self.windows:
            self.queue.append(key)
        self.windows[key] = window
        self.idle = False
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
        """Do what `find` does, and take over the window that the twin holds."""
        window = self.find(key, now_us)
        if window is not None and self.windows.get(key) is None and self.twin is not None:
            self.twin.windows[key] = None
            self.put(key, window)
            if isinstance(key, int) and key in self.twin.waiters:
                self.waiters[key] = self.twin.waiters.pop(key)
        return window

    def first_window(self, key: str, number: int, cell: Entry | None, now_us: int) -> Ring | None:
        """Return the first window of a key's own, given its cell; None where it has to stay in the cell.

        The key's units in the cell cannot be told from those of others, so it takes a copy of all of them. Bookings
        stay in the cell, and so does a key that made one there.
        """
        if cell is None or not self.holds(cell, now_us):
            return self.new_window()
        for table in (self, self.twin):
            if table is not None and table.waiters.get(number, {}).get(key, now_us) > now_us:
                return None
        return copy_of_cell(cell, now_us)

    def move(self, key: str, own: Ring, cell: Entry | None) -> Entry:
        """Give a key a window of its own, and remember whose copy it is."""
        if own.spent and cell is not None:
            self.copies[key] = own, ring_of(cell)
        return self.put(key, own)

    def wait_in_cell(self, key: str, until_us: int) -> None:
        """Remember that a key has booked something in its cell, if that is where it is counted."""
        if self.windows.get(key) is None:
            waiters = self.waiters.setdefault(self.cell_of(key), {})
            waiters[key] = max(until_us, waiters.get(key, until_us))

    def charged(self, key: str, ring: Ring) -> list[Entry]:
        """Return the windows of a key that hold a charge to `ring`: that ring, and the copy that was made of it since.

        A window that was reset, dropped or converted since is another ring, and has nothing of that charge.
        """
        own = self.windows.get(key)
        if own is not None and ring_of(own) is ring:
            return [own]
        found = []
        if own is not None and self.copies.get(key) == (ring_of(own), ring):
            found.append(own)
        cell = self.windows.get(self.cell_of(key))
        if cell is not None and ring_of(cell) is ring:
            found.append(cell)
        return found

    def forget(self, key: str) -> bool:
        """Empty the window of a key's own; False if it has none."""
        if self.windows.get(key) is None:
            return False
        self.windows[key] = self.new_window()
        self.copies.pop(key, None)
        return True

    def step_back(self, now_us: int) -> None:
        """Make other windows of those in which a clock that has stepped back to `now_us` moves anything."""
        for key, window in self.windows.items():
            if window is not None and window.lies_ahead(now_us):
                self.windows[key] = copy(window)
        self.due_us = min(self.due_us, self.limit.leaves_us(now_us))

    def visit(self, now_us: int, most: int) -> tuple[int, int]:
        """Look at the next entries, at most `most`, and let go of the empty ones.

        Returns:
            How many entries were looked at, and how many keys were let go of.
        """
        if not self.to_visit:
            self.to_visit = len(self.queue)
        visits = min(most, self.to_visit)
        self.to_visit -= visits
        gone = 0
        for _ in range(visits):
            key = self.queue.popleft()
            if self._is_used(key, now_us):
                self.queue.append(key)
                continue
            window = self.windows.pop(key)
            if isinstance(key, str):
                self.copies.pop(key, None)
                gone += window is not None
            else:
                self.waiters.pop(key, None)
        return visits, gone

    def _is_used(self, key: str | int, now_us: int) -> bool:
        """Tell whether anything is left in an entry, and forget what is over."""
        window = self.windows[key]
        if isinstance(key, int) and key in self.waiters:
            self.waiters[key] = {waiter: us for waiter, us in self.waiters[key].items() if us > now_us}
            if not self.waiters[key]:
                del self.waiters[key]
        if isinstance(window, BookedWindow):
            if window.settle(now_us):
                return True
            self.windows[key] = window = window.ring
        return window is not None and self.holds(window, now_us)


def ring_of(window: Entry) -> Ring:
    """Return the ring of a window, without its bookings."""
    return window.ring if isinstance(window, BookedWindow) else window


def copy_of_cell(cell: Entry, now_us: int) -> Ring:
    """Return a copy of the units that count now in a cell; its bookings stay there."""
    own = copy(cell)
    if isinstance(own, BookedWindow):
        own.settle(now_us)
        return own.ring
    return own
