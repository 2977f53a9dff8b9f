"""The environment of a directory: the file of this start of the machine, used by one process at a time behind a gate.

    counts-<layout>-<boot id>.mdb     windows, permits, rows of workers, and the bans in force, see `rows`, `counts`
    kept.mdb                          what survives a restart of the machine, see `kept`
    gate, users                       the locks between processes, see `gate`

Everything happens behind the gate, reads too, so LMDB runs without its own locks and reader slots: nothing of a dead
process is in the way, and no two processes need to see each other's process ids. The gate is tried and never waited
for: one stopped process must not block every event loop of the host. Between the threads of a process there is a
`gate.ThreadLock`: who has it, and the gate, has its turn.

The file of counts is opened and closed in a turn, too::

    SHUT ---- opened ----> OPEN ---- LMDB failed in a transaction ----> FAILED
     ^                      | deleted, replaced,                          | closed; deleted as well
     |                      | or inherited by a child of fork: closed     | if a page is damaged
     '----------------------+---------------------------------------------'

    any of them ---- the last store of this process was closed ----> CLOSED

That ends the environment; a store that comes later to this path makes another one::

    the last store leaves ----> what is not kept is copied ----> under the lock of threads ----> CLOSED
                                                                   |
                                                   a store has come meanwhile: all goes on

On an event loop of asyncio only a constructor does any of that: a thread opens and fills the file, or copies and
closes, and meanwhile questions find it taken, as behind the gate of another process. Without such a loop, a store that
leaves copies and closes itself; if others are in the way for too long, a thread goes on with that.

Neither an environment nor a file lock survives `fork`: a child closes what it has inherited, and opens the files again;
a fork waits for the end of transactions.
"""

from __future__ import annotations

import fcntl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from ...core.errors import ConfigurationError, SlidegateError, StoreTimeout, StoreUnavailable
from ...core.events import Event
from ...core.logs import safe_text
from ...core.store import COMMAND_DEADLINE_S
from ..forks import ForkHook, ProcessLock, restart_if_forked
from ..shared import on_loop, running_loop
from .counts import CountsFile, Options, open_file, restarted
from .gate import (
    COPY_LOCK,
    DISK_FULL,
    THREAD_LOCK,
    WAIT_S,
    Gate,
    check_directory,
    find_path,
    patience_s,
    pause,
    unusable,
)
from .kept import Kept, in_background
from .rows import DAMAGE, Databases, Unfinished

T = TypeVar("T")

EXAMINE_EVERY_S: Final = 1.0
BAD_AGAIN_S: Final = 600.0
NO_ROOM: Final = (lmdb.MapFullError, lmdb.MemoryError, lmdb.DiskError)
"""Errors of LMDB after which it goes on."""

_open: Final[dict[Path, Environment]] = {}
"""The environments of this process: one for each path, however many stores use it, because LMDB opens no file twice."""
_counting: Final = ProcessLock()
"""Held for a moment where a store comes or leaves, which waits for no transaction; within it no other lock is taken."""
_FOR_EVER_S: Final = 1e9  # some thirty years


class State(Enum):
    """The state of the file of counts."""

    SHUT = auto()
    OPEN = auto()
    FAILED = auto()
    CLOSED = auto()


class Environment:
    """An LMDB environment.

    Args:
        path: Its directory, without symbolic links.
        options: The options with which to open it.

    Attributes:
        kept: What survives a restart of the machine.
        pending_events: Events to emit; any thread may add some while another one emits them.
        users: How many open stores of this process use it.
        counts: The file of counts, which a transaction finds open.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self.pending_events: deque[Event] = deque()
        self.kept = Kept(path, self.pending_events.append, self.wait_behind_gate)
        self.users = 0
        self.gate = Gate(path, create=options.create)
        self.counts: CountsFile
        self._state = State.SHUT
        self._damage = ""  # what LMDB says of a damaged page: the file is deleted before the next transaction
        self._bad_until_s = 0.0  # until then another bad transaction counts as a damaged page
        self._examine_at_s = 0.0
        self._opening: Future[None] | None = None  # the end of the last thread that opened the files for an event loop
        self._open_again_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the file of counts can be used."""
        return self._state is State.OPEN

    # -- transactions ------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[Any], object], wait_s: float = 0.0, *, opens: bool = False) -> bool:
        """Run a transaction.

        Args:
            work: Called with LMDB's transaction.
            wait_s: How long to wait for other threads of this process; 0 on an event loop.
            opens: Whether to open the files on an event loop, too.

        Returns:
            False if another thread or process has its turn, a thread opens the files, they were closed, or the
            transaction needs another turn.

        Raises:
            lmdb.Error: LMDB cannot begin or commit it.
            StoreUnavailable: The files have become unusable, or were replaced.
        """
        restart_if_forked()
        return THREAD_LOCK.run(wait_s, self._take_turn, work, opens) is True

    def _take_turn(self, work: Callable[[Any], object], opens: bool) -> bool:
        """Run a transaction under the lock of threads; return False if the files cannot be had now."""
        try:
            if not self._enter(opens):
                return False
            with self.counts.lmdb.begin(self.counts.dbs.windows, write=True) as txn:
                work(txn)
            return True
        except Unfinished:
            return False
        except lmdb.Error as error:
            self.note_failure(error)
            raise
        finally:
            if self.gate.is_open:
                fcntl.flock(self.gate.file, fcntl.LOCK_UN)

    def check_in_place(self) -> None:
        """Check within a transaction that others will find what it writes.

        Raises:
            StoreUnavailable: The files were replaced.
        """
        if not self._is_in_place():
            self._examine_at_s = 0.0  # the next transaction opens those that are there now
            raise StoreUnavailable(f"lmdb: the files at {self.path} were replaced")

    def _is_in_place(self) -> bool:
        """Return whether the open files are still those at their paths."""
        return self.gate.is_in_place() and self.counts.is_in_place()

    def note_failure(self, error: lmdb.Error) -> None:
        """Note an error of a transaction; the next one opens the file again. Called under the lock of threads.

        There, because two threads that meet one bad transaction would else find the file damaged.
        """
        # Nothing is wrong with the file.
        if not self.is_open or isinstance(error, NO_ROOM):
            return
        self._state = State.FAILED
        is_damaged = isinstance(error, DAMAGE)
        if isinstance(error, lmdb.BadTxnError):
            # A page that cannot be read makes transactions bad again and again. One that is bad may have another cause,
            # and what is deleted with a damaged file are the counts of the whole host.
            now_s = time.monotonic()
            is_damaged = now_s < self._bad_until_s
            self._bad_until_s = now_s + BAD_AGAIN_S
        if is_damaged:
            self._damage = str(error)

    def failure(self, error: Exception) -> StoreUnavailable:
        """Return the error to raise for one of LMDB or the system."""
        failed = StoreUnavailable(f"lmdb: {self.path}: {error}")
        if isinstance(error, lmdb.DiskError) or (isinstance(error, OSError) and error.errno in DISK_FULL):
            failed.concerns = "request"  # what needs no room goes on
        return failed

    def wait_behind_gate(self, work: Callable[[Any, Databases], T], until_s: float) -> T:
        """Run a transaction, in a thread that may wait and open the files, and return its answer.

        Args:
            work: Called with LMDB's transaction and the databases.
            until_s: Until when to wait for others, by the monotonic clock.

        Raises:
            StoreTimeout: Others have held the files until then.
            StoreUnavailable: The files have become unusable, or were closed.
        """
        answers: list[T] = []
        try:
            while not answers:
                wait_s = min(until_s - time.monotonic(), WAIT_S)
                if not self.run(lambda txn: answers.append(work(txn, self.counts.dbs)), wait_s, opens=True):
                    if self._state is State.CLOSED:
                        raise StoreUnavailable(f"lmdb: {self.path} was closed")
                    pause(until_s)
        except lmdb.Error as error:
            raise self.failure(error) from error
        return answers[0]

    # -- opening -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the files; if others stay behind the gate, the first question does that.

        Raises:
            ConfigurationError: The files cannot be used; the message names the remedy.
            StoreUnavailable: They cannot be opened, and the options say not to create them.
        """
        try:
            self.wait_behind_gate(self._copy_leftovers, time.monotonic() + patience_s())
        except StoreTimeout:
            pass
        except StoreUnavailable as error:
            # A constructor says what to mend, where questions find no store, see `_enter`.
            if self.options.create and isinstance(error.__cause__, ConfigurationError):
                raise error.__cause__ from None
            raise

    def _copy_leftovers(self, txn: Any, dbs: Databases) -> None:
        """Copy the changes that killed processes have not copied."""
        if self.options.create and txn.stat(dbs.unkept)["entries"]:
            self.kept.keep_up()

    def _enter(self, opens: bool) -> bool:
        """Enter the gate, and open what is not open, on an event loop only if `opens` says so.

        Returns:
            False if another process is behind the gate, it was replaced, a thread opens the files, or they were closed.

        Raises:
            StoreUnavailable: The files cannot be used.
        """
        if self._state is State.OPEN:  # `is_open`, without a call in each transaction
            if not self.gate.enter():
                return False
            # As nearly always: about once a second is looked whether the files are still those at their paths.
            now_s = time.monotonic()
            if now_s < self._examine_at_s:
                return True
            if self._is_in_place():
                self._examine_at_s = now_s + EXAMINE_EVERY_S
                return True
        if self._state is State.CLOSED:
            return False
        # They have to be opened, which may take long.
        if on_loop() and not opens and self._open_in_thread():
            return False
        try:
            return self._open_files()
        except ConfigurationError as error:
            raise StoreUnavailable(str(error)) from error
        except OSError as error:
            cause = unusable(self.path, error)
            raise StoreUnavailable(str(cause)) from cause

    def _open_in_thread(self) -> bool:
        """Have a thread open the files, unless one is at it; return False if none can be started.

        Raises:
            StoreUnavailable: One could not, and began less than a second ago.
        """
        now_s = time.monotonic()
        if self._opening is not None:
            if not self._opening.done():
                return True
            error = self._opening.exception()
            if error is not None and now_s < self._open_again_s:
                raise StoreUnavailable(str(error)) from error
        self._open_again_s = now_s + EXAMINE_EVERY_S
        self._opening = in_background(self.start)
        return self._opening is not None

    def _open_files(self) -> bool:
        """Open what is not open, and close what is not in place; return False if that has to be tried again."""
        if not self.gate.is_open:
            check_directory(self.path, create=self.options.create)
            self.gate.open()
        if not self.gate.enter():
            return False
        self._examine_at_s = time.monotonic() + EXAMINE_EVERY_S
        # The file of counts was deleted or replaced. A process that used it emits the event: the one that creates it
        # again may be a tool, or a new worker.
        if self.is_open and not self.counts.is_in_place():
            self.pending_events.append(restarted(f"files in {self.path} were deleted or replaced"))
            self._shut()
        # So was the gate: the next try enters the new one.
        if not self.gate.is_in_place():
            self._shut()
            self.gate.close()
            return False
        if self.is_open:
            return True
        # It is shut, or has failed. A damaged file is deleted. If it is not in place, another process has already made
        # it again.
        if self._damage and self.options.create and self.counts.is_in_place():
            self.counts.path.unlink(missing_ok=True)
            self._bad_until_s = 0.0
            self.pending_events.append(restarted(f"{self.counts.path} was damaged ({self._damage})"))
        self._shut()
        check_directory(self.path, create=False)  # LMDB would read a FIFO for ever, and keep all threads from running
        try:
            counts = open_file(self.gate, self.kept, self.options)
        except lmdb.Error as error:
            raise ConfigurationError(f"lmdb: {self.path} cannot be opened: {error}") from error
        if counts is None:
            return False
        self.counts, self._state = counts, State.OPEN
        return True

    # -- closing -----------------------------------------------------------------------------------------------------

    def leave(self) -> Future[None] | None:
        """Have one user less; if there is no other, copy what is not kept yet, and close the files for good.

        Returns:
            None, or the end of a thread that does so: where an event loop runs, or others are in the way.
        """
        with _counting:
            self.users -= 1
            if self.users:
                return None
        # Copying waits for the disk, so asyncio's loop closes here only what is not open, which is not copied.
        if running_loop() is None or not self.is_open:
            wait_s = patience_s()
            if self._copy_and_close(wait_s, wait_s):
                return None
        close = partial(self._copy_and_close, COMMAND_DEADLINE_S, _FOR_EVER_S)
        closing = in_background(close)
        if closing is None:  # no thread can be started
            close()
        return closing

    def _copy_and_close(self, copy_s: float, turn_s: float) -> bool:
        """Copy what is not kept yet, and close the files; return False if others were in the way for too long.

        Args:
            copy_s: How long to wait for others that copy.
            turn_s: How long to wait for threads that have their turn. If for ever, this is the last try.
        """
        closes = True
        try:
            if self.is_open and self.options.create:
                self.kept.keep(copy_s)
        except StoreTimeout:
            closes = turn_s == _FOR_EVER_S  # the last try leaves the copy to another process
        except SlidegateError:  # the disk is full, or a later version has written the file
            pass
        finally:  # also where a signal handler has raised
            is_closed = closes and THREAD_LOCK.run(turn_s, self._close_unused) is True
        return is_closed

    def _close_unused(self) -> bool:
        """Close the files for good, unless a store has come meanwhile; called under the lock of threads."""
        with _counting:
            # One that has come may have left and closed them, too.
            if self.users or self._state is State.CLOSED:
                return True
            del _open[self.path]
        self.close_files()
        self._state = State.CLOSED
        self.kept.is_closed = True
        return True

    def close_files(self) -> None:
        """Close what is open, as in a forked child: the gate first, because its parent may be behind it."""
        self._opening = None
        self.gate.close()
        self._shut()

    def _shut(self) -> None:
        """Close the file of counts."""
        if self._state in (State.OPEN, State.FAILED):
            self._state, self._damage = State.SHUT, ""
            self.counts.close()


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, opened once per process; each user calls its `leave` in the end.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It cannot be opened, and the options say not to create it.
    """
    real_path = find_path(path)
    with _counting:
        environment = _open.setdefault(real_path, Environment(real_path, options))
        if environment.options != options:
            raise ConfigurationError(
                f"lmdb: {real_path} is open in this process with {safe_text(environment.options._asdict())}, "
                f"not {safe_text(options._asdict())}; use the same options"
            )
        environment.users += 1
    try:
        if not environment.is_open:
            environment.start()
    except BaseException:
        environment.leave()
        raise
    return environment


def _close_in_child() -> None:
    """Close the files that a child of fork has inherited, and make new locks."""
    THREAD_LOCK.reset()
    COPY_LOCK.reset()
    for environment in _open.values():
        environment.kept.close_in_child()
        environment.close_files()


_in_child: Final = ForkHook(_close_in_child)
