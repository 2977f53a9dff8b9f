"""Batching: when a write job gets its transaction, immediately, together with others, or later.

A *job* is a method of `Transaction` that writes, with its arguments. On an asyncio event loop:

* a single job runs immediately, and its answer is not an awaitable;
* after one job in `LOOK_EVERY`, the jobs that follow in the same iteration of the loop wait for its end. If there are
  many, they run in one transaction, and so do those of the next iterations, until there are few again;
* while another process writes, jobs wait and are retried without blocking the loop. After the deadline, by default
  `PATIENCE_S`, a job fails with `StoreTimeout`;
* if every commit waits for the disk, a thread runs all jobs; each transaction contains those that arrived during the
  one before.

Without an event loop, the caller blocks until the job has run or its deadline has passed. A job that is cancelled or
times out before it has run has charged nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from ...core.decision import Decision
from ...core.errors import StoreError, StoreTimeout
from .opening import PATIENCE_S, POLL_S

if TYPE_CHECKING:
    from .transaction import Transaction, Transactions

Args = TypeVarTuple("Args")
T = TypeVar("T")
Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that is called with a transaction, and its further arguments."""

LOOK_EVERY: Final = 16
MANY: Final = 4
"""From this many jobs on, batching pays: an iteration of the loop costs about as much as two or three transactions."""
EAGER_TRIES: Final = 50
"""A job is retried in this many consecutive iterations of the loop, then with pauses, to save CPU."""
PAUSE_S: Final = 0.001

_Item: TypeAlias = tuple[asyncio.Future[Any], Job, float, float]
"""The future of a job, the job, the loop time of its deadline, and the span of the deadline in seconds."""
_Tried: TypeAlias = tuple[_Item, Any, BaseException | None]
"""A job after an attempt, with its answer or its error; the error is `_BLOCKED` if it has to be retried."""

_BLOCKED: Final = StoreTimeout("another process writes")


class _Patience(threading.local):
    """The deadline of each thread's jobs, in seconds."""

    span_s = PATIENCE_S


class Batcher:
    """Runs jobs.

    Args:
        transactions: Runs transactions.
        in_thread: Whether jobs run in a thread, because commits wait for the disk and would block an event loop.
    """

    def __init__(self, transactions: Transactions, *, in_thread: bool) -> None:
        self._transactions = transactions
        self.in_thread = in_thread
        self._patience = _Patience()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopJobs] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop | None, _LoopJobs | None] = None, None

    def run(self, do: Callable[[Transaction, *Args], T], *args: *Args) -> T | asyncio.Future[T]:
        """Run a job within the deadline of this thread; return its answer, or a future of it.

        Args:
            do: Called with the transaction, then with `args`.
            args: Its arguments.
        """
        answer: T | asyncio.Future[T] = self.run_job((do, args), self._patience.span_s)
        return answer

    def run_job(self, job: Job, patience_s: float, instead: Callable[..., Any] | None = None) -> Any:
        """Run a job, as `run` does.

        Args:
            job: The job.
            patience_s: Its deadline, in seconds.
            instead: A read-only method of `Transaction` with the same arguments. If the job has to wait for another
                process or the disk, it is called first, and its answer is used unless it is None.
        """
        jobs = self._jobs()
        if jobs is None:
            return self._wait(job, patience_s, instead)
        blocked = jobs.tries > 0 or self.in_thread
        if not jobs.busy and not self.in_thread:
            answers = self._transactions.write((job,))
            if answers is not None:
                jobs.count_lone()
                return answers[0]
            blocked = True
        if blocked and instead is not None and (answer := self.read(instead, *job[1])) is not None:
            return answer
        return jobs.queue(job, patience_s)

    def read(self, ask: Callable[[Transaction, *Args], T], *args: *Args) -> T | None:
        """Run a method in a read transaction without waiting; None if the files cannot be read now."""
        with suppress(StoreError):  # the job itself will raise it
            return self._transactions.read_within(0.0, ask, *args)
        return None

    def _wait(self, job: Job, patience_s: float, instead: Callable[..., Any] | None) -> Any:
        """Run a job without an event loop."""
        until_s = time.monotonic() + patience_s
        while (answers := self._transactions.write((job,))) is None:
            if instead is not None and (answer := self.read(instead, *job[1])) is not None:
                return answer
            instead = None
            if time.monotonic() > until_s:
                raise _too_long(patience_s)
            time.sleep(POLL_S)
        return answers[0]

    @property
    def patience_s(self) -> float:
        """The deadline of this thread's jobs, in seconds."""
        return self._patience.span_s

    def _jobs(self) -> _LoopJobs | None:
        """Return the jobs of the asyncio event loop that runs in this thread; None if there is none."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        known, jobs = self._last
        if known is not loop:
            jobs = self._loops.setdefault(loop, _LoopJobs(self))
            self._last = loop, jobs
        return jobs

    def keep_deadline(self, deadline_s: float) -> bool:
        """Set the deadline of this thread's jobs, in seconds; return whether it is enforced."""
        self._patience.span_s = deadline_s
        return not self.in_thread

    def begin(self, loop: asyncio.AbstractEventLoop, items: list[_Item]) -> asyncio.Future[list[_Tried]] | None:
        """Run jobs in a thread of a loop; None if jobs run on the loop, or its executor has been shut down."""
        if self.in_thread:
            with suppress(RuntimeError):
                return loop.run_in_executor(None, self._persist, items)
        return None

    def attempt(self, items: list[_Item]) -> list[_Tried]:
        """Run jobs together, without those that were cancelled; if that fails, run each separately."""
        items = [item for item in items if not item[0].done()]
        try:
            answers = self._transactions.write([item[1] for item in items]) if items else []
        except Exception as error:
            if len(items) == 1:
                return [(items[0], None, error)]
            return [tried for item in items for tried in self.attempt([item])]
        if answers is None:
            return [(item, None, _BLOCKED) for item in items]
        return [(item, answer, None) for item, answer in zip(items, answers, strict=True)]

    def _persist(self, items: list[_Item]) -> list[_Tried]:
        """Run jobs in a thread, waiting up to `PATIENCE_S` while another process writes."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            tried = self.attempt(items)
            if not tried or any(error is not _BLOCKED for _, _, error in tried) or time.monotonic() > until_s:
                return tried
            time.sleep(POLL_S)


class _LoopJobs:
    """The jobs of one event loop. `busy` is true while new jobs are queued, and `tries` counts failed attempts."""

    __slots__ = ("_batcher", "_lone", "_waiting", "busy", "tries")

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._waiting: list[_Item] = []
        self._lone = LOOK_EVERY
        self.tries = 0
        self.busy = False

    def count_lone(self) -> None:
        """Count a job that ran alone; after `LOOK_EVERY` of them, queue the next jobs to see how many there are."""
        self._lone -= 1
        if not self._lone:
            self._lone = LOOK_EVERY
            self._schedule(asyncio.get_running_loop())

    def queue(self, job: Job, patience_s: float) -> asyncio.Future[Any]:
        """Queue a job; return the future of its answer."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((future, job, loop.time() + patience_s, patience_s))
        if not self.busy:
            self._schedule(loop)
        return future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self.busy = True
        if self.tries >= EAGER_TRIES:
            loop.call_later(PAUSE_S, self._next, loop)
        else:
            # Runs after all callbacks that are ready now, so that the jobs that they add run together.
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        items = [item for item in self._waiting if not item[0].done()]
        self._waiting = []
        if not items:
            self.busy, self.tries = False, 0
        elif (working := self._batcher.begin(loop, items)) is not None:
            working.add_done_callback(partial(self._thread_done, loop, items))
        else:
            self._settle(loop, self._batcher.attempt(items))

    def _thread_done(self, loop: asyncio.AbstractEventLoop, items: list[_Item], working: asyncio.Future[Any]) -> None:
        """Settle the results of the thread, or fail all its jobs with its error."""
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        self._settle(loop, working.result() if error is None else [(item, None, error) for item in items])

    def _settle(self, loop: asyncio.AbstractEventLoop, tried: list[_Tried]) -> None:
        """Set the results of the futures, and schedule the next attempt."""
        blocked = False
        for item, answer, error in tried:
            future, _, until_s, patience_s = item
            blocked |= error is _BLOCKED
            if future.done():
                self._release_permits(answer)
            elif error is None:
                future.set_result(answer)
            elif error is not _BLOCKED:
                # Futures reject StopIteration, which a user's clock that is an iterator may raise.
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            elif loop.time() < until_s:
                self._waiting.append(item)
            else:
                future.set_exception(_too_long(patience_s))
        self.tries = self.tries + 1 if blocked else 0
        self.busy = blocked or bool(self._waiting) or len(tried) >= MANY
        if self.busy:
            self._schedule(loop)

    def _release_permits(self, answer: object) -> None:
        """Release the permits of a request that was cancelled while a thread ran its job; its units stay charged."""
        if isinstance(answer, Decision) and (held := answer.take_back(held=True)):
            released = self.queue((lambda transaction: transaction.refund(held), ()), PATIENCE_S)
            released.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody awaits it


def _too_long(patience_s: float) -> StoreTimeout:
    return StoreTimeout(f"lmdb: another process has been writing for {patience_s:g} s; is it stopped?")
