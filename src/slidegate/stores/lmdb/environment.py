"""An open LMDB environment, and the gate that lets one process write at a time.

A writer holds the *gate*, an advisory lock (`flock`) on the data file itself, which works even if other files are
deleted. LMDB has its own lock, but waiting for that cannot be cancelled: one stopped process would block every event
loop of the host. The gate is acquired without blocking. LMDB's lock is always free for the process that holds the
gate, and if a process dies, the kernel releases its gate.

A process may write through its map of the file, and LMDB truncates the file to the size of the map. So a process that
maps the file again, because the file has grown, holds the gate and maps at least the whole file: the file never
shrinks.

Neither an LMDB environment nor a file lock survives `fork`, so a child opens the files again. It must not *close* the
inherited environment, because that would clear the reader slots of its parent. It only drops its reference, at a time
when no transaction is open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import deque
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

import lmdb

from ...core.errors import ConfigurationError, StoreTimeout, StoreUnavailable, quoted
from ...core.store import Event, closed
from ..forks import hold_over_fork
from ..system_clock import system_us
from . import opening
from .checking import DATA, LOCK, check_directory
from .layout import CLOCK, NAMES, SCHEMA, WRITTEN_SCHEMA, Databases, boot_id, boot_us, written
from .opening import BROKEN, POLL_S, Options, open_files, take_room, takes_room, whole_size

IN_PROCESS_S: Final = 0.05
"""How long an event loop may wait for another thread, or for files that have to be opened or have grown."""
RECORD_EVERY_US: Final = 1_000_000
_CHECK_EVERY: Final = 16  # commits between two checks of how full the file is
_GROW_AGAIN_S: Final = 1.0
_DOUBT_AGAIN_S: Final = 1.0
_NO_DAMAGE: Final = (OSError, lmdb.DiskError, lmdb.MapFullError, lmdb.MemoryError, lmdb.ReadersFullError)
RESERVE: Final = 16
"""A file at its largest size may grow by another 1/RESERVE for keys that it already contains."""
MIN_RESERVE: Final = 2**21
NO_WINDOWS: Final = 1
NO_ROWS: Final = 2
NO_CHANGES: Final = 3
"""The changes that a full file rejects: first windows of new keys, then all new rows, then all changes, until expired
rows have been deleted; that also needs room, because it copies pages."""
_FAR_BEHIND: Final = 100  # transactions; a read takes as long as one or two
_TOO_SHORT: Final = "its head names pages that the file does not have"
_NO_DATABASES: Final = Databases(*(None,) * len(Databases._fields))  # type: ignore[arg-type]


class Environment:
    """An LMDB environment; `open_environment` returns one.

    Args:
        path: Its directory, without symbolic links.
        options: The options with which to open it.

    Attributes:
        dbs: The databases.
        opened: How many times the files have been opened.
        untold: Pending events; any thread may add some while another one emits them.
        stuck: Why the file could not grow at the last attempt; empty if it could.
        fullness: How full a file is that cannot grow: 0, `NO_WINDOWS`, `NO_ROWS` or `NO_CHANGES`.
        users: How many open stores of this process use it; after the last is closed, the files are not opened again.

    Raises:
        ConfigurationError: The files cannot be used; the message names the remedy.
        StoreTimeout: Another process holds the gate.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.options = options
        self.dbs: Databases
        self.opened = self.users = 0
        self.stuck = ""
        self.fullness = 0
        self.untold: deque[Event] = deque()
        self._lmdb: Any = None
        self._file = -1
        self._lock = _lock_over_fork()
        self._map = _lock_over_fork()  # held while the map is read or changes its size
        self._offset_us = 0
        self._looked_us = 0
        self._inodes = (0, 0)
        self._suspect = (0, "")
        self._doubt_again_s = 0.0
        self._commits = 0
        self._grow_again_s = 0.0
        self._most = options.max_map_size + max(options.max_map_size // RESERVE, MIN_RESERVE)
        self._readers = Readers(path, self._most)
        self._must_close = False  # whether to close the files after the current transaction
        self._checking: threading.Thread | None = None
        self._check_failed: Exception | None = None
        self._open(opening.PATIENCE_S)

    def now_us(self) -> int:
        """Return the time of this host; see `layout`."""
        return boot_us() + self._offset_us

    # -- writing and reading -----------------------------------------------------------------------------------------

    def begin(self) -> Any:
        """Begin a write transaction, for this thread to `commit` or `abort`; None while another writer has the gate."""
        if self.options.read_only:
            raise StoreUnavailable(f"lmdb: {self.path} is open for reading only")
        if not self._take_gate():
            return None
        try:
            for _ in range(2):
                try:
                    return self._lmdb.begin(self.dbs.windows, write=True)
                except lmdb.MapResizedError:
                    with self._map:
                        self._map_whole()
            raise lmdb.CorruptedError(_TOO_SHORT)
        except BaseException:
            self._leave_gate()
            raise

    def commit(self, txn: Any, *, looks: bool = False) -> None:
        """Commit a transaction, enlarge the map if it is nearly full, and release the gate.

        Args:
            txn: The transaction.
            looks: Whether to check how full the file is now, and not only at the next regular check.
        """
        try:
            self._commits += 1
            looks = looks or not self._commits % _CHECK_EVERY
            used = self._used() if looks else 0
            if looks:
                self.fullness = self._measure(txn, used)
            txn.commit()
            if looks and self._size < self._most and self._size - used < self._spare():
                with suppress(lmdb.Error, OSError):  # the data is written, and a full map is enlarged when needed
                    self._grow()
        except BaseException:
            txn.abort()  # the check may have failed before the commit; after a commit this does nothing
            raise
        finally:
            self._leave_gate()

    def abort(self, txn: Any) -> None:
        """Abort a transaction, and release the gate."""
        try:
            txn.abort()
        finally:
            self._leave_gate()

    def read(self, patience_s: float = IN_PROCESS_S) -> Any:
        """Begin a read transaction, which `end_read` has to end; it may wait for a writer if the file has grown."""
        self._map.acquire()
        txn = None
        try:
            if self._lmdb is not None:  # checked under the lock, because another thread may have closed the files
                txn = self._begin_read()
        except lmdb.MapResizedError:
            pass
        finally:
            if txn is None:
                self._map.release()
        return self._read_behind_gate(patience_s) if txn is None else txn

    def end_read(self, txn: Any) -> None:
        """End a transaction that `read` began."""
        try:
            txn.abort()
        finally:
            self._map.release()

    def grow(self) -> bool:
        """Enlarge the map; return False if that is impossible, and True if another process may be doing it."""
        if not self._take_gate():
            return True
        try:
            return self._grow()
        finally:
            self._leave_gate()

    def _grow(self) -> bool:
        with self._map:
            self.untold.extend(self._readers.look(self._lmdb))
            if self._lmdb.reader_check():
                return True  # pages that were kept for dead readers have become free
            before = self._size
            self._map_whole()  # another process may have enlarged it
            if self._size > before:
                return True
            size = min(2 * before, self._most)
            if size <= before or (self.stuck and time.monotonic() < self._grow_again_s):
                return False
            try:
                take_room(self._file, size, self.options)
            except OSError as error:
                self.stuck = f"cannot grow to {size} bytes ({error.strerror})"
                self._grow_again_s = time.monotonic() + _GROW_AGAIN_S
                return False
            self._set_size(size)
            self.untold.append(Event("map_grown", f"{self.path} has grown to {size} bytes", {"bytes": size}))
            return True

    def _begin_read(self) -> Any:
        try:
            return self._lmdb.begin(self.dbs.windows)
        except lmdb.ReadersFullError:
            self._lmdb.reader_check()  # frees the slots of dead processes
            return self._lmdb.begin(self.dbs.windows)

    def _read_behind_gate(self, patience_s: float) -> Any:
        """Begin to read after opening the files, or mapping them again because another process has enlarged them."""
        until_s = time.monotonic() + patience_s
        while not self._take_gate():
            if time.monotonic() > until_s:
                raise StoreTimeout(f"lmdb: {self.path} has to be mapped, but another process writes; is it stopped?")
            time.sleep(POLL_S)
        txn = None
        self._map.acquire()
        try:
            self._map_whole()
            txn = self._begin_read()
            return txn
        except lmdb.MapResizedError:  # impossible while this process holds the gate
            raise lmdb.CorruptedError(_TOO_SHORT) from None
        finally:
            if txn is None:
                self._map.release()
            self._leave_gate()

    def _map_whole(self) -> None:
        # If no room is allocated, the file may be shorter than the map: nothing is written through it or truncated.
        self._set_size(max(whole_size(self._file), self._size) if takes_room(self.options) else 0)

    def _set_size(self, size: int) -> None:
        before = self._size
        self._lmdb.set_mapsize(size)
        if self._size > before:
            self.stuck, self.fullness = "", 0

    @property
    def _size(self) -> int:
        """How many bytes are mapped."""
        return int(self._lmdb.info()["map_size"])

    def look_after(self, txn: Any, now_us: int) -> None:
        """About once a second, record the time, and check that the files and the layout have not been replaced.

        Args:
            txn: The write transaction.
            now_us: The time of any clock, in microseconds.
        """
        if self._looked_us <= now_us < self._looked_us + RECORD_EVERY_US:
            return
        self._looked_us = now_us
        record = txn.get(CLOCK, None, self.dbs.meta)
        txn.put(CLOCK, written(record, boot_id(), self._offset_us, boot_us(), system_us()), db=self.dbs.meta)
        self._lmdb.reader_check()
        self.untold.extend(self._readers.look(self._lmdb))
        self._must_close = not self._are_ours() or txn.get(SCHEMA, None, self.dbs.meta) != WRITTEN_SCHEMA

    def sizes(self, txn: Any) -> tuple[int, int, int]:
        """Return the number of windows, the bytes of the file that have ever been used, and the size of the map."""
        return txn.stat(self.dbs.windows)["entries"], self._used(), self._size

    def _measure(self, txn: Any, used: int) -> int:
        """Return the `fullness` of the file, given its used bytes; free pages do not count."""
        most = self._size if self.stuck else self._most
        room = min(self.options.max_map_size, most - self._spare())
        if used < room:
            return 0
        stats = [txn.stat(getattr(self.dbs, name)) for name in NAMES]
        pages = sum(stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"] for stat in stats)
        used = pages * stats[0]["psize"]
        return 0 if used < room else min(1 + 4 * (used - room) // (most - room), NO_CHANGES)

    def _spare(self) -> int:
        """Return the reserve for known keys and for copies of changed pages, in bytes."""
        return min(max(self._size // RESERVE, MIN_RESERVE), self._size // 4)

    def _used(self) -> int:
        return int((self._lmdb.info()["last_pgno"] + 1) * self._lmdb.stat()["psize"])

    # -- opening and closing -----------------------------------------------------------------------------------------

    def failure(self, error: Exception) -> StoreUnavailable:
        """Return the error to raise for an error of LMDB or the system.

        LMDB reports nearly any error for a file that was damaged in place. So the files are closed, and opened again at
        the next use, with a check unless another process has replaced them. Files that LMDB reports as damaged are set
        aside.
        """
        broken, no_room = isinstance(error, BROKEN), os.strerror(errno.EDQUOT) in str(error)
        if broken or not (isinstance(error, _NO_DAMAGE) or no_room or time.monotonic() < self._doubt_again_s):
            with self._lock, self._map:
                self._doubt_again_s = time.monotonic() + _DOUBT_AGAIN_S
                self._suspect = self._inodes[0], str(error) if broken else ""
                self._close()
        return StoreUnavailable(f"lmdb: {self.path}{' is damaged' if broken else ''}: {error}")

    def close(self) -> None:
        """Close the files."""
        with self._lock, self._map:
            self._close()

    def forked(self) -> None:
        """In a forked child, drop the environment of the parent, and close its file."""
        self._lock, self._map = _lock_over_fork(), _lock_over_fork()  # a thread of the parent may have held the old
        self._checking = self._check_failed = None
        if self._lmdb is not None:
            self._lmdb = None
            self.dbs = _NO_DATABASES._replace(cell_key=self.dbs.cell_key)
            os.close(self._file)

    def _are_ours(self) -> bool:
        """Return whether the data file and LMDB's lock file at the path are still the opened ones."""
        try:
            return ((self.path / DATA).stat().st_ino, (self.path / LOCK).stat().st_ino) == self._inodes
        except OSError:
            return False

    def _take_gate(self) -> bool:
        """Acquire the gate without blocking; return False if another writer holds it or the files are being checked."""
        if self._checking is not None or not self._lock.acquire(timeout=IN_PROCESS_S):
            return False
        taken = False
        try:
            if self._lmdb is None and self._suspect[0]:
                self._check_in_thread()
                return False
            if self._lmdb is None:
                self._open(0.0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = True
        except (BlockingIOError, StoreTimeout):
            pass  # StoreTimeout: raised when the files have to be opened first
        finally:
            if not taken:
                self._lock.release()
        return taken

    def _check_in_thread(self) -> None:
        """Check and open possibly damaged files in a thread, because reading every page would block an event loop.

        Raises:
            StoreError: The previous check failed.
        """
        failed, self._check_failed = self._check_failed, None
        if failed is not None:
            raise failed
        checking = threading.Thread(target=self._open_checked, name="slidegate-lmdb-check", daemon=True)
        checking.start()  # it waits for the lock, which this thread holds
        self._checking = checking

    def _open_checked(self) -> None:
        with self._lock:
            try:
                self._open(opening.PATIENCE_S)
            except Exception as error:
                self._check_failed = error
            finally:
                self._checking = None

    def _leave_gate(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            if self._must_close:
                with self._map:
                    self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        environment, self._lmdb = self._lmdb, None
        self._must_close = False
        if environment is not None:
            environment.close()
            os.close(self._file)

    def _open(self, patience_s: float) -> None:
        if self.opened and not self.users:
            raise closed(f"lmdb: the store at {self.path}")
        try:
            opened = open_files(self.path, self.options, patience_s, self._suspect)
        except ConfigurationError as error:
            if not self.opened and not self.options.read_only:
                raise
            raise StoreUnavailable(str(error)) from error
        self._lmdb, self._file, self.dbs, self._offset_us, self._inodes, events = opened
        self.stuck, self.fullness = "", 0
        self.untold.extend(events)
        self.opened += 1
        self._suspect = (0, "")


class Readers:
    """Finds stopped readers, by comparing the readers of two successive checks.

    Args:
        path: The directory of the environment.
        max_map_size: The largest size of the file, in bytes.
    """

    def __init__(self, path: Path, max_map_size: int) -> None:
        self._path = path
        self._max_map_size = max_map_size
        self._behind: set[tuple[int, int]] = set()  # (process, transaction) of each that was far behind
        self._told: set[tuple[int, int]] = set()

    def look(self, environment: Any) -> list[Event]:
        """Return an event for each process that has been in the same transaction since an earlier check."""
        last = environment.info()["last_txnid"]
        behind = set()
        for line in environment.readers().splitlines()[1:]:
            pid, _, since = line.split()
            if since.isdecimal() and last - int(since) > _FAR_BEHIND:
                behind.add((int(pid), int(since)))
        stopped = (behind & self._behind) - self._told
        self._behind, self._told = behind, (self._told & behind) | stopped
        return [self._event(pid, last - since) for pid, since in sorted(stopped)]

    def _event(self, pid: int, transactions: int) -> Event:
        message = (
            f"process {pid} has been reading {self._path} for {transactions} transactions, is it stopped? "
            f"The file grows until it continues or exits, up to {self._max_map_size} bytes"
        )
        return Event("reader_stopped", message, {"pid": pid, "transactions": transactions})


def _lock_over_fork() -> threading.Lock:
    """Return a lock that the forking thread holds during a fork, so that no transaction is open then."""
    lock = threading.Lock()
    hold_over_fork(lock)
    return lock


_lock: Final = _lock_over_fork()
_open: Final[dict[Path, Environment]] = {}


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, opened once per process; `close_environment` has to be called for each result.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It is opened for reading only, and cannot be read.
        StoreTimeout: Another process holds the lock of the files and does not respond.
    """
    text = fspath(path) if isinstance(path, (str, PathLike)) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(
            f'path: expected a directory, for example "/var/lib/app/slidegate", not {quoted(path)}'
        )
    with _lock:
        if not options.read_only:
            check_directory(Path(text))
        real_path = Path(text).resolve()
        environment = _open.get(real_path)
        if environment is None:
            environment = _open[real_path] = Environment(real_path, options)
        elif environment.options != options:
            raise ConfigurationError(
                f"lmdb: {real_path} is open in this process with {environment.options._asdict()}, "
                f"not {options._asdict()}; use the same options"
            )
        environment.users += 1
        return environment


def close_environment(environment: Environment) -> None:
    """Close an environment if no other store of this process uses it."""
    with _lock:
        environment.users -= 1
        if not environment.users:
            del _open[environment.path]
            environment.close()


def _after_fork_in_child() -> None:
    for environment in _open.values():
        environment.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
