"""Access logs: the records of several files in the order of time, read as they are asked for.

Nothing here grows with the files. A line is kept up to `MAX_LINE_BYTES` and the rest of it is skipped, so neither a
line without an end nor packed data that unpacks to one fills the memory.

Each file is more or less in order already: servers write a line when the answer is complete, and some note the time at
which the request began. So a file's records pass through a buffer of fixed size, and the files are then merged.
"""

from __future__ import annotations

import errno
import gzip
import heapq
import importlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import islice
from operator import itemgetter
from os import PathLike
from typing import Any, BinaryIO, Final, TypeAlias, cast

from ..core.errors import ConfigurationError, quoted
from ..core.logs import escaped
from .custom_formats import parse_by_fields, parse_by_format
from .formats import Parse, parse_line
from .record import MAX_LINE_BYTES, AccessRecord, LogCounts, Skip

HOLD: Final = 32_768
STANDARD_INPUT: Final = "-"
AHEAD_US: Final = 3_600_000_000
"""A file is opened when the merge is an hour short of its first record, because that need not be its earliest."""
_MIN_HOLD: Final = 1_024
_HEAD_LINES: Final = 100
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_OTHER_MAGIC: Final = {
    **{b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z"},
    **{b"\x04\x22\x4d\x18": "lz4"},
}
_time_us: Final = itemgetter(0)

_Opening: TypeAlias = tuple[int]
"""Stands in front of a file's records in the merge, with the time from which on the file is open."""


class AccessLogs:
    """The records of several files in the order of their times, read as they are asked for.

    Records that are out of order by up to `hold` lines of their file come in order; later ones come where they are, and
    are counted in ``counts.late``. Iterating again reads and counts from the start; standard input has but one reading.

    Args:
        paths: The files, plain or packed with gzip or zstd; ``-`` is standard input.
        format: The format string of nginx or Apache, where the log has a custom format; None for the known formats,
            which are found line by line.
        fields: The names of the fields, where the log is JSON lines of a kind of its own: for each part of a record the
            field that holds it, as in ``{"time": "ts", "client": "ip", "status": "code", "request": "line"}``.
        hold: How many records are held back to be put in order, from 1 on; among several files they are shared.

    Attributes:
        counts: The lines so far, and the fate of each. They run ahead of the records by those that are held back.

    Raises:
        ConfigurationError: A file is missing, a directory, or cannot be read; or an argument cannot be used. While
            iterating: a file is packed in a way that cannot be unpacked here, or cannot be read on.
    """

    def __init__(
        self,
        paths: Iterable[str | PathLike[str]],
        *,
        format: str | None = None,
        fields: Mapping[str, str] | None = None,
        hold: int = HOLD,
    ) -> None:
        if isinstance(paths, (str, bytes, PathLike)):
            raise ConfigurationError(f"expected a list of files, such as ['access.log'], not {quoted(paths)}")
        if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
            raise ConfigurationError(f"expected to hold at least 1 record, such as {HOLD}, not {quoted(hold)}")
        self._files = [_LogFile(path) for path in paths]
        if not self._files:
            raise ConfigurationError("expected at least one file, such as ['access.log'], not []")
        if sum(file.is_input for file in self._files) > 1:
            raise ConfigurationError("expected standard input once, such as ['-'], not several times")
        self._parse = _custom(format, fields)
        self._hold = max(_MIN_HOLD, hold // len(self._files)) if hold > _MIN_HOLD else hold
        self.counts = LogCounts()

    @property
    def size_bytes(self) -> int | None:
        """How large the files are together; None if the end of one is not known, as of standard input."""
        sizes = [file.size_bytes for file in self._files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def taken_bytes(self) -> int:
        """How many bytes of the files have been read so far."""
        return sum(file.taken_bytes for file in self._files)

    def __iter__(self) -> Iterator[AccessRecord]:
        counts = self.counts = LogCounts()
        latest_us = 0
        for record in heapq.merge(*(self._in_order(file, counts) for file in self._files), key=_time_us):
            if not isinstance(record, AccessRecord):
                continue
            if record.time_us < latest_us:
                counts.late += 1
            else:
                latest_us = record.time_us
            yield record

    def _in_order(self, file: _LogFile, counts: LogCounts) -> Iterator[AccessRecord | _Opening]:
        """Yield the records of a file in order, as far as they are not more than `hold` lines late."""
        yield (self._first_us(file) - AHEAD_US,)
        held: list[AccessRecord] = []
        for record in self._records(file, counts):
            held.append(record)
            if len(held) > 2 * self._hold:
                held.sort(key=_time_us)
                yield from held[: -self._hold]
                del held[: -self._hold]
        held.sort(key=_time_us)
        yield from held

    def _records(self, file: _LogFile, counts: LogCounts) -> Iterator[AccessRecord]:
        parse = self._parse
        for number, line in enumerate(file.lines(), 1):
            counts.lines += 1
            record = line if isinstance(line, Skip) else parse_line(line, parse)
            if isinstance(record, AccessRecord):
                counts.records += 1
                yield record
            else:
                counts.skip(record, file.name, number, b"" if isinstance(line, Skip) else line)

    def _first_us(self, file: _LogFile) -> int:
        """Return the time of the first record near the start of a file; 0 where there is none to be seen."""
        if len(self._files) == 1 or file.size_bytes is None:
            return 0
        with suppress(ConfigurationError):
            for line in file.head():
                record = line if isinstance(line, Skip) else parse_line(line, self._parse)
                if isinstance(record, AccessRecord):
                    return record.time_us
        return 0


class _LogFile:
    """One file, or standard input.

    Attributes:
        name: The path as it was given.
        size_bytes: How large the file is; None where nobody knows, as with standard input or a pipe.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.name = os.fspath(path)
        self.is_input = self.name == STANDARD_INPUT
        self.size_bytes = None if self.is_input else self._size_bytes()
        self._open: io.BufferedReader | None = None
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """How much of it has been read; of packed data, before unpacking. Standard input does not tell."""
        return self._taken_bytes if self._open is None or self.size_bytes is None else self._open.tell()

    def lines(self) -> Generator[bytes | Skip, None, None]:
        """Yield the lines of the file, from its beginning; the last item may be the damage at which it ends.

        Raises:
            ConfigurationError: The file is packed in a way that cannot be unpacked, or cannot be read.
        """
        with self._unreadable(), self._opened() as raw:
            file, damaged, errors = _unpacked(raw, self.name)
            self._open = raw
            try:
                while line := file.readline(MAX_LINE_BYTES + 2):
                    yield line
                    if len(line) > MAX_LINE_BYTES:
                        while line and not line.endswith(b"\n"):
                            line = file.readline(MAX_LINE_BYTES)
            except errors:
                yield damaged
            finally:
                self._taken_bytes, self._open = self.taken_bytes, None

    def head(self) -> list[bytes | Skip]:
        """Return the first lines."""
        with closing(self.lines()) as lines:
            first = list(islice(lines, _HEAD_LINES))
        self._taken_bytes = 0
        return first

    @contextmanager
    def _opened(self) -> Iterator[io.BufferedReader]:
        if self.is_input:
            if sys.stdin is None:
                raise ConfigurationError("standard input is closed; expected the name of an access log, or a pipe")
            yield cast(io.BufferedReader, sys.stdin.buffer)
            return
        with open(self.name, "rb") as file:
            yield file

    def _size_bytes(self) -> int | None:
        with self._unreadable():
            status = os.stat(self.name)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "it is a directory")
            if not os.access(self.name, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    @contextmanager
    def _unreadable(self) -> Iterator[None]:
        """Turn what the system says about the file into the error that names it."""
        try:
            yield
        except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
            if isinstance(error, ConfigurationError):
                raise
            said = error.strerror if isinstance(error, OSError) else None
            raise ConfigurationError(
                f"cannot read '{escaped(self.name, 300)}': {said or error}; expected an access log, such as "
                "'/var/log/nginx/access.log'"
            ) from None


def _custom(format: str | None, fields: Mapping[str, str] | None) -> Parse | None:
    if format is not None and fields is not None:
        raise ConfigurationError(
            f"expected a format or fields, not both: format {quoted(format)} and fields {quoted(dict(fields))}"
        )
    if format is not None:
        return parse_by_format(format)
    return parse_by_fields(fields) if fields is not None else None


def _unpacked(file: io.BufferedReader, name: str) -> tuple[BinaryIO, Skip, tuple[type[Exception], ...]]:
    """Return the file as plain text, and what a line is called at which packed data is damaged, and its errors."""
    magic = file.peek(6)
    packer = next((packer for sign, packer in _OTHER_MAGIC.items() if magic.startswith(sign)), None)
    if packer is not None:
        raise ConfigurationError(
            f"cannot read '{escaped(name, 300)}': it is packed with {packer}; expected plain text, gzip or zstd, so "
            "unpack it"
        )
    if magic.startswith(_GZIP_MAGIC):
        packed = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=file)))
        return packed, Skip.GZIP, (EOFError, gzip.BadGzipFile, zlib.error)
    if magic.startswith(_ZSTD_MAGIC):
        zstd = _zstd(name)
        return zstd.ZstdFile(file), Skip.ZSTD, (EOFError, zstd.ZstdError)
    return file, Skip.FORMAT, ()


def _zstd(name: str) -> Any:
    """Return the module that reads zstd; from 3.14 on Python has one."""
    for module in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return importlib.import_module(module)
    raise ConfigurationError(
        f"cannot read '{escaped(name, 300)}': it is packed with zstd, and nothing here unpacks that; install "
        "slidegate[cli], or unpack it with `zstd -d`"
    )
