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
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from ...core.errors import Concerns, ConfigurationError, StoreTimeout, StoreUnavailable, quoted
from ...core.events import Event
from ...core.logs import Throttle, written
from ...core.store import Clock
from ..forks import InChild, begin_anew_if_forked
from .checking import DISK_FULL, check_directory, check_file_system, check_files, unusable
from .counts import Counts
from .gate import Gate
from .journal import Journal, Noted, in_background
from .kept_rows import QUOTA, lines_as_stored
from .opening import DAMAGE, Options, discard, open_file

if TYPE_CHECKING:
    from .transaction import Transaction

STUCK_S: Final = 1.0
"""How long a thread waits for others of its process while none of them gets ahead, as on a disk that hangs."""
_STUCK_TRIES: Final = 5
POLL_S: Final = 0.000_5
REFUSED_S: Final = 0.005
"""For how long a refusal of the gate counts at most: since the last try, a thread may have waited for the interpreter,
and the gate may have been open."""
FORK_S: Final = 5.0
"""How long a fork waits for a transaction, or for files that are opened."""
START_S: Final = 1.0
"""How long a constructor waits for another process."""
EXAMINE_EVERY_S: Final = 1.0
HOUSEKEEP_EVERY_S: Final = 1.0
_ADDRESS: Final = re.compile(r"\w[\w+.-]*:/")
"""How an address begins, also one that was made a path; it may have a password, which a directory's name would show."""
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
        refused_s: For how long the gate has been closed to this process, since a thread of it was behind it.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self.journal = Journal(path)
        self._throttle = Throttle()
        self.pending_events: deque[Event] = deque()
        self.users = 0
        self._gate = Gate(path, create=options.create)
        self.refused_s = self._refused_at_s = 0.0
        self._inside = 0  # the thread that is behind the gate; in it, a signal handler may ask
        self._is_closed = False
        self.counts: Counts
        self._opened: Counts | None = None
        self._opening: threading.Thread | None = None
        self._open_error: Exception | None = None
        self._trouble: lmdb.Error | None = None  # with which LMDB cannot go on
        self._was_bad = False  # whether a transaction was bad in a file that was not begun anew since
        self._examine_at_s = self._housekeep_at_s = 0.0

    # -- transactions ------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[Any], Transaction]) -> Transaction | None:
        """Run a transaction and return what `work` returns; None while somebody else is behind the gate.

        Its changes get lines in the journal before it is committed.

        Args:
            work: Called with LMDB's transaction.

        Raises:
            lmdb.Error: LMDB cannot begin or commit it.
            OSError: The journal cannot be written.
            StoreTimeout: A thread of this process stays behind a gate.
            StoreUnavailable: The files have become unusable, or were replaced.
        """
        begin_anew_if_forked()
        if self._opened is None:
            self._open_in_thread()
            self._count_refusal()
            return None
        try:
            if not self._enter():
                return None
        except ConfigurationError as error:  # another thread has just found that the files were replaced
            raise StoreUnavailable(str(error)) from error
        noted: Noted = []
        try:
            if self._trouble or time.monotonic() >= self._examine_at_s:
                self._examine()
            if self._opened is None:
                return None
            with self._opened.lmdb.begin(self._opened.dbs.windows, write=True) as txn:
                transaction = work(txn)
                if transaction.rows.noted:
                    noted = transaction.rows.noted
                    self._append(txn, noted)
            return transaction
        except BaseException:  # a signal handler may raise, too
            self._undo(noted)
            raise
        finally:
            self._inside = 0
            try:  # here and not in a function, which a signal handler could end before it begins
                self._gate.leave()
            finally:
                _lock.release()

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
        """Return the error to raise for an error of LMDB or the system; the next `run` does what it calls for."""
        if isinstance(error, lmdb.Error) and not isinstance(error, _NO_ROOM):
            self._trouble = error
        # A line of the journal has no room, and whatever needs none goes on.
        concerns: Concerns = "request" if isinstance(error, OSError) and error.errno in DISK_FULL else "server"
        damaged = " is damaged" if isinstance(error, DAMAGE) else ""
        return StoreUnavailable(f"lmdb: {self.path}{damaged}: {error}", concerns=concerns)

    # -- the gate ----------------------------------------------------------------------------------------------------

    def _enter(self) -> bool:
        """Enter the gate without waiting for another process; return False if somebody else is behind it.

        Raises:
            StoreTimeout: A thread of this process stays behind a gate.
        """
        thread, entered = threading.get_ident(), False
        if self._inside == thread:
            self._count_refusal()
            return False
        try:
            _wait_for_turn()
            self._inside = thread
            if not self._is_closed:
                if not self._gate.is_open:
                    self._check()
                entered = self._gate.enter()
        finally:
            if entered:  # no call from here on, in which a signal handler could raise
                self.refused_s = self._refused_at_s = 0.0
            else:
                if self._inside == thread:
                    self._inside = 0
                try:  # noqa: SIM105 - a signal handler could end a call before it
                    _lock.release()
                except RuntimeError:  # another thread has it
                    pass
        if not entered:
            self._count_refusal()
        return entered

    def _count_refusal(self) -> None:
        """Count in `refused_s` the time since the last refusal."""
        now_s = time.monotonic()
        if self._refused_at_s:
            self.refused_s += min(now_s - self._refused_at_s, REFUSED_S)
        self._refused_at_s = now_s

    def _leave(self) -> None:
        self._inside = 0
        try:
            self._gate.leave()
        finally:
            _lock.release()

    def _behind_gate(self, do: Callable[[], object]) -> bool:
        """Call a function behind the gate, in a thread that may wait; return False if the environment was closed."""
        while not self._is_closed:
            entered = False
            with suppress(StoreTimeout):  # this thread has the time to wait for another one
                entered = self._enter()
            if entered:
                try:
                    self._examine()
                    if self._gate.is_open:
                        do()
                        return True
                finally:
                    self._leave()
            time.sleep(POLL_S)
        return False

    # -- opening and closing -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the files; if another process stays behind the gate, questions wait until they are open.

        Raises:
            ConfigurationError: The files cannot be used; the message names the remedy.
            StoreUnavailable: They cannot be opened, and the options say not to create them; or no thread can open them.
        """
        if self._opened is None:
            self._open_error = None  # of another start
            opening = self._open_in_thread()
            opening.join(START_S)
            while opening.is_alive() and _is_held():  # by that thread, which has the journal to read
                opening.join(START_S)
            failed, self._open_error = self._open_error, None
            if isinstance(failed, ConfigurationError) and not self.options.create:
                raise StoreUnavailable(str(failed)) from failed
            if failed is not None:
                raise failed

    def _open_in_thread(self) -> threading.Thread:
        """Open the files in a thread, for the journal may have many lines; until then nobody gets a transaction.

        Raises:
            StoreUnavailable: The last thread could not open them, or none can be started.
        """
        failed, self._open_error = self._open_error, None
        if failed is not None:
            raise StoreUnavailable(str(failed)) from failed
        opening = self._opening
        if opening is None or not opening.is_alive():  # another thread may start one, too, which then does nothing
            opening = self._opening = threading.Thread(target=self._open, name="slidegate-lmdb", daemon=True)
            try:
                opening.start()
            except RuntimeError as error:  # the container has too many threads, or the process is ending
                raise StoreUnavailable(f"lmdb: {self.path} cannot be opened: {error}") from error
        return opening

    def _open(self) -> None:
        try:
            self._behind_gate(self._open_file)
        except OSError as error:
            self._open_error = unusable(self.path, error)
        except (ConfigurationError, StoreUnavailable) as error:
            self._open_error = error
        except Exception as error:  # of LMDB, or of a line in the journal; without one, each question would try again
            self._open_error = ConfigurationError(f"lmdb: {self.path} cannot be opened: {error}")

    def _open_file(self) -> None:
        if self._opened is None:
            check_files(self.path)  # LMDB would read a FIFO for ever, and keep all threads from running
            self.counts = open_file(self.path, self._gate, self.journal, self.options, self.pending_events.append)
            self._opened = self.counts

    def _check(self) -> None:
        """Check that the files are ours alone, before the gate is opened."""
        if not self.options.create:
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
        if trouble and is_damaged and self._opened is not None and self.options.create:
            discard(self._opened, trouble, self.pending_events.append)
        has_gate = self._gate.is_in_place()
        if trouble or not has_gate or not self._is_in_place():
            self._close_map()
        if not has_gate:
            self._gate.close()

    def _close_map(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Close the files, under the lock of the process."""
        self._is_closed = True
        try:  # a signal handler may raise meanwhile, and LMDB opens no file twice
            with suppress(OSError):
                self.journal.sync()
        finally:
            self.close_files()

    def close_files(self) -> None:
        """Close what is open, as in a forked child; the gate first, which the parent may hold."""
        self._opening, self._housekeep_at_s = None, 0.0  # a child has no thread that waits
        self._inside = 0
        self._gate.close()
        self.journal.close()
        self._close_map()


_lock = threading.RLock()
"""Held by the thread of this process that is behind a gate, opens or closes; no other thread can release it.

It is taken within `try`, so that a signal handler that raises leaves it free. A handler that asks the store finds the
gate closed: it would leave it in the middle of a transaction.
"""
_open: Final[dict[Path, Environment]] = {}
_turns = 0
"""How often a thread of this process has had the lock to enter a gate."""


def _wait_for_turn() -> None:
    """Wait for the threads of this process that come first, which is a queue and no failure of the files.

    Raises:
        StoreTimeout: One of them stays behind its gate.
    """
    global _turns
    before, tries = _turns, 0
    while not _lock.acquire(timeout=STUCK_S / _STUCK_TRIES):  # in one of which all threads may wait for the interpreter
        tries = tries + 1 if _turns == before else 0
        before = _turns
        if tries >= _STUCK_TRIES:
            raise StoreTimeout(
                f"lmdb: a thread of this process has held the files for {STUCK_S:g} s; is the disk slow?"
            )
    _turns += 1


def _is_held() -> bool:
    """Return whether another thread has the lock."""
    is_free = _lock.acquire(blocking=False)
    if is_free:
        _lock.release()
    return not is_free


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, opened once per process; `close_environment` has to be called for each result.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It cannot be opened, and the options say not to create it.
    """
    try:
        real_path = Path(os.path.realpath(path)) if path else None
    except (TypeError, ValueError):
        real_path = None
    if real_path is None or _ADDRESS.match(os.fsdecode(path)):
        raise ConfigurationError(
            f'path: expected a directory, for example "/var/lib/app/slidegate", not {quoted(path)}'
        )
    with _lock:
        environment = _open.setdefault(real_path, Environment(real_path, options))
        if environment.options != options:
            raise ConfigurationError(
                f"lmdb: {real_path} is open in this process with {written(environment.options._asdict())}, "
                f"not {written(options._asdict())}; use the same options"
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
    _lock = threading.RLock()
    for environment in _open.values():
        environment.close_files()


_in_child: Final = InChild(_begin_anew)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
