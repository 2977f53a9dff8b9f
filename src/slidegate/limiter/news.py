"""News: what operators have changed, asked of the store beside the questions of requests.

How old a worker's news are decides what a question does::

    FRESH    less than half a second: nothing
    AGING    less than a second: asks for news in the same call, and does not wait for them
    OLD      a second or more, as of a worker that was idle: asks in the same call, and holds the answer until both have
             come; if something has changed, the answer is handed back and the question asked anew

So no request of an idle worker is decided as before a change, and an idle worker asks nothing. Where the store answers
at once, as a file does, the news are there before the question. A thread without an event loop spends a part of its
question's deadline on them. During an outage nobody asks; the known overrides stay in force until their end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from enum import Enum
from inspect import isawaitable
from time import monotonic
from typing import Final

from ..core.errors import StoreError
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.store import COMMAND_DEADLINE_S
from ..stores.shared import running_loop
from ..stores.system_clock import SystemClock
from .aio import End, in_background, within, yielding_to_others
from .overrides import Override, Overrides, override_in
from .rows import Row, Rows
from .workers import Workers

LIMITS: Final = "limits"
"""The kind of the rows with overrides."""
AGING_NS: Final = 500_000_000
OLD_NS: Final = 1_000_000_000
DEADLINE_S: Final = 1.0
"""How long the store may take to tell the news; requests wait no longer than their own deadline."""
SHARE_OF_DEADLINE: Final = 0.2
"""How much of the deadline of a question its thread spends on news before it, at most in each step."""
AT_ONCE: Final = 50
"""How many overrides are parsed in one step, at 20 us each."""
_LOG_EVERY_S: Final = 600.0
_MEMO: Final = 4_000


class Age(Enum):
    """How old the news of a worker are."""

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
        reading: The latest read on an event loop, from `in_background`; it returns whether it has changed anything.
    """

    def __init__(self, rows: Rows, overrides: Overrides, workers: Workers, clock: SystemClock) -> None:
        self.reading: asyncio.Future[End[bool]] | None = None
        self._writing: asyncio.Future[End[None]] | None = None
        self._rows = rows
        self._overrides = overrides
        self._workers = workers
        self._clock = clock
        self.fresh_until_ns = clock.monotonic_ns()
        # When the last attempt to read them ended, with or without success, or began in a thread (monotonic).
        self._tried_ns = self.fresh_until_ns - OLD_NS
        self._parsed: dict[bytes, Override | None] = {}
        self._throttle = Throttle(_LOG_EVERY_S)

    @property
    def may_come(self) -> bool:
        """Whether there may be news: from other workers, or by the end of an override of this process alone."""
        return self._rows.is_shared or bool(self._overrides.in_force)

    def age(self) -> Age:
        """Return how old the news are."""
        age_ns = self._clock.monotonic_ns() - self._tried_ns
        if age_ns < AGING_NS:
            return Age.FRESH
        if age_ns < OLD_NS:
            return Age.AGING
        return Age.OLD

    # -- beside requests -----------------------------------------------------------------------------------------------

    def ask(self) -> asyncio.Future[End[bool]] | None:
        """Ask for the news, now, unless a read runs already on this loop.

        Returns:
            The read that runs; None if it has ended, because the store answers at once.
        """
        reading = self.reading
        if reading is not None and not reading.done() and reading.get_loop() is running_loop():
            return reading
        number = self._overrides.begin_reading()
        try:
            answer = self._rows.ask(LIMITS, 0, DEADLINE_S)
        except Exception as error:
            self._failed(error)
            return None
        # Of a store that answers at once, the news are here before the question, unless there is much to parse.
        if not isawaitable(answer) and self._count_unparsed(answer) <= AT_ONCE:
            self._take(number, [self._parse(row) for row in answer])
            self._finish_reading()
            return None
        self.reading = in_background(self._take_when_here(number, answer))
        return self.reading

    async def _take_when_here(self, number: int, answer: Sequence[Row] | Awaitable[Sequence[Row]]) -> bool:
        """Take in an answer when it has come; return whether anything has changed."""
        has_changed = False
        try:
            has_changed = self._take(number, await self._parse_in_steps(await within(answer, DEADLINE_S)))
        except Exception as error:
            self._failed(error)
        else:
            self._finish_reading()
        return has_changed

    def ask_in_thread(self, deadline_s: float) -> None:
        """Ask for the news in a thread without an event loop, of a store that answers there.

        Args:
            deadline_s: The deadline of the question that follows.
        """
        self._note_try()  # no other thread asks meanwhile
        with suppress(StopIteration):  # it never suspends: such a store answers at once
            self._ask_and_write(min(deadline_s * SHARE_OF_DEADLINE, DEADLINE_S)).send(None)

    async def _ask_and_write(self, deadline_s: float) -> None:
        try:
            await self.refresh(deadline_s)
            if self._workers.is_due():
                await self._workers.write(deadline_s)
        except Exception as error:
            self._failed(error)

    def put_off(self) -> None:
        """Ask nothing for half a second, because the store is known to fail."""
        self._note_try()
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
        """Delete the row of this worker, after what runs: it may write the row once more."""
        for work in (self.reading, self._writing):
            if work is not None and work.get_loop() is running_loop():
                await asyncio.wait([work], timeout=DEADLINE_S)
        await self._workers.end(DEADLINE_S)

    # ------------------------------------------------------------------------------------------------------------------

    def _take(self, number: int, found: Sequence[Override | None]) -> bool:
        """Put what was found in force, without rows that this version cannot read."""
        return self._overrides.replace(number, [one for one in found if one is not None])

    async def _parse_in_steps(self, rows: Sequence[Row]) -> list[Override | None]:
        return [self._parse(row) async for row in yielding_to_others(rows, AT_ONCE)]

    def _parse(self, row: Row) -> Override | None:
        """Return the override of a row; None if this version cannot read it. Most rows are those of the last time."""
        if row.value in self._parsed:
            return self._parsed[row.value]
        return remember(self._parsed, row.value, override_in(row.value), _MEMO)

    def _count_unparsed(self, rows: Sequence[Row]) -> int:
        return sum(row.value not in self._parsed for row in rows)

    def _note_try(self) -> None:
        """Note that nobody has to ask for a while."""
        self._tried_ns = self._clock.monotonic_ns()
        self.fresh_until_ns = self._tried_ns + AGING_NS

    def _failed(self, error: Exception) -> None:
        """Go on without news: the store failed, which its own questions find, or what it has cannot be read."""
        self.put_off()
        if not isinstance(error, StoreError) and self._throttle.left_out(None, monotonic()) is not None:
            logger.error("changed limits cannot be read", exc_info=error)

    def _finish_reading(self) -> None:
        """Record that the news are fresh, and write what this worker has to say beside them."""
        self._note_try()
        if self._workers.is_due():
            self._writing = in_background(self._write())

    async def _write(self) -> None:
        try:
            await self._workers.write(DEADLINE_S)
        except Exception as error:
            self._failed(error)
