"""News: what operators have changed, asked of the store beside the questions of requests.

How old a worker's news are decides what a question does::

    FRESH    less than half a second: nothing
    AGING    less than a second: asks for news in the same call, and does not wait for them
    OLD      a second or more, as of a worker that was idle: asks in the same call, and holds the answer until both have
             come; if something has changed, the answer is handed back and the question asked anew

So no request of an idle worker is decided as before a change, and an idle worker asks nothing. Where the store answers
at once, as a file does, the news are there before the question. A thread without an event loop asks before it, with a
fifth of its deadline for each step. During an outage nobody asks; the known overrides stay in force until their end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from enum import Enum
from inspect import isawaitable
from time import monotonic
from typing import Any, Final, TypeAlias

from ..core.errors import StoreError
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.store import COMMAND_DEADLINE_S
from ..stores.shared import running_loop
from ..stores.system_clock import SystemClock
from .aio import End, in_background, run_at_once, within, yielding_to_others
from .overrides import LIMITS, Override, Overrides, override_in
from .rows import Row, Rows
from .workers import Workers

AGING_NS: Final = 500_000_000
OLD_NS: Final = 1_000_000_000
DEADLINE_S: Final = 1.0
"""How long the store may take to tell the news; requests wait no longer than their own deadline."""
SHARE_OF_DEADLINE: Final = 0.2
"""How much of the deadline of a question each step of the news has that its thread asks for before it."""
AT_ONCE: Final = 50
"""How many overrides are parsed in one step, at 20 us each."""
Running: TypeAlias = "asyncio.Future[End[None]]"
_LOG_EVERY_S: Final = 600.0
_MEMO: Final = 4_000


class Age(Enum):
    """How old the news of a worker are; during an outage, how long ago it was known to go on."""

    FRESH = "fresh"
    AGING = "aging"
    OLD = "old"


class News:
    """What this worker knows of the overrides in the store.

    Args:
        rows: The rows of the store.
        overrides: The overrides in force in this process.
        workers: This worker among others, which writes when the store has answered.
        clock: The clock of the limiter.

    Attributes:
        fresh_until_ns: Until when they are fresh (monotonic).
    """

    def __init__(self, rows: Rows, overrides: Overrides, workers: Workers, clock: SystemClock) -> None:
        # What runs now, on any event loop.
        self._readings: set[Running] = set()
        self._writings: set[Running] = set()
        self._rows = rows
        self._overrides = overrides
        self._workers = workers
        self._clock = clock
        self.fresh_until_ns = clock.monotonic_ns() - OLD_NS
        self._parsed: dict[bytes, Override | None] = {}
        self._throttle = Throttle(_LOG_EVERY_S)

    @property
    def may_come(self) -> bool:
        """Whether there may be news: from other workers, or by the end of an override of this process alone."""
        return self._rows.is_shared or bool(self._overrides.in_force)

    @property
    def version(self) -> int:
        """How often they have changed anything: an amount, or whether limits are on."""
        return self._overrides.version

    def age(self) -> Age:
        """Return how old the news are."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self.fresh_until_ns:
            return Age.FRESH
        if now_ns < self.fresh_until_ns - AGING_NS + OLD_NS:
            return Age.AGING
        return Age.OLD

    # -- beside requests -----------------------------------------------------------------------------------------------

    def ask(self) -> Running | None:
        """Ask for the news on the event loop of this thread, now, unless a read runs already on it.

        Returns:
            The read that runs; None if it has ended, because the store answers at once.
        """
        for reading in _here(self._readings):
            return reading
        number, asked_ns = self._overrides.begin_reading(), self._clock.monotonic_ns()
        try:
            answer = self._rows.ask(LIMITS, 0, DEADLINE_S)
            # Of a store that answers at once, the news are here before the question, unless there is much to parse.
            if not isawaitable(answer) and self._count_unparsed(answer) <= AT_ONCE:
                self._take(number, [self._parse(row) for row in answer])
                self._finish_reading(asked_ns)
                return None
        except Exception as error:
            self._failed(error)
            return None
        return _begun(self._take_when_here(number, answer, asked_ns), self._readings)

    async def _take_when_here(
        self, number: int, answer: Sequence[Row] | Awaitable[Sequence[Row]], asked_ns: int
    ) -> None:
        """Take in an answer when it has come."""
        try:
            self._take(number, await self._parse_in_steps(await within(answer, DEADLINE_S)))
        except Exception as error:
            self._failed(error)
        else:
            self._finish_reading(asked_ns)

    def ask_in_thread(self, deadline_s: float) -> None:
        """Ask for the news in a thread without an event loop, of a store that answers there.

        Args:
            deadline_s: The deadline of the question that follows.
        """
        self._note_try(self._clock.monotonic_ns())  # no other thread asks meanwhile
        try:
            run_at_once(self._ask_and_write(min(deadline_s * SHARE_OF_DEADLINE, DEADLINE_S)))
        except Exception as error:
            self._failed(error)

    async def _ask_and_write(self, deadline_s: float) -> None:
        await self.refresh(deadline_s)
        if self._workers.is_due():
            await self._workers.write(deadline_s)

    def put_off(self) -> None:
        """Ask nothing for half a second, because the store is known to fail."""
        self._note_try(self._clock.monotonic_ns())
        # No answer will do that: an override ends by itself, in an outage too.
        self._overrides.drop_ended()

    # -- for commands --------------------------------------------------------------------------------------------------

    async def refresh(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Read the overrides from the store, and apply them.

        Raises:
            StoreError: The store does not answer.
        """
        number = self._overrides.begin_reading()
        rows = await self._rows.read(LIMITS, 0, 0, deadline_s)
        self._take(number, await self._parse_in_steps(rows))

    async def end(self) -> None:
        """Delete the row of this worker, after what runs: a read may write the row once more at its end."""
        for running in (self._readings, self._writings):
            for work in _here(running):
                await asyncio.wait([work], timeout=DEADLINE_S)
        await self._workers.end(DEADLINE_S)

    # ------------------------------------------------------------------------------------------------------------------

    def _take(self, number: int, found: Sequence[Override | None]) -> None:
        """Put what was found in force, without rows that this version cannot read."""
        self._overrides.replace(number, [one for one in found if one is not None])

    async def _parse_in_steps(self, rows: Sequence[Row]) -> list[Override | None]:
        return [self._parse(row) async for row in yielding_to_others(rows, AT_ONCE)]

    def _parse(self, row: Row) -> Override | None:
        """Return the override of a row; None if this version cannot read it. Most rows are those of the last time."""
        if row.value in self._parsed:
            return self._parsed[row.value]
        return remember(self._parsed, row.value, override_in(row.value), _MEMO)

    def _count_unparsed(self, rows: Sequence[Row]) -> int:
        return sum(row.value not in self._parsed for row in rows)

    def _note_try(self, at_ns: int) -> None:
        """Note that nobody has to ask for a while from then on (monotonic).

        Args:
            at_ns: When the store was asked for those that are known, or an attempt failed or began in a thread.
        """
        self.fresh_until_ns = at_ns + AGING_NS

    def _failed(self, error: Exception, what: str = "changed limits cannot be read") -> None:
        """Go on without news: the store failed, which its own questions find, or something else is wrong, as `what`."""
        self.put_off()
        if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
            logger.error(what, exc_info=error)

    def _finish_reading(self, asked_ns: int) -> None:
        """Record how fresh the news are, and write what this worker has to say beside them."""
        self._note_try(asked_ns)
        if self._workers.is_due():
            _begun(self._write(), self._writings)

    async def _write(self) -> None:
        try:
            await self._workers.write(DEADLINE_S)
        except Exception as error:
            self._failed(error, "the limits of this worker cannot be published")


def _begun(work: Coroutine[Any, Any, None], running: set[Running]) -> Running | None:
    """Run something on the event loop of this thread, and keep it among what runs."""
    task = in_background(work)
    if task is not None:
        running.add(task)
        task.add_done_callback(running.discard)
    return task


def _here(running: set[Running]) -> list[Running]:
    """Return what runs on the event loop of this thread."""
    loop = running_loop()
    return [work for work in running.copy() if work.get_loop() is loop and not work.done()]
