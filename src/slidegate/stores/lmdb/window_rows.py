"""The rows of windows in an LMDB environment.

A window's row is found by its key, a byte that no text contains, and a digest of its rule, length and resolution::

    windows   key 0xff digest(rule, window, resolution)    version, life, then the window as the core makes it
    cells     number of the cell, digest                   the same, for keys that share a cell
    ends      when to look again, row                      nothing for a window, a byte for a cell

So all windows of a client lie side by side, mostly on one page, and `Session.reset` finds them.

A row of another version is no window: nobody reads it, and the next hit of its key overwrites it. The life
is how long a unit counts at most, and 0 for the count of a quota: for those who do not know the limit of a row.

`ends` is the index by time. A window gets an entry there when it is first written, and hits do not move the entry. When
its time comes, the window is looked at; if it is still in use, the entry is written again for its new expiry.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ...core import ring
from ...core.limits import AnyLimit, Limit
from ...core.periods import KEPT_US, end_us
from ...core.protocols import Clock
from ...core.quotas import Quota

ROW_VERSION: Final = 3
"""A change of it raises `layout.SCHEMA_VERSION` too."""
HEAD: Final = Struct("=Bq")
HEAD_BYTES: Final = HEAD.size
DUE: Final = Struct(">q")
CELL: Final = Struct(">H")
ANY_LIMIT: Final = Limit(2, "400 days", resolution=1)
ANY_QUOTA: Final = Quota("1/day")
"""To reset windows of unknown limits: from this ring nothing leaves, and nothing is ahead of now."""

_BETWEEN: Final = b"\xff"


def row_of(key: str, digest: bytes) -> bytes:
    """Return the row of a key's own window."""
    try:
        return key.encode() + _BETWEEN + digest
    except UnicodeEncodeError:  # every hit comes here, and to ask for "surrogatepass" takes half as long again
        return first_row_of(key) + digest


def first_row_of(key: str) -> bytes:
    """Return the beginning of the rows of all windows of a key, which no other key's row begins with."""
    return key.encode("utf-8", "surrogatepass") + _BETWEEN


def head_of(limit: AnyLimit) -> bytes:
    """Return the beginning of the value of each row that holds a window of a limit, whatever its amount."""
    return HEAD.pack(ROW_VERSION, limit.life_us)


def expires_us(stored: bytes, now_us: int, unix_us: Clock) -> int:
    """Return when a row holds nothing any more, if nothing is added to it.

    Args:
        stored: Its value.
        now_us: The store's time.
        unix_us: Returns Unix time. That clock may have been set since, and a period ends by it.
    """
    _, life_us = HEAD.unpack_from(stored)
    window = stored[HEAD_BYTES:]
    if not window:
        return 0
    if not life_us:
        return now_us + end_us(window) + KEPT_US - unix_us()
    return ring.expires_us(window, life_us)
