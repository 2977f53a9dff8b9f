"""Overrides: temporary changes of a limit's amount at run time, for all workers that share a store.

An override is a row of the store's `SharedStats`, and expires with it::

    limits    0    digest of the limit's name    JSON: the limit, its end in the store's time, who changed it and why
    limits    1    worker                        JSON: the limits of a worker by name, see `workers`

Every worker reads the rows of number 0 twice a second, by a timer of asyncio or a task of trio, and changes the amounts
of the limits that are registered here, see `AnyLimit.become`. Requests do not wait for any of this. During an outage,
the last known overrides stay in effect until their end. Without `SharedStats`, overrides apply to this process only.

The name ``*`` with the limit ``off`` switches all workers off, see `Engine.switch`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakValueDictionary

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import Throttle, logger
from ..core.store import CHANGED_LIMITS, StatsRow
from ..stores.forks import begin_anew_in_child, hold_over_fork
from .aio import COMMAND_DEADLINE_S, on_loop, within
from .named_limits import LimitInForce, NamedLimit, amount_for, by_name, unknown
from .override import ALL, Override, checked, event_of, packed, unpacked
from .ticker import Ticker
from .workers import Worker, WorkerRow, Workers

if TYPE_CHECKING:
    from .engine import Engine

DEADLINE_S: Final = 1.0
_LOG_EVERY_S: Final = 600.0

ByName: TypeAlias = Mapping[str, Override]
"""Overrides by the name of their limit."""
Changes: TypeAlias = dict[str, tuple[int, int, Override | None]]
"""The amounts of limits before and after a change, and the override that sets the latter, by name."""


class Overrides:
    """The overrides of one limiter.

    Args:
        engine: Queries the store.

    Attributes:
        known: The overrides in this process, by limit name, those included that no limit here takes.
        ticker: Looks twice a second.
    """

    def __init__(self, engine: Engine) -> None:
        self.known: ByName = {}
        self._engine = engine
        self._is_shared = engine.store.shared_stats is not None
        self.ticker = Ticker(engine.store, self.look, lambda: self._is_shared or bool(self.known))
        self._workers = Workers(engine)
        self._limits: WeakValueDictionary[int, NamedLimit] = WeakValueDictionary()
        self._names: set[str] = set()
        self._number = count()
        self._ahead_us = 0
        self._begun = self._applied = 0
        self._throttle = Throttle(_LOG_EVERY_S)
        self._lock = Lock()
        hold_over_fork(self._lock)
        begin_anew_in_child(self.begin_anew)
        engine.forgetting.append(self.forget)

    # -- limits --------------------------------------------------------------------------------------------------------

    def register(self, limits: Iterable[NamedLimit]) -> None:
        """Make limits changeable, as long as their owner keeps these objects, and apply the overrides in effect.

        One name may have several limits, which take a change all together or not at all; so the others of that name
        may gain or lose their override.
        """
        made = list(limits)
        with self._lock:
            for one in made:
                self._limits[next(self._number)] = one
            names = {one.name for one in made}
            if not names <= self._names:
                self._names = {one.name for one in self._limits.values()}
                self._workers.hurry()
            changes, refused = self._apply(names & self.known.keys())
        self._woken(changes, refused)

    def retire(self, limits: Iterable[NamedLimit]) -> None:
        """Stop listing limits that others have replaced; requests in progress still count by them."""
        for one in limits:
            one.listed = False
        self._workers.hurry()

    def in_force(self) -> Iterator[LimitInForce]:
        """Yield the active limits of this process, with the amounts in effect; one for each rule and name."""
        found = {(one.rule, one.name): one for one in self._active()}
        for one in found.values():
            limit = one.configured.with_amount(one.limit.amount)
            yield LimitInForce(one.name, one.rule, limit, one.configured, not one.fixed, one.shadow)

    # -- commands ------------------------------------------------------------------------------------------------------

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers; for this one immediately.

        Raises:
            ConfigurationError: No worker has such a limit, or it cannot be changed to this; nothing is written.
            StoreError: The store does not answer.
        """
        text = checked(name, limit)
        if not self._is_shared and not on_loop():
            raise ConfigurationError(
                "override: an override in this store is ended by a timer of an event loop, and none runs here; use "
                "`await limiter.override(...)` in the application"
            )
        workers = await self._count(name, limit)
        now_us = await self._engine.rows.time()
        made = Override(name, text, by, reason, self._engine.unix_us(), length_us, now_us + length_us)
        await self._write(made, length_us)
        return replace(made, workers=workers)

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
        rows = await self._rows() if found else []
        return [replace(one, workers=len(_having(rows, one.name))) for one in found]

    async def workers(self) -> list[Worker]:
        """Return the other workers of the store; see `Limiter.workers`."""
        own = self._engine.keys.fingerprint
        rows = await self._workers.read(COMMAND_DEADLINE_S)
        return [Worker(row.texts(), row.secret == own) for row in rows]

    async def refresh(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Read the overrides from the store, and apply them.

        Raises:
            StoreError: The store does not answer.
        """
        self._begun += 1
        reading = self._begun
        shared = self._engine.rows.shared
        rows = await within(shared.read(CHANGED_LIMITS, 0, 0), deadline_s)
        if rows:
            self._ahead_us = await within(shared.time(), deadline_s) - self._engine.now_us()
        if reading > self._applied:  # else a read that started later has already returned
            self._applied = reading
            found = filter(None, (unpacked(value) for _, _, value in rows))
            self._replace({one.name: one for one in found})

    def forget(self) -> None:
        """Drop all overrides in this process. For tests."""
        self._replace({})

    # -- looking -------------------------------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """In a child of `fork`, which is another worker, look again with the next request."""
        self.ticker.stop()
        self._workers.hurry()
        self._engine.restart_middlewares()

    def start(self) -> None:
        """Look twice a second from now on, see `Ticker.start`."""
        if self._engine.store.closed or not self._engine.counting:
            return
        if self.ticker.start() and self.end not in self._engine.ending:
            self._engine.ending.append(self.end)

    async def end(self) -> None:
        """Stop looking, before the application ends."""
        self.ticker.stop()
        with suppress(StoreError):  # the row ends by itself
            await self._workers.end(DEADLINE_S)

    async def look(self) -> None:
        """Refresh the overrides, and keep the row of this worker."""
        try:
            await self.refresh(DEADLINE_S)
            await self._workers.keep(self._active(), DEADLINE_S)
        except Exception as error:
            self._replace(self._lasting())
            if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("changed limits cannot be read")

    # ------------------------------------------------------------------------------------------------------------------

    def _lasting(self) -> ByName:
        """Return the known overrides that have not ended, according to the clock of this process."""
        now_us = self._engine.now_us() + self._ahead_us
        return {name: one for name, one in self.known.items() if one.until_us > now_us}

    async def _write(self, override: Override, kept_us: int) -> None:
        row = StatsRow(CHANGED_LIMITS, 0, packed(override), kept_us)
        digest = blake2b(override.name.encode(), digest_size=8).digest()
        await self._engine.command(lambda: self._engine.rows.shared.write(digest, [row]))
        await self.refresh()
        if not self._is_shared:
            self.start()

    async def _rows(self) -> list[WorkerRow]:
        """Return the rows of all workers; that of this process is made here, if it is one."""
        own = self._active()
        is_worker = bool(own or self._engine.callers.listed())
        return [WorkerRow("", by_name(own))] * is_worker + await self._workers.read(COMMAND_DEADLINE_S)

    async def _count(self, name: str, limit: str) -> int:
        """Return how many workers have a limit.

        Raises:
            ConfigurationError: There are workers, and none has it, or one cannot change it to this.
        """
        rows = await self._rows()
        having = _having(rows, name)
        if rows and not having:
            raise unknown(name, {other: limits for row in rows for other, limits in row.limits.items()})
        for row in having:
            amount_for(row.limits.get(name, ()), limit)
        return len(having)

    def _active(self) -> list[NamedLimit]:
        with self._lock:
            return [one for one in self._limits.values() if one.listed]

    def _replace(self, found: ByName) -> None:
        """Replace the overrides in this process, apply those that the limits in code allow, and report changes."""
        with self._lock:
            known, self.known = self.known, found
            names = {name for name in {**known, **found} if known.get(name) != found.get(name)}
            changes, refused = self._apply(names)
            is_switched = (ALL in found) is self._engine.is_on
            if is_switched:
                self._engine.switch(on=ALL not in found)
                changes[ALL] = 0, 0, found.get(ALL)
        self._woken(changes, refused)
        for name, (was, amount, applied) in changes.items():
            self._engine.emit(event_of(name, was, amount, applied, applied or known.get(name) or found[name]))

    def _apply(self, names: Collection[str]) -> tuple[Changes, list[ConfigurationError]]:
        """Set the amounts of the limits of some names; return what has changed, and why overrides do not apply."""
        changes: Changes = {}
        refused: list[ConfigurationError] = []
        limits = list(self._limits.values()) if names else []
        for listed in (False, True):
            for name, own in by_name(one for one in limits if one.name in names and one.listed is listed).items():
                override, amount = self.known.get(name), None
                try:
                    amount = None if override is None else amount_for(own, override.limit)
                except ConfigurationError as error:
                    refused += [error] if listed else []
                for one in own:
                    was, now = one.limit.amount, one.configured.amount if amount is None else amount
                    if was != now:
                        one.limit.become(now)
                        changes[name] = was, now, None if amount is None else override
        return changes, refused

    def _woken(self, changes: Changes, refused: Iterable[ConfigurationError]) -> None:
        """Let waiting requests ask again, and middlewares read the amounts anew; log why overrides do not apply."""
        if changes:
            self._engine.queues.wake()
            self._engine.restart_middlewares()
        for error in refused:
            if self._throttle.left_out(str(error), monotonic()) is not None:
                logger.warning("an override was not applied: %s", error)


def _having(rows: Iterable[WorkerRow], name: str) -> list[WorkerRow]:
    """Return the workers that have a limit; all of them have ``*``."""
    return [row for row in rows if name == ALL or name in row.limits]
