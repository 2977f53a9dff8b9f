"""The file of this start of the machine: its name, when it is created, and how much room is left in it.

The name of the file contains the layout and the machine's boot id. Killing a process cannot damage the file: its pages
are in the kernel's cache, and the last commit stays in force. Only a crash of the machine can, and then the boot id is
another one. So nothing is verified or repaired; a file of another boot is deleted unread.

That is only done if the directory has no users, see `gate`: a container may have a boot id of its own. The file of
users is joined, whatever its name. All of this happens behind the gate::

    users    the file          what is done
    none     this boot's       it is opened, and made larger if the options say so
    none     others            they are deleted, and one is created
    some     of this layout    it is opened
    some     of another one    an error: the versions do not understand each other

A file is deleted and created as well if it is damaged, was used behind another gate, or is incomplete, because the
process that created it was killed. It is complete when it has its disk space and all rows that are kept.

On a block device (ext4, XFS) the file has its whole size from the start, and so has its disk space: LMDB writes through
the map, and a process that writes to a hole on a full disk is killed. Elsewhere it is sparse, and LMDB writes to it
with calls that can fail: in memory (tmpfs) it would take that at once, and where changed blocks are written to new
places (btrfs, ZFS, overlay) space that was taken ahead does not help when the disk is full.

What is left when the map is nearly full is kept: a half for deletions, which copy pages, and of the other half most for
keys that are known::

    0                                        last page                                      size of the map
    |========================================|. . . . . . . . .|- NO_WINDOWS -|- NO_CELLS -|- NO_CHANGES ---|

All processes of a host share one clock, the machine's boot clock (Linux: `CLOCK_BOOTTIME`, which ignores NTP steps and
includes sleep), so they read the same time without communication. It starts at 0 with the machine, as the file does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from ...core.errors import ConfigurationError, StoreUnavailable
from ...core.events import Event
from ...core.ring import pack_head
from ...core.stored import UNREADABLE
from .gate import OPEN_FLAGS, Gate, identity_of, is_file_at
from .kept import Kept, Tell
from .rows import DAMAGE, NAMES, NO_LIFE, WINDOWS, Databases, LmdbBanRows, TransactionRows, new_version

LAYOUT: Final = 25
"""The version of the file. It increases whenever the bytes or the meaning of any row change."""
NEW_MAP_SIZE: Final = 2**28
LEAD: Final = 4 * 2**20
"""What is kept, if the file is large. A transaction has at most `batching.MOST_TOGETHER` jobs, and copies fewer pages
than that; `CHECK_EVERY` of them come between two checks. A row of other workers' has 1 MiB at most."""
CHECK_EVERY: Final = 16
CAN_TAKE: Final = hasattr(os, "posix_fallocate")
_BLOCK_BYTES: Final = 512

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MACOS_BOOT_ID: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the same for all processes and includes sleep.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_READY: Final = b"ready"
"""The key of the identity of the gate behind which the file is used, and the key of the hash that selects cells. They
are written when the file is complete."""
_CELL_KEY_BYTES: Final = 32
_SIZE_IN_FILE: Final = 0
"""With this size, LMDB takes the one that is written in the file; a smaller one would cut the file off."""


class Room(IntEnum):
    """What there is no room for any more."""

    PLENTY = 0
    NO_WINDOWS = 1
    """New keys share cells."""
    NO_CELLS = 2
    """A key whose cell does not exist yet is not counted: `on_error` decides."""
    NO_CHANGES = 3
    """All changes fail but those that delete or hand back."""


class CountsFile:
    """The open file of this start of the machine.

    Args:
        path: Its path.
        size: The size of the map, in bytes; `_SIZE_IN_FILE` for the one that is written in the file.
        create: Whether this is a worker; a tool that only reads changes no file.

    Attributes:
        check_from: The id of the transaction in which `check` has to be called next.
        lmdb: LMDB's environment.
        room: What there is no room for.
        size: The size of the map, in bytes.
    """

    def __init__(self, path: Path, size: int, *, create: bool) -> None:
        self.path = path
        self._takes_space = create and takes_space(path)
        self._file = os.open(path, OPEN_FLAGS)
        try:
            self.lmdb: Any = lmdb.open(
                str(path),
                map_size=size,
                subdir=False,
                mode=0o600,
                max_dbs=len(NAMES),
                max_spare_txns=0,
                lock=False,  # everything happens behind the gate
                sync=False,  # what has to survive a crash of the machine is kept
                metasync=False,
                writemap=self._takes_space,
            )
        except BaseException:
            os.close(self._file)
            raise
        self.dbs: Databases
        self._page_bytes = int(self.lmdb.stat()["psize"])
        self.size = int(self.lmdb.info()["map_size"])
        self._lead = min(LEAD, self.size // 4)
        self.check_from = 0
        self.room = Room.PLENTY

    def is_in_place(self) -> bool:
        """Return whether it is still the file at its path."""
        return is_file_at(self._file, self.path)

    def close(self) -> None:
        """Close it, unless it is."""
        self.lmdb.close()
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def open_databases(self, *, create: bool) -> None:
        """Open the databases, with a new random key of the hash that selects cells."""
        dbs = {name: self.lmdb.open_db(name.encode(), create=create) for name in NAMES}
        self.dbs = Databases(**dbs, cell_key=os.urandom(_CELL_KEY_BYTES))

    def take_space(self, bytes_before: int) -> None:
        """Take the disk space of the whole file, unless it has that; if there is too little, cut it off where it ended.

        Raises:
            OSError: There is too little.
        """
        taken = os.fstat(self._file).st_blocks * _BLOCK_BYTES
        if not self._takes_space or taken >= self.size:  # XFS would want the room of a whole file once more
            return
        try:
            os.posix_fallocate(self._file, 0, self.size)
        except OSError as error:
            os.truncate(self.path, bytes_before)
            needs = f"{error.strerror}: the file has {self.size >> 20} MiB (max_map_size)"
            raise OSError(error.errno, needs, str(self.path)) from error

    def used(self) -> int:
        """Return how many bytes of the file have ever been used."""
        return int(self.lmdb.info()["last_pgno"] + 1) * self._page_bytes

    def check(self, txn: Any) -> None:
        """Find out how much room is left, before the commit of a transaction."""
        self.room = Room.PLENTY
        self.check_from = txn.id() + CHECK_EVERY
        if self.size - self.used() >= self._lead:
            return
        # The last page stays where it was, but pages before it may be free.
        stats = [txn.stat(getattr(self.dbs, name)) for name in NAMES]
        pages = sum([stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"] for stat in stats])
        missing = self._lead - (self.size - pages * self._page_bytes)
        if missing > 0:
            self.room = Room(min(Room.NO_WINDOWS + 4 * missing // self._lead, Room.NO_CHANGES))
            self.check_from = txn.id() + 1


def takes_space(path: Path) -> bool:
    """Return whether a file at a path takes its disk space when it is made."""
    return CAN_TAKE and os.major(path.stat().st_dev) != 0  # 0 is that of a file system without a device of its own


# -- opening -----------------------------------------------------------------------------------------------------------


class Options(NamedTuple):
    """The options of an environment; all stores of a process that share it have to use the same.

    Attributes:
        max_map_size: The size of a new map, in bytes; by default `NEW_MAP_SIZE`. An existing file keeps its own, or is
            made so large by a process that is alone. A tool does not know it, so by default nothing is made larger.
        create: Whether to create the file where it is missing, of another start or damaged.
    """

    max_map_size: int | None
    create: bool = True


def open_file(gate: Gate, kept: Kept, options: Options) -> CountsFile | None:
    """Open the file; create it if it is missing, incomplete, used behind another gate, or damaged.

    Args:
        gate: The gate of the directory, inside which this process is.
        kept: What is kept of it.
        options: The options of its environment.

    Returns:
        The file; None while a copy is made into the file from which it would be filled.

    Raises:
        ConfigurationError: The users have another layout, or what is kept is of a later version.
        StoreUnavailable: It has to be created, and the options say not to.
        OSError: It cannot be opened, or there is too little disk space.
    """
    start = boot_id() or os.urandom(16).hex()  # a start that is not known may be another one
    file = gate.path / f"counts-{LAYOUT}-{start}.mdb"
    try:
        is_alone = gate.is_alone()
        if not is_alone:
            file = _file_of_users(gate.path) or file
        elif options.create:
            _delete_all_but(file, kept.tell)
        gate.join()
    except BaseException:
        gate.close()  # else nobody could join
        raise
    try:
        return _open_existing(file, gate, options, is_alone=is_alone and options.create)
    except (FileNotFoundError, lmdb.NotFoundError):  # or the process that created it was killed
        why = ""
    except (*DAMAGE, lmdb.BadTxnError) as error:  # its first transaction is bad by a page
        why = f"was damaged ({error})"
    if not options.create:
        raise StoreUnavailable(f"lmdb: {file} {why or 'does not exist'}; the first worker makes a new one")
    counts = kept.run_locked(partial(_create, file, gate, options, kept))
    if counts is not None and why:
        kept.tell(restarted(f"{file} {why}"))
    return counts


def restarted(why: str) -> Event:
    """Return the event for a file that is created again."""
    return Event("counts_restarted", f"{why}: windows start again; bans, levels and quotas go on")


def _file_of_users(path: Path) -> Path | None:
    """Return the path of the file of the users; None if it was deleted.

    Raises:
        ConfigurationError: They have another layout.
    """
    files = sorted(path.glob("counts-*.mdb"))
    if not files:
        return None
    layout = files[0].name  # of what is not ours, such as a copy of our file, the whole name is told
    name = re.fullmatch(r"counts-(\d+)-\w+\.mdb", layout)
    if name is not None:
        layout = name[1]
    if layout == str(LAYOUT):
        return files[0]
    raise ConfigurationError(
        f"lmdb: {path} is in use with layout {layout} by another version of slidegate, and this one uses {LAYOUT}; "
        "stop those workers first, or choose another path"
    )


def _delete_all_but(own: Path, tell: Tell) -> None:
    """Delete the files of other starts."""
    stale = [file for file in sorted(own.parent.glob("counts-*.mdb")) if file != own]
    for file in stale:
        file.unlink(missing_ok=True)
    if stale:
        tell(restarted(f"{stale[0]} is of an earlier start of the machine, or of another slidegate"))


def _open_existing(path: Path, gate: Gate, options: Options, *, is_alone: bool) -> CountsFile:
    """Open the existing file; the only process makes it larger if the options say so.

    Raises:
        FileNotFoundError: It does not exist.
        lmdb.Error: It is damaged, incomplete, or was used behind another gate.
        OSError: There is no disk space to make it larger.
    """
    bytes_before = path.stat().st_size
    size = _SIZE_IN_FILE
    if is_alone and options.max_map_size:
        size = max(options.max_map_size, bytes_before)
    counts = CountsFile(path, size, create=options.create)
    try:
        if is_alone:
            counts.take_space(bytes_before)
        counts.open_databases(create=False)
        with counts.lmdb.begin(counts.dbs.meta, write=is_alone) as txn:
            counts.check(txn)
            ready: bytes = txn.get(_READY, b"")
            if is_alone:
                txn.put(_READY, ready)  # any write puts the size of the map into the file, too
        if ready[:-_CELL_KEY_BYTES] != identity_of(gate.file):
            raise lmdb.InvalidError("it was not complete, or was used behind another gate")
        counts.dbs = counts.dbs._replace(cell_key=ready[-_CELL_KEY_BYTES:])
    except BaseException:
        counts.close()
        raise
    return counts


def _create(path: Path, gate: Gate, options: Options, kept: Kept) -> CountsFile:
    """Create the file, with the rows that are kept; leave none if that fails.

    Raises:
        OSError: There is too little disk space.
    """
    path.unlink(missing_ok=True)
    os.close(os.open(path, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o600))
    counts = None
    try:
        counts = CountsFile(path, options.max_map_size or NEW_MAP_SIZE, create=True)
        counts.take_space(0)  # LMDB takes a file of zeros for a foreign one, so only now
        counts.open_databases(create=True)
        kept.read(partial(_fill, counts))  # in order, which fills whole pages
        with counts.lmdb.begin(counts.dbs.meta, write=True) as txn:
            new_version(txn, counts.dbs)
            txn.put(_READY, identity_of(gate.file) + counts.dbs.cell_key)
    except BaseException:
        if counts is not None:
            counts.close()
        path.unlink(missing_ok=True)
        raise
    return counts


def _fill(counts: CountsFile, kind: str, kept: list[tuple[bytes, bytes]]) -> int:
    """Write rows that are kept into a new file; return how many cannot be read.

    Those that are over are found by the next sweeps, which know the clock of the store.
    """
    unreadable = 0
    with counts.lmdb.begin(write=True) as txn:
        rows = TransactionRows(txn, counts.dbs, 0, boot_us)
        bans = LmdbBanRows(rows, {})
        for row, stored in kept:
            try:
                fields = json.loads(stored)
                if kind != WINDOWS:
                    bans.restore(kind, row, fields)
                    continue
                spent, until_us = fields["spent"], fields["until_us"]
                txn.put(row, NO_LIFE + pack_head(spent, spent, until_us, until_us), db=counts.dbs.windows)
                rows.recheck_at(counts.dbs.ends, 0, row, WINDOWS)
            except (*UNREADABLE, lmdb.BadValsizeError):  # it spoils no other
                unreadable += 1
        counts.check(txn)
    return unreadable


# -- the machine -------------------------------------------------------------------------------------------------------


def boot_us() -> int:
    """Return the time since the machine was started, in microseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1000


def boot_id() -> str:
    """Return 32 hexadecimal digits that differ after each start of the machine; empty if the system has no boot id."""
    try:
        if sys.platform == "darwin":
            text = subprocess.run(_MACOS_BOOT_ID, capture_output=True, text=True, check=True, timeout=10).stdout
        else:
            text = _BOOT_ID.read_text(encoding="ascii")
        return f"{int(text.strip().replace('-', ''), 16):032x}"
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
