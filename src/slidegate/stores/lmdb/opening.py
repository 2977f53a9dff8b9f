"""The file of this start of the machine: which it is, whether it is begun anew, and what it has from the journal.

The name of the file contains the layout and the machine's boot id. Killing a process cannot damage the file: its pages
are in the kernel's cache, and the last commit stays in force. Only a crash of the machine can, and then the boot id is
another one. So nothing is verified or repaired; a file of another boot is deleted unread.

That is only done if nobody lives, see `gate`: a container may have a boot id of its own. Where somebody lives, his file
is joined, whatever its name. All of this happens behind the gate.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import lmdb

from ...core.errors import ConfigurationError, StoreUnavailable
from ...core.events import Event
from .counts import CAN_TAKE, Counts
from .gate import Gate
from .journal import Journal, Line, Name
from .kept_rows import write
from .layout import LAYOUT, NAMES, Databases, boot_id

DAMAGE: Final = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)
"""What LMDB reports of a damaged file. All other errors are those of this process, and the file stays."""

_NAME: Final = re.compile(r"counts-(\d+)-\w+\.mdb")
_READY: Final = b"ready"
"""The key of the identity of the gate behind which the file is used, and the key of the hash that selects cells. They
are written when the file has all of the journal."""
_CELL_KEY_BYTES: Final = 32
_AT_ONCE: Final = 500
NEW_MAP_SIZE: Final = 2**30

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


def _choose(path: Path, gate: Gate, options: Options, tell: Tell) -> tuple[Path, bool]:
    """Return the file to use, and whether this process is alone; become one of those who live.

    Raises:
        ConfigurationError: Those who live use another layout.
    """
    alone, boot = gate.is_alone(), boot_id()
    own, files = path / f"counts-{LAYOUT}-{boot or 'unknown'}.mdb", sorted(path.glob("counts-*.mdb"))
    if alone and options.create:
        stale = [file for file in files if file != own or not boot]
        for file in stale:
            file.unlink(missing_ok=True)
        if stale:
            tell(_restarted(f"{stale[0]} is of an earlier start of the machine, or of another slidegate"))
    elif not alone and files:
        own = files[0]
        version = _NAME.fullmatch(own.name)
        if version is None or int(version[1]) != LAYOUT:
            raise ConfigurationError(
                f"lmdb: {path} is in use with layout {version[1] if version else own.name} by another version of "
                f"slidegate, and this one uses {LAYOUT}; stop those workers first, or choose another path"
            )
    gate.join()
    return own, alone


def open_file(path: Path, gate: Gate, journal: Journal, options: Options, tell: Tell) -> Counts:
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
        OSError: It cannot be opened.
    """
    name, alone = _choose(path, gate, options, tell)
    try:
        return _mapped(name, gate, options, alone=alone)
    except (FileNotFoundError, lmdb.NotFoundError):  # whoever was creating it was killed
        why = ""
    except (*DAMAGE, lmdb.BadTxnError) as error:  # its first transaction is bad by a page
        why = f"was damaged ({error})"
    if not options.create:
        raise StoreUnavailable(f"lmdb: {name} {why or 'does not exist'}; the first worker begins it anew")
    name.unlink(missing_ok=True)
    counts = _mapped(name, gate, options, alone=True, kept=journal.read())
    if why:
        tell(_restarted(f"{name} {why}"))
    return counts


def discard(counts: Counts, error: Exception, tell: Tell) -> None:
    """Delete a damaged file, unless another process has already begun it anew."""
    if counts.is_in_place():
        counts.path.unlink(missing_ok=True)
        tell(_restarted(f"{counts.path} was damaged ({error})"))


def _restarted(why: str) -> Event:
    return Event("counts_restarted", f"{why}: windows begin anew; bans, levels and quotas go on")


def _mapped(
    name: Path, gate: Gate, options: Options, *, alone: bool, kept: Mapping[Name, Line] | None = None
) -> Counts:
    """Map a file and open its databases.

    Args:
        name: The path of the file.
        gate: The gate.
        options: The options.
        alone: Whether no other process lives.
        kept: The rows of the journal, with which the file is created; None if it has to be there.
    """
    create = kept is not None
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with ExitStack() as if_it_fails:
        file = os.open(name, flags | (os.O_CREAT if create else 0), 0o600)
        if_it_fails.callback(os.close, file)
        # With 0, LMDB takes the size that is written in the file; a smaller one would cut the file off.
        asked = options.max_map_size or (NEW_MAP_SIZE if create else 0)
        size = max(asked, os.fstat(file).st_size) if asked and alone and options.create else 0
        through_map = CAN_TAKE and options.create
        fixed: Any = {"subdir": False, "lock": False, "sync": False, "metasync": False, "max_spare_txns": 0}
        varying: Any = {"map_size": size, "create": create, "writemap": through_map}
        environment: Any = lmdb.open(str(name), max_dbs=len(NAMES), mode=0o600, **fixed, **varying)
        if_it_fails.callback(environment.close)
        # LMDB takes a file of zeros for a foreign one, so room is only taken now.
        counts = Counts(name, environment, file, takes=through_map)
        if create and counts.stuck:  # a page that is written where no space was taken kills the process
            raise OSError(errno.ENOSPC, counts.stuck, str(name))
        dbs = {database: environment.open_db(database.encode(), create=create) for database in NAMES}
        counts.dbs = Databases(**dbs, cell_key=os.urandom(_CELL_KEY_BYTES))
        if kept is None:
            _read(counts, gate, writes=alone and options.create)
        else:
            # In order, which fills whole pages: a full file of bans would not fit into a new one else.
            _fill(counts, gate, sorted(kept.items(), key=lambda row: row[0]))
        if_it_fails.pop_all()
    return counts


def _read(counts: Counts, gate: Gate, *, writes: bool) -> None:
    """Read the key of the hash that selects cells.

    Raises:
        lmdb.InvalidError: The file is not complete, or is used behind another gate.
    """
    with counts.lmdb.begin(counts.dbs.meta, write=writes) as txn:
        counts.check(txn, always=True)
        ready = txn.get(_READY, b"")
        if writes:  # any write puts the size of the map into the file, which may be larger now
            txn.put(_READY, ready)
    if ready[:-_CELL_KEY_BYTES] != gate.identity():
        raise lmdb.InvalidError("it was not complete, or was used behind another gate")
    counts.dbs = counts.dbs._replace(cell_key=ready[-_CELL_KEY_BYTES:])


def _fill(counts: Counts, gate: Gate, rows: Sequence[tuple[Name, Line]]) -> None:
    """Write the rows of the journal into a new file, and then that it is complete."""
    environment, dbs = counts.lmdb, counts.dbs
    for start in range(0, len(rows), _AT_ONCE):
        with environment.begin(write=True) as txn:
            write(txn, dbs, rows[start : start + _AT_ONCE])
            counts.check(txn, always=True)
    with environment.begin(dbs.meta, write=True) as txn:
        txn.put(_READY, gate.identity() + dbs.cell_key)
