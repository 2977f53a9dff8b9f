"""Rows: small values that the workers of a store keep for each other, by their kind, a number and the worker.

They expire by the store's time. Stores with `SharedRows` keep the rows of all workers; for others, this process keeps
its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from ..core.arguments import check_whole
from ..core.errors import ConfigurationError, quoted
from ..core.store import COMMAND_DEADLINE_S, Clock, ReadRow, SharedRow, SharedRows
from ..stores.forks import InChild

MAX_BYTES: Final = 1 << 20
NOBODY: Final = bytes(8)
"""In place of a worker, for a row that belongs to all of them."""
_KIND: Final = re.compile("[a-z0-9_-]{1,40}")
_LATEST_US: Final = 2**53
"""In the year 2255."""


class Row(NamedTuple):
    """A row of one worker: its number, the 8 bytes that identify the worker, and its value."""

    number: int
    worker: bytes
    value: bytes


class Command(Protocol):
    """Asks the store as an operator's command does; see `Engine.command`."""

    async def __call__(self, ask: Callable[[], Any], deadline_s: float = COMMAND_DEADLINE_S, /) -> Any:
        """Return the answer of the store."""


class Rows:
    """The rows of one limiter's store.

    Args:
        command: Asks the store.
        shared: Those of the store; None if it keeps none.
        unix_us: The clock for rows that this process keeps itself.

    Attributes:
        is_shared: Whether the store keeps them.
        worker: The identity of this worker.
    """

    def __init__(self, command: Command, shared: SharedRows | None, unix_us: Clock) -> None:
        self._command = command
        self._own = _OwnRows(unix_us)
        self.is_shared = shared is not None
        self._shared: SharedRows = self._own
        if shared is not None:
            self._shared = shared
        self.begin_anew()
        self._in_child = InChild(self.begin_anew)

    def begin_anew(self) -> None:
        """Become a new worker, as a child of `fork` is."""
        self.worker = os.urandom(8)

    def forget(self) -> None:
        """Drop the rows that this process keeps itself."""
        self._own.rows.clear()

    async def time(self) -> int:
        """Return the time of the store in microseconds."""
        now_us: int = await self._command(self._shared.time)
        return now_us

    async def keep(self, kind: str, number: int, value: bytes, kept_us: int) -> None:
        """Write a row of this worker; see `Limiter.keep_row`."""
        _check(kind, number)
        check_whole(kept_us, 0, 2**62, "row: kept_us", "for example 60_000_000")
        if not isinstance(value, bytes) or len(value) > MAX_BYTES:
            size = f"{len(value):,} bytes" if isinstance(value, bytes) else quoted(value)
            raise ConfigurationError(f"row: expected at most {MAX_BYTES:,} bytes, for example b'...', not {size}")
        await self.write(self.worker, SharedRow(kind, number, value, kept_us))

    async def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Write a row under the name of a worker, or of what else has one row of its kind and number."""
        await self._command(lambda: self._shared.write(worker, row, deadline_s), deadline_s)

    async def read(self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S) -> list[Row]:
        """Return the rows of all workers; see `Limiter.rows`."""
        _check(kind, first)
        _check(kind, last)
        found: Iterable[ReadRow] = await self._command(
            lambda: self._shared.read(kind, first, last, deadline_s), deadline_s
        )
        return _rows(found)

    def ask(self, kind: str, number: int, deadline_s: float) -> list[Row] | Awaitable[list[Row]]:
        """Ask for the rows of one number, now: a question that follows at once is sent in the same call.

        Raises:
            StoreError: The store does not answer.
        """
        answer = self._shared.read(kind, number, number, deadline_s)
        if isinstance(answer, Awaitable):
            return _awaited(answer)
        return _rows(answer)


async def _awaited(answer: Awaitable[Iterable[ReadRow]]) -> list[Row]:
    return _rows(await answer)


def _rows(found: Iterable[ReadRow]) -> list[Row]:
    return [Row(*row) for row in found]


def _check(kind: object, number: object) -> None:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ConfigurationError(
            f'row: expected a kind of up to 40 of a-z, 0-9, - and _, for example "stats", not {quoted(kind)}'
        )
    check_whole(number, 0, 2**62, "row: number", "for example 0")


def check_moment(unix_us: object) -> int:
    """Return a Unix time in microseconds that a row has, if it can be shown as a date.

    Raises:
        ConfigurationError: It cannot.
    """
    return check_whole(unix_us, 0, _LATEST_US, "row", "for example 1_700_000_000_000_000")


class _OwnRows(SharedRows):
    """The rows of this process, for a store that only one process uses."""

    def __init__(self, clock: Clock) -> None:
        self.rows: dict[tuple[str, int, bytes], tuple[bytes, int]] = {}
        self._clock = clock

    def time(self) -> int:
        """See `SharedRows`."""
        return self._clock()

    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """See `SharedRows`."""
        now_us = self.time()
        self.rows[row.kind, row.number, worker] = row.value, now_us + row.kept_us
        for name, (_, until_us) in self.rows.copy().items():  # threads may write at the same time
            if until_us <= now_us:
                self.rows.pop(name, None)

    def read(self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S) -> list[ReadRow]:
        """See `SharedRows`."""
        now_us = self.time()
        found: list[ReadRow] = []
        for (own, number, worker), (value, until_us) in self.rows.copy().items():
            if own == kind and first <= number <= last and until_us > now_us:
                found.append((number, worker, value))
        return found
