"""The hot storey: which windows are live objects. `cold` says why most are not.

A key that is asked for while it is at rest comes up, and a key that is too many goes down, one for one. Where the
storey is full, that is one that came up long ago in one case out of 32; else it is the newcomer, which goes down again
at once. So a walk through very many keys pushes nearly nothing out, and does not pay for moving either, while a key
that is asked for often comes up within some dozens of hits, and stays up while it spends.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from ...core.windows.rings import Entry

HOT_WINDOWS: Final = 16_384
"""How many live windows a store holds: the garbage collector walks them in a few milliseconds."""
NEWCOMERS: Final = 32
"""One of so many newcomers stays up where the storey is full."""
SECOND_CHANCES: Final = 4
"""How many windows in a row stay up because something was spent in them since they came up."""


class Floor(Protocol):
    """A table, as far as the hot storey needs it."""

    windows: dict[str, Entry]

    def lay_down(self, key: str) -> None:
        """Pack the window of a key, if it is up."""


class HotStorey:
    """The keys that came up, in their order, over all tables of a store.

    Attributes:
        most: How many windows may be live.
        keys: The keys.
        turned_down: How many newcomers have still to go down again before one stays up; 0 while there is room.
    """

    __slots__ = ("_marks", "_tables", "keys", "most", "turned_down")

    def __init__(self, most: int) -> None:
        self.most = most
        self.keys: deque[str] = deque()
        self._tables: deque[Floor] = deque()  # of `keys`; pairs would be walked by the garbage collector
        self._marks: deque[int] = deque()  # of `keys`: what the window said when it came up
        self.turned_down = 0

    def add(self, table: Floor, key: str) -> None:
        """Note that the window of a key has come up. Call `make_room` when nothing is done with it any more."""
        self.keys.append(key)
        self._tables.append(table)
        self._marks.append(_mark(table.windows[key]))

    def make_room(self) -> None:
        """Lay down as many windows as are too many."""
        while len(self.keys) > self.most:
            if self.turned_down:
                self.turned_down -= 1
                self._marks.pop()
                self._tables.pop().lay_down(self.keys.pop())
            else:
                self._drop_first()

    def exchange(self, table: Floor, key: str) -> None:
        """Note that the window of a key has come up to stay, and lay another down for it if the storey is full."""
        self.add(table, key)
        if len(self.keys) > self.most:
            self._drop_first()

    def _drop_first(self) -> None:
        """Lay down the window that came up first of those that spend nothing, and turn down the newcomers to come."""
        self.turned_down = NEWCOMERS - 1
        for chance in range(SECOND_CHANCES + 1):
            key, table, mark = self.keys.popleft(), self._tables.popleft(), self._marks.popleft()
            window = table.windows.get(key)
            if chance == SECOND_CHANCES or window is None or mark == _mark(window):
                table.lay_down(key)
                return
            self.add(table, key)


def _mark(window: Entry) -> int:
    """Return a number that changes when something is spent."""
    return window.spent + window.newest_us
