"""The rows that workers keep for each other in Redis: a hash for each kind and number, with a field for each worker.

The commands are in ``lua/bans.lua``. A hash expires by its TTL; each row starts with the time at which it expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...core.store import COMMAND_DEADLINE_S, ReadRow, SharedRow, SharedRows
from ..shared import in_steps
from .batch import Batcher
from .protocol import END

AT_ONCE: Final = 32
"""How many hashes are read in one call, so that requests of clients are sent in between."""


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
        name = self._name_of(row.kind, row.number)
        args = b"write_row", worker, row.value, row.kept_us
        return self._batcher().command((name,), *args, read=lambda answer, now_us: None)

    def read(
        self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Awaitable[list[ReadRow]]:
        """See `SharedRows`."""
        if first == last:  # as of most, in the same call as what is asked next
            return self._read(kind, first)
        return self._read_many(kind, first, last)

    async def _read_many(self, kind: str, first: int, last: int) -> list[ReadRow]:
        """Read the rows of several numbers, some in each call."""
        found: list[ReadRow] = []
        async for numbers in in_steps(range(first, last + 1), AT_ONCE):
            answers = [self._read(kind, number) for number in numbers]
            for rows in await asyncio.gather(*answers):
                found += rows
        return found

    def _read(self, kind: str, number: int) -> Awaitable[list[ReadRow]]:
        """Read the rows of one number."""

        def read(fields: list[bytes], now_us: int) -> list[ReadRow]:
            workers, rows = fields[::2], fields[1::2]
            return [(number, worker, row[END.size :]) for worker, row in zip(workers, rows, strict=True)]

        name = self._name_of(kind, number)
        return self._batcher().command((name,), b"read_rows", read=read)

    def _name_of(self, kind: str, number: int) -> bytes:
        """Return the name of the hash with the rows of a kind and a number."""
        return b"%s%s:%d" % (self._prefix, kind.encode(), number)
