"""Checks of the files of an LMDB environment: whether they are ours alone, and on a local disk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError

FILES: Final = ("gate", "users", "kept.jsonl*", "counts-*")
"""The names of our files, as patterns."""
_OTHER: Final = "data.mdb"
"""The file of another program's environment, or of a slidegate before layout 12."""

# On these, other hosts do not share locks and memory maps, and on some of them not even other processes do.
NETWORKED: Final = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.cephfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
        *("fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb", "smb2", "smb3"),
        *("smbfs", "vboxsf", "virtiofs"),
    )
)
DOUBTFUL: Final = frozenset(["overlay", "aufs", "ecryptfs", "btrfs", "zfs", "bcachefs"])
"""In these and in FUSE, only processes that share a mount may see each other's files, or changed blocks are written to
new places, so that space that was taken ahead does not help when the disk is full."""

IN_MEMORY: Final = frozenset(["tmpfs", "ramfs"])
"""In these, taking the space of a file takes memory."""

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES: Final = {
    **dict.fromkeys(DISK_FULL, "free some space, or "),
    errno.EROFS: "mount its file system for writing, or ",
}
_MOUNTS: Final = Path("/proc/self/mountinfo")


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
        ConfigurationError: One is not a regular file, or its status cannot be read; or there is a file of others.
    """
    found = {}
    for place in [path / _OTHER, *[place for pattern in FILES for place in path.glob(pattern)]]:
        try:
            found[place] = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise unusable(path, error) from error
        if place.name == _OTHER:
            raise ConfigurationError(
                f"lmdb: {path} contains {_OTHER} of another program or an earlier slidegate; choose another path; to "
                "keep its bans, write the lines of `limiter.export_bans()` with the version that wrote it, and pass "
                "them to `limiter.import_bans()` of this one"
            )
        mode = found[place].st_mode
        if not stat.S_ISREG(mode):
            raise ConfigurationError(
                f"lmdb: {place} is not a regular file ({stat.filemode(mode)}); remove it, or choose another path"
            )
    return found


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
    if kind in IN_MEMORY:
        return f"{path} is on {kind}, in memory: the file takes it as it fills, and a restart forgets bans, too"
    if kind in DOUBTFUL or kind.startswith("fuse"):
        return (
            f"{path} is on {kind}, where a full disk may kill the workers, and workers of other mounts may count apart"
            "; ext4 or XFS is safer"
        )
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
        # See proc(5): the fifth field is the mount point, and the type is behind the optional fields.
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
    owned = next(place for place in (failed, *failed.absolute().parents) if os.path.exists(place))
    return ConfigurationError(
        f"{problem}; {owned} {_belongs(owned.stat())}: give it to that user, or choose another path; all workers "
        "have to run as the same user"
    )


def _belongs(status: os.stat_result) -> str:
    owner = f"belongs to user {status.st_uid} ({stat.filemode(status.st_mode)})"
    return f"{owner}, and this process is user {os.geteuid()}"


def is_file_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the file at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except OSError:
        return False
