"""Overrides: temporary changes of a limit's amount at run time, for all workers that share a store.

An override is a row of the store, and expires with it, see `rows`. Every worker reads these rows twice a second, by a
timer of asyncio or a task of trio, and changes the amounts of its limits of that name, see `AnyLimit.become`. Requests
do not wait for any of this. During an outage, the last known overrides stay in effect until their end. In a store
without rows, overrides apply to this process only.

The name ``*`` with the limit ``off`` switches all workers off, see `Engine.switch`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import Throttle, logger
from ..core.store import CHANGED_LIMITS, StatsRow, Store
from ..stores.forks import begin_anew_in_child, hold_over_fork
from .aio import COMMAND_DEADLINE_S, on_asyncio, on_loop
from .named_limits import ALL, NamedLimit, Override, amount_in, checked, event_of, parse_one, unknown, unpacked
from .rows import Worker

if TYPE_CHECKING:
    from .engine import Engine

INTERVAL_S: Final = 0.5
DEADLINE_S: Final = 1.0
_LOG_EVERY_S: Final = 600.0

Changes: TypeAlias = dict[str, tuple[int, int, Override | None]]
"""The amounts of limits before and after a change, and the override that sets the latter, by name."""


class Overrides:
    """The overrides of one limiter.

    Args:
        engine: Queries the store, and knows the limits of this process.

    Attributes:
        known: The overrides in this process, by limit name, those included that no limit here takes.
        ticker: Looks twice a second.
    """

    def __init__(self, engine: Engine) -> None:
        self.known: dict[str, Override] = {}
        self._engine = engine
        self._rows = engine.rows
        self.ticker = Ticker(engine.store, self.look, lambda: engine.rows.is_shared or bool(self.known))
        self._names: set[str] = set()
        self._ahead_us = self._begun = self._applied = 0
        self._throttle = Throttle(_LOG_EVERY_S)
        self._lock = Lock()
        hold_over_fork(self._lock)
        begin_anew_in_child(self.begin_anew)

    def register(self, limits: Iterable[NamedLimit]) -> None:
        """Apply the overrides in effect to limits with which this process counts from now on."""
        made = list(limits)
        names = {one.name for one in made}
        with self._lock:
            if not names <= self._names:
                self._names |= names
                self._rows.hurry()
            changes = self._apply(made)
        self._wake(changes)

    # -- commands ------------------------------------------------------------------------------------------------------

    async def set(self, name: str, limit: str, length_us: int, reason: str, by: str) -> Override:
        """Change a limit for all workers; for this one immediately.

        Raises:
            ConfigurationError: No worker has such a limit, or it cannot be changed to this; nothing is written.
            StoreError: The store does not answer.
        """
        text = checked(name, limit)
        if not self._rows.is_shared and not on_loop():
            raise ConfigurationError(
                "override: an override in this store is ended by a timer of an event loop, and none runs here; use "
                "`await limiter.override(...)` in the application"
            )
        workers = await self._workers()
        having = _having(workers, name)
        if workers and not having:
            free = [other for worker in workers for other in worker.limits if other not in worker.fixed]
            raise unknown(name, free)
        for worker in having if name != ALL else ():
            amount_in(limit, name, parse_one(worker.limits[name]), worker.fixed.get(name, ""))
        now_us = await self._rows.time()
        made = Override(name, text, by, reason, self._engine.unix_us(), length_us, now_us + length_us)
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
        self._begun += 1
        reading = self._begun
        rows = await self._rows.read(CHANGED_LIMITS, 0, 0, deadline_s)
        if rows:
            self._ahead_us = await self._rows.time(deadline_s) - self._engine.now_us()
        if reading > self._applied:  # else a read that started later has already returned
            self._applied = reading
            found = filter(None, (unpacked(row.value) for row in rows))
            self._replace({one.name: one for one in found})

    def forget(self) -> None:
        """Drop all overrides in this process. For tests."""
        self._replace({})

    # -- looking -------------------------------------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """In a child of `fork`, which is another worker, look again with the next request."""
        self.ticker.stop()
        self._engine.restart_middlewares()

    def start(self) -> None:
        """Look twice a second from now on, see `Ticker.start`."""
        if self._engine.counting and not self._engine.store.closed:
            self.ticker.start()

    async def end(self) -> None:
        """Stop looking, before the application ends."""
        self.ticker.stop()
        with suppress(StoreError):  # the row ends by itself
            await self._rows.end(DEADLINE_S)

    async def look(self) -> None:
        """Refresh the overrides, and keep the row of this worker."""
        try:
            await self.refresh(DEADLINE_S)
            await self._rows.keep_own(self._engine.limits(), DEADLINE_S)
        except Exception as error:
            now_us = self._engine.now_us() + self._ahead_us
            self._replace({name: one for name, one in self.known.items() if one.until_us > now_us})
            if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
                logger.exception("changed limits cannot be read")

    # ------------------------------------------------------------------------------------------------------------------

    async def _write(self, override: Override, kept_us: int) -> None:
        digest = blake2b(override.name.encode(), digest_size=8).digest()
        await self._rows.write(digest, StatsRow(CHANGED_LIMITS, 0, override.packed(), kept_us))
        await self.refresh()
        if not self._rows.is_shared:
            self.start()

    async def _workers(self) -> list[Worker]:
        """Return all workers, this process included if it is one."""
        is_worker = bool(self._engine.callers.listed())
        return [self._rows.this_worker(self._engine.limits())] * is_worker + await self._rows.others()

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
        self._wake(changes)
        for name, (was, amount, applied) in changes.items():
            self._engine.emit(event_of(name, was, amount, applied, applied or known.get(name) or found[name]))

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


class Ticker:
    """Calls a coroutine function every half second.

    Args:
        store: What the function queries.
        call: The function; it raises nothing.
        is_needed: Returns whether it has to be called again. If it never has, nothing is ever started.

    Attributes:
        loop: The event loop that calls it, under trio the token of its run; None if none does.
        task: The latest call by asyncio.
        due: Whether `start` has to be called before the next question is asked.
    """

    def __init__(self, store: Store, call: Callable[[], Awaitable[None]], is_needed: Callable[[], bool]) -> None:
        self._store = store
        self._call = call
        self._is_needed = is_needed
        self._next_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.stop()

    def stop(self) -> None:
        """Call the function no more, until `start` is called again."""
        self._home: asyncio.AbstractEventLoop | None = None
        self.loop: asyncio.AbstractEventLoop | object | None = None
        self.due = self._is_needed()

    def start(self) -> None:
        """Call the function from now on, in the first event loop that called this: those of threads may be short-lived.

        In a thread without an event loop, call it now, if half a second has passed and the store answers threads.
        """
        if self._home is not None and self._home.is_closed():
            self._home = self.loop = None
        if self._home is None and on_asyncio():
            self._home = asyncio.get_running_loop()
        if not self._is_needed():
            return
        if self._home is not None:
            self.due = False
            if self.loop is not self._home:
                self.loop = self._home
                self._home.call_soon_threadsafe(self._begin, self._home)
        elif self.loop is None and on_loop():
            self.due = False
            trio = sys.modules["trio"].lowlevel
            self.loop = trio.current_trio_token()
            trio.spawn_system_task(self._repeat, self.loop)
        elif self.loop is None and monotonic() >= self._next_s and self._store.answers_threads():
            self._next_s = monotonic() + INTERVAL_S
            calling = self._call().__await__()  # it never suspends with a store that answers threads
            next(calling, None)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loop is loop:
            self.task = loop.create_task(self._call_and_reschedule(loop))

    async def _call_and_reschedule(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._call()
        finally:
            if self._goes_on(loop) and not loop.is_closed():
                loop.call_later(INTERVAL_S, self._begin, loop)

    async def _repeat(self, token: object) -> None:
        """Call the function until the trio run, which cancels this task, or the limiter ends."""
        try:
            while self._goes_on(token):
                await self._call()
                await anyio.sleep(INTERVAL_S)
        finally:
            if self.loop is token:
                self.stop()

    def _goes_on(self, loop: object) -> bool:
        if self.loop is loop and not self._is_needed():
            self.loop = None
        return self.loop is loop
