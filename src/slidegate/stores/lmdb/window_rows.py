"""The rows of windows in an LMDB environment.

A window's row is found by its key, a byte that no text contains, and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    version, serial, origin, expiry, ring (`core.windows.codec`)
    cells     number of the cell, digest                   the same, for keys that share a cell
    ends      when to look again, row                      nothing for a window, a byte for a cell

So all windows of a client lie side by side, mostly on one page, and `Session.forget` finds them.

A row of another version is no window: nobody reads it, and the next hit of its key overwrites it.

A new window in an old row, after a reset or because the old one was empty, gets another *serial*: a charge to the old
one cannot be refunded from it. A window also gets another serial when its units were moved, because the clock stepped
back or because it was converted: an earlier charge no longer knows the moment at which to find its units. The *origin*
of a window is the serial of the cell that it began as a copy of, or 0: a charge to that cell is refunded in both.

`ends` is the index by time. A window gets an entry there when it is first written, and hits do not move the entry. When
its time comes, the window is looked at; if it is still in use, the entry is written again for its new expiry.
"""

from __future__ import annotations

from itertools import count
from random import getrandbits
from struct import Struct
from typing import Final, NamedTuple

from ...core.limits import AnyLimit
from ...core.windows.rings import Resting

ROW_VERSION: Final = 3
"""A change of it raises `layout.SCHEMA_VERSION` too."""
HEAD: Final = Struct("=BIIq")
HEAD_BYTES: Final = HEAD.size
DUE: Final = Struct(">q")
CELL: Final = Struct(">H")

_BETWEEN: Final = b"\xff"
_serials = count(getrandbits(31))


class Slot:
    """A window in a transaction, and where it belongs.

    Attributes:
        window: The window.
        limit: A limit that needs its kind of ring.
        row: The key of its row.
        shared: Whether that is a cell.
        serial: Tells windows apart that follow each other in one row.
        origin: The serial of the cell that it began as a copy of, or 0.
        packed: The row as it was read; empty for a new one.
        seen_in: The turn in which the row was last known to be `packed`, if the slot is a hot one.
    """

    __slots__ = ("limit", "origin", "packed", "row", "seen_in", "serial", "shared", "window")

    def __init__(
        self, window: Resting, limit: AnyLimit, row: bytes, shared: bool, serial: int, origin: int, packed: bytes
    ) -> None:
        self.window = window
        self.limit = limit
        self.row = row
        self.shared = shared
        self.serial = serial
        self.origin = origin
        self.packed = packed
        self.seen_in = -1

    def holds_anything(self, now_us: int) -> bool:
        """Return whether any unit in the window still counts."""
        return self.window.spent > 0 and now_us < self.window.newest_us + self.limit.span_us


class Charged(NamedTuple):
    """What one window was charged, if that is not simply the cost at the time of the decision."""

    slot: Slot
    spent_us: int
    units: int


def row_of(key: str, digest: bytes) -> bytes:
    """Return the row of a key's own window."""
    try:
        return key.encode() + _BETWEEN + digest
    except UnicodeEncodeError:  # every hit comes here, and to ask for "surrogatepass" takes half as long again
        return first_row_of(key) + digest


def first_row_of(key: str) -> bytes:
    """Return the beginning of the rows of all windows of a key, which no other key's row begins with."""
    return key.encode("utf-8", "surrogatepass") + _BETWEEN


def new_serial() -> int:
    """Return a serial that no other window of a row is likely to have; never 0, which stands for no origin."""
    return next(_serials) & 0xFFFFFFFF or 1
