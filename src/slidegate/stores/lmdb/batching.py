"""Batching: when a job gets its transaction, immediately, together with others, or later.

A *job* is a method of `Transaction` with its arguments. On an asyncio event loop:

* a single job runs immediately, and its answer is not an awaitable;
* after one job in `LOOK_EVERY`, the jobs that follow in the same iteration of the loop wait for its end. If there are
  many, they run in one transaction, up to `MOST_TOGETHER`, and so do those of the next iterations, until there are few
  again;
* while others are behind the gate, jobs wait and are retried without blocking the loop. A `Limiter` gives up the
  futures of requests after its deadline; after `COMMAND_DEADLINE_S`, a job fails with `StoreTimeout`.

Without an asyncio event loop, also under trio, the caller blocks until the job has run, or it is given up. A thread
waits for the others of its process (see `ThreadLock`), whose transactions are short, and for other processes
within its deadline. A job that is cancelled or times out before it has run has charged nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple

from ...core.errors import StoreTimeout, StoreUnavailable
from ...core.store import COMMAND_DEADLINE_S
from ..shared import answer_of, on_loop, run_unless_on_loop, running_loop
from .gate import THREAD_LOCK, TOO_LONG, WAIT_S, pause
from .kept import in_background
from .transaction import Job, Transaction, Transactions

Args = TypeVarTuple("Args")
T = TypeVar("T")

LOOK_EVERY: Final = 16
MANY: Final = 4
"""From this many jobs on, batching pays: an iteration of the loop costs about as much as two or three transactions."""
MOST_TOGETHER: Final = 128
"""The most jobs of a transaction, which blocks the loop for a millisecond or two."""
EAGER_TRIES: Final = 50
"""A job is retried in this many consecutive iterations of the loop, then with pauses, to save CPU."""
PAUSE_S: Final = 0.001

_Item: TypeAlias = tuple[asyncio.Future[Any], Job, float]
"""A queued job: the future that receives its answer, the job, and when it is given up, by the time of the loop."""


class Batcher:
    """Runs jobs.

    Args:
        transactions: Runs transactions.
    """

    def __init__(self, transactions: Transactions) -> None:
        self.transactions = transactions
        self._of_thread = _ThreadJobs()

    def run(
        self,
        do: Callable[[Transaction, *Args], T],
        *args: *Args,
        needs_room: bool = True,
        deadline_s: float = COMMAND_DEADLINE_S,
    ) -> T | asyncio.Future[T]:
        """Run a job; return its answer, or a future of it.

        Args:
            do: Called with the transaction, then with `args`.
            args: Its arguments.
            needs_room: Whether the file may grow by it; not if it reads, deletes or hands back.
            deadline_s: How long a thread without an event loop of asyncio waits for other processes, in seconds.
        """
        job = do, args, needs_room
        loop = running_loop()
        answer: T
        if loop is None:
            answer = self._wait(job, deadline_s)
            return answer
        jobs = self._of_thread.jobs
        if jobs is None or jobs.loop is not loop:
            jobs = self._of_thread.jobs = _LoopJobs(self.transactions, loop)
        if jobs.is_busy:
            return jobs.queue(job)
        answers = self.transactions.write((job,))
        if answers is None:
            return jobs.queue(job)
        jobs.lone -= 1
        if jobs.lone <= 0:  # a signal handler may count beside this
            jobs.lone = LOOK_EVERY
            jobs.schedule()
        (answer,) = answers
        return answer

    def command(
        self,
        do: Callable[[Transaction], T],
        *,
        needs_room: bool = True,
        deadline_s: float = COMMAND_DEADLINE_S,
    ) -> T | Awaitable[T]:
        """Run a job of an operator; its answer is returned when what it has changed is on the disk, see `kept`.

        Args:
            do: Called with the transaction.
            needs_room: Whether the file may grow by it.
            deadline_s: How long to wait for other processes and the disk, in seconds.
        """

        async def command() -> T:
            answer, survives = await answer_of(
                self.run(Transaction.command, do, needs_room=needs_room, deadline_s=deadline_s)
            )
            if survives:
                await self.keep(deadline_s)
            return answer

        return run_unless_on_loop(command())

    async def keep(self, deadline_s: float = COMMAND_DEADLINE_S) -> None:
        """Return when what has changed is on the disk, within a coroutine for `run_unless_on_loop`."""
        kept, end = self.transactions.env.kept, None
        if running_loop() is not None:
            end = in_background(lambda: kept.keep(deadline_s))
        elif on_loop():  # trio's, on which nothing else runs meanwhile
            deadline_s = min(deadline_s, WAIT_S)
        if end is None:
            kept.keep(deadline_s)
        else:
            await asyncio.wrap_future(end)

    def _wait(self, job: Job, deadline_s: float) -> Any:
        """Run a job without an event loop of asyncio."""
        wait_s = max(deadline_s, WAIT_S)
        if on_loop():
            wait_s = min(deadline_s, WAIT_S)  # trio's, on which nothing else runs meanwhile
        until_s = time.monotonic() + deadline_s
        while True:
            answers = self.transactions.write((job,), wait_s)
            if answers is not None:
                return answers[0]
            pause(until_s)


class _ThreadJobs(threading.local):
    """The jobs of the last event loop of this thread."""

    jobs: _LoopJobs | None = None


class _LoopJobs:
    """The jobs of one event loop.

    Args:
        transactions: Runs transactions.
        loop: The event loop.

    Attributes:
        is_busy: Whether further jobs are queued, and not run at once.
        lone: How many jobs may run alone before the next ones are queued, to see how many there are.
    """

    def __init__(self, transactions: Transactions, loop: asyncio.AbstractEventLoop) -> None:
        self._transactions = transactions
        self.loop = loop
        self._waiting: list[_Item] = []
        self._tries = 0  # how often the gate was closed in a row
        self._until_s = 0.0  # when a job that is queued now is given up; of those of one iteration, by its beginning
        self.is_busy = False
        self.lone = LOOK_EVERY

    def queue(self, job: Job) -> asyncio.Future[Any]:
        """Queue a job; return the future of its answer."""
        if not self.is_busy:
            self.schedule()
        future = self.loop.create_future()
        self._waiting.append((future, job, self._until_s))
        return future

    def schedule(self) -> None:
        """Queue the jobs that follow, and run them in the next iteration of the loop or after a pause."""
        self.is_busy = True
        self._until_s = self.loop.time() + COMMAND_DEADLINE_S
        if self._tries >= EAGER_TRIES:
            self.loop.call_later(PAUSE_S, self._next)
        else:
            # Runs after all callbacks that are ready now, so that the jobs that they add run together.
            self.loop.call_soon(self._next)

    def _next(self) -> None:
        """Run the next jobs, and schedule those after them."""
        items, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
        try:
            blocked = self._attempt(items, self.loop.time())
        except BaseException:  # SystemExit of a signal handler: what still runs then need not wait for its deadline
            self.schedule()
            for future, _, _ in items:
                _fail(future, StoreUnavailable("lmdb: the process was interrupted", concerns="request"))
            raise
        self._tries += 1
        if not blocked:
            self._tries = 0
        self._waiting = blocked + self._waiting
        self.is_busy = bool(self._waiting) or len(items) >= MANY
        if self.is_busy:
            self.schedule()

    def _attempt(self, items: list[_Item], now_s: float) -> list[_Item]:
        """Run jobs together, or separately if that fails; return those that have to be retried."""
        items = [item for item in items if not item[0].done()]  # the others were cancelled
        if not items:
            return []
        try:
            answers = self._transactions.write([job for _, job, _ in items])
        except Exception as error:
            if len(items) == 1:
                _fail(items[0][0], error)
                return []
            blocked: list[_Item] = []
            for item in items:
                blocked += self._attempt([item], now_s)
            return blocked
        if answers is not None:
            for (future, _, _), answer in zip(items, answers, strict=True):
                if not future.done():  # else observers of an event have cancelled it
                    future.set_result(answer)
            return []
        THREAD_LOCK.reserve()
        for future, _, until_s in items:
            if now_s < until_s:  # so are those behind it, which were queued later
                break
            _fail(future, StoreTimeout(TOO_LONG))
        return items


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # of a user's clock that is an iterator; futures reject it
        error = RuntimeError(repr(error))
    future.set_exception(error)
