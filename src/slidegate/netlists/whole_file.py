"""Reading a file whole or not at all.

Lists and configurations come through here. A name may lead to anything: a pipe that nobody writes to, a device without
an end, links that go round, a file as large as the disk, a file that somebody is writing. None of them holds the reader
up, and none is read by halves.
"""

from __future__ import annotations

import errno
import os
import stat
from os import PathLike
from typing import Final, NamedTuple

from ..core.errors import ConfigurationError

# Opening a pipe waits for a writer, and opening a terminal may make it ours; Windows has neither.
_FLAGS: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))


class WholeFile(NamedTuple):
    """The content of a file."""

    content: bytes
    written_us: int
    """When it was written, in microseconds of Unix time."""


def read_whole(path: str | PathLike[str], most_bytes: int) -> WholeFile:
    """Read a regular file; links are followed, as many as the system allows.

    Args:
        path: The file.
        most_bytes: How large it may be.

    Raises:
        OSError: It cannot be opened or read.
        ConfigurationError: It is no regular file, is too large, or changes while it is read.
    """
    try:
        number = os.open(path, _FLAGS)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None  # a NUL in the name
    with open(number, "rb", buffering=0) as file:
        before = os.fstat(number)
        if not stat.S_ISREG(before.st_mode):
            raise ConfigurationError("expected a file that can be read again, no pipe or device")
        content = bytearray()
        while len(content) <= most_bytes and (part := file.read(min(most_bytes + 1 - len(content), 1 << 20))):
            content += part
        if len(content) > most_bytes:
            raise ConfigurationError(f"expected at most {most_bytes >> 20} MiB, and it has more")
        after = os.fstat(number)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ConfigurationError("it changes while it is read; write another file and rename it into place")
    return WholeFile(bytes(content), before.st_mtime_ns // 1_000)
