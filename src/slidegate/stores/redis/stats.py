"""The statistics in Redis: a hash for each rollup and number, with a field for each worker.

The commands are in ``lua/bans.lua``. A hash expires by its TTL; each row starts with the time at which it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import chain
from typing import TYPE_CHECKING, Final

from ...core.store import SharedStats, StatsRow
from ..shared import in_steps

if TYPE_CHECKING:
    from .store import RedisStore

AT_ONCE: Final = 32
"""How many hashes are read in one call, so that requests of clients are sent in between."""
END_BYTES: Final = 8


class RedisSharedStats(SharedStats):
    """Writes and reads the rows of all workers.

    Args:
        store: The store.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._prefix = store.packing.meta + b":rows:"

    def time(self) -> Awaitable[int]:
        """See `SharedStats`."""
        return self._store.batcher().server_us()

    def write(self, worker: bytes, row: StatsRow) -> Awaitable[None]:
        """See `SharedStats`."""
        names = (self._key(row.rollup, row.number),)
        args = b"write_stats", worker, row.value, row.kept_us
        return self._store.batcher().command(names, *args, read=lambda answer, now_us: None)

    async def read(self, rollup: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        """See `SharedStats`."""
        found: list[tuple[int, bytes, bytes]] = []
        async for numbers in in_steps(range(first, last + 1), AT_ONCE):
            found += chain(*await asyncio.gather(*[self._read(rollup, number) for number in numbers]))
        return found

    def _read(self, rollup: str, number: int) -> Awaitable[list[tuple[int, bytes, bytes]]]:
        def read(fields: list[bytes], now_us: int) -> list[tuple[int, bytes, bytes]]:
            rows = zip(fields[::2], fields[1::2], strict=True)
            return [(number, worker, row[END_BYTES:]) for worker, row in rows]

        return self._store.batcher().command((self._key(rollup, number),), b"read_stats", read=read)

    def _key(self, rollup: str, number: int) -> bytes:
        return b"%s%s:%d" % (self._prefix, rollup.encode(), number)
