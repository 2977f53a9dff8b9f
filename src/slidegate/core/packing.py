"""Packing and unpacking of the bytes of a ring, see `ring`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, TypeAlias

Head: TypeAlias = tuple[int, int, int, int]
"""Total units, units of the newest entry, moments of the newest and of the oldest entry."""

_HEAD: Final = Struct("<IIqq")
_COUNTS: Final = Struct("<II")
_ENTRY: Final = Struct("<qI")
HEAD_BYTES: Final = 24
COUNT_BYTES: Final = 8
ENTRY_BYTES: Final = 12

read_head: Final[Callable[[bytes], Head]] = _HEAD.unpack_from
"""Returns the head of a non-empty ring."""
pack_head: Final[Callable[[int, int, int, int], bytes]] = _HEAD.pack
"""Returns a packed head. It raises if a number does not fit: units beyond 32 bits, a moment beyond 63."""
pack_counts: Final[Callable[[int, int], bytes]] = _COUNTS.pack
"""Returns the first `COUNT_BYTES` of a head: total units, units of the newest entry. It raises as `pack_head` does."""
pack_entry: Final[Callable[[int, int], bytes]] = _ENTRY.pack
"""Returns a packed entry: a moment and its units. It raises as `pack_head` does."""
read_entry: Final[Callable[[bytes], tuple[int, int]]] = _ENTRY.unpack
"""Returns the moment and the units of one packed entry."""
read_entries: Final[Callable[[bytes], Iterator[tuple[int, int]]]] = _ENTRY.iter_unpack
"""Yields (moment, units) of consecutive packed entries."""
