"""The rows that workers keep for each other in Redis: a hash for each kind and number, with a field for each worker.

The commands are in ``lua/bans.lua``. A hash expires by its TTL; each row starts with the time at which it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from ...core.store import COMMAND_DEADLINE_S, SharedRow, SharedRows
from ..shared import in_steps
from .batch import Batcher
from .script import END

AT_ONCE: Final = 32
"""How many hashes are read in one call, so that requests of clients are sent in between."""

Found: TypeAlias = list[tuple[int, bytes, bytes]]
"""The rows of some numbers: the number, the worker and the value of each."""


class RedisRows(SharedRows):
    """Writes and reads the rows of all workers. Who awaits an answer keeps the deadline, and cancels it then.

    Args:
        batcher: Returns the batcher of the running event loop.
        prefix: The start of the names of all rows.
    """

    def __init__(self, batcher: Callable[[], Batcher], prefix: bytes) -> None:
        self._batcher = batcher
        self._prefix = prefix

    def time(self) -> Awaitable[int]:
        """See `SharedRows`."""
        return self._batcher().server_us()

    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[None]:
        """See `SharedRows`."""
        names = (self._key(row.kind, row.number),)
        args = b"write_row", worker, row.value, row.kept_us
        return self._batcher().command(names, *args, read=lambda answer, now_us: None)

    def read(self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[Found]:
        """See `SharedRows`."""
        if first == last:  # as of most, in the same call as what is asked next
            return self._read(kind, first)
        return self._read_many(kind, first, last)

    async def _read_many(self, kind: str, first: int, last: int) -> Found:
        """Read the rows of several numbers, some in each call."""
        found: Found = []
        async for numbers in in_steps(range(first, last + 1), AT_ONCE):
            answers = [self._read(kind, number) for number in numbers]
            for rows in await asyncio.gather(*answers):
                found += rows
        return found

    def _read(self, kind: str, number: int) -> Awaitable[Found]:
        """Read the rows of one number."""

        def read(fields: list[bytes], now_us: int) -> Found:
            rows = zip(fields[::2], fields[1::2], strict=True)
            return [(number, worker, value[END.size :]) for worker, value in rows]

        return self._batcher().command((self._key(kind, number),), b"read_rows", read=read)

    def _key(self, kind: str, number: int) -> bytes:
        return b"%s%s:%d" % (self._prefix, kind.encode(), number)
