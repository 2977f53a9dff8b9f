"""Batching: when a job gets its transaction, immediately, together with others, or later.

A *job* is a method of `Transaction` with its arguments. On an asyncio event loop:

* a single job runs immediately, and its answer is not an awaitable;
* after one job in `LOOK_EVERY`, the jobs that follow in the same iteration of the loop wait for its end. If there are
  many, they run in one transaction, up to `MOST_TOGETHER`, and so do those of the next iterations, until there are few
  again;
* while another process is behind the gate, jobs wait and are retried without blocking the loop. A `Limiter` gives up
  the futures of requests after its deadline; after `TIMEOUT_S`, a job fails with `StoreTimeout`.

Without an event loop, the caller blocks until the job has run or the deadline of its thread has passed. A job that is
cancelled or times out before it has run has charged nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from ...core.errors import StoreTimeout
from .environment import POLL_S
from .transaction import Job, Transaction, Transactions

Args = TypeVarTuple("Args")
T = TypeVar("T")

TIMEOUT_S: Final = 30.0
"""How long a job waits, such as a command of an operator."""
LOOK_EVERY: Final = 16
MANY: Final = 4
"""From this many jobs on, batching pays: an iteration of the loop costs about as much as two or three transactions."""
MOST_TOGETHER: Final = 128
"""The most jobs of a transaction, which blocks the loop for a millisecond or two."""
EAGER_TRIES: Final = 50
"""A job is retried in this many consecutive iterations of the loop, then with pauses, to save CPU."""
PAUSE_S: Final = 0.001

_Item: TypeAlias = tuple[asyncio.Future[Any], Job, float]
"""The future of a job, the job, and the loop time at which it is given up."""
_Tried: TypeAlias = tuple[_Item, Any, BaseException | None]
"""A job after an attempt, with its answer or its error; the error is `_BLOCKED` if it has to be retried."""

_BLOCKED: Final = StoreTimeout("another process is behind the gate")


class _Timeout(threading.local):
    """The deadline of the jobs of each thread without an event loop, in seconds."""

    span_s = TIMEOUT_S


class Batcher:
    """Runs jobs.

    Args:
        transactions: Runs transactions.

    Attributes:
        timeout: The deadline of each thread.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self.timeout = _Timeout()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopJobs] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop | None, _LoopJobs | None] = None, None

    def run(self, do: Callable[[Transaction, *Args], T], *args: *Args) -> T | asyncio.Future[T]:
        """Run a job; return its answer, or a future of it.

        Args:
            do: Called with the transaction, then with `args`.
            args: Its arguments.
        """
        answer: T | asyncio.Future[T] = self._run((do, args))
        return answer

    def look(self, ask: Callable[[Transaction, *Args], T], *args: *Args) -> T | asyncio.Future[T]:
        """Run a method that changes nothing as a job; see `Transaction.look`."""
        answer: T | asyncio.Future[T] = self._run((Transaction.look, (ask, *args)))
        return answer

    def _run(self, job: Job) -> Any:
        jobs = self._jobs()
        if jobs is None:
            return self._wait(job)
        if not jobs.busy:
            answers = self._transactions.write((job,))
            if answers is not None:
                jobs.count_lone()
                return answers[0]
        return jobs.queue(job)

    def _wait(self, job: Job) -> Any:
        """Run a job without an event loop."""
        span_s = self.timeout.span_s
        until_s = time.monotonic() + span_s
        while (answers := self._transactions.write((job,))) is None:
            if time.monotonic() > until_s:
                raise _too_long(span_s)
            time.sleep(POLL_S)
        return answers[0]

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

    def queue(self, job: Job) -> asyncio.Future[Any]:
        """Queue a job; return the future of its answer."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((future, job, loop.time() + TIMEOUT_S))
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
        self._waiting = items[MOST_TOGETHER:]
        if items:
            self._settle(loop, self._batcher.attempt(items[:MOST_TOGETHER]))
        else:
            self.busy, self.tries = False, 0

    def _settle(self, loop: asyncio.AbstractEventLoop, tried: list[_Tried]) -> None:
        """Set the results of the futures, and schedule the next attempt."""
        blocked: list[_Item] = []
        for item, answer, error in tried:
            future, _, until_s = item
            if future.done():  # cancelled by what an earlier result has called
                continue
            if error is None:
                future.set_result(answer)
            elif error is not _BLOCKED:
                # Futures reject StopIteration, which a user's clock that is an iterator may raise.
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            elif loop.time() < until_s:
                blocked.append(item)
            else:
                future.set_exception(_too_long(TIMEOUT_S))
        self.tries = self.tries + 1 if blocked else 0
        self._waiting = blocked + self._waiting
        self.busy = bool(self._waiting) or len(tried) >= MANY
        if self.busy:
            self._schedule(loop)


def _too_long(timeout_s: float) -> StoreTimeout:
    return StoreTimeout(f"lmdb: another process has held the files for {timeout_s:g} s; is it stopped?")
