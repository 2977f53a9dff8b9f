"""Rows: small values that the workers of a store keep for each other, and what each worker says of itself in one.

A row has a kind, a number and the worker that wrote it, and it expires by the store's time. Stores with `SharedStats`
keep the rows of all workers; for others, this process keeps its own. Of kind ``limits`` there are two numbers::

    0    digest of a limit's name    JSON: an override, see `overrides`
    1    worker                      JSON: {"version": 2, "secret": "fingerprint#9f", "limits": {"api": "50/1m"}}

A worker writes its own row every ten seconds, kept for thirty: its limits by name, as configured, and why one cannot be
changed. The secret is a digest of a constant that is keyed with it: it shows only whether two secrets are the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.limits import check_whole
from ..core.store import CHANGED_LIMITS, Clock, Event, SharedStats, StatsRow
from ..stores.forks import InChild
from .aio import COMMAND_DEADLINE_S
from .named_limits import NamedLimit, parse_one, written

if TYPE_CHECKING:
    from .engine import Engine

MAX_BYTES: Final = 1 << 20
VERSION: Final = 2
NUMBER: Final = 1
EVERY_S: Final = 10.0
KEPT_US: Final = 30_000_000
DEADLINE_S: Final = 1.0
"""The deadline of what a worker does by itself."""
MAX_LIMITS: Final = 4_000
"""The most limits in a worker's row; 100 bytes each are well below the largest row."""
_KIND: Final = re.compile("[a-z0-9_-]{1,40}")


class Row(NamedTuple):
    """A row of one worker: its number, the 8 bytes that identify the worker, and its value."""

    number: int
    worker: bytes
    value: bytes


class Worker(NamedTuple):
    """A worker that has used the store within the last 30 seconds."""

    limits: dict[str, str]
    """Its limits as configured in code, by their names in response headers: ``{"api": "50/1m"}``."""
    fixed: dict[str, str]
    """Why some of them cannot be changed."""
    same_secret: bool
    """Whether its digests of API keys and similar values are those of this limiter."""


class Rows:
    """The rows of one limiter's store.

    Args:
        engine: Queries the store.

    Attributes:
        is_shared: Whether the store keeps them.
        worker: The identity of this worker.
        due_s: When its row is to be written next; 0 for the next look, because its limits have changed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own = _OwnRows(engine.now_us)
        self._stats = engine.store.shared_stats or self._own
        self.is_shared = self._stats is not self._own
        self.forget = self._own.forget
        self._has_differed = False
        self.begin_anew()
        self._in_child = InChild(self.begin_anew)

    def begin_anew(self) -> None:
        """Become a new worker, as a child of `fork` is."""
        self.worker = os.urandom(8)
        self.due_s = 0.0
        self._has_written = False

    async def time(self, deadline_s: float = COMMAND_DEADLINE_S) -> int:
        """Return the time of the store in microseconds."""
        return await self._engine.command(self._stats.time, deadline_s)

    async def keep(self, kind: str, number: int, value: bytes, kept_us: int) -> None:
        """Write a row of this worker; see `Limiter.keep_row`."""
        _check(kind, number)
        check_whole(kept_us, 0, 2**62, "row: kept_us", "for example 60_000_000")
        if not isinstance(value, bytes) or len(value) > MAX_BYTES:
            size = f"{len(value):,} bytes" if isinstance(value, bytes) else quoted(value)
            raise ConfigurationError(f"row: expected at most {MAX_BYTES:,} bytes, for example b'...', not {size}")
        await self.write(self.worker, StatsRow(kind, number, value, kept_us))

    async def write(self, worker: bytes, row: StatsRow, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Write a row under the name of a worker, or of what else has one row of its kind and number."""
        await self._engine.command(lambda: self._stats.write(worker, [row]), deadline_s)

    async def read(self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S) -> list[Row]:
        """Return the rows of all workers; see `Limiter.rows`."""
        _check(kind, first)
        found = await self._engine.command(lambda: self._stats.read(kind, first, last), deadline_s)
        return [Row(*row) for row in found]

    # -- workers -------------------------------------------------------------------------------------------------------

    async def keep_own(self, limits: Iterable[NamedLimit]) -> None:
        """Write the row of this worker every ten seconds, and report once if other workers have another secret.

        Raises:
            StoreError: The store does not answer.
        """
        if not self.is_shared or monotonic() < self.due_s:
            return
        self.due_s = monotonic() + EVERY_S
        self._has_written = True
        own = packed(worker_of(limits), self._engine.keys.fingerprint)
        await self.write(self.worker, StatsRow(CHANGED_LIMITS, NUMBER, own, KEPT_US), DEADLINE_S)
        others = await self.others(DEADLINE_S)
        differing = sum(not other.same_secret for other in others)
        if differing and not self._has_differed:
            self._has_differed = True
            message = (
                f"{differing} of {len(others)} other workers on this store have another secret, so their digests of "
                "API keys and similar values differ; set the same SLIDEGATE_SECRET, or secret=, for all"
            )
            self._engine.emit(Event("secret_differs", message, {"workers": differing}))

    async def end(self) -> None:
        """Delete the row of this worker, if it has written one; if the store does not answer, the row expires."""
        if self._has_written:
            self.due_s, self._has_written = 0.0, False
            with suppress(StoreError):
                await self.write(self.worker, StatsRow(CHANGED_LIMITS, NUMBER, b"", 0), DEADLINE_S)

    async def others(self, deadline_s: float = COMMAND_DEADLINE_S) -> list[Worker]:
        """Return the other workers; those of other versions are left out.

        Raises:
            StoreError: The store does not answer.
        """
        rows = await self.read(CHANGED_LIMITS, NUMBER, NUMBER, deadline_s) if self.is_shared else []
        found = [unpacked(row.value, self._engine.keys.fingerprint) for row in rows if row.worker != self.worker]
        return [worker for worker in found if worker is not None]


def worker_of(limits: Iterable[NamedLimit]) -> Worker:
    """Return what this process says of its limits; of equal names, of one that can be changed."""
    known = {one.name: one for one in sorted(limits, key=lambda one: one.changeable)}
    named = list(known.values())[:MAX_LIMITS]
    fixed = {one.name: one.fixed for one in named if one.fixed}
    return Worker({one.name: written(one.configured) for one in named}, fixed, same_secret=True)


def packed(worker: Worker, secret: str) -> bytes:
    """Return the value of a worker's row."""
    row = {"version": VERSION, "secret": secret, "limits": worker.limits, "fixed": worker.fixed}
    return json.dumps(row).encode()


def unpacked(value: bytes, secret: str) -> Worker | None:
    """Return the worker of a row; None if it cannot be parsed, for example one of a later version."""
    try:
        row = json.loads(value)
        found = Worker(row["limits"], row["fixed"], row["secret"] == secret)
        for text in found.limits.values():
            parse_one(text)
        return found if row["version"] == VERSION else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigurationError):
        return None


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
