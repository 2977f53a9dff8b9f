"""The cold storey: windows at rest, as rows.

Python's garbage collector walks every object that may refer to another, so a million live windows hold a process up for
half a second at a time. It does not walk numbers and bytes, nor a dict of text to those. So the windows of keys that
nobody asks for are packed (`core.windows.packed`) into dicts like that.

A dict that grows copies itself, and a large one stalls the process. So a table spreads its rows over *shards*, which
are dicts of a few thousand keys. A table begins with one; where a shard is full, the next one in turn is split in two
(linear hashing), so that no step moves more than one shard, and a table of few keys is one dict.
"""

from __future__ import annotations

from typing import Final

from ...core.windows.packed import Row

SHARD_ROWS: Final = 4_096
"""From so many rows in a shard on, a new row splits one: about 0.3 ms."""
DICT_BITS: Final = 16
"""A dict finds the place of a key by the last bits of its hash. If those told the shards apart as well, all keys of a
shard would agree in them, and collide: a look-up would wait for six lines of memory where it now waits for two."""


class Rows:
    """Packed windows by key.

    Attributes:
        places: The shards by some bits of a key's hash; a shard that is still to be split has two places.
        mask: Those bits, counted from `DICT_BITS` on.
    """

    __slots__ = ("_splits", "mask", "places")

    def __init__(self) -> None:
        self.places: list[dict[str, Row]] = [{}]
        self.mask = 0
        self._splits = 0  # shards that were split since the places were doubled

    def __contains__(self, key: str) -> bool:
        return key in self.places[hash(key) >> DICT_BITS & self.mask]

    def __bool__(self) -> bool:
        return any(self.places)

    @property
    def shards(self) -> list[dict[str, Row]]:
        """The shards."""
        return self.places[: (self.mask + 1) // 2 + self._splits] if self.mask else self.places[:]

    def get(self, key: str) -> Row | None:
        """Return the row of a key, None if it has none."""
        return self.places[hash(key) >> DICT_BITS & self.mask].get(key)

    def put(self, key: str, row: Row) -> None:
        """Keep a row."""
        shard = self.places[hash(key) >> DICT_BITS & self.mask]
        shard[key] = row
        if len(shard) > SHARD_ROWS:
            self._split()

    def remove(self, key: str) -> None:
        """Drop the row of a key."""
        shard = self.places[hash(key) >> DICT_BITS & self.mask]
        del shard[key]
        if not shard:
            shard.clear()  # else an empty dict stays as large as it was

    def _split(self) -> None:
        """Give about half of the shard whose turn it is to a new one."""
        half = (self.mask + 1) // 2
        if self._splits == half:
            half, self._splits, self.mask = self.mask + 1, 0, 2 * self.mask + 1
            self.places += self.places
        kept: dict[str, Row] = {}
        moved: dict[str, Row] = {}
        for key, row in self.places[self._splits].items():
            (moved if hash(key) >> DICT_BITS & half else kept)[key] = row
        self.places[self._splits], self.places[self._splits + half] = kept, moved
        self._splits += 1
