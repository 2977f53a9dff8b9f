"""Rows: small values that the workers of a store keep for each other, such as statistics.

A row has a kind, a number and the worker that wrote it, and it expires by the store's time. Stores with `SharedStats`
keep the rows of all workers; for others, this process keeps its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..core.errors import ConfigurationError, quoted
from ..core.limits import check_whole
from ..core.store import Clock, SharedStats, StatsRow
from ..stores.forks import begin_anew_in_child

if TYPE_CHECKING:
    from .engine import Engine

MAX_BYTES: Final = 1 << 20
_KIND: Final = re.compile("[a-z0-9_-]{1,40}")


class Row(NamedTuple):
    """A row of one worker: its number, the 8 bytes that identify the worker, and its value."""

    number: int
    worker: bytes
    value: bytes


class Rows:
    """The rows of one limiter's store.

    Args:
        engine: Queries the store.

    Attributes:
        shared: Where the rows are: in the store, or in this process.
        worker: The identity of this worker.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        own = _OwnRows(engine.now_us)
        self.shared: SharedStats = engine.store.shared_stats or own
        engine.forgetting.append(own.forget)
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)

    def begin_anew(self) -> None:
        """Become a new worker, as a child of `fork` is."""
        self.worker = os.urandom(8)

    async def time(self) -> int:
        """Return the time of the store in microseconds."""
        return await self._engine.command(self.shared.time)

    async def keep(self, kind: str, number: int, value: bytes, kept_us: int) -> None:
        """Write a row of this worker; see `Limiter.keep_row`."""
        _check(kind, number)
        check_whole(kept_us, 0, 2**62, "row: kept_us", "for example 60_000_000")
        if not isinstance(value, bytes) or len(value) > MAX_BYTES:
            size = f"{len(value):,} bytes" if isinstance(value, bytes) else quoted(value)
            raise ConfigurationError(f"row: expected at most {MAX_BYTES:,} bytes, for example b'...', not {size}")
        row = StatsRow(kind, number, value, kept_us)
        await self._engine.command(lambda: self.shared.write(self.worker, [row]))

    async def read(self, kind: str, first: int, last: int) -> list[Row]:
        """Return the rows of all workers; see `Limiter.rows`."""
        _check(kind, first)
        found = await self._engine.command(lambda: self.shared.read(kind, first, last))
        return [Row(*row) for row in found]


def _check(kind: object, number: object) -> None:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ConfigurationError(
            f'row: expected a kind of up to 40 of a-z, 0-9, - and _, for example "stats", not {quoted(kind)}'
        )
    check_whole(number, 0, 2**62, "row: number", "for example 0")


class _OwnRows(SharedStats):
    """The rows of this process, for a store that only one process uses."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Delete all rows, when a test resets all limiters."""
        self._rows: dict[tuple[str, int, bytes], tuple[bytes, int]] = {}

    def time(self) -> int:
        """See `SharedStats`."""
        return self._clock()

    def write(self, worker: bytes, rows: Sequence[StatsRow]) -> None:
        """See `SharedStats`."""
        now_us = self._clock()
        for row in rows:
            self._rows[row.rollup, row.number, worker] = row.value, now_us + row.kept_us
        # A copy first: threads may write at the same time.
        self._rows = {name: row for name, row in list(self._rows.items()) if row[1] > now_us}

    def read(self, rollup: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        """See `SharedStats`."""
        now_us, rows = self._clock(), list(self._rows.items())
        return [
            (number, worker, value)
            for (kind, number, worker), (value, until_us) in rows
            if kind == rollup and first <= number <= last and until_us > now_us
        ]
