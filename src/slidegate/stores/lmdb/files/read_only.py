"""Opening the files of an LMDB environment to look at them: nothing is made, mended or written.

A reader takes a slot in LMDB's lock file, as every reader does, so that writers leave the pages alone that it reads. A
file that is missing, damaged or older is refused with a sentence: to put it right is for the workers.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import lmdb

from ....core.errors import ConfigurationError, StoreUnavailable
from .data_files import DATA, LOCK, check_data, nobody_else_has, unusable
from .host_clock import boot_id, boot_us, offset_us, wall_us
from .layout import CLOCK, NAMES, SECRET, Databases, version_to_read
from .opening import BROKEN, MAX_READERS, Opened, Options, take_gate


def open_to_read(path: Path, options: Options, patience_s: float, suspect: tuple[int, str]) -> Opened:
    """Open an environment that is there, for reading only.

    Args:
        path: Its directory, without symbolic links.
        options: How to open it.
        patience_s: How long to wait for another process that writes or opens it.
        suspect: The inode of a data file that must not be used any more, and why; without a reason it is checked.

    Raises:
        StoreUnavailable: The files are not there, or cannot be read; the message names the reason.
        StoreTimeout: Another process holds the files.
    """
    file = _gate(path, patience_s)
    try:
        if os.fstat(file).st_ino == suspect[0] and suspect[1]:
            raise StoreUnavailable(f"lmdb: {path} is damaged: {suspect[1]}")
        opened = _open(path, options, file)
    except (ConfigurationError, lmdb.Error) as error:
        os.close(file)
        raise StoreUnavailable(f"lmdb: {path / DATA} cannot be read: {error}") from error
    except OSError as error:
        os.close(file)
        raise StoreUnavailable(str(unusable(path, error))) from error
    except BaseException:
        os.close(file)
        raise
    fcntl.flock(file, fcntl.LOCK_UN)
    return opened


def _gate(path: Path, patience_s: float) -> int:
    """Open the data file to read it, and take its gate: nobody writes to it or opens it meanwhile."""
    _check_there(path)
    return take_gate(path, lambda: _data_of(path), patience_s)


def _check_there(path: Path) -> None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreUnavailable(f"lmdb: there is no store at {path}: nothing stands there") from None
    except OSError as error:
        raise StoreUnavailable(str(unusable(path, error))) from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreUnavailable(f"lmdb: there is no store at {path}: it is no directory")


def _data_of(path: Path) -> int:
    try:
        return os.open(path / DATA, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: the directory holds no {DATA}") from None
    except OSError as error:
        raise StoreUnavailable(str(unusable(path, error))) from error


def _open(path: Path, options: Options, file: int) -> Opened:
    size = os.fstat(file).st_size
    if not size:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: {DATA} is empty")
    if not (path / LOCK).exists():
        # Without it nobody would see who reads, and LMDB would make it.
        raise StoreUnavailable(f"lmdb: {path} has no {LOCK}; is it a copy? A worker that opens it makes one")
    try:
        check_data(path, every_page=nobody_else_has(path / LOCK))
    except StoreUnavailable as error:
        raise StoreUnavailable(f"lmdb: {path / DATA} is no store, or it is damaged: {error}") from error
    environment = lmdb.open(
        str(path),
        map_size=size,
        max_dbs=len(NAMES),
        max_readers=MAX_READERS,
        readonly=True,
        create=False,
        max_spare_txns=0,  # a reader's slot that is kept between reads does not survive a fork
    )
    try:
        dbs, offset = _load(path, environment)
        return Opened(environment, file, dbs, offset, (os.fstat(file).st_ino, (path / LOCK).stat().st_ino), [], [])
    except BROKEN as error:
        environment.close()
        raise StoreUnavailable(f"lmdb: {path} is damaged: {error}") from error
    except BaseException:
        environment.close()
        raise


def _load(path: Path, environment: Any) -> tuple[Databases, int]:
    with environment.begin() as txn:
        version_to_read(path, environment, txn)
    # In transactions of their own: a handle goes with the one that it was opened in, unless that is committed.
    dbs = {name: environment.open_db(name.encode(), create=False) for name in NAMES}
    with environment.begin() as txn:
        secret, record = txn.get(SECRET, None, dbs["meta"]), txn.get(CLOCK, None, dbs["meta"])
        if secret is None:
            raise StoreUnavailable(f"lmdb: {path} is not made yet; is another process at it?")
        return Databases(**dbs, secret=bytes(secret)), offset_us(record, boot_id(), boot_us(), wall_us())
