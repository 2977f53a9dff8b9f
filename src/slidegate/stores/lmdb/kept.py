"""What survives a restart of the machine: bans, levels and quotas, in `kept.mdb`, a second LMDB file, which is synced.

A transaction that changes such a row leaves its name in `unkept`, a database beside it, so nothing is forgotten where a
process is killed. A copy goes once through the rows that are named there, in order: it takes some as they are by then,
writes them into `kept.mdb`, and deletes their names unless the rows have changed again, which the next copy takes. The
gate is free while the disk is at work::

    file of counts    change + name ...... take ................... forget
                                             \\                     /
    kept.mdb                                  write and sync ------

About a second after a change a thread copies; a command of an operator, and the end of a process, copies at once. One
thread at a time does, under `COPY_LOCK`, in one process, behind a `flock` on `kept.mdb` that is tried. The rows in it:

    bans, levels    as in the file of counts, see `rows`
    windows         those of quotas: what is spent, and the end of the period, as JSON
    version         the version of these rows

Fields are read by name; those of later versions are ignored, and stay.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import lmdb
from lmdb.verify import VerifyError, verify

from ...core.errors import ConfigurationError, StoreUnavailable
from ...core.events import Event
from ...core.logs import Throttle, log_failure, net
from ...core.ring import read_head
from ...core.store import COMMAND_DEADLINE_S
from ...core.stored import json_of, readable
from .gate import COPY_LOCK, OPEN_FLAGS, is_file_at, pause, try_flock
from .rows import ALL_WINDOWS, BANS, DAMAGE, HEAD, LEVELS, NO_LIFE, WINDOWS, Databases, rows_from

T = TypeVar("T")

KEPT: Final = "kept.mdb"
VERSION: Final = b"1"
KEEP_EVERY_S: Final = 1.0
COPY_POLL_S: Final = 0.005
"""How long a copy waits before it tries again whether another process has ended its own."""
MOST: Final = 500
"""The most rows that are taken in one transaction, which others wait for."""

_KINDS: Final = {b"b": BANS, b"l": LEVELS, b"w": WINDOWS}
"""The databases that survive, by the first letter of a name, which the row follows."""
_MOST_GROWTH: Final = 2**28
"""How much the file may grow in one transaction."""


class Change(NamedTuple):
    """A row that has changed: its name, the transaction that changed it last, and its value; empty if it is deleted."""

    name: bytes
    by: bytes
    stored: bytes


BehindGate: TypeAlias = Callable[[Callable[[Any, Databases], Any], float], Any]
"""Calls a function with a transaction, behind the gate, and returns its answer; it waits until a moment."""
Tell: TypeAlias = Callable[[Event], object]


def note(txn: Any, dbs: Databases, names: Iterable[bytes]) -> None:
    """Leave the names of rows that have changed, with the number of the transaction."""
    for name in names:
        txn.put(name, b"%d" % txn.id(), db=dbs.unkept)


def note_all(txn: Any, dbs: Databases) -> None:
    """Leave the names of all rows that survive, where `kept.mdb` has none of them any more."""
    for letter, kind in _KINDS.items():
        rows = txn.cursor(getattr(dbs, kind))
        note(txn, dbs, [letter + row for row, stored in rows if kind != WINDOWS or stored.startswith(NO_LIFE)])


def exchange(copied: Iterable[Change], txn: Any, dbs: Databases) -> list[Change]:
    """Forget the names of rows that were copied, unless they have changed since, and take those behind them."""
    first = b""
    for name, by, _ in copied:
        first = name + b"\0"  # the smallest name that is larger
        if txn.get(name, b"", dbs.unkept) == by:
            txn.delete(name, b"", dbs.unkept)
    if txn.get(ALL_WINDOWS, None, dbs.unkept) is not None:
        first = ALL_WINDOWS  # it is copied before any window that has changed after it
    taken = []
    for name, by in islice(rows_from(txn.cursor(dbs.unkept), first), MOST):
        stored = b""
        if name != ALL_WINDOWS:
            stored = txn.get(name[1:], b"", getattr(dbs, _KINDS[name[:1]]))
        taken.append(Change(name, by, stored))
    return taken


class Kept:
    """The file `kept.mdb` of a directory.

    Args:
        path: The directory.
        tell: Emits an event.
        behind_gate: Calls a function behind the gate.
        is_closed: Returns whether nothing is copied any more, because nobody uses the environment.

    Attributes:
        path: The path of the file.
    """

    def __init__(self, path: Path, tell: Tell, behind_gate: BehindGate, is_closed: Callable[[], bool]) -> None:
        self.path = path / KEPT
        self.tell = tell
        self._behind_gate = behind_gate
        self._is_closed = is_closed
        self._file = -1
        self._locked_by = 0  # a thread
        self._lmdb: Any = None
        self._throttle = Throttle()
        self._is_due = self._has_copier = False

    # -- when a copy is made -----------------------------------------------------------------------------------------

    def keep_up(self) -> None:
        """Have what has changed copied in a second, by the only thread that does so."""
        self._is_due = True
        if not self._has_copier:
            self._has_copier = True
            if in_background(self._copy_while_due) is None:
                self._has_copier = False  # the next change, or the next sweep, tries it again

    def _copy_while_due(self) -> None:
        while self._is_due:
            time.sleep(KEEP_EVERY_S)
            self._is_due = False  # what changes from now on may be too late for this copy
            with net("copying what outlasts a reboot failed, and is tried again", time.monotonic):
                self._keep_due()
        self._has_copier = False
        if self._is_due:  # by a change that found this thread, which had just looked
            self.keep_up()

    def _keep_due(self) -> None:
        try:
            self.keep(COMMAND_DEADLINE_S)
        except StoreUnavailable as error:
            if self._is_closed():
                return
            if error.concerns != "request":
                raise
            if self._throttle.left_out(KEPT, time.monotonic()) is not None:
                self.tell(Event("map_full", str(error)))

    def keep(self, deadline_s: float) -> None:
        """Copy what is not kept yet, and return when it is on the disk; what changes meanwhile may be left.

        Raises:
            ConfigurationError: A later version has written the file.
            StoreTimeout: Others have held the files until the deadline.
            StoreUnavailable: It cannot be written.
        """
        until_s = time.monotonic() + deadline_s
        try:
            while not self.run_locked(partial(self._copy, until_s), until_s - time.monotonic()):
                pause(until_s, COPY_POLL_S)
        except (lmdb.Error, OSError) as error:
            raise StoreUnavailable(
                f"lmdb: {self.path}: {error}: the change is in force, but a restart of the machine forgets it "
                "unless it can be written until then",
                concerns="request",
            ) from error

    # -- the copy ----------------------------------------------------------------------------------------------------

    def _copy(self, until_s: float) -> bool:
        """Copy what is not kept yet; return False if that has to be tried again."""
        try:
            if not os.fstat(self._file).st_size:  # it was deleted, or set aside
                self._behind_gate(note_all, until_s)
            changes: list[Change] = []
            while True:
                changes = self._behind_gate(partial(exchange, changes), until_s)
                if not changes:
                    return True
                self._write(changes)
        except DAMAGE as error:
            self._set_aside(error)
            return False

    def run_locked(self, do: Callable[[], T], wait_s: float = 0.0) -> T | None:
        """Call a function while the file is locked, which is made where there is none, and return its answer.

        A thread may lock it again, as where a copy finds that the file of counts has to be created.

        Args:
            do: What to call.
            wait_s: How long to wait for another thread; 0 behind the gate, which that one may want.

        Returns:
            None as well if another thread or process has it.

        Raises:
            OSError: It cannot be opened.
            StoreUnavailable: The environment was closed.
        """
        if self._locked_by == threading.get_ident():
            return do()
        return COPY_LOCK.run(wait_s, self._lock_and_run, do)

    def _lock_and_run(self, do: Callable[[], T]) -> T | None:
        if self._is_closed():  # perhaps while this waited: who deletes the directory finds no new file in it
            raise StoreUnavailable(f"lmdb: {self.path.parent} was closed")
        try:
            self._locked_by = threading.get_ident()
            self._file = os.open(self.path, OPEN_FLAGS | os.O_CREAT, 0o600)
            if not try_flock(self._file, fcntl.LOCK_EX) or not is_file_at(self._file, self.path):
                return None
            return do()
        finally:
            file, self._file, self._locked_by = self._file, -1, 0
            if file >= 0:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked from C may have this descriptor, too
                os.close(file)

    def close_in_child(self) -> None:
        """Close what a child has inherited, where its parent could not wait for the end of a copy."""
        file, self._file, self._locked_by = self._file, -1, 0
        self._is_due = self._has_copier = False
        if file >= 0:
            os.close(file)
        if self._lmdb is not None:
            self._lmdb.close()

    def _write(self, changes: Iterable[Change]) -> None:
        """Write rows; they are on the disk when this returns."""
        with self._opened() as kept:
            dbs = _databases(kept)
            with kept.begin(write=True) as txn:
                for name, _, stored in changes:
                    database, row = dbs.get(name[:1]), name[1:]
                    if name == ALL_WINDOWS:
                        txn.drop(dbs[b"w"], delete=False)
                    elif len(stored) <= HEAD.size:  # no row, or a quota of which nothing is spent
                        txn.delete(row, b"", database)
                    elif name.startswith(b"w"):
                        spent, _, until_us, _ = read_head(stored[HEAD.size :])
                        stored_fields = txn.get(row, b"{}", database)
                        fields = readable(_fields_in, stored_fields) or {}  # a later version may have written others
                        txn.put(row, json_of({**fields, "spent": spent, "until_us": until_us}), db=database)
                    else:
                        txn.put(row, stored, db=database)

    def read(self, take: Callable[[str, list[tuple[bytes, bytes]]], int]) -> None:
        """Pass on all rows, in order; called while it is locked.

        Args:
            take: Called with the name of a database, rows and their values, some of which are over; returns how many it
                cannot read.

        Raises:
            ConfigurationError: A later version has written them.
            lmdb.Error, OSError: The file cannot be opened.
        """
        unreadable = 0
        try:
            self._verify()
            with self._opened() as kept:
                for letter, database in _databases(kept).items():
                    with kept.begin(database) as txn:
                        rows = txn.cursor().iternext()
                        while some := list(islice(rows, MOST)):
                            unreadable += take(_KINDS[letter], some)
        except DAMAGE as error:
            self._set_aside(error)
        if unreadable:
            self._tell_damage(f"{unreadable} of its rows cannot be read", unreadable)

    def _verify(self) -> None:
        """Look at every page: LMDB would end the process where it reads some that are damaged.

        Raises:
            lmdb.CorruptedError: One is.
        """
        with suppress(VerifyError):  # LMDB itself finds that it is none of its files
            problems = verify(str(self.path), subdir=False)  # type: ignore[no-untyped-call, unused-ignore]
            if problems:
                raise lmdb.CorruptedError(problems[0])

    def _set_aside(self, error: lmdb.Error) -> None:
        """Rename a damaged file."""
        aside = self.path.with_name(f"{KEPT}.damaged")
        self.path.replace(aside)
        self._tell_damage(f"{error}; it is {aside.name} now", 0)

    def _tell_damage(self, why: str, rows: int) -> None:
        message = f"{self.path} is damaged: {why}: a restart of the machine may forget bans, levels and quotas"
        self.tell(Event("kept_damaged", message, {"rows": rows}))

    def _opened(self) -> Any:
        """Open the file with LMDB, and check its version.

        Raises:
            ConfigurationError: A later version has written it.
        """
        size = os.fstat(self._file).st_size
        kept: Any = lmdb.open(
            str(self.path),
            map_size=2 * size + _MOST_GROWTH,
            subdir=False,
            mode=0o600,
            max_dbs=len(_KINDS),
            lock=False,  # it has a lock of its own
        )
        self._lmdb = kept
        try:
            whole = (kept.info()["last_pgno"] + 1) * kept.stat()["psize"]
            if size < whole:  # it was cut off, or LMDB has not written free pages at its end
                self._verify()
                os.ftruncate(self._file, whole)
            with kept.begin(write=True) as txn:
                version = txn.get(b"version")
                if version is None:
                    txn.put(b"version", VERSION)
                    _databases(kept, txn)  # in this commit: each waits for the disk, and others for the gate
                elif version != VERSION:
                    raise ConfigurationError(f"lmdb: {self.path} has version {version.decode()}; upgrade slidegate")
            if not size:
                _sync_directory(self.path.parent)
        except BaseException:
            kept.close()
            raise
        return kept


def _databases(kept: Any, txn: Any = None) -> dict[bytes, Any]:
    return {letter: kept.open_db(kind.encode(), txn) for letter, kind in _KINDS.items()}


def _fields_in(stored: bytes) -> dict[str, Any]:
    return dict(json.loads(stored))


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def in_background(work: Callable[[], object]) -> Future[None] | None:
    """Run something in a daemon thread; return its end, or None if no thread can be started."""
    end: Future[None] = Future()
    end.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
            end.set_result(None)
        except BaseException as error:
            end.set_exception(error)

    try:
        threading.Thread(target=run, name="slidegate-lmdb", daemon=True).start()
    except RuntimeError as error:  # there are too many, or the process is ending
        log_failure("lmdb: no thread can be started to copy, open or close files", error, time.monotonic())
        return None
    return end
