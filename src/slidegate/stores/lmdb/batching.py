"""When a job gets its transaction: at once, with others, or later.

A *job* is a function that needs one writing transaction. On an event loop of asyncio:

* a lone job is done at once, and its answer is no awaitable;
* after one job in `LOOK_EVERY`, the jobs that follow in the same turn of the loop wait for the end of the turn. If they
  are many, they are done in one transaction, and so are those of further turns, until they are few again;
* while another process writes, jobs wait and are tried again, and the loop goes on meanwhile. A job ends with
  `StoreTimeout` after the deadline, which is `PATIENCE_S` where nobody has set one;
* if every commit waits for a disk, one thread does all jobs: in each transaction all that have come meanwhile.

Without such a loop, a caller waits for a job that cannot be done at once, as long as a job is tried on a loop. A job
that was given up before it was done has charged nothing. Where a job has to wait for others, the caller may have an
answer that needs no writing instead.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from os import getpid
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ...core.errors import StoreTimeout
from .opening import PATIENCE_S, POLL_S

if TYPE_CHECKING:
    from .windows import Transaction

T = TypeVar("T")
Job: TypeAlias = "Callable[[Transaction], Any]"
Transact: TypeAlias = Callable[[Sequence[Job]], list[Any] | None]

LOOK_EVERY: Final = 16
MANY: Final = 4
"""A turn of the loop costs about as much as two or three transactions."""
EAGER_TRIES: Final = 50
"""A job is tried again in so many turns of the loop in a row, then with pauses, to spare the CPU."""
PAUSE_S: Final = 0.001

_Item: TypeAlias = tuple[asyncio.Future[Any], Job, float, float]
"""A job, the future that somebody awaits, the time until which it is tried, and how long that is."""
_Tried: TypeAlias = tuple[_Item, Any, BaseException | None]
"""A job after an attempt: its answer, or its error, `_HELD_UP` if it is to be tried again."""

_HELD_UP: Final = StoreTimeout("another process writes")


class _Patience(threading.local):
    """How long the jobs of each thread are tried."""

    span_s = PATIENCE_S


class Batcher:
    """Runs jobs.

    Args:
        transact: Does jobs in one transaction and returns their answers; None if another process writes.
        in_thread: Whether a transaction takes so long that a loop must not wait for it.
    """

    def __init__(self, transact: Transact, *, in_thread: bool) -> None:
        self.transact = transact
        self.in_thread = in_thread
        self._patience = _Patience()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopJobs] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop | None, _LoopJobs] = None, _LoopJobs(self)
        self._thread: tuple[int, ThreadPoolExecutor] | None = None
        self._is_open = True

    def run(
        self,
        job: Callable[[Transaction], T],
        instead: Callable[[], T | None] | None = None,
        patience_s: float | None = None,
    ) -> T | Awaitable[T]:
        """Do a job; return its answer, or an awaitable of it.

        Args:
            job: The job.
            instead: What to ask where the job has to wait for others; None if it has to wait all the same.
            patience_s: How long it is tried; None for the deadline of this thread.
        """
        if patience_s is None:
            patience_s = self.patience_s
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self.wait(job, patience_s, instead)
        last, jobs = self._last
        if last is not loop:
            jobs = self._loops.setdefault(loop, _LoopJobs(self))
            self._last = loop, jobs
        held_up = jobs.tries > 0 or self.in_thread
        if not jobs.busy and not self.in_thread:
            answers = self.transact((job,))
            if answers is not None:
                jobs.count_lone(loop)
                return answers[0]  # type: ignore[no-any-return]
            held_up = True
        if held_up and instead is not None and (answer := instead()) is not None:
            return answer
        return jobs.queue(loop, job, patience_s)

    def wait(
        self,
        job: Callable[[Transaction], T],
        patience_s: float = PATIENCE_S,
        instead: Callable[[], T | None] | None = None,
    ) -> T:
        """Do a job, block until it is done, no longer than `patience_s`, and return its answer."""
        until_s = time.monotonic() + patience_s
        while (answers := self.transact((job,))) is None:
            if instead is not None and (answer := instead()) is not None:
                return answer
            instead = None
            if time.monotonic() > until_s:
                raise _too_long(patience_s)
            time.sleep(POLL_S)
        return answers[0]  # type: ignore[no-any-return]

    @property
    def patience_s(self) -> float:
        """How long jobs of this thread are tried."""
        return self._patience.span_s

    def keep_deadline(self, deadline_s: float) -> bool:
        """Give up the jobs of this thread after so many seconds from now on; return False if it may take longer."""
        self._patience.span_s = deadline_s
        return not self.in_thread

    def begin(self, loop: asyncio.AbstractEventLoop, items: list[_Item]) -> asyncio.Future[list[_Tried]] | None:
        """Have the thread of this process do jobs; None where that is not what it is for, or it has ended."""
        if not (self.in_thread and self._is_open):
            return None
        if self._thread is None or self._thread[0] != getpid():
            self._thread = getpid(), ThreadPoolExecutor(1, thread_name_prefix="slidegate-lmdb")
        with suppress(RuntimeError):  # another thread has closed it just now
            return loop.run_in_executor(self._thread[1], _persist, self.transact, items)
        return None

    def close(self) -> None:
        """End the thread. Those who wait are answered by what `transact` says then."""
        self._is_open = False
        if self._thread is not None and self._thread[0] == getpid():
            self._thread[1].shutdown(wait=True)


class _LoopJobs:
    """The jobs of one event loop. `busy` is true while new ones have to wait, and `tries` counts vain attempts."""

    __slots__ = ("_batcher", "_lone", "_waiting", "busy", "tries")

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._waiting: list[_Item] = []
        self._lone = LOOK_EVERY
        self.tries = 0
        self.busy = False

    def count_lone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count a job that was done alone; after some, look whether more come in a turn."""
        self._lone -= 1
        if not self._lone:
            self._lone = LOOK_EVERY
            self._schedule(loop)

    def queue(self, loop: asyncio.AbstractEventLoop, job: Job, patience_s: float) -> asyncio.Future[Any]:
        """Do a job later."""
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
            # This comes after all callbacks that are ready now: the jobs that they bring are done together.
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        items = [item for item in self._waiting if not item[0].done()]
        self._waiting = []
        if not items:
            self.busy, self.tries = False, 0
        elif (working := self._batcher.begin(loop, items)) is not None:
            working.add_done_callback(partial(self._worked, loop, items))
        else:
            self._settle(loop, _attempt(self._batcher.transact, items))

    def _worked(self, loop: asyncio.AbstractEventLoop, items: list[_Item], working: asyncio.Future[Any]) -> None:
        """Settle what the thread has tried, or tell all who wait why it could not."""
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        self._settle(loop, working.result() if error is None else [(item, None, error) for item in items])

    def _settle(self, loop: asyncio.AbstractEventLoop, tried: list[_Tried]) -> None:
        """Give answers and errors to those who wait, and decide when to go on."""
        held_up = False
        for item, answer, error in tried:
            future, _, until_s, patience_s = item
            held_up |= error is _HELD_UP
            if future.done():
                continue
            if error is None:
                future.set_result(answer)
            elif error is not _HELD_UP:
                # No future takes the error by which an iterator ends, which a clock of the user's may be.
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            elif loop.time() < until_s:
                self._waiting.append(item)
            else:
                future.set_exception(_too_long(patience_s))
        self.tries = self.tries + 1 if held_up else 0
        self.busy = held_up or bool(self._waiting) or len(tried) >= MANY
        if self.busy:
            self._schedule(loop)


def _attempt(transact: Transact, items: list[_Item]) -> list[_Tried]:
    """Do jobs together; if that fails, do each by itself, so that a failing one fails alone."""
    items = [item for item in items if not item[0].done()]
    try:
        answers = transact([item[1] for item in items]) if items else []
    except Exception as error:
        if len(items) == 1:
            return [(items[0], None, error)]
        return [tried for item in items for tried in _attempt(transact, [item])]
    if answers is None:
        return [(item, None, _HELD_UP) for item in items]
    return [(item, answer, None) for item, answer in zip(items, answers, strict=True)]


def _persist(transact: Transact, items: list[_Item]) -> list[_Tried]:
    """Do jobs in a thread, which may block while another process writes, no longer than `PATIENCE_S`."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        tried = _attempt(transact, items)
        if not tried or any(error is not _HELD_UP for _, _, error in tried) or time.monotonic() > until_s:
            return tried
        time.sleep(POLL_S)


def _too_long(patience_s: float) -> StoreTimeout:
    return StoreTimeout(f"lmdb: another process has been writing for {patience_s:g} s; is it stopped?")
