"""When a job gets its transaction: at once, with others, or later.

A *job* is a function that needs one writing transaction. On an event loop of asyncio:

* a lone job is done at once, and its answer is no awaitable;
* after one job in `LOOK_EVERY`, the jobs that follow in the same turn of the loop wait for the end of the turn. If they
  are many, they are done in one transaction, and so are those of further turns, until they are few again;
* while another process writes, jobs wait and are tried again, and the loop goes on meanwhile. A job ends with
  `StoreTimeout` after the deadline, or after `PATIENCE_S`;
* if every commit waits for a disk, one thread does all jobs: in each transaction all that have come meanwhile.

Without such a loop, a caller waits for a job that cannot be done at once, as long as a job is tried on a loop. A job
that was given up before it was done has charged nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import getpid
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ...core.errors import StoreTimeout
from .files.opening import PATIENCE_S, POLL_S
from .session import Session

T = TypeVar("T")
Job: TypeAlias = Callable[[Session], Any]
Transact: TypeAlias = Callable[[Sequence[Job]], list[Any] | None]

LOOK_EVERY: Final = 16
MANY: Final = 4
"""A turn of the loop costs about as much as two or three transactions."""
EAGER_TRIES: Final = 50
"""A job is tried again in so many turns of the loop in a row, then with pauses, to spare the CPU."""
PAUSE_S: Final = 0.001


Item: TypeAlias = tuple[asyncio.Future[Any], Job, float, float]
"""A job, the future that somebody awaits, the time until which it is tried, and how long that is."""


class Outcome(NamedTuple):
    """Some jobs after an attempt: those with an answer, those that failed, and those to be tried again."""

    done: list[tuple[Item, Any]]
    failed: list[tuple[Item, Exception]]
    later: list[Item]


class _Patience(threading.local):
    """How long the jobs of each thread are tried."""

    span_s = PATIENCE_S


class Turns:
    """Runs jobs.

    Args:
        transact: Does jobs in one transaction and returns their answers; None if another process writes.
        in_thread: Whether a transaction takes so long that a loop must not wait for it.
    """

    def __init__(self, transact: Transact, *, in_thread: bool) -> None:
        self.transact = transact
        self._patience = _Patience()
        self.in_thread = in_thread
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop | None, _Turn] = None, _Turn(self)
        self._thread: tuple[int, ThreadPoolExecutor] | None = None

    def run(self, job: Callable[[Session], T]) -> T | Awaitable[T]:
        """Do a job; return its answer, or an awaitable of it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self.wait(job, self.patience_s)
        last, turn = self._last
        if last is not loop:
            turn = self._turns.setdefault(loop, _Turn(self))
            self._last = loop, turn
        return turn.queue(loop, job) if turn.busy or self.in_thread else turn.now(loop, job)

    def keep_deadline(self, deadline_s: float) -> bool:
        """Give up the jobs of this thread after so many seconds from now on; return False if it may take longer."""
        self._patience.span_s = min(PATIENCE_S, deadline_s)
        return not self.in_thread

    @property
    def patience_s(self) -> float:
        """How long jobs of this thread are tried."""
        return self._patience.span_s

    def executor(self) -> ThreadPoolExecutor | None:
        """Return the thread of this process, if jobs need one."""
        if not self.in_thread:
            return None
        if self._thread is None or self._thread[0] != getpid():
            self._thread = getpid(), ThreadPoolExecutor(1, thread_name_prefix="slidegate-lmdb")
        return self._thread[1]

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None and self._thread[0] == getpid():
            self._thread[1].shutdown(wait=True)
        self._thread = None

    def wait(self, job: Callable[[Session], T], patience_s: float = PATIENCE_S) -> T:
        """Do a job, block until it is done, no longer than `patience_s`, and return its answer."""
        until_s = time.monotonic() + patience_s
        while (answers := self.transact((job,))) is None:
            if time.monotonic() > until_s:
                raise _too_long(patience_s)
            time.sleep(POLL_S)
        return answers[0]  # type: ignore[no-any-return]


class _Turn:
    """The jobs of one event loop. `busy` is true while new ones have to wait."""

    __slots__ = ("_lone", "_scheduled", "_tries", "_turns", "_waiting", "busy")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: list[Item] = []
        self._scheduled = False
        self._tries = 0
        self._lone = LOOK_EVERY
        self.busy = False

    def now(self, loop: asyncio.AbstractEventLoop, job: Job) -> Any:
        """Do a job at once if nobody else is writing, else later."""
        answers = self._turns.transact((job,))
        if answers is None:
            return self.queue(loop, job)
        self._lone -= 1
        if not self._lone:
            self._lone = LOOK_EVERY
            self._schedule(loop)
        return answers[0]

    def queue(self, loop: asyncio.AbstractEventLoop, job: Job) -> asyncio.Future[Any]:
        """Do a job later."""
        future, patience_s = loop.create_future(), self._turns.patience_s
        self._waiting.append((future, job, loop.time() + patience_s, patience_s))
        if not self._scheduled:
            self._schedule(loop)
        return future

    def _schedule(self, loop: asyncio.AbstractEventLoop, pause_s: float = 0.0) -> None:
        self._scheduled = self.busy = True
        if pause_s:
            loop.call_later(pause_s, self._next, loop)
        else:
            # This comes after all callbacks that are ready now: the jobs that they bring are done together.
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        items = [item for item in self._waiting if not item[0].done()]
        self._waiting = []
        if not items:
            self._scheduled = self.busy = False
            return
        executor = self._turns.executor()
        if executor is None:
            self._tell(loop, _attempt(self._turns.transact, items))
        else:
            working = loop.run_in_executor(executor, _persist, self._turns.transact, items)
            working.add_done_callback(lambda finished: self._tell(loop, finished.result()))

    def _tell(self, loop: asyncio.AbstractEventLoop, outcome: Outcome) -> None:
        """Give answers and errors to those who wait, and decide when to go on."""
        for (future, *_), answer in outcome.done:
            if not future.done():
                future.set_result(answer)
        for (future, *_), error in outcome.failed:
            if not future.done():
                future.set_exception(error)
        if not outcome.later:
            self._tries = 0
            self._scheduled = self.busy = bool(self._waiting) or len(outcome.done) >= MANY
            if self.busy:
                self._schedule(loop)
            return
        self._tries += 1
        for item in outcome.later:
            if loop.time() < item[2]:
                self._waiting.append(item)
            elif not item[0].done():
                item[0].set_exception(_too_long(item[3]))
        self._schedule(loop, PAUSE_S if self._tries >= EAGER_TRIES else 0.0)


def _attempt(transact: Transact, items: list[Item]) -> Outcome:
    """Do jobs together; if that fails, do each by itself, so that a failing one fails alone."""
    try:
        answers = transact([item[1] for item in items])
    except Exception as error:
        if len(items) == 1:
            return Outcome([], [(items[0], error)], [])
        parts = [_attempt(transact, [item]) for item in items]
        return Outcome(
            [done for part in parts for done in part.done],
            [failed for part in parts for failed in part.failed],
            [item for part in parts for item in part.later],
        )
    if answers is None:
        return Outcome([], [], items)
    return Outcome(list(zip(items, answers, strict=True)), [], [])


def _persist(transact: Transact, items: list[Item]) -> Outcome:
    """Do jobs in a thread, which may block while another process writes, no longer than `PATIENCE_S`."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        outcome = _attempt(transact, [item for item in items if not item[0].done()])
        if not outcome.later or outcome.done or outcome.failed or time.monotonic() > until_s:
            return outcome
        time.sleep(POLL_S)


def _too_long(patience_s: float) -> StoreTimeout:
    return StoreTimeout(f"lmdb: another process has been writing for {patience_s:g} s; is it stopped?")
