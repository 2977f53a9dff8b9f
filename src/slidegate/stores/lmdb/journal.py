"""The journal: bans, levels and quotas, which survive a restart of the machine.

`kept.jsonl` has one line of JSON for each change, and the last line of a row counts::

    {"v": 1, "ban": {"key": "user:eve", "reason": "", "by": "ann", "level": 0, "since_us": 5, "until_us": null}}
    {"v": 1, "ban": {"key": "user:eve", "lifted": true}}
    {"v": 1, "level": {"policy": "abuse", "key": "user:eve", "level": 2, "until_us": 7, "over_us": 9}}
    {"v": 1, "quota": {"key": "user:ann", "window": "5f...", "spent": 3, "until_us": 9, "rule": "plan", ...}}
    {"v": 1, "reset_all": {}}

Times are Unix time. Fields that a later version has written are ignored, and kept where the journal is written anew; so
are lines of kinds that this version does not know. Lines are appended behind the gate, before the transaction that they
belong to is committed: who is killed in between has told nobody. Each begins with a line break, so a torn line spoils
no other. They are synced about once a second, in a thread. When the file is twice as long as the lines that counted
when it was last written anew, a process copies those that count now into a new file, after a line with their length,
and gives it the name of the old one behind the gate; so before each append, the open file is compared with that at the
path.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.bans.ban import Ban
from ...core.errors import ConfigurationError, SlidegateError
from ...core.events import Event
from ...core.quotas import KEPT_US
from ...core.store import Clock
from ...core.stored import json_of
from ..shared import WINDOW_DIGEST_BYTES
from .gate import is_file_at

JOURNAL: Final = "kept.jsonl"
VERSION: Final = 1
MIN_BYTES: Final = 2**18
"""A shorter journal is not compacted."""

SYNC_EVERY_S: Final = 1.0

_LONGEST_HEAD: Final = 100
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_NONBLOCK

Name: TypeAlias = tuple[str, ...]
"""The kind of a row, and what identifies it."""
Fields: TypeAlias = Mapping[str, Any]
BehindGate: TypeAlias = Callable[[Callable[[], object]], bool]
"""Calls a function behind the gate; returns whether it did."""
Line: TypeAlias = Mapping[str, Any]
"""What a line says: its version, and under the kind of its row the fields."""
Noted: TypeAlias = list[tuple[str, Fields]]
"""The kinds of rows that have changed, and the fields that identify them."""
_NAMED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "ban": ("key",),
    "level": ("policy", "key"),
    "quota": ("key", "window"),
}
_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ban": {"key": str, "reason": str, "by": str, "level": int, "since_us": int, "until_us": int | None},
    "level": {"policy": str, "key": str, "level": int, "until_us": int, "over_us": int},
    "quota": {"key": str, "window": str, "spent": int, "until_us": int},
}
_MOST_US: Final = 2**53
_MOST: Final[Mapping[str, int]] = {"spent": 2**32 - 1}
"""The largest numbers that can be stored, by field; the others are `_MOST_US`."""
_LONGEST_NAME: Final = 255
"""The most bytes of each field that names a row; LMDB takes keys of up to 511."""
_KINDS: Final = (*_NAMED_BY, "reset_all", "compacted")

_UNREADABLE: Final = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
"""The errors of a line that was torn, damaged or written by hand. It spoils no other."""


def name_of(kind: str, fields: Fields) -> Name:
    """Return the name of the row that a line is about."""
    name = (kind, *[fields[field] for field in _NAMED_BY[kind]])
    if kind == "ban" and Ban._make(map(fields.get, Ban._fields)).network() is not None:
        return (*name, "network")
    return name


def is_over(kind: str, fields: Fields, unix_us: int) -> bool:
    """Return whether a line says that its row is gone, or has been since some time."""
    if kind == "ban":
        return "lifted" in fields or (fields["until_us"] is not None and unix_us >= int(fields["until_us"]))
    if kind == "level":
        return not fields["level"] or unix_us >= int(fields["over_us"])
    return not fields["spent"] or unix_us >= int(fields["until_us"]) + KEPT_US


class Kept(NamedTuple):
    """What a journal says.

    Attributes:
        lines: The lines of the rows that count, by name; those of unknown kinds by themselves.
        unreadable: How many lines cannot be read.
    """

    lines: dict[Name, Line]
    unreadable: int


def read_lines(lines: Iterable[bytes], unix_us: int) -> Kept:
    """Return what the lines of a journal say.

    Raises:
        ConfigurationError: A version that this one does not understand has written some of them.
    """
    kept: dict[Name, Line] = {}
    later = unreadable = 0
    for text in lines:
        if not text.strip():  # each line begins with a line break
            continue
        try:
            line = json.loads(text)
            if line["v"] > VERSION:
                later = line["v"]
            else:
                _take(kept, line, unix_us)
        except _UNREADABLE:
            unreadable += 1
    if later:
        raise ConfigurationError(f"lmdb: {JOURNAL} has lines of version {later}; upgrade slidegate")
    return Kept(kept, unreadable)


def _take(kept: dict[Name, Line], line: Line, unix_us: int) -> None:
    """Change the lines that count by the next one."""
    kind = next((kind for kind in _KINDS if kind in line), "")
    if kind == "compacted":
        return
    if not kind:
        kept[kind, json.dumps(line)] = line
        return
    if kind == "reset_all":
        for name in list(kept):
            if name[0] == "quota":
                del kept[name]
        return
    fields = line[kind]
    if is_over(kind, fields, unix_us):
        kept.pop(name_of(kind, fields), None)
        if "lifted" in fields:
            kept.pop((kind, fields["key"]), None)  # beside the ban of the network
        return
    _check(kind, fields)
    kept[name_of(kind, fields)] = line


def _check(kind: str, fields: Fields) -> None:
    """Check that a row can be written from the fields of a line, which may be damaged.

    Raises:
        ValueError: It cannot.
    """
    for field, of in _TYPES[kind].items():
        value = fields[field]
        if not isinstance(value, of):
            raise ValueError(f"{field} is of another type")
        if isinstance(value, int) and abs(value) > _MOST.get(field, _MOST_US):
            raise ValueError(f"{field} is too large")
        if field in _NAMED_BY[kind] and len(value.encode()) > _LONGEST_NAME:
            raise ValueError(f"{field} is too long")
    if kind == "quota" and len(bytes.fromhex(fields["window"])) != WINDOW_DIGEST_BYTES:
        raise ValueError("window is no digest")


def line_of(kind: str, fields: Fields) -> bytes:
    """Return the text of a line about a row."""
    return text_of({"v": VERSION, kind: fields})


def text_of(line: Line) -> bytes:
    """Return the text of a line."""
    return b"\n" + json_of(line)


class Journal:
    """The journal of a directory. All methods but `keep_up`, `sync` and `compact` are called behind the gate.

    Args:
        path: The directory.
        tell: Emits an event; called in the thread that finds it.

    Attributes:
        path: The path of its file.
        is_unsynced: Whether lines of this process may not be on the disk yet.
    """

    def __init__(self, path: Path, tell: Callable[[Event], object]) -> None:
        self.path = path / JOURNAL
        self._tell = tell
        self._file = -1
        self._sync_at_s = 0.0
        self.is_unsynced = False

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines, all of them or none.

        Raises:
            OSError: They cannot be written.
        """
        if not is_file_at(self._file, self.path):
            self._close_file()
            self._file = os.open(self.path, _FLAGS | os.O_WRONLY | os.O_APPEND, 0o600)
        size, data = os.fstat(self._file).st_size, b"".join(lines)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            os.ftruncate(self._file, size)
            raise
        self.is_unsynced = True

    def read(self) -> Kept:
        """Return what it says; some rows may have expired.

        Raises:
            ConfigurationError: A later version has written some of them.
            OSError: It cannot be read.
        """
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                return read_lines(file, 0)
        except FileNotFoundError:
            return Kept({}, 0)

    def tell_unreadable(self, kept: Kept) -> None:
        """Emit the event for lines that cannot be read, if there are any: whoever calls it goes on without them."""
        if kept.unreadable:
            why = "they say that a ban, level or quota has changed, or they were cut off before anybody was told"
            message = f"{self.path}: {kept.unreadable} of its lines cannot be read: {why}"
            self._tell(Event("journal_damaged", message, {"lines": kept.unreadable}))

    def keep_up(self, unix_us: Clock, behind_gate: BehindGate) -> None:
        """Sync it in a thread, once a second, and write it anew when it is long.

        Args:
            unix_us: Returns the Unix time in microseconds.
            behind_gate: Calls a function behind the gate.
        """
        now_s = time.monotonic()
        if now_s < self._sync_at_s:  # a thread waits for that moment
            return
        wait_s = max(self._sync_at_s + SYNC_EVERY_S - now_s, 0.0)
        self._sync_at_s = now_s + wait_s

        def work() -> None:
            time.sleep(wait_s)
            self.sync()
            if self.is_long() and behind_gate(lambda: None):  # else the store was closed
                self.compact(unix_us(), behind_gate)

        in_background(work)

    def is_long(self) -> bool:
        """Return whether it is twice as long as the lines that counted when it was last written anew.

        Raises:
            OSError: It cannot be read.
        """
        size = self.path.stat().st_size
        if size < MIN_BYTES:
            return False
        with self.path.open("rb") as file:
            file.readline()
            first = file.readline(_LONGEST_HEAD)
        try:
            return size >= 2 * int(json.loads(first)["compacted"]["bytes"])
        except (ValueError, TypeError, KeyError):
            return True  # it has not been compacted yet

    def sync(self) -> None:
        """Write what was appended to the disk, if there is anything new."""
        if self.is_unsynced:
            self.is_unsynced = False
            file = os.dup(self._file)  # it may be closed meanwhile
            try:
                getattr(os, "fdatasync", os.fsync)(file)
            finally:
                os.close(file)

    def compact(self, unix_us: int, behind_gate: BehindGate) -> None:
        """Replace the journal by a shorter one, unless another process is doing it.

        Args:
            unix_us: The Unix time in microseconds.
            behind_gate: Calls a function behind the gate.

        Raises:
            OSError: It cannot be written.
        """
        fresh = self.path.with_name(f"{JOURNAL}.new")
        with suppress(BlockingIOError), open(os.open(fresh, _FLAGS | os.O_RDWR, 0o600), "r+b") as new:
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever is killed in between leaves it to the next
            if not is_file_at(new.fileno(), fresh):
                return
            sizes: list[int] = []
            with self.path.open("rb") as old:
                if not behind_gate(lambda: sizes.append(os.fstat(old.fileno()).st_size)):
                    return
                kept = read_lines(old.read(sizes[0]).splitlines(), unix_us)
                _write_anew(new, [text_of(line) for line in kept.lines.values()])
                new.write(old.read())  # what was appended meanwhile, so that little is left for behind the gate
                new.flush()
                os.fsync(new.fileno())

                def take_place() -> None:
                    if is_file_at(old.fileno(), self.path):
                        new.write(old.read())
                        new.flush()
                        fresh.replace(self.path)

                if behind_gate(take_place):
                    self.tell_unreadable(kept)
                    os.fsync(new.fileno())
                    _sync_directory(self.path.parent)

    def close(self) -> None:
        """Close the file. A forked child, which calls this first, has no thread that waits to sync it."""
        self._close_file()
        self._sync_at_s = 0.0

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self.is_unsynced = -1, False


def _write_anew(file: Any, lines: Sequence[bytes]) -> None:
    file.truncate()
    file.write(line_of("compacted", {"bytes": sum(map(len, lines))}))
    file.writelines(lines)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def in_background(work: Callable[[], object]) -> None:
    """Run something in a daemon thread; an error of the disk leaves it to the next time."""

    def run() -> None:
        with suppress(OSError, SlidegateError):
            work()

    with suppress(RuntimeError):  # the process is ending
        threading.Thread(target=run, name="slidegate-journal", daemon=True).start()
