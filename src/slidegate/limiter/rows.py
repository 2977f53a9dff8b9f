"""Rows: small values that the workers of a store keep for each other, by their kind, a number and the worker.

They expire by the store's time. Stores with `SharedRows` keep the rows of all workers; for others, this process keeps
its own.

The history, what operators and commands have done lately, is made of rows of the kind ``history`` with the number 0.
Each action is one, under its time, and stays for 90 days; the latest 200 are kept. Fields are read by name, and those
that a later version adds are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from ..core.arguments import check_whole
from ..core.durations import moment
from ..core.errors import ConfigurationError, StoreError, quoted
from ..core.logs import escaped, logger, safe_text
from ..core.store import COMMAND_DEADLINE_S, Clock, ReadRow, SharedRow, SharedRows
from ..core.stored import all_readable, check_numbers, json_of, read_json
from ..stores.forks import ForkHook
from .aio import yielding_to_others

MAX_BYTES: Final = 1 << 20
NOBODY: Final = bytes(8)
"""In place of a worker, for a row that belongs to all of them."""
_KIND: Final = re.compile("[a-z0-9_-]{1,40}")
HISTORY: Final = "history"
"""The kind of the rows of the history."""
MOST: Final = 200
"""How many actions are kept."""
_KEPT_US: Final = 90 * 86_400_000_000
_TRIM_EVERY: Final = 20
"""How many actions of this process are written before older ones are deleted: that takes a read of all."""
_STEP: Final = 50


class Row(NamedTuple):
    """A row of one worker: its number, the 8 bytes that identify the worker, and its value."""

    number: int
    worker: bytes
    value: bytes


Command: TypeAlias = Callable[..., Awaitable[Any]]
"""Asks the store as an operator's command does; see `Engine.command`."""


class Rows:
    """The rows of one limiter's store.

    Args:
        shared: Those of the store; None if it keeps none.
        unix_us: The clock for rows that this process keeps itself.

    Attributes:
        unix_us: The same.
        is_shared: Whether the store keeps them.
        worker: The identity of this worker.
    """

    def __init__(self, command: Command, shared: SharedRows | None, unix_us: Clock) -> None:
        self._command = command
        self.unix_us = unix_us
        self._local = _LocalRows(unix_us)
        self.is_shared = shared is not None
        self._shared: SharedRows = self._local
        if shared is not None:
            self._shared = shared
        self.restart()
        self._in_child = ForkHook(self.restart)

    def restart(self) -> None:
        """Become a new worker, in a child of `fork`."""
        self.worker = os.urandom(8)

    def forget(self) -> None:
        """Drop the rows that this process keeps itself."""
        self._local.rows.clear()

    async def time(self) -> int:
        """Return the time of the store in microseconds."""
        now_us: int = await self._command(self._shared.time)
        return now_us

    async def keep(self, kind: str, number: int, value: bytes, kept_us: int) -> None:
        """Write a row of this worker; see `Limiter.keep_row`."""
        _check(kind, number)
        check_whole(kept_us, 0, 2**62, "row: kept_us", "for example 60_000_000")
        if len(value) > MAX_BYTES:
            raise ConfigurationError(f"row: expected at most {MAX_BYTES:,} bytes, not {len(value):,}")
        await self.write(self.worker, SharedRow(kind, number, value, kept_us))

    async def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Write a row under the name of a worker, or of what else has one row of its kind and number."""
        await self._command(lambda: self._shared.write(worker, row, deadline_s), deadline_s)

    async def read(self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S) -> list[Row]:
        """Return the rows of all workers; see `Limiter.rows`."""
        _check(kind, first)
        _check(kind, last)
        rows: Sequence[ReadRow] = await self._command(
            lambda: self._shared.read(kind, first, last, deadline_s), deadline_s
        )
        return [Row(*row) for row in rows]

    def ask(self, kind: str, number: int, deadline_s: float) -> Sequence[ReadRow] | Awaitable[Sequence[ReadRow]]:
        """Ask for the rows of one number, now: a question that follows at once is sent in the same call.

        Raises:
            StoreError: The store does not answer.
        """
        return self._shared.read(kind, number, number, deadline_s)


def _check(kind: object, number: object) -> None:
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ConfigurationError(
            f'row: expected a kind of up to 40 of a-z, 0-9, - and _, for example "stats", not {quoted(kind)}'
        )
    check_whole(number, 0, 2**62, "row: number", "for example 0")


class _LocalRows(SharedRows):
    """The rows of this process, for a store that only one process uses."""

    def __init__(self, clock: Clock) -> None:
        self.rows: dict[tuple[str, int, bytes], tuple[bytes, int]] = {}
        self._clock = clock

    def time(self) -> int:
        return self._clock()

    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        now_us = self.time()
        self.rows[row.kind, row.number, worker] = row.value, now_us + row.kept_us
        for name, (_, until_us) in self.rows.copy().items():  # threads may write at the same time
            if until_us <= now_us:
                self.rows.pop(name, None)

    def read(self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S) -> list[ReadRow]:
        now_us = self.time()
        rows: list[ReadRow] = []
        for (row_kind, number, worker), (value, until_us) in self.rows.copy().items():
            if row_kind == kind and first <= number <= last and until_us > now_us:
                rows.append((number, worker, value))
        return rows


class Action(NamedTuple):
    """A change of a limiter by an operator or a command.

    Attributes:
        kind: ``ban``, ``unban``, ``override`` or ``restore``.
        target: The key, or the name of the limit; ``*`` for all limits.
        limit: The limit that an override has set: ``50/1m``, or ``off``; empty for other actions.
        by: The person or program.
        reason: The reason, for operators.
        at_us: When, in microseconds of Unix time.
        until_us: When the change ends, in microseconds of Unix time; None for never.
    """

    kind: str
    target: str
    by: str = ""
    reason: str = ""
    limit: str = ""
    at_us: int = 0
    until_us: int | None = None

    @property
    def at(self) -> datetime:
        """When it was carried out (UTC)."""
        return moment(self.at_us)

    @property
    def until(self) -> datetime | None:
        """When the change ends (UTC); None for never."""
        return None if self.until_us is None else moment(self.until_us)


class History:
    """The history of a store.

    Args:
        unix_us: Returns Unix time in microseconds.
    """

    def __init__(self, rows: Rows, unix_us: Clock) -> None:
        self._rows = rows
        self._unix_us = unix_us
        self._write_count = self._latest_us = 0

    async def add(self, action: Action) -> None:
        """Keep an action that was carried out. If the store fails now, the log has it: the action itself stands."""
        try:
            # Those of one process are in order, also within a microsecond.
            self._latest_us = max(self._unix_us(), self._latest_us + 1)
            name = self._latest_us.to_bytes(7) + os.urandom(1)
            await self._rows.write(name, SharedRow(HISTORY, 0, json_of(action._asdict()), _KEPT_US))
            if not self._write_count % _TRIM_EVERY:
                await self._trim()
            self._write_count += 1
        except StoreError as error:
            text = escaped(f"{action.kind} {action.target} by {action.by}")
            logger.warning("the history lacks an action (%s): %s", text, escaped(safe_text(error, is_message=True)))

    async def latest(self) -> list[Action]:
        """Return the latest actions, the last one first; those that this version cannot read are left out.

        Raises:
            StoreError: The store does not answer.
        """
        actions: list[Action] = []
        async for row in yielding_to_others((await self._newest_first())[:MOST], _STEP):
            actions += all_readable(_read_action, [row.value])
        return actions

    async def _trim(self) -> None:
        for row in (await self._newest_first())[MOST:]:
            await self._rows.write(row.worker, SharedRow(HISTORY, 0, b"", 0))

    async def _newest_first(self) -> list[Row]:
        return sorted(await self._rows.read(HISTORY, 0, 0), key=lambda row: row.worker, reverse=True)


def _read_action(value: bytes) -> Action:
    """Return the action of a row; a later version may have written it in another way."""
    action = read_json(Action, value)
    check_numbers(action.at_us)
    if action.until_us is not None:
        check_numbers(action.until_us)
    "".join(action[:5])  # five texts
    return action
