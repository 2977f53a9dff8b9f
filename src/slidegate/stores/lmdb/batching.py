"""When a job gets its transaction: at once, with others, or later.

A *job* is a method of `Transaction` that needs one that writes, with its arguments. On an event loop of asyncio:

* a lone job is done at once, and its answer is no awaitable;
* after one job in `LOOK_EVERY`, the jobs that follow in the same turn of the loop wait for the end of the turn. If they
  are many, they are done in one transaction, and so are those of further turns, until they are few again;
* while another process writes, jobs wait and are tried again, and the loop goes on meanwhile. A job ends with
  `StoreTimeout` after the deadline, which is `PATIENCE_S` where nobody has set one;
* if every commit waits for a disk, a thread of the loop does all jobs: in each transaction those that came meanwhile.

Without such a loop, a caller waits for a job that cannot be done at once, as long as a job is tried on a loop. A job
that was given up before it was done has charged nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ...core.errors import StoreError, StoreTimeout
from .opening import PATIENCE_S, POLL_S

if TYPE_CHECKING:
    from .transaction import Transaction, Transactions

P = ParamSpec("P")
T = TypeVar("T")
Job: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""What to call with a transaction, and the arguments behind it."""
Transact: TypeAlias = Callable[[Sequence[Job]], list[Any] | None]

LOOK_EVERY: Final = 16
MANY: Final = 4
"""A turn of the loop costs about as much as two or three transactions."""
EAGER_TRIES: Final = 50
"""A job is retried in this many consecutive turns of the loop, then with pauses, to save CPU."""
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
        transactions: Runs transactions.
        in_thread: Whether a transaction takes so long that a loop must not wait for it.
    """

    def __init__(self, transactions: Transactions, *, in_thread: bool) -> None:
        self._transactions = transactions
        self.in_thread = in_thread
        self._patience = _Patience()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopJobs] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop | None, _LoopJobs | None] = None, None

    def run(self, do: Callable[Concatenate[Transaction, P], T], *args: P.args, **named: P.kwargs) -> T | Awaitable[T]:
        """Do a job; return its answer, or an awaitable of it. It is tried until the deadline of this thread.

        Args:
            do: Called with the transaction, then with `args`.
            args: Its arguments.
            named: None: jobs have no arguments by name.
        """
        answer: T | Awaitable[T] = self.run_job((do, args), self._patience.span_s)
        return answer

    def run_job(self, job: Job, patience_s: float, instead: Callable[..., Any] | None = None) -> Any:
        """Do what `run` does with a job.

        Args:
            job: The job.
            patience_s: How long it is tried.
            instead: A method of `Transaction` that only reads, with the arguments of the job: what it answers is the
                answer where the job has to wait for another process or a disk, unless that is None.
        """
        jobs = self._jobs()
        if jobs is None:
            return self._wait(job, patience_s, instead)
        held_up = jobs.tries > 0 or self.in_thread
        if not jobs.busy and not self.in_thread:
            answers = self._transactions.write((job,))
            if answers is not None:
                jobs.count_lone()
                return answers[0]
            held_up = True
        if held_up and instead is not None and (answer := self.read(instead, *job[1])) is not None:
            return answer
        return jobs.queue(job, patience_s)

    def read(self, ask: Callable[Concatenate[Transaction, P], T], *args: P.args, **named: P.kwargs) -> T | None:
        """Ask a transaction that only reads and waits for nobody; None if the files cannot be read now."""
        with suppress(StoreError):  # of which the job itself will tell
            return self._transactions.read_within(0.0, ask, *args, **named)
        return None

    def _wait(self, job: Job, patience_s: float, instead: Callable[..., Any] | None) -> Any:
        """Do a job without an event loop."""
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
        """How long jobs of this thread are tried."""
        return self._patience.span_s

    def _jobs(self) -> _LoopJobs | None:
        """Return the jobs of the event loop that runs in this thread; None if none of asyncio does."""
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
        """Set the timeout of this thread's jobs, in seconds; return False if it cannot be kept."""
        self._patience.span_s = deadline_s
        return not self.in_thread

    def begin(self, loop: asyncio.AbstractEventLoop, items: list[_Item]) -> asyncio.Future[list[_Tried]] | None:
        """Have a thread of a loop do jobs; None if that is not what it is for, or the loop has ended its threads."""
        if self.in_thread:
            with suppress(RuntimeError):
                return loop.run_in_executor(None, _persist, self._transactions.write, items)
        return None

    def attempt(self, items: list[_Item]) -> list[_Tried]:
        """Do jobs together, as far as somebody waits for them."""
        return _attempt(self._transactions.write, items)


class _LoopJobs:
    """The jobs of one event loop. `busy` is true while new ones have to wait, and `tries` counts vain attempts."""

    __slots__ = ("_batcher", "_lone", "_waiting", "busy", "tries")

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._waiting: list[_Item] = []
        self._lone = LOOK_EVERY
        self.tries = 0
        self.busy = False

    def count_lone(self) -> None:
        """Count a job that was done alone; after some, look whether more come in a turn."""
        self._lone -= 1
        if not self._lone:
            self._lone = LOOK_EVERY
            self._schedule(asyncio.get_running_loop())

    def queue(self, job: Job, patience_s: float) -> asyncio.Future[Any]:
        """Do a job later."""
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
            self._settle(loop, self._batcher.attempt(items))

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
