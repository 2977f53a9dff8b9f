"""The environment of a directory: the file of this start of the machine, used by one process at a time behind a gate.

    counts-<layout>-<boot id>.mdb     windows, permits, statistics, and the bans in force, see `layout` and `opening`
    kept.jsonl                        what survives a restart of the machine, see `journal`
    gate, users                       whose turn it is, and who lives, see `gate`

Everything happens behind the gate, reads too, so LMDB runs without its own locks and reader slots: nothing of a dead
process is in the way, and no two processes need to see each other's process ids. The gate is tried and never waited
for: one stopped process must not block every event loop of the host.

Neither an LMDB environment nor a file lock survives `fork`, so a child closes what it has inherited, and opens the
files again. It could not close an environment in which another thread has a transaction, so a fork waits for its end.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Final

import lmdb

from ...core.errors import ConfigurationError, StoreUnavailable, quoted
from ...core.store import Clock, Event
from ..forks import InChild, begin_anew_if_forked
from .checking import check_directory, check_file_system, check_files, unusable
from .counts import Counts
from .gate import Gate
from .journal import Journal, Noted, in_background
from .kept_rows import lines_as_stored
from .opening import DAMAGE, Options, discard, open_file

IN_PROCESS_S: Final = 0.001
"""How long a thread waits for another one of its process."""
POLL_S: Final = 0.000_5
START_S: Final = 1.0
"""How long a constructor tries to open the files; then the first question does."""
FORK_S: Final = 5.0
"""How long a fork waits for a transaction, or for files that are opened."""
EXAMINE_EVERY_S: Final = 1.0
HOUSEKEEP_EVERY_S: Final = 1.0
_NO_ROOM: Final = (lmdb.MapFullError, lmdb.MemoryError)


class Environment:
    """An LMDB environment; `open_environment` returns one.

    Args:
        path: Its directory, without symbolic links.
        options: The options with which to open it.

    Attributes:
        journal: The journal.
        pending_events: Events to emit; any thread may add some while another one emits them.
        users: How many open stores of this process use it.
        counts: The file, in a transaction.

    Raises:
        ConfigurationError: The files cannot be used; the message names the remedy.
        StoreUnavailable: They are opened for reading only, and do not exist.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self._writes = not options.read_only
        self.journal = Journal(path)
        self.pending_events: deque[Event] = deque()
        self.users = 0
        self._gate = Gate(path, read_only=options.read_only)
        self._is_closed = False
        self.counts: Counts
        self._opened: Counts | None = None
        self._trouble: lmdb.Error | None = None  # with which LMDB cannot go on
        self._was_bad = False  # whether a transaction was bad in a file that was not begun anew since
        self._examine_at_s = self._housekeep_at_s = 0.0
        self._is_opening = False
        self._open_error: StoreUnavailable | None = None

    # -- transactions ------------------------------------------------------------------------------------------------

    def begin(self) -> Any:
        """Begin a transaction, for this thread to `commit` or `abort`; None while somebody else is behind the gate.

        Raises:
            lmdb.Error: LMDB cannot begin it.
            StoreUnavailable: The files have become unusable.
        """
        failed, self._open_error = self._open_error, None
        if failed is not None:
            raise failed
        try:
            if self._is_opening or not self._enter():
                return None
        except ConfigurationError as error:
            raise StoreUnavailable(str(error)) from error
        txn: Any = None
        try:
            if self._trouble or time.monotonic() >= self._examine_at_s:
                self._examine()
            if self._opened is not None:
                txn = self._opened.lmdb.begin(self._opened.dbs.windows, write=self._writes)
            elif self._gate.is_open:
                self._open_in_thread()
        finally:
            if txn is None:
                self._leave()
        return txn

    def commit(self, txn: Any, noted: Noted, *, is_large: bool) -> None:
        """Append to the journal, commit a transaction, and leave the gate.

        Args:
            txn: The transaction.
            noted: The changes to append to the journal.
            is_large: Whether the transaction may have taken much room.

        Raises:
            lmdb.Error: It cannot be committed.
            OSError: The journal cannot be written.
            StoreUnavailable: The files were replaced, so the lines would belong to rows that nobody finds.
        """
        try:
            if self._writes:
                self.counts.check(txn, always=is_large)
            if noted:
                if not self._is_in_place():
                    self._examine_at_s = 0.0
                    raise StoreUnavailable(f"lmdb: the files at {self.path} were replaced")
                self.journal.append(lines_as_stored(txn, self.counts.dbs, noted))
            try:
                txn.commit()
            except lmdb.Error:
                self._undo(noted)
                raise
        except BaseException:
            txn.abort()  # the commit may not have been reached; after a commit this does nothing
            raise
        finally:
            self._leave()

    def abort(self, txn: Any) -> None:
        """Abort a transaction, and leave the gate."""
        try:
            txn.abort()
        finally:
            self._leave()

    def housekeep(self, unix_us: Clock) -> None:
        """Sync the journal in a thread, once a second, and write it anew when it is long; called after a commit."""
        now_s = time.monotonic()
        if now_s < self._housekeep_at_s:  # a thread waits for that moment
            return
        wait_s = max(self._housekeep_at_s + HOUSEKEEP_EVERY_S - now_s, 0.0)
        self._housekeep_at_s = now_s + wait_s

        def work() -> None:
            time.sleep(wait_s)
            self.journal.sync()
            if not self._is_closed and self.journal.is_long():
                self.journal.compact(unix_us(), self._behind_gate)

        in_background(work)

    def failure(self, error: Exception) -> StoreUnavailable:
        """Return the error to raise for an error of LMDB or the system; the next `begin` does what it calls for."""
        if isinstance(error, lmdb.ReadonlyError) and self.options.read_only:
            return StoreUnavailable(f"lmdb: {self.path} is open for reading only")
        if isinstance(error, lmdb.Error) and not isinstance(error, _NO_ROOM):
            self._trouble = error
        return StoreUnavailable(f"lmdb: {self.path}{' is damaged' if isinstance(error, DAMAGE) else ''}: {error}")

    # -- the gate ----------------------------------------------------------------------------------------------------

    def _enter(self) -> bool:
        """Enter the gate without waiting for another process; return False if somebody else is behind it."""
        begin_anew_if_forked()
        if not _lock.acquire(timeout=IN_PROCESS_S):
            return False
        entered = False
        try:
            if not self._gate.is_open:
                if self._is_closed:
                    return False
                self._check()
            entered = self._gate.enter()
        finally:
            if not entered:
                _lock.release()
        return entered

    def _leave(self) -> None:
        try:
            self._gate.leave()
        finally:
            _lock.release()

    def _behind_gate(self, do: Callable[[], object], until_s: float = inf) -> bool:
        """Call a function behind the gate, in a thread that may wait; return False if that was not possible."""
        while not self._is_closed and time.monotonic() < until_s:
            if self._enter():
                try:
                    self._examine()
                    if self._gate.is_open:
                        do()
                        return True
                finally:
                    self._leave()
            time.sleep(POLL_S)
        return False

    def _undo(self, noted: Noted) -> None:
        """Append what is stored, after lines of a transaction that could not be committed."""
        with suppress(lmdb.Error, OSError), self.counts.lmdb.begin() as txn:
            self.journal.append(lines_as_stored(txn, self.counts.dbs, noted))

    # -- opening and closing -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Try to open the files; if another process stays behind the gate, the first question opens them."""
        try:
            self._behind_gate(self._open, time.monotonic() + START_S)
        except lmdb.Error as error:
            raise ConfigurationError(f"lmdb: {self.path} cannot be opened: {error}") from error
        except ConfigurationError as error:
            if self.options.read_only:
                raise StoreUnavailable(str(error)) from error
            raise

    def _open_in_thread(self) -> None:
        """Open the files in a thread, for the journal may have many lines; until then nobody gets a transaction."""

        def work() -> None:
            try:
                self._behind_gate(self._open)
            except (ConfigurationError, StoreUnavailable, lmdb.Error) as error:
                self._open_error = StoreUnavailable(str(error))
            finally:
                self._is_opening = False

        self._is_opening = True
        threading.Thread(target=work, name="slidegate-lmdb", daemon=True).start()

    def _open(self) -> None:
        """Open the file, behind the gate."""
        if self._opened is None:
            try:
                counts = open_file(self.path, self._gate, self.journal, self.options, self.pending_events.append)
            except OSError as error:
                raise unusable(self.path, error) from error
            self._opened = self.counts = counts

    def _check(self) -> None:
        """Check that the files are ours alone, before the gate is opened."""
        if self.options.read_only:
            check_files(self.path)
            return
        check_directory(self.path)
        if warning := check_file_system(self.path):
            self.pending_events.append(Event("store_doubtful", warning))

    def _is_in_place(self) -> bool:
        return self._gate.is_in_place() and self._opened is not None and self._opened.is_in_place()

    def _examine(self) -> None:
        """Close files that are damaged or were replaced, or with which LMDB cannot go on."""
        trouble, self._trouble = self._trouble, None
        self._examine_at_s = time.monotonic() + EXAMINE_EVERY_S
        # A page that cannot be read makes transactions bad, also after the file was opened again.
        is_bad = isinstance(trouble, lmdb.BadTxnError)
        is_damaged = isinstance(trouble, DAMAGE) or (is_bad and self._was_bad)
        self._was_bad = not is_damaged and (is_bad or self._was_bad)
        if trouble and is_damaged and self._opened is not None and self._writes:
            discard(self._opened, trouble, self.pending_events.append)
        if trouble or not self._is_in_place():
            self._close_map()
        if not self._gate.is_in_place():
            self._gate.close()

    def _close_map(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Close the files, under the lock of the process."""
        self._is_closed = True
        with suppress(OSError):
            self.journal.sync()
        self.close_files()

    def close_files(self) -> None:
        """Close what is open, as in a forked child; the gate first, which the parent may hold."""
        self._is_opening, self._housekeep_at_s = False, 0.0  # a child has no thread that waits
        self._gate.close()
        self.journal.close()
        self._close_map()


_lock = threading.Lock()
"""Held by the thread of this process that is behind a gate, opens or closes."""
_open: Final[dict[Path, Environment]] = {}


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, opened once per process; `close_environment` has to be called for each result.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It is opened for reading only, and cannot be read.
    """
    try:
        real_path = Path(os.path.realpath(path)) if path else None
    except (TypeError, ValueError):
        real_path = None
    if real_path is None:
        raise ConfigurationError(
            f'path: expected a directory, for example "/var/lib/app/slidegate", not {quoted(path)}'
        )
    with _lock:
        environment = _open.setdefault(real_path, Environment(real_path, options))
        if environment.options != options:
            raise ConfigurationError(
                f"lmdb: {real_path} is open in this process with {environment.options._asdict()}, "
                f"not {options._asdict()}; use the same options"
            )
        environment.users += 1
    try:
        environment.start()  # a forked child has not opened it yet
    except BaseException:
        close_environment(environment)
        raise
    return environment


def close_environment(environment: Environment) -> None:
    """Close an environment if no other store of this process uses it."""
    with _lock:
        environment.users -= 1
        if not environment.users:
            del _open[environment.path]
            environment.close()


_fork: Final = threading.local()
"""Has as `has_lock` whether this thread holds the lock over its fork."""


def _before_fork() -> None:
    """Wait until nobody is in a transaction: a child cannot close an LMDB environment that has one."""
    _fork.has_lock = _lock.acquire(timeout=FORK_S)


def _after_fork() -> None:
    if _fork.has_lock:
        _lock.release()


def _begin_anew() -> None:
    """Close the files, as a child of fork, which has none of the threads that may hold the lock."""
    global _lock
    _lock = threading.Lock()
    for environment in _open.values():
        environment.close_files()


_in_child: Final = InChild(_begin_anew)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
