"""Overrides: temporary changes of a limit's amount at run time, for all workers that share a store.

An override is a row of the store, and expires with it, see `rows`. Every worker reads these rows twice a second while
it is asked anything, and changes the amounts of its limits of that name, see `AnyLimit.become`. Where an event loop
runs, requests do not wait for that. During an outage, the last known overrides stay in effect until their end. In a
store without rows, overrides apply to this process only.

The name ``*`` with the limit ``off`` switches all workers off, see `Engine.switch`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import Throttle, logger
from ..core.store import CHANGED_LIMITS, StatsRow
from ..stores.forks import ProcessLock
from .aio import COMMAND_DEADLINE_S, in_background, on_asyncio
from .named_limits import ALL, NamedLimit, Override, amount_in, checked, event_of, parse_one, unknown, unpacked
from .rows import DEADLINE_S, Worker, worker_of

if TYPE_CHECKING:
    from .engine import Engine

INTERVAL_US: Final = 500_000
_LONGEST_LOOK_US: Final = 5_000_000
_LOG_EVERY_S: Final = 600.0

Changes: TypeAlias = dict[str, tuple[int, int, Override | None]]
"""The amounts of limits before and after a change, and the override that sets the latter, by name."""


class Overrides:
    """The overrides of one limiter.

    Args:
        engine: Queries the store, and knows the limits of this process.

    Attributes:
        known: The overrides in this process, by limit name, those included that no limit here takes.
    """

    def __init__(self, engine: Engine) -> None:
        self.known: dict[str, Override] = {}
        self._engine = engine
        self._rows = engine.rows
        self._next_us = self._begun = self._applied = 0
        self._throttle = Throttle(_LOG_EVERY_S)
        self._lock = ProcessLock()

    def register(self, limits: Iterable[NamedLimit]) -> None:
        """Apply the overrides in effect to limits with which this process counts from now on."""
        self._rows.due_s = 0.0
        with self._lock:
            changes = self._apply(limits)
        self._wake(changes)

    # -- commands ------------------------------------------------------------------------------------------------------

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers; for this one immediately.

        Raises:
            ConfigurationError: No worker has such a limit, or it cannot be changed to this; nothing is written.
            StoreError: The store does not answer.
        """
        text = checked(name, limit)
        workers = await self._workers()
        having = _having(workers, name)
        if workers and not having:
            raise unknown(name, (other for one in workers for other in one.limits if other not in one.fixed))
        for worker in having if name != ALL else ():
            amount_in(limit, name, parse_one(worker.limits[name]), worker.fixed.get(name, ""))
        now_us = self._engine.unix_us()
        made = Override(name, text, by, reason, now_us, now_us + length_us)
        await self._write(made, length_us)
        return replace(made, workers=len(having))

    async def unset(self, name: str) -> bool:
        """End the override of a limit; False if it has none."""
        await self.refresh()
        if name not in self.known:
            return False
        await self._write(self.known[name], 0)
        return True

    async def listed(self) -> list[Override]:
        """Return the overrides in the store, each with the number of workers that have its limit.

        Raises:
            StoreError: The store does not answer.
        """
        await self.refresh()
        found = sorted(self.known.values(), key=lambda override: override.name)
        workers = await self._workers() if found else []
        return [replace(one, workers=len(_having(workers, one.name))) for one in found]

    async def refresh(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Read the overrides from the store, and apply them.

        Raises:
            StoreError: The store does not answer.
        """
        self._begun = reading = self._begun + 1
        rows = await self._rows.read(CHANGED_LIMITS, 0, 0, deadline_s)
        if reading > self._applied:  # else a read that started later has already returned
            self._applied = reading
            self._replace({one.name: one for row in rows if (one := unpacked(row.value)) is not None})

    def forget(self) -> None:
        """Drop all overrides in this process. For tests."""
        self._replace({})

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def may_change(self) -> bool:
        """Whether there is anything to look at."""
        return self._rows.is_shared or bool(self.known)

    def look_if_due(self) -> None:
        """Look, unless that was done in the last half second. Every question calls this while overrides may change."""
        now_us = self._engine.now_us()
        if 0 < self._next_us - now_us <= _LONGEST_LOOK_US or not self._engine.counting:
            return
        self._next_us = now_us + _LONGEST_LOOK_US  # nobody else looks meanwhile
        if on_asyncio() and self._rows.is_shared:
            in_background(self.look())
        elif self._engine.store.answers_threads():
            next(self.look().__await__(), None)  # it never suspends with a store that answers threads

    async def look(self) -> None:
        """Refresh the overrides, and keep the row of this worker."""
        try:
            await self.refresh(DEADLINE_S)
            await self._rows.keep_own(self._engine.limits())
        except Exception as error:
            now_us = self._engine.unix_us()
            self._replace({name: one for name, one in self.known.items() if one.until_us > now_us})
            if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("changed limits cannot be read")
        finally:
            self._next_us = self._engine.now_us() + INTERVAL_US

    # ------------------------------------------------------------------------------------------------------------------

    async def _write(self, override: Override, kept_us: int) -> None:
        digest = blake2b(override.name.encode(), digest_size=8).digest()
        await self._rows.write(digest, StatsRow(CHANGED_LIMITS, 0, override.packed(), kept_us))
        await self.refresh()

    async def _workers(self) -> list[Worker]:
        """Return all workers, this process included if it is one."""
        is_worker = bool(self._engine.callers.listed())
        return [worker_of(self._engine.limits())] * is_worker + await self._rows.others()

    def _replace(self, found: dict[str, Override]) -> None:
        """Replace the overrides in this process, and report the amounts that change."""
        limits = self._engine.callers.limits()
        with self._lock:
            known, self.known = self.known, found
            if known == found:
                return
            changes = self._apply(one for one in limits if known.get(one.name) != found.get(one.name))
            if (ALL in found) is self._engine.is_on:
                self._engine.switch(on=ALL not in found)
                changes[ALL] = 0, 0, found.get(ALL)
        self._engine.rebuild()
        self._wake(changes)
        for name, (was, amount, applied) in changes.items():
            event = event_of(name, was, amount, applied or known.get(name) or found[name], ended=applied is None)
            self._engine.emit(event)

    def _apply(self, limits: Iterable[NamedLimit]) -> Changes:
        """Set the amounts of limits, and log why an override does not apply to one; return what has changed."""
        changes: Changes = {}
        for one in limits:
            override, amount = self.known.get(one.name), one.configured.amount
            if override is not None and one.changeable:
                try:
                    amount = amount_in(override.limit, one.name, one.configured, "")
                except ConfigurationError as error:
                    override = None
                    if self._throttle.left_out(str(error), monotonic()) is not None:
                        logger.warning("an override was not applied: %s", error)
            if amount != one.limit.amount:
                changes[one.name] = one.limit.amount, amount, override
                one.limit.become(amount)
        return changes

    def _wake(self, changes: Changes) -> None:
        """Let waiting requests ask again, and middlewares read the amounts anew."""
        if changes:
            self._engine.queues.wake()
            self._engine.restart_middlewares()


def _having(workers: Iterable[Worker], name: str) -> list[Worker]:
    """Return the workers that have a limit; all of them have ``*``."""
    return [worker for worker in workers if name == ALL or name in worker.limits]
