"""The files of a directory, as a process uses them: it opens them, has its turns in them, and closes them.

    counts-<layout>-<boot id>.mdb     windows, permits, rows of workers, and the bans in force, see `rows`, `counts`
    kept.mdb                          what survives a restart of the machine, see `kept`
    gate, users                       the locks between processes, see `gate`

*A turn* is one transaction of LMDB. A thread has it under the lock of its process's threads (`gate.THREAD_LOCK`), and
behind the gate, where one process at a time is. Reads have turns, too, so LMDB runs without its own locks and reader
slots: nothing of a dead process is in the way, and no two processes need to see each other's process ids. The gate is
tried and never waited for: one stopped process must not block every event loop of the host.

*The file of counts* is opened in a turn, before its transaction, and closed there. The last user who leaves closes it
under the lock of threads alone, because closing writes nothing, and a child of fork, which has one thread, without any
lock::

    SHUT ---- a user asks: opened ----> OPEN ---- LMDB failed in a transaction ----> FAILED
     ^                                   | deleted or replaced by somebody,            | closed; before it is opened
     |                                   | left by the last user, or                   | again, it is deleted if a
     |                                   | inherited by a child of fork: closed        | page is damaged
     '-----------------------------------+---------------------------------------------'

*The users* of an environment are the open stores of this process at its path. When the last one leaves, what is not
kept yet is copied, and the files are closed, unless a store has come meanwhile. The environment itself stays, and opens
its files again for the next user. So no store can come to one that has ended, and nothing has to be locked where stores
come and leave: a signal handler that opens or closes a store would wait there for its own thread.

*An event loop* waits for no disk where a thread can do so. A thread opens the files again; meanwhile questions find
them taken, as behind the gate of another process. Only a constructor opens them itself. When the last user leaves on
asyncio's loop, a thread copies and closes. Trio's loop could not await the end of it, so there, and without a loop,
`leave` copies and closes itself; only if others are in the way for too long, a thread does.

*A fork* waits for the end of a turn and of a copy. Neither an environment nor a lock of a file survives it: the child
closes what it has inherited, and opens the files again.
"""

from __future__ import annotations

import fcntl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb

from ...core.errors import ConfigurationError, SlidegateError, StoreTimeout, StoreUnavailable
from ...core.events import Event
from ...core.logs import safe_text
from ...core.store import COMMAND_DEADLINE_S
from ..forks import ForkHook, restart_if_forked
from ..shared import on_loop, running_loop
from .counts import CountsFile, Options, open_file, restarted
from .gate import (
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

EXAMINE_EVERY_S: Final = 1.0  # how often open files are looked for in their places
BAD_AGAIN_S: Final = 600.0  # a bad transaction so soon after another one is taken for a damaged page
NO_ROOM: Final = (lmdb.MapFullError, lmdb.MemoryError, lmdb.DiskError)
"""Errors of LMDB after which it goes on."""

_environments: Final[dict[tuple[str, Options], Environment]] = {}
"""The environments of this process, by path and options; LMDB refuses to open the same file in two of them.

They stay when they have no users: without files they are small, one for each path and options ever used."""


class State(Enum):
    """The state of the file of counts, which says what the next turn does with it."""

    SHUT = auto()  # it opens the file
    OPEN = auto()  # it uses the file
    FAILED = auto()  # it closes the file, as LMDB has failed or `close_files` was interrupted, and opens it again


class Environment:
    """The files of a directory, for all stores of this process that use it.

    Args:
        path: The directory, without symbolic links.
        options: The options with which to open the files.

    Attributes:
        kept: What survives a restart of the machine.
        pending_events: Events to emit; any thread may add some while another one emits them.
        users: A token of each open store of this process that uses it.
        counts: The file of counts, as it was opened last; there is none before. Each transaction finds it open.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self.pending_events: deque[Event] = deque()
        self.kept = Kept(path, self.pending_events.append, self.wait_behind_gate, self.is_closed)
        self.users: set[object] = set()
        self.gate = Gate(path, create=options.create)
        self.counts: CountsFile
        self._state = State.SHUT
        self._damage = ""  # what LMDB said of a damaged page of a file that has failed
        self._bad_until_s = 0.0  # until then another bad transaction counts as a damaged page
        self._examine_at_s = 0.0  # when to look next whether the files are still those at their paths
        self._opening: Future[None] | None = None  # the end of the last thread that opened the files for an event loop
        self._open_again_s = 0.0  # until then questions are told the error of `_opening`; then another thread tries

    @property
    def is_open(self) -> bool:
        """Whether the file of counts is open, and LMDB has not failed."""
        return self._state is State.OPEN

    def is_closed(self) -> bool:
        """Return whether no turn will come: there is no user, and no open file from which to copy."""
        return not (self.users or self.is_open)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[Any], object], wait_s: float = 0.0, *, opens: bool = False) -> bool:
        """Try to have a turn.

        Args:
            work: Called with LMDB's transaction.
            wait_s: How long to wait for other threads of this process; 0 on an event loop.
            opens: Whether to open the files here, although an event loop runs in this thread.

        Returns:
            False: not now, because another thread or process has its turn, this thread is within one, a thread opens
            the files, or the transaction needs another turn. Where `is_closed`, it stays False until there is a user.

        Raises:
            lmdb.Error: LMDB has failed.
            OSError: The gate cannot be locked.
            StoreUnavailable: The files have become unusable, or were replaced.
            Exception: What `work` has raised; nothing is committed.
        """
        restart_if_forked()
        return THREAD_LOCK.run(wait_s, self._take_turn, work, opens) is True

    def wait_behind_gate(self, work: Callable[[Any, Databases], T], until_s: float) -> T:
        """Have a turn, in a thread that may wait for it and open the files, and return the answer.

        Args:
            work: Called with LMDB's transaction and the databases.
            until_s: Until when to wait for others, by the monotonic clock.

        Raises:
            StoreTimeout: Others have held the files until then.
            StoreUnavailable: The files have become unusable, or were closed; or LMDB has failed.
        """
        answers: list[T] = []
        try:
            while not answers:
                wait_s = min(until_s - time.monotonic(), WAIT_S)
                # The answer is there before the commit; the error of one that fails is raised in its place.
                if not self.run(lambda txn: answers.append(work(txn, self.counts.dbs)), wait_s, opens=True):
                    if self.is_closed():
                        raise StoreUnavailable(f"lmdb: {self.path} was closed")
                    pause(until_s)
        except (lmdb.Error, OSError) as error:
            raise self.failure(error) from error
        return answers[0]

    def _take_turn(self, work: Callable[[Any], object], opens: bool) -> bool:
        """Go behind the gate, and run a transaction, under the lock of threads; return False if that cannot be now."""
        try:
            if not self._enter(opens):
                return False
            with self.counts.lmdb.begin(self.counts.dbs.windows, write=True) as txn:
                work(txn)
            return True
        except Unfinished:  # nothing was committed
            return False
        except lmdb.Error as error:
            self.note_failure(error)
            raise
        finally:
            # `_enter` may have ended before it was behind the gate; then this unlocks nothing. In a child that a signal
            # handler has forked here the gate is closed, because unlocking would open that of its parent.
            if self.gate.is_open:
                fcntl.flock(self.gate.file, fcntl.LOCK_UN)

    def note_failure(self, error: lmdb.Error) -> None:
        """Note what a turn has met, under its lock of threads; the next one opens the file again.

        Outside of the lock another thread could meet the same before it is noted, and both would count.
        """
        if not self.is_open:  # a signal handler has forked, and this is the child
            return
        if isinstance(error, NO_ROOM):  # nothing is wrong with the file
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
        if isinstance(error, lmdb.DiskError) or getattr(error, "errno", None) in DISK_FULL:
            failed.concerns = "request"  # what needs no room goes on
        return failed

    # -- opening -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Have a turn, which opens the files; if others have theirs for too long, the next question has them opened.

        Raises:
            ConfigurationError: The files cannot be used; the message names the remedy.
            StoreUnavailable: They cannot be opened, and the options say not to create them.
        """
        try:
            self.wait_behind_gate(self._copy_leftovers, time.monotonic() + patience_s())
        except StoreTimeout:
            pass
        except StoreUnavailable as error:
            self._open_again_s = time.monotonic() + EXAMINE_EVERY_S
            # `_enter` says to questions that there is no store; a constructor says what to mend.
            if self.options.create and isinstance(error.__cause__, ConfigurationError):
                raise error.__cause__ from None
            raise

    def _copy_leftovers(self, txn: Any, dbs: Databases) -> None:
        """Copy the changes that killed processes have not copied."""
        if self.options.create and txn.stat(dbs.unkept)["entries"]:
            self.kept.keep_up()

    def _enter(self, opens: bool) -> bool:
        """Go behind the gate, with open files; on an event loop they are opened here only if `opens` says so.

        Returns:
            False if another process is behind the gate, that was replaced, a thread opens the files, or all have left.

        Raises:
            OSError: The gate cannot be locked.
            StoreUnavailable: The files cannot be used.
        """
        if self._state is State.OPEN:  # `is_open`, without a call in each transaction
            if not self.gate.enter():
                return False
            # The files are open, as nearly always. About once a second they are looked for in their places.
            now_s = time.monotonic()
            if now_s < self._examine_at_s:
                return True
            if self._is_in_place():
                self._examine_at_s = now_s + EXAMINE_EVERY_S
                return True
        # All users have left while a thread was opening, or while the files were deleted that the last one copies from.
        # They are closed, so that nobody waits for a turn that cannot come.
        if not self.users:
            self._shut()
            return False
        # They have to be opened, again or for the first time, which may take long.
        if on_loop() and not opens and self._open_in_thread():  # if no thread can be started, better here than never
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
            StoreUnavailable: One could not, and within the last second it was found again that they cannot be opened.
        """
        if self._opening is not None:
            if not self._opening.done():
                return True
            error = self._opening.exception()
            if error is not None and time.monotonic() < self._open_again_s:
                raise StoreUnavailable(str(error)) from error
        self._opening = in_background(self.start)
        return self._opening is not None

    def _open_files(self) -> bool:
        """Close what is not in place or has failed, and open what is not open; return False if a next try has to.

        Raises:
            ConfigurationError, OSError: The files cannot be used.
            StoreUnavailable: The options say not to create them.
        """
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
        # The gate was deleted or replaced: the next try enters the new one.
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
            why = f"cannot be opened: {error}"
            if "already open" in str(error):  # LMDB opens no file twice, and another environment has it open
                why = f"is open in this process, not with {safe_text(self.options._asdict())}; use the same options"
            raise ConfigurationError(f"lmdb: {self.path} {why}") from error
        if counts is None:
            return False
        self.counts = counts
        self._state = State.OPEN
        return True

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

    # -- closing -----------------------------------------------------------------------------------------------------

    def leave(self, user: object) -> Future[None] | None:
        """Have one user less; if there is no other, copy what is not kept yet, and close the files.

        Where LMDB has failed, or the file is not open or not in place, nothing is copied: who opens it next does that.

        Returns:
            None, or the end of a thread that does so: where asyncio's loop runs, or others are in the way.
        """
        restart_if_forked()
        self.users.discard(user)
        if self.users:
            return None
        # Copying waits for the disk; on asyncio's loop that is left to a thread, unless nothing is copied.
        if (running_loop() is None or not self.is_open) and self._copy_and_close(patience_s(), gives_up=False):
            return None
        closing = in_background(self._close_after_others)
        if closing is None:  # No thread can be started. If others are in the way for longer, the files stay open.
            self._copy_and_close(WAIT_S, gives_up=True)
        return closing

    def _close_after_others(self) -> None:
        """Copy, for one deadline, and close, in a thread that waits for one that hangs in its turn, however long."""
        while not self._copy_and_close(COMMAND_DEADLINE_S, gives_up=True):
            pass

    def _copy_and_close(self, wait_s: float, *, gives_up: bool) -> bool:
        """Copy what is not kept yet, and close the files; return False if others were in the way for so long.

        Args:
            wait_s: How long to wait for who copies, and then for who has a turn.
            gives_up: Whether to close even if others were in the way of the copy, which is left to who opens them next.
        """
        closes = True
        try:
            if self.is_open and self.options.create:
                self.kept.keep(wait_s)
        except StoreTimeout:
            closes = gives_up
        except SlidegateError:  # the disk is full, or a later version has written the file
            pass
        finally:  # also where a signal handler has raised
            is_over = closes and THREAD_LOCK.run(wait_s, self._close_unused) is True
        return is_over

    def _close_unused(self) -> bool:
        """Close the files, unless a store has come meanwhile; called under the lock of threads.

        Returns:
            True: nothing is left to do. Where `THREAD_LOCK.run` cannot call this, it returns None.
        """
        if not self.users:
            self.close_files()
        return True

    def close_files(self) -> None:
        """Close what is open. The gate comes first: in a child nothing may fail while it could unlock its parent's."""
        self._opening = None
        if self.is_open:
            self._state = State.FAILED  # if a signal handler raises below, who opens the files next closes the rest
        self.gate.close()
        self._shut()

    def _shut(self) -> None:
        """Close the file of counts."""
        if self._state is not State.SHUT:
            self.counts.close()
            self._state = State.SHUT
            self._damage = ""


def open_environment(path: str | PathLike[str], options: Options, user: object) -> Environment:
    """Return the environment of this process for a path, with open files; in the end its user calls `leave`.

    If others use the files for too long, or the last user is just closing them, the first question opens them.

    Args:
        path: The directory.
        options: The options with which to open the files.
        user: A token of the user, different from those of all others.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It cannot be opened, and the options say not to create it.
    """
    real_path = find_path(path)
    # Each of these is one step of the interpreter, so a signal handler finds what was before it or what is after it.
    environment = _environments.setdefault((str(real_path), options), Environment(real_path, options))
    try:
        environment.users.add(user)
        if not environment.is_open:
            environment.start()
    except BaseException:
        environment.leave(user)
        raise
    return environment


def _close_in_child() -> None:
    """Close the files that a child of fork has inherited."""
    for environment in list(_environments.values()):
        environment.kept.close_in_child()
        environment.close_files()
        environment.pending_events.clear()  # the parent emits them


_in_child: Final = ForkHook(_close_in_child)
