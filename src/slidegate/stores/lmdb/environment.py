"""The environment of a directory: the file of this start of the machine, used by one process at a time behind a gate.

    counts-<layout>-<boot id>.mdb     windows, permits, rows of workers, and the bans in force, see `layout`, `opening`
    kept.jsonl                        what survives a restart of the machine, see `journal`
    gate, users                       whose turn it is, and who lives, see `gate`

Everything happens behind the gate, reads too, so LMDB runs without its own locks and reader slots: nothing of a dead
process is in the way, and no two processes need to see each other's process ids. The gate is tried and never waited
for: one stopped process must not block every event loop of the host. For the other threads of its process a thread may
wait for its turn, see `gate`.

The files are opened by whoever enters while they are shut: the constructor of a store, the first question of a forked
child, or whoever comes after an error with which LMDB could not go on::

    SHUT -> OPEN                     opened, see `opening`
    OPEN -> SHUT                     replaced, or in a child of fork, which has none of its parent's files
    OPEN -> UNUSABLE -> SHUT         LMDB failed; the file is opened again, and is as it was
    OPEN -> DAMAGED -> SHUT          the file is deleted, and begun anew with the rows of the journal
    any  -> CLOSED                   no store of this process uses it any more
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import lmdb

from ...core.errors import ConfigurationError, StoreUnavailable
from ...core.events import Event
from ...core.logs import Throttle
from ..forks import begin_anew_if_forked
from .counts import CountsFile
from .gate import DISK_FULL, POLL_S, TURNS, WAIT_S, Gate, check_directory, check_files, patience_s, unusable
from .journal import Journal, Noted
from .kept_rows import QUOTA, lines_as_stored
from .opening import DAMAGE, Options, deleted, discard, open_file

EXAMINE_EVERY_S: Final = 1.0
NO_ROOM: Final = (lmdb.MapFullError, lmdb.DiskError, lmdb.MemoryError)
"""Errors of LMDB after which it goes on."""


class State(Enum):
    """What is to be done with the files of an environment; see the module docstring."""

    SHUT = auto()
    OPEN = auto()
    UNUSABLE = auto()
    DAMAGED = auto()
    CLOSED = auto()


class Environment:
    """An LMDB environment; `open_environment` returns one.

    Args:
        path: Its directory, without symbolic links.
        options: The options with which to open it.

    Attributes:
        path: The argument.
        options: The argument.
        journal: The journal.
        pending_events: Events to emit; any thread may add some while another one emits them.
        users: How many open stores of this process use it.
        counts: The file, in a transaction.
        gate: The gate.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self.pending_events: deque[Event] = deque()
        self.journal = Journal(path, self.pending_events.append)
        self.users = 0
        self.gate = Gate(path, create=options.create)
        self.counts: CountsFile
        self._state = State.SHUT
        self._damage = ""
        self._bad_file: tuple[int, int] | None = None
        """The file that was opened again after a bad transaction; another one means that a page is damaged."""
        self._process = os.getpid()
        self._inside = 0  # the thread that is behind the gate
        self._examine_at_s = 0.0
        self._throttle = Throttle()

    # -- transactions ------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[Any], Noted], wait_s: float = 0.0) -> bool:
        """Run a transaction, whose changes get lines in the journal before it is committed.

        Args:
            work: Called with LMDB's transaction; returns the changes that survive a restart of the machine.
            wait_s: How long to wait for other threads of this process; 0 on an event loop.

        Returns:
            False if somebody else is behind the gate.

        Raises:
            lmdb.Error: LMDB cannot begin or commit it.
            OSError: The journal cannot be written.
            StoreUnavailable: The files have become unusable, or were replaced.
        """
        if os.getpid() != self._process:
            begin_anew_if_forked()
        thread = threading.get_ident()
        if self._inside == thread:  # a signal handler asks, and would leave the gate in the middle of a transaction
            return False
        noted: Noted = []
        try:
            if not TURNS.take(wait_s):
                return False
            self._inside = thread
            if not self._enter():
                return False
            with self.counts.lmdb.begin(self.counts.dbs.windows, write=True) as txn:
                noted = work(txn)
                if noted:
                    self._append(txn, noted)
            return True
        except BaseException:  # a signal handler may raise, too
            self._undo(noted)
            raise
        finally:
            try:  # here and not in functions, which a signal handler could end before they begin
                if self._inside == thread:
                    self._inside = 0
                    if self.gate.is_open:
                        fcntl.flock(self.gate.file, fcntl.LOCK_UN)
            finally:
                try:  # noqa: SIM105 - for the same reason
                    TURNS.lock.release()
                except RuntimeError:  # another thread has it
                    pass

    def _enter(self) -> bool:
        """Enter the gate, and open what is not open; return False if somebody else is behind it, or it was replaced."""
        if not self.gate.is_open and not self._open_gate():
            return False
        if not self.gate.enter():
            return False
        if self._state is State.OPEN and time.monotonic() < self._examine_at_s:
            return True
        return self._prepare()

    def _append(self, txn: Any, noted: Noted) -> None:
        """Append changes to the journal."""
        if not self._is_in_place():  # the lines would belong to rows that nobody finds
            self._examine_at_s = 0.0
            raise StoreUnavailable(f"lmdb: the files at {self.path} were replaced")
        try:
            self.journal.append(lines_as_stored(txn, self.counts.dbs, noted))
        except OSError as error:
            if error.errno not in DISK_FULL or any(kind != QUOTA for kind, _ in noted):
                raise
            # Windows have the counts, so a request is not refused because a restart may forget them.
            if self._throttle.left_out(QUOTA, time.monotonic()) is not None:
                why = f"{self.journal.path} cannot grow ({error.strerror}); free some space"
                message = f"{why}, or a restart of the machine forgets what quotas count meanwhile"
                self.pending_events.append(Event("map_full", message))

    def _undo(self, noted: Noted) -> None:
        """Append what is stored, after lines of a transaction that could not be committed."""
        with suppress(lmdb.Error, OSError):
            if noted and self._is_in_place():
                with self.counts.lmdb.begin() as txn:
                    self.journal.append(lines_as_stored(txn, self.counts.dbs, noted))

    def wait_behind_gate(self, do: Callable[[], object]) -> bool:
        """Call a function behind the gate, in a thread that may wait; return False if the environment was closed.

        Raises:
            StoreUnavailable: The files have become unusable.
        """

        def work(_: Any) -> Noted:
            do()
            return []

        while self._state is not State.CLOSED:
            try:
                if self.run(work, WAIT_S):
                    return True
            except lmdb.Error as error:
                raise self.failure(error) from error
            time.sleep(POLL_S)
        return False

    def failure(self, error: Exception) -> StoreUnavailable:
        """Return the error to raise for an error of LMDB or the system; the next `run` does what it calls for."""
        if isinstance(error, lmdb.DiskError) or (isinstance(error, OSError) and error.errno in DISK_FULL):
            return StoreUnavailable(f"lmdb: {self.path}: {error}", concerns="request")  # what needs no room goes on
        if isinstance(error, DAMAGE):
            self._note_damage(error)
            return StoreUnavailable(f"lmdb: {self.path} is damaged: {error}")
        if isinstance(error, lmdb.BadTxnError) and self._state is State.OPEN:
            # A page that cannot be read makes transactions bad, also after the file was opened again.
            if self._bad_file == self.counts.identity:
                self._note_damage(error)
            self._bad_file = self.counts.identity
        if isinstance(error, lmdb.Error) and not isinstance(error, NO_ROOM) and self._state is State.OPEN:
            self._state = State.UNUSABLE
        return StoreUnavailable(f"lmdb: {self.path}: {error}")

    def _note_damage(self, error: Exception) -> None:
        if self._state is State.OPEN:
            self._state, self._damage = State.DAMAGED, str(error)

    # -- opening and closing -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the files; where somebody stays behind the gate, the first question opens them.

        Raises:
            ConfigurationError: The files cannot be used; the message names the remedy.
            StoreUnavailable: They cannot be opened, and the options say not to create them.
        """
        until_s = time.monotonic() + patience_s()
        try:
            while self._state is State.SHUT and not self.run(_nothing) and time.monotonic() < until_s:
                time.sleep(POLL_S)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ConfigurationError) and self.options.create:
                raise error.__cause__ from error.__cause__.__cause__
            raise

    def _open_gate(self) -> bool:
        """Check that the files are ours alone, and open the gate; return False if the environment was closed."""
        if self._state is State.CLOSED:
            return False
        try:
            if self.options.create:
                check_directory(self.path)
            else:
                check_files(self.path)
            self.gate.open()
        except ConfigurationError as error:
            raise StoreUnavailable(str(error)) from error
        return True

    def _prepare(self) -> bool:
        """Open the files unless they are open and those at their paths; return False if the gate was replaced."""
        self._examine_at_s = time.monotonic() + EXAMINE_EVERY_S
        if self._state is State.OPEN and not self.counts.is_in_place():
            # Whoever used them says so, because whoever makes the files again may be a tool, or a new worker.
            self.pending_events.append(deleted(self.path))
            self._shut()
        if not self.gate.is_in_place():
            self._shut()
            self.gate.close()  # whoever comes next enters the new one
            return False
        if self._state is State.DAMAGED and self.options.create:
            discard(self.counts, self._damage, self.pending_events.append)
        if self._state is not State.OPEN:
            self._shut()
        if self._state is State.SHUT:
            self._open()
        return self._state is State.OPEN

    def _open(self) -> None:
        try:
            self._open_or_explain()
        except ConfigurationError as error:
            raise StoreUnavailable(str(error)) from error

    def _open_or_explain(self) -> None:
        try:
            check_files(self.path)  # LMDB would read a FIFO for ever, and keep all threads from running
            self.counts = open_file(self.path, self.gate, self.journal, self.options, self.pending_events.append)
        except OSError as error:
            raise unusable(self.path, error) from error
        except (ConfigurationError, StoreUnavailable):
            raise
        except Exception as error:  # of LMDB, or of a line in the journal
            raise ConfigurationError(f"lmdb: {self.path} cannot be opened: {error}") from error
        self._state = State.OPEN

    def _is_in_place(self) -> bool:
        return self._state is State.OPEN and self.gate.is_in_place() and self.counts.is_in_place()

    def _shut(self) -> None:
        """Close the file."""
        if self._state in (State.OPEN, State.UNUSABLE, State.DAMAGED):
            self._state = State.SHUT
            self.counts.close()

    def close(self) -> None:
        """Close the files; called in a turn of this thread."""
        try:  # a signal handler may raise meanwhile, and LMDB opens no file twice
            with suppress(OSError):
                self.journal.sync()
        finally:
            self.close_files()
            self._state = State.CLOSED

    def close_files(self) -> None:
        """Close what is open, as in a forked child; the gate first, which the parent may hold."""
        self._process = os.getpid()
        self._inside = 0
        self.gate.close()
        self.journal.close()
        self._shut()


def _nothing(_: Any) -> Noted:
    return []
