"""Whether the units of an earlier charge can still be told from others in their window.

A charge names its window by table and key, and never as an object, because a window changes storeys: it goes down as
bytes and comes up as another object. What a charge has to name beside them is the *generation*. The store counts the
upheavals that leave a key with other units than it was charged: a reset, a change to the other kind of ring, a move
from a shared cell to a window of its own, a step back of the clock. A charge names the count at its time, and a table
knows for which keys and cells there was an upheaval since, so that a window that had none costs nothing. Moving between
the storeys is no upheaval.

A window that was let go of needs no mark: its charges have aged out, and none of their moments comes again unless the
clock steps back. Once it has, every new window is marked. A window that was reset is empty before they have aged out,
so it is kept until then.
"""

from __future__ import annotations

from typing import NamedTuple


class Charged(NamedTuple):
    """A charge in a window of a table, by the key; the table and the key are those of its check."""

    generation: int
    spent_us: int
    """The moment by which the window finds the units."""
    units: int
    in_cell: bool = False
    """Whether the shared cell of the key was charged."""


class Generations:
    """The count of upheavals of a store.

    Attributes:
        latest: The count.
        stepped: Whether the clock has ever stepped back.
    """

    __slots__ = ("latest", "stepped")

    def __init__(self) -> None:
        self.latest = 0
        self.stepped = False

    def begin(self) -> int:
        """Count an upheaval, and return the generation that begins with it."""
        self.latest += 1
        return self.latest
