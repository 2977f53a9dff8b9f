"""The files of a log: whether they can be read, and their blocks."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from os import PathLike
from typing import Final, cast

from ..core.errors import ConfigurationError
from ..core.logs import escaped
from .raw_lines import Block, blocks_of

STANDARD_INPUT: Final = "-"
_HEAD_BYTES: Final = 4_096
_MOST_OF_A_NAME: Final = 300


class LogFile:
    """One file, or standard input.

    Args:
        path: The file; ``-`` for standard input.

    Attributes:
        name: The path as it was given.
        size_bytes: How large the file is; None where nobody knows, as with standard input or a pipe.
        taken_bytes: How much of it has been read; of packed data, before unpacking.

    Raises:
        ConfigurationError: It is missing, a directory, or cannot be read.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.is_input = self.name == STANDARD_INPUT
        self.size_bytes: int | None = None
        self.taken_bytes = 0
        if not self.is_input:
            self.size_bytes = _size_bytes(self.name)

    def blocks(self) -> Iterator[Block]:
        """Yield the lines of the file, from its beginning; standard input has but one reading.

        Raises:
            ConfigurationError: The file is packed in a way that cannot be unpacked, or is gone.
        """
        if self.is_input:
            yield from self._blocks_of(cast(io.BufferedReader, sys.stdin.buffer))
            return
        try:
            file = open(self.name, "rb")  # noqa: SIM115 - `OSError`s of opening are told apart from those of reading
        except OSError as error:
            raise unreadable(self.name, error) from None
        with file:
            yield from self._blocks_of(file)

    def head(self) -> Block:
        """Return some of the first lines; none where they cannot be read."""
        with suppress(OSError, ConfigurationError), open(self.name, "rb") as file:
            for block in blocks_of(file):
                lines = block.lines[:_HEAD_BYTES]
                return Block(lines[: lines.rfind(b"\n") + 1], block.names)
        return Block(b"", ())

    def _blocks_of(self, file: io.BufferedReader) -> Iterator[Block]:
        self.taken_bytes = 0
        try:
            for block in blocks_of(file):
                self.taken_bytes = file.tell() if self.size_bytes is not None else self.taken_bytes + len(block.lines)
                yield block
        except OSError as error:
            raise unreadable(self.name, error) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"cannot read {shown(self.name)}: {error}") from None
        self.taken_bytes = self.size_bytes or self.taken_bytes


def shown(name: str) -> str:
    """Return the name of a file for a message, whatever characters it has."""
    return f"'{escaped(name, _MOST_OF_A_NAME)}'"


def unreadable(name: str, error: OSError) -> ConfigurationError:
    """Return the error for a file that the system does not let us read."""
    return ConfigurationError(
        f"cannot read {shown(name)}: {error.strerror or error}; expected an access log, such as "
        "'/var/log/nginx/access.log'"
    )


def _size_bytes(name: str) -> int | None:
    try:
        found = os.stat(name)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if not os.access(name, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except ValueError as error:  # a NUL in the name
        raise unreadable(name, OSError(errno.EINVAL, str(error))) from None
    except OSError as error:
        raise unreadable(name, error) from None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
