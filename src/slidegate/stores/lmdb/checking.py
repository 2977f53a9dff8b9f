"""Checks of the files of an LMDB environment: their location and permissions, and whether they are damaged.

The directory contains LMDB's files, ``data.mdb`` and ``lock.mdb``. A damaged data file is renamed to
``data.mdb.corrupt-<time>``.

LMDB maps its file into memory and follows the page numbers in it, so a damaged file can crash the process. So a file is
verified before LMDB opens it: always its head, and every page if no other process has it open. If another process has
it open, it was verified before, and may be changing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from typing import Any, Final

import lmdb.verify

from ...core.errors import ConfigurationError, StoreUnavailable

DATA: Final = "data.mdb"
LOCK: Final = "lock.mdb"

# On these, other hosts do not share locks and memory maps, and on some of them not even other processes do.
NETWORKED: Final = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.cephfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
        *("fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb", "smb2", "smb3"),
        *("smbfs", "vboxsf", "virtiofs"),
    )
)
DOUBTFUL: Final = frozenset(["overlay", "aufs", "ecryptfs"])

_REMEDIES: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or "),
    errno.EROFS: "mount its file system for writing, or ",
}
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    **dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device"),
}
_MOUNTS: Final = Path("/proc/self/mountinfo")
_PAGE_HEAD: Final = Struct("=QHHHH")  # number, unused, flags, lower, upper
_META: Final = Struct("=IIQQ IHHQQQQQ IHHQQQQQ QQ")  # see MDB_meta in LMDB's mdb.c
_META_FLAG: Final = 0x08
_MAGIC: Final = 0xBEEFC0DE
_FORMAT: Final = 1
_NEWER_HEAD: Final = 24  # the offset of the magic number in LMDB 1.0


def check_directory(path: Path) -> None:
    """Create the directory of an environment if it is missing, and check that no other user can write to its files.

    Another user with write access could truncate a mapped file, and so crash the process. Root is not checked.

    Raises:
        ConfigurationError: It cannot be used; the message names the reason, the owner and the remedy.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except FileNotFoundError:
        raise ConfigurationError(f"lmdb: {path.parent} does not exist; create it, or choose another path") from None
    except FileExistsError:
        raise ConfigurationError(
            f"lmdb: {path} is a file; expected a directory, or a path where one can be created"
        ) from None
    except OSError as error:
        raise unusable(path, error) from error
    for checked, status in {path: found, **check_files(path)}.items():
        for who, bit, remedy in (("every user", stat.S_IWOTH, "o-w"), (f"group {status.st_gid}", stat.S_IWGRP, "g-w")):
            if status.st_mode & bit:
                raise ConfigurationError(
                    f"lmdb: {who} may write to {checked}, and change counts and bans; chmod {remedy} {checked}"
                )
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"lmdb: {path} {_belongs(found)}: give it to that user, run as its owner, or choose a path that does not "
            "exist yet; all workers have to run as the same user"
        )


def check_files(path: Path) -> dict[Path, os.stat_result]:
    """Check that the existing files of an environment are regular files, and return their status.

    Opening another kind, such as a FIFO, could block.

    Raises:
        ConfigurationError: One is not a regular file, or its status cannot be read.
    """
    found = {}
    for place in (path / DATA, path / LOCK):
        try:
            found[place] = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise unusable(path, error) from error
        check_kind(place, found[place])
    return found


def check_kind(place: Path, status: os.stat_result) -> None:
    """Check that a path is a regular file, by its status.

    Raises:
        ConfigurationError: It is not.
    """
    if not stat.S_ISREG(status.st_mode):
        what = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
        raise ConfigurationError(f"lmdb: {place} is {what}; remove it, or choose another path")


def check_file_system(path: Path, mounts: Iterable[str] | None = None) -> str:
    """Return a warning about the file system of a path, or an empty string; see `file_system`.

    Raises:
        ConfigurationError: On this file system, other hosts or processes may not see our locks.
    """
    kind = file_system(path, mounts)
    if kind in NETWORKED:
        raise ConfigurationError(
            f"lmdb: {path} is on {kind}, which does not share locks and memory maps; choose a path on a local "
            "disk, or RedisStore for several hosts"
        )
    if kind in DOUBTFUL or kind.startswith("fuse"):
        return f"{path} is on {kind}: only processes that share this mount count together; a local disk is safer"
    return ""


def file_system(path: Path, mounts: Iterable[str] | None = None) -> str:
    """Return the type of the file system of a path, as `mount` names it; empty if it is unknown.

    Args:
        path: A path without symbolic links.
        mounts: The lines of ``/proc/self/mountinfo``; by default those of this machine.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
    kind, length = "", -1
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = Path(before.split(" ")[4].replace("\\040", " "))
        if (path == point or point in path.parents) and len(point.parts) >= length:
            kind, length = after.split(" ")[0], len(point.parts)
    return kind


def unusable(path: Path, error: OSError) -> ConfigurationError:
    """Return the error for an unusable path, which names its owner and the remedy."""
    failed = Path(error.filename or path)
    problem = f"lmdb: {failed} cannot be used: {error.strerror or error}"
    if not isinstance(error, PermissionError):
        return ConfigurationError(f"{problem}; {_REMEDIES.get(error.errno or 0, '')}choose another path")
    for owned in (failed, *failed.parents):
        with suppress(OSError):
            status = owned.stat()
            return ConfigurationError(
                f"{problem}; {owned} {_belongs(status)}: give it to that user, or choose another path; all workers "
                "have to run as the same user"
            )
    return ConfigurationError(problem)


def _belongs(status: os.stat_result) -> str:
    owner = f"belongs to user {status.st_uid} ({stat.filemode(status.st_mode)})"
    return f"{owner}, and this process is user {os.geteuid()}"


class Damaged(StoreUnavailable):
    """A data file is damaged; the message describes the damage."""


def check_data(path: Path, *, every_page: bool) -> None:
    """Check that LMDB can safely open the data file of a directory. The caller holds the gate.

    Args:
        path: The directory.
        every_page: Whether to verify every page, and not only the head.

    Raises:
        Damaged: It is damaged.
        ConfigurationError: It has the format of another major version of LMDB; it may be intact, and is not modified.
    """
    data = path / DATA
    short = _check_head(data)
    if sys.maxsize <= 2**32 or not (short or every_page):
        return
    try:
        verify: Any = lmdb.verify.verify
        damage = verify(str(data), subdir=False)[:1]
    except lmdb.verify.VerifyError as error:
        damage = [str(error)]
    except Exception as error:  # the check itself failed on a damaged page
        damage = [repr(error)]
    if damage:
        raise Damaged(short or damage[0])


def is_file_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the file at a path."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(status, os.fstat(file))


def nobody_else_has(lock: Path) -> bool:
    """Return whether no process has the environment open; each of them locks the first byte of LMDB's lock file.

    This process must not have it open, because closing the file here would release LMDB's lock.
    """
    try:
        file = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _check_head(path: Path) -> str:
    """Check the first two pages; return a message if the file is shorter than they specify, else an empty string.

    A shorter file may be intact: pages at its end that were freed before they were written may be missing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_PAGE_HEAD.size + _META.size)
        first = _meta(head)
        if first is None:
            if head[_NEWER_HEAD : _NEWER_HEAD + 4] == _MAGIC.to_bytes(4, sys.byteorder):
                raise _of_another_format(path, int.from_bytes(head[_NEWER_HEAD + 4 : _NEWER_HEAD + 8], sys.byteorder))
            raise Damaged("it is not an LMDB file")
        file_format, page_bytes, _, _ = first
        file.seek(page_bytes)
        second = _meta(file.read(_PAGE_HEAD.size + _META.size))
    if second is None or second[:2] != first[:2]:
        raise Damaged("its second page is damaged")
    if file_format != _FORMAT:
        raise _of_another_format(path, file_format)
    last_page = max(first, second, key=lambda meta: meta[3])[2]
    if (last_page + 1) * page_bytes > size:
        return f"it has {size} bytes, and its head specifies {(last_page + 1) * page_bytes}"
    return ""


def set_aside(path: Path) -> Path:
    """Rename a damaged data file, whose gate this process holds, and return its new path.

    LMDB's lock file is removed first: after the rename, another process may immediately create both files.
    """
    kept = path.with_name(f"{path.name}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    (path.parent / LOCK).unlink(missing_ok=True)
    path.rename(kept)
    return kept


def _of_another_format(path: Path, file_format: int) -> ConfigurationError:
    return ConfigurationError(f"lmdb: {path} has LMDB's data format {file_format}; expected {_FORMAT}")


def _meta(head: bytes) -> tuple[int, int, int, int] | None:
    """Return format, page size, and numbers of the last page and transaction; None if the head is invalid."""
    if len(head) < _PAGE_HEAD.size + _META.size:
        return None
    _, _, flags, _, _ = _PAGE_HEAD.unpack_from(head)
    values = _META.unpack_from(head, _PAGE_HEAD.size)
    magic, file_format, page_bytes, last_page, transaction = values[0], values[1], values[4], values[-2], values[-1]
    if (
        magic != _MAGIC
        or not flags & _META_FLAG
        or page_bytes not in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
    ):
        return None
    return file_format, page_bytes, last_page, transaction
