"""The file of this start of the machine: which it is, whether it is begun anew, and what it has from the journal.

The name of the file contains the layout and the machine's boot id. Killing a process cannot damage the file: its pages
are in the kernel's cache, and the last commit stays in force. Only a crash of the machine can, and then the boot id is
another one. So nothing is verified or repaired; a file of another boot is deleted unread.

That is only done if nobody lives, see `gate`: a container may have a boot id of its own. Where somebody lives, his file
is joined, whatever its name. All of this happens behind the gate::

    who lives     the file          what is done
    nobody        this boot's       it goes on; the size that is asked for may be larger
    nobody        others            they are deleted, and one is begun anew
    somebody      of this layout    it is joined
    somebody      of another one    an error: the versions do not understand each other

A file is begun anew as well if it is incomplete, because whoever made it was killed, damaged, or was used behind
another gate. It is complete when it has its disk space and all rows of the journal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from ...core.errors import ConfigurationError, StoreUnavailable
from ...core.events import Event
from .counts import CountsFile, takes_space
from .gate import Gate
from .journal import Journal, Kept, Line, Name
from .kept_rows import write_rows
from .layout import LAYOUT, NAMES, Databases, boot_id

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)
"""What LMDB reports of a damaged file. All other errors are those of this process, and the file stays."""
NEW_MAP_SIZE: Final = 2**28

_NAME: Final = re.compile(r"counts-(\d+)-\w+\.mdb")
_READY: Final = b"ready"
"""The key of the identity of the gate behind which the file is used, and the key of the hash that selects cells. They
are written when the file is complete."""
_CELL_KEY_BYTES: Final = 32
_AT_ONCE: Final = 500
"""How many rows of the journal are written in one transaction."""
_SIZE_IN_FILE: Final = 0
"""With this size, LMDB takes the one that is written in the file; a smaller one would cut the file off."""

Tell: TypeAlias = Callable[[Event], object]


class Options(NamedTuple):
    """The options of an environment; all stores of a process that share it have to use the same.

    Attributes:
        max_map_size: The size of a new map, in bytes; by default `NEW_MAP_SIZE`. An existing file keeps its own, or is
            made so large by a process that is alone. A tool does not know it, so by default nothing is made larger.
        create: Whether to begin the file anew where it is missing, of another start or damaged.
    """

    max_map_size: int | None
    create: bool = True


class Choice(NamedTuple):
    """The file to use.

    Attributes:
        path: Its path; it may be missing.
        is_ours: Whether nobody else lives, so that this process may make it larger.
    """

    path: Path
    is_ours: bool


def open_file(path: Path, gate: Gate, journal: Journal, options: Options, tell: Tell) -> CountsFile:
    """Open the file; begin it anew if it is missing, incomplete, used behind another gate, or damaged.

    Args:
        path: The directory.
        gate: Its gate, inside which this process is.
        journal: Its journal.
        options: The options.
        tell: Called with events.

    Raises:
        ConfigurationError: Those who live use another layout, the journal is of a later version, or the file is not a
            regular file.
        StoreUnavailable: It has to be begun anew, and the options say not to.
        OSError: It cannot be opened, or there is too little disk space.
    """
    choice = _choose(path, gate, options, tell)
    try:
        return _go_on(choice, gate, options)
    except (FileNotFoundError, lmdb.NotFoundError):  # whoever was creating it was killed
        why = ""
    except (*DAMAGE, lmdb.BadTxnError) as error:  # its first transaction is bad by a page
        why = f"was damaged ({error})"
    if not options.create:
        raise StoreUnavailable(f"lmdb: {choice.path} {why or 'does not exist'}; the first worker begins it anew")
    choice.path.unlink(missing_ok=True)
    kept = journal.read()
    counts = _begin_anew(choice.path, gate, options, kept)
    if why:
        tell(_restarted(f"{choice.path} {why}"))
    journal.tell_unreadable(kept)
    return counts


def discard(counts: CountsFile, damage: str, tell: Tell) -> None:
    """Delete a damaged file, unless another process has already begun it anew."""
    if counts.is_in_place():
        counts.path.unlink(missing_ok=True)
        tell(_restarted(f"{counts.path} was damaged ({damage})"))


def deleted(path: Path) -> Event:
    """Return the event for files of a directory that were deleted or replaced while this process used them."""
    return _restarted(f"files in {path} were deleted or replaced", " if kept.jsonl was not")


def _restarted(why: str, condition: str = "") -> Event:
    return Event("counts_restarted", f"{why}: windows begin anew; bans, levels and quotas go on{condition}")


def _choose(path: Path, gate: Gate, options: Options, tell: Tell) -> Choice:
    """Choose the file to use, and become one of those who live. If nobody lived, delete all other files.

    Raises:
        ConfigurationError: Those who live use another layout.
    """
    nobody_lives, boot = gate.is_alone(), boot_id()
    own, files = path / f"counts-{LAYOUT}-{boot or 'unknown'}.mdb", sorted(path.glob("counts-*.mdb"))
    if nobody_lives and options.create:
        stale = [file for file in files if file != own or not boot]
        for file in stale:
            file.unlink(missing_ok=True)
        if stale:
            tell(_restarted(f"{stale[0]} is of an earlier start of the machine, or of another slidegate"))
    elif not nobody_lives and files:
        own = files[0]
        version = _NAME.fullmatch(own.name)
        if version is None or int(version[1]) != LAYOUT:
            raise ConfigurationError(
                f"lmdb: {path} is in use with layout {version[1] if version else own.name} by another version of "
                f"slidegate, and this one uses {LAYOUT}; stop those workers first, or choose another path"
            )
    gate.join()
    return Choice(own, nobody_lives and options.create)


def _go_on(choice: Choice, gate: Gate, options: Options) -> CountsFile:
    """Open an existing file; make it larger if it is ours and the options say so.

    Raises:
        FileNotFoundError: It does not exist.
        lmdb.Error: It is damaged, incomplete, or was used behind another gate.
        OSError: There is no disk space to make it larger.
    """
    bytes_before, size = choice.path.stat().st_size, _SIZE_IN_FILE
    if choice.is_ours and options.max_map_size:
        size = max(options.max_map_size, bytes_before)
    counts = _mapped(choice.path, size, options)
    try:
        if choice.is_ours and counts.takes_space:
            _take_space(counts, bytes_before)
        counts.dbs = _databases(counts, create=False)
        ready = _read_ready(counts, writes=choice.is_ours)
        if ready[:-_CELL_KEY_BYTES] != gate.identity():
            raise lmdb.InvalidError("it was not complete, or was used behind another gate")
        counts.dbs = counts.dbs._replace(cell_key=ready[-_CELL_KEY_BYTES:])
    except BaseException:
        counts.close()
        raise
    return counts


def _begin_anew(path: Path, gate: Gate, options: Options, kept: Kept) -> CountsFile:
    """Make a file with the rows of the journal; leave none if that fails.

    Raises:
        OSError: There is too little disk space.
    """
    # In order, which fills whole pages: a full file of bans would not fit into a new one else.
    rows = sorted(kept.lines.items(), key=lambda row: row[0])
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    counts = None
    try:
        counts = _mapped(path, options.max_map_size or NEW_MAP_SIZE, options)
        if counts.takes_space:  # LMDB takes a file of zeros for a foreign one, so only now
            _take_space(counts, 0)
        counts.dbs = _databases(counts, create=True)
        _fill(counts, gate, rows)
    except BaseException:
        if counts is not None:
            counts.close()
        path.unlink(missing_ok=True)
        raise
    return counts


def _mapped(path: Path, size: int, options: Options) -> CountsFile:
    """Map a file, of which a descriptor is kept beside LMDB's."""
    has_space = options.create and takes_space(path)  # a tool leaves no trace where it only reads
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        environment: Any = lmdb.open(
            str(path),
            map_size=size,
            subdir=False,
            mode=0o600,
            max_dbs=len(NAMES),
            max_spare_txns=0,
            lock=False,  # everything happens behind the gate
            sync=False,  # what has to survive a crash of the machine is in the journal
            metasync=False,
            writemap=has_space,
        )
    except BaseException:
        os.close(file)
        raise
    return CountsFile(path, environment, file, takes_space=has_space)


def _take_space(counts: CountsFile, bytes_before: int) -> None:
    """Take the disk space of the whole file; if there is too little, cut the file off where it ended."""
    try:
        counts.take_space()
    except OSError as error:
        os.truncate(counts.path, bytes_before)
        needs = f"{error.strerror}: the file has {counts.size >> 20} MiB (max_map_size)"
        raise OSError(error.errno, needs, str(counts.path)) from error


def _databases(counts: CountsFile, *, create: bool) -> Databases:
    dbs = {name: counts.lmdb.open_db(name.encode(), create=create) for name in NAMES}
    return Databases(**dbs, cell_key=os.urandom(_CELL_KEY_BYTES))


def _read_ready(counts: CountsFile, *, writes: bool) -> bytes:
    """Return what was written when the file was complete; any write puts the size of the map into the file, too."""
    with counts.lmdb.begin(counts.dbs.meta, write=writes) as txn:
        counts.check(txn)
        ready: bytes = txn.get(_READY, b"")
        if writes:
            txn.put(_READY, ready)
    return ready


def _fill(counts: CountsFile, gate: Gate, rows: Sequence[tuple[Name, Line]]) -> None:
    """Write the rows of the journal into a new file, and then that it is complete."""
    environment, dbs = counts.lmdb, counts.dbs
    for start in range(0, len(rows), _AT_ONCE):
        with environment.begin(write=True) as txn:
            write_rows(txn, dbs, rows[start : start + _AT_ONCE])
            counts.check(txn)
    with environment.begin(dbs.meta, write=True) as txn:
        txn.put(_READY, gate.identity() + dbs.cell_key)
