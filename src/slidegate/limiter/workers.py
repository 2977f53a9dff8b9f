"""The rows that the workers of a shared store keep about themselves: their limits by name, and whether secrets differ.

A row is JSON with a version, written every ten seconds and kept for thirty by the store's time::

    {"version": 1, "secret": "fingerprint#9f86...", "limits": [["api", "Limit", "50/1m", 1, ""], ...]}

A limit is its name, its kind, its text as configured, the largest known cost of a request, and why it cannot be
changed. The secret is a digest of a constant that is keyed with it: it shows only whether two secrets are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..core.errors import ConfigurationError
from ..core.store import CHANGED_LIMITS, Event, StatsRow
from .aio import within
from .named_limits import NamedLimit, by_name, read_limit, written

if TYPE_CHECKING:
    from .engine import Engine

VERSION: Final = 1
NUMBER: Final = 1
"""The number of these rows; changed limits have 0."""
EVERY_S: Final = 10.0
KEPT_US: Final = 30_000_000
MAX_LIMITS: Final = 4_000
"""The most limits in a row; 100 bytes each are well below the largest row."""


class Worker(NamedTuple):
    """A worker that has said within the last 30 seconds that it uses the store."""

    limits: dict[str, str]
    """Its limits as configured in code, by their names in response headers: ``{"api": "50/1m"}``."""
    same_secret: bool
    """Whether its digests of API keys and similar values are those of this limiter."""


class WorkerRow(NamedTuple):
    """A row as it was read."""

    secret: str
    limits: dict[str, list[NamedLimit]]

    def texts(self) -> dict[str, str]:
        """Return the text of the first limit of each name, as configured."""
        firsts = {name: limits[0].configured for name, limits in self.limits.items()}
        return {name: written(limit, limit.amount) for name, limit in firsts.items()}


class Workers:
    """The rows of the workers of one limiter's store. A memory store has no other workers, and no rows.

    Args:
        engine: Queries the store.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shared = engine.store.shared_stats
        self._due_s = 0.0
        self._has_written = False
        self._differing: set[str] = set()

    def hurry(self) -> None:
        """Write the row with the next look, because the limits have changed or this is another process."""
        self._due_s = 0.0

    async def keep(self, limits: Iterable[NamedLimit], deadline_s: float) -> None:
        """Write the row of this worker every ten seconds, and compare its secret with those of the others.

        Raises:
            StoreError: The store does not answer.
        """
        if self._shared is None or monotonic() < self._due_s:
            return
        self._due_s = monotonic() + EVERY_S
        self._has_written = True
        await self._write(packed(limits, self._engine.keys.fingerprint), KEPT_US, deadline_s)
        self._compare(await self.read(deadline_s))

    async def end(self, deadline_s: float) -> None:
        """Delete the row of this worker, if it has written one.

        Raises:
            StoreError: The store does not answer.
        """
        if self._has_written:
            self._due_s, self._has_written = 0.0, False
            await self._write(b"", 0, deadline_s)

    async def read(self, deadline_s: float) -> list[WorkerRow]:
        """Return the rows of the other workers; those of other versions are left out.

        Raises:
            StoreError: The store does not answer.
        """
        if self._shared is None:
            return []
        rows = await within(self._shared.read(CHANGED_LIMITS, NUMBER, NUMBER), deadline_s)
        own = self._engine.rows.worker
        found = [unpacked(value) for _, worker, value in rows if worker != own]
        return [row for row in found if row is not None]

    async def _write(self, value: bytes, kept_us: int, deadline_s: float) -> None:
        assert self._shared is not None
        row = StatsRow(CHANGED_LIMITS, NUMBER, value, kept_us)
        await within(self._shared.write(self._engine.rows.worker, [row]), deadline_s)

    def _compare(self, others: list[WorkerRow]) -> None:
        """Report other secrets than that of this worker, each once."""
        differing = [row.secret for row in others if row.secret != self._engine.keys.fingerprint]
        if not self._differing.issuperset(differing):
            self._differing.update(differing)
            message = (
                f"{len(differing)} of {len(others)} other workers on this store have another secret, so their digests "
                "of API keys and similar values differ; set the same SLIDEGATE_SECRET, or secret=, for all"
            )
            self._engine.emit(Event("secret_differs", message, {"workers": len(differing)}))


def packed(limits: Iterable[NamedLimit], secret: str) -> bytes:
    """Return the value of a row."""
    listed = {_line(one): None for one in limits}
    return json.dumps({"version": VERSION, "secret": secret, "limits": list(listed)[:MAX_LIMITS]}).encode()


def _line(one: NamedLimit) -> tuple[str, str, str, int, str]:
    kind = type(one.configured).__name__
    return one.name, kind, written(one.configured, one.configured.amount), one.cost, one.fixed


def unpacked(value: bytes) -> WorkerRow | None:
    """Return a row; None if it cannot be parsed, for example one of a later version."""
    try:
        row: dict[str, Any] = json.loads(value)
        if row["version"] != VERSION:
            return None
        limits = [_limit_of(*line) for line in row["limits"]]
        return WorkerRow(str(row["secret"]), by_name(limits))
    except (ValueError, TypeError, KeyError, RecursionError, ConfigurationError):
        return None


def _limit_of(name: str, kind: str, text: str, cost: int, fixed: str) -> NamedLimit:
    configured = read_limit(kind, text)
    return NamedLimit(name, configured, configured, cost=int(cost), fixed=str(fixed))
