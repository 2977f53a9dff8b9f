"""Refreshing overrides: changes by operators are read from the store beside the questions of requests.

How old the overrides of a worker are decides what a question does::

    fresh      less than half a second: nothing
    stale      less than a second: asks for the overrides in the same call, and does not wait for them
    expired    a second or more, as of a worker that was idle: asks in the same call, and holds the answer until both
               have come; if something has changed, the answer is refunded and the question asked again

So no request of an idle worker is decided as before a change, and an idle worker asks nothing. Where the store answers
at once, as a file does, the overrides are there before the question. A thread without an event loop asks before it,
with a fifth of its deadline for each step. During an outage they are read when a probe is due, and stay in force until
their end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from hashlib import blake2b
from inspect import isawaitable
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

from ..core.bans.ban import Ban, BanSubject
from ..core.buckets import Check
from ..core.decision import Decision
from ..core.errors import StoreError
from ..core.logs import log_failure
from ..core.reservation import Reservation
from ..core.store import ReadRow, SharedRow
from ..core.stored import all_readable, json_of
from ..stores.shared import running_loop
from ..stores.system_clock import SystemClock
from .aio import End, answer_of, in_background, on_asyncio, run_at_once, wait_for_end, within, yielding_to_others
from .failover import Failover
from .overrides import LIMITS, Override, Overrides, read_override
from .rows import Rows
from .workers import Workers

STALE_NS: Final = 500_000_000
EXPIRED_NS: Final = 1_000_000_000
DEADLINE_S: Final = 1.0
"""How long the store may take to return the overrides; requests wait no longer than their own deadline."""
SHARE_OF_DEADLINE: Final = 0.2
"""The share of a question's deadline for each step of a refresh in a thread that refreshes before its question."""
AT_ONCE: Final = 50
"""How many overrides are parsed in one step, at 20 us each."""

T = TypeVar("T")
Running: TypeAlias = "asyncio.Future[End]"
Hit: TypeAlias = Callable[[Sequence[Check], Sequence[BanSubject]], Decision | Awaitable[Decision]]
"""A function that charges every check or none, as `Store.hit` does, or that says what this would answer."""
FindBan: TypeAlias = Callable[[Sequence[BanSubject]], Ban | Awaitable[Ban | None] | None]
"""A function that returns the ban that refuses some subjects, as `BanStore.find` does."""


class Refresher:
    """Keeps the overrides of this process fresh.

    Args:
        workers: This worker among others, which writes when the store has answered.
        failover: Queries the store; None for one that cannot fail.
        deadline_s: How long a question and its refresh may take together.
        answers_threads: Whether the store answers threads without an event loop.

    Attributes:
        question: Asks the store, or what answers for it while limits are off; `Engine.rebuild` sets it.
        ban_question: Asks the same for a ban; set there, too.
        fresh_until_ns: Until when the overrides are fresh (monotonic).
    """

    def __init__(
        self,
        rows: Rows,
        overrides: Overrides,
        workers: Workers,
        clock: SystemClock,
        failover: Failover | None,
        refund: Callable[[Sequence[Reservation]], Awaitable[bool]],
        deadline_s: float,
        *,
        answers_threads: bool,
    ) -> None:
        self.question: Hit
        self.ban_question: FindBan
        self.fresh_until_ns = clock.monotonic_ns() - EXPIRED_NS
        self._rows = rows
        self._overrides = overrides
        self._workers = workers
        self._clock = clock
        self._failover = failover
        self._refund = refund
        self._deadline_s = deadline_s
        self._answers_threads = answers_threads
        # What runs now, on any event loop.
        self._reads: set[Running] = set()
        self._writes: set[Running] = set()

    @property
    def is_needed(self) -> bool:
        """Whether overrides may change: by other workers, or by the end of an override of this process alone."""
        return self._rows.is_shared or bool(self._overrides.in_force)

    def _age_ns(self) -> int:
        """Return how long ago the overrides were read, or reading them was put off as `_put_off` does."""
        return self._clock.monotonic_ns() - self.fresh_until_ns + STALE_NS

    # -- questions of requests -----------------------------------------------------------------------------------------

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Answer a question by fresh overrides.

        Args:
            subjects: Further keys and addresses whose bans refuse it.
        """
        if self._clock.monotonic_ns() < self.fresh_until_ns:
            return self.question(checks, subjects)
        return self._refresh_beside(lambda: self.question(checks, subjects))

    def find_ban(self, subjects: Sequence[BanSubject]) -> Ban | Awaitable[Ban | None] | None:
        """Return the ban that closes an open websocket; none if limits are off by now."""
        return self._refresh_beside(lambda: self.ban_question(subjects))

    def _refresh_beside(self, ask: Callable[[], T | Awaitable[T]]) -> T | Awaitable[T]:
        """Ask a question, and for the overrides in the same call if they are not fresh."""
        age_ns = self._age_ns()
        if age_ns < STALE_NS:
            return ask()
        task = self._begin_read()
        if task is None or age_ns < EXPIRED_NS:
            return ask()
        return self._hold(task, ask)

    async def _hold(self, task: Running, ask: Callable[[], T | Awaitable[T]]) -> T:
        """Answer after the overrides were read, too; ask again if they change anything.

        The second question has a deadline of its own; a refusal that counts (`count_denied`) is counted twice then.
        """
        until_s, version = monotonic() + self._deadline_s, self._overrides.version
        answer = await answer_of(ask())
        try:
            await wait_for_end(task, until_s)
        except asyncio.CancelledError:
            await self._take_back(answer)
            raise
        if self._overrides.version == version:
            return answer
        await self._take_back(answer)
        return await answer_of(ask())

    async def _take_back(self, answer: object) -> None:
        """Refund an answer that nobody gets."""
        if isinstance(answer, Decision):
            await self._refund(answer.begin_refund())

    async def ask(self) -> None:
        """Ask for the overrides unless they are fresh; if they have expired while limits are off, wait for them."""
        age_ns = self._age_ns()
        if not self.is_needed or age_ns < STALE_NS:
            return
        task = self._begin_read()
        if task is not None and age_ns >= EXPIRED_NS and self._overrides.is_off:
            await wait_for_end(task, monotonic() + self._deadline_s)

    # -- reading beside them -------------------------------------------------------------------------------------------

    def _begin_read(self) -> Running | None:
        """Read the overrides if the store may answer.

        Returns:
            The task that reads them; None if they are applied already, or cannot be read now.
        """
        if self._failover is not None and self._failover.breaker.is_open:
            self._put_off()
            # Beside the probe, if a request is one: while limits are off, no request asks the store.
            if not self._failover.breaker.is_probe_due:
                return None
        if on_asyncio():
            return self.read()
        if self._answers_threads:
            self._put_off()  # no other thread asks meanwhile
            return self.read(min(self._deadline_s * SHARE_OF_DEADLINE, DEADLINE_S))
        return None

    def read(self, deadline_s: float = DEADLINE_S) -> Running | None:
        """Read the overrides, unless a read runs already on the event loop of this thread.

        Args:
            deadline_s: How long each step may take that blocks a thread without an event loop.

        Returns:
            The read that runs; None if it has ended, because the store answers at once.
        """
        running = _on_this_loop(self._reads)
        if running:
            return running[0]
        number, asked_ns = self._overrides.begin_reading(), self._clock.monotonic_ns()
        try:
            answer = self._rows.ask(LIMITS, 0, deadline_s)
            # Of a store that answers at once, they are here before the question, unless there are many.
            if not isawaitable(answer) and len(answer) <= AT_ONCE:
                self._overrides.replace(number, all_readable(read_override, [value for _, _, value in answer]))
                self._end_read(asked_ns, deadline_s)
                return None
        except Exception as error:
            self._failed(error)
            return None
        return _start_or_run(self._apply_answer(number, answer, asked_ns, deadline_s), self._reads)

    async def _apply_answer(
        self, number: int, answer: Sequence[ReadRow] | Awaitable[Sequence[ReadRow]], asked_ns: int, deadline_s: float
    ) -> None:
        """Apply the rows when they have come, parsed in steps."""
        try:
            await self._apply_in_steps(number, await within(answer, DEADLINE_S))
        except Exception as error:
            self._failed(error)
        else:
            self._end_read(asked_ns, deadline_s)

    async def refresh(self) -> None:
        """Read the overrides from the store, and apply them. For commands.

        Raises:
            StoreError: The store does not answer.
        """
        number = self._overrides.begin_reading()
        await self._apply_in_steps(number, await self._rows.read(LIMITS, 0, 0))

    async def write(self, override: Override, kept_us: int) -> None:
        """Write an override for all workers, and apply it here at once; 0 microseconds end it.

        Raises:
            StoreError: The store does not answer.
        """
        digest = blake2b(override.name.encode(), digest_size=8).digest()
        await self._rows.write(digest, SharedRow(LIMITS, 0, json_of(override._asdict()), kept_us))
        await self.refresh()

    async def end(self) -> None:
        """Delete the row of this worker, after what runs: a read may write the row once more at its end."""
        for running in (self._reads, self._writes):
            for work in _on_this_loop(running):
                await asyncio.wait([work], timeout=DEADLINE_S)
        await self._workers.end(DEADLINE_S)

    async def _apply_in_steps(self, number: int, rows: Sequence[ReadRow]) -> None:
        """Put the overrides of rows in force, parsed in steps."""
        overrides: list[Override] = []
        async for _, _, value in yielding_to_others(rows, AT_ONCE):
            overrides += all_readable(read_override, [value])
        self._overrides.replace(number, overrides)

    def _end_read(self, asked_ns: int, deadline_s: float) -> None:
        """Record how fresh the overrides are, and write what this worker has to say beside them."""
        self.fresh_until_ns = asked_ns + STALE_NS
        if self._workers.is_due():
            _start_or_run(self._publish(deadline_s), self._writes)

    async def _publish(self, deadline_s: float) -> None:
        try:
            await self._workers.write(deadline_s)
        except Exception as error:
            self._failed(error, "the limits of this worker cannot be published")

    def _put_off(self) -> None:
        """Do not ask for the overrides in the next half second: the store fails, or another thread asks now."""
        self.fresh_until_ns = self._clock.monotonic_ns() + STALE_NS
        # During an outage no answer removes the overrides that have ended.
        self._overrides.drop_ended()

    def _failed(self, error: Exception, text: str = "changed limits cannot be read") -> None:
        """Go on as before: the store failed, which its own questions find, or something else is wrong, as `text`."""
        self._put_off()
        if not isinstance(error, StoreError):
            log_failure(text, error, monotonic())


def _start_or_run(work: Coroutine[Any, Any, None], running: set[Running]) -> Running | None:
    """Run something on the event loop of this thread, and keep it among what runs; without one, run it at once."""
    if not on_asyncio():
        run_at_once(work)
        return None
    task = in_background(work)
    if task is not None:
        running.add(task)
        task.add_done_callback(running.discard)
    return task


def _on_this_loop(running: set[Running]) -> list[Running]:
    """Return the tasks of the event loop of this thread."""
    loop = running_loop()
    return [work for work in running.copy() if work.get_loop() is loop and not work.done()]
