"""The history: what operators and commands have done lately, for all workers that share a store.

Each action is a row of the kind ``history`` with the number 0, under its time, and stays for 90 days; the latest 200
are kept. Fields are read by name, and those that a later version adds are ignored.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import escaped, logger, written
from ..core.store import Clock, SharedRow
from .aio import yielding_to_others
from .rows import Row, Rows, check_moment

HISTORY: Final = "history"
"""The kind of its rows."""
MOST: Final = 200
KEPT_US: Final = 90 * 86_400_000_000
_TRIM_EVERY: Final = 20
"""How many actions of this process are written before older ones are deleted: that takes a read of all."""
_STEP: Final = 50


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody has done to a limiter by hand or by a command.

    Attributes:
        kind: ``ban``, ``unban``, ``override`` or ``restore``.
        target: The key, or the name of the limit; ``*`` for all limits.
        limit: The limit that an override has set: ``50/1m``, or ``off``; empty for other actions.
        by: The person or program.
        reason: The reason, for operators.
        at_us: When, in microseconds of Unix time.
        until_us: When what was done ends, in microseconds of Unix time; None for never.
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
        """When it was done (UTC)."""
        return datetime.fromtimestamp(self.at_us / 1_000_000, UTC)

    @property
    def until(self) -> datetime | None:
        """When what was done ends (UTC); None for never."""
        return None if self.until_us is None else datetime.fromtimestamp(self.until_us / 1_000_000, UTC)


_TEXTS: Final = ("kind", "target", "by", "reason", "limit")


class History:
    """The history of a store.

    Args:
        rows: The rows of the store.
        unix_us: Returns Unix time in microseconds.
    """

    def __init__(self, rows: Rows, unix_us: Clock) -> None:
        self._rows = rows
        self._unix_us = unix_us
        self._written = self._latest_us = 0

    async def add(self, action: Action) -> None:
        """Keep an action that was carried out. If the store fails now, the log has it: the action itself stands."""
        try:
            # Those of one process are in order, also within a microsecond.
            self._latest_us = max(self._unix_us(), self._latest_us + 1)
            name = self._latest_us.to_bytes(7) + os.urandom(1)
            await self._rows.write(name, SharedRow(HISTORY, 0, json.dumps(asdict(action)).encode(), KEPT_US))
            if not self._written % _TRIM_EVERY:
                await self._trim()
            self._written += 1
        except StoreError as error:
            shown = escaped(f"{action.kind} {action.target} by {action.by}")
            logger.warning("the history lacks an action (%s): %s", shown, escaped(written(error, str)))

    async def latest(self) -> list[Action]:
        """Return the latest actions, the last one first; those that this version cannot read are left out.

        Raises:
            StoreError: The store does not answer.
        """
        found: list[Action] = []
        async for row in yielding_to_others((await self._newest_first())[:MOST], _STEP):
            action = _action_in(row.value)
            if action is not None:
                found.append(action)
        return found

    async def _trim(self) -> None:
        for row in (await self._newest_first())[MOST:]:
            await self._rows.write(row.worker, SharedRow(HISTORY, 0, b"", 0))

    async def _newest_first(self) -> list[Row]:
        return sorted(await self._rows.read(HISTORY, 0, 0), key=lambda row: row.worker, reverse=True)


def _action_in(value: bytes) -> Action | None:
    """Return the action of a row; None if a later version has written it in another way."""
    try:
        said = json.loads(value)
        texts = {name: said[name] for name in _TEXTS}
        until_us = said["until_us"]
        if until_us is not None:
            check_moment(until_us)
        action = Action(**texts, at_us=check_moment(said["at_us"]), until_us=until_us)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ConfigurationError):
        return None
    if not all(isinstance(text, str) for text in texts.values()):
        return None
    return action
