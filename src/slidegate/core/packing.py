"""The bytes of a ring, see `ring`. A compiled wheel has functions of the same names here, without `struct`.

Those are in `scripts/compiled_packing.py`, and the same tests hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, TypeAlias

Head: TypeAlias = tuple[int, int, int, int, int]
"""Units in all, of the newest entry; moments of the newest entry, of the oldest; `floor_us`."""

_HEAD: Final = Struct("<IIqqq")
_ENTRY: Final = Struct("<qI")
HEAD_BYTES: Final = 32
ENTRY_BYTES: Final = 12

read_head: Final[Callable[[bytes], Head]] = _HEAD.unpack_from
"""Returns the head of a ring that is not empty."""
pack_head: Final[Callable[[int, int, int, int, int], bytes]] = _HEAD.pack
"""Returns a head. It raises where a number has no room: units beyond 32 bits, a moment beyond 63."""
pack_entry: Final[Callable[[int, int], bytes]] = _ENTRY.pack
"""Returns an entry: a moment and its units. It raises as `pack_head` does."""
read_entries: Final[Callable[[bytes], Iterator[tuple[int, int]]]] = _ENTRY.iter_unpack
"""Yields (moment, units) of packed entries, one behind the other."""
