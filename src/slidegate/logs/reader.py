"""Reads the records of several access logs lazily, in chronological order.

Memory use is constant. Lines longer than `MAX_LINE_BYTES` are skipped in chunks, so neither an endless line nor a gzip
bomb exhausts the memory.

A file is only roughly in order: servers write a line when the response is complete, but some log the start of the
request. So the records of each file are sorted within a buffer of fixed size, and the files are then merged.
"""

from __future__ import annotations

import gzip
import heapq
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from os import PathLike
from typing import Any, Final, cast

from ..core.errors import ConfigurationError, quoted
from ..core.logs import escaped
from .custom_formats import parse_by_fields, parse_by_format
from .formats import Parse, parse_line
from .record import MAX_LINE_BYTES, AccessRecord, LogCounts, Skip

HOLD: Final = 32_768
"""The number of records buffered for sorting; several files share it."""
MIN_HOLD: Final = 1_024
"""The minimum for each file."""
STANDARD_INPUT: Final = "-"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_OTHER_MAGIC: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
_time_us: Final = itemgetter(0)


class AccessLogs:
    """An iterable over the records of several files in chronological order, read lazily.

    Records that are out of order by up to 32,768 lines, in several files by up to 1,024 or more, are sorted; later ones
    are yielded as they come and counted in ``counts.late``. Each iteration reads and counts from the start, except
    standard input.

    Args:
        paths: The files, plain or compressed with gzip; ``-`` is standard input.
        format: The nginx format string of a custom format; None to detect known formats line by line.
        fields: The field names of custom JSON lines: for each part of a record the field that holds it, as in
            ``{"time": "ts", "client": "ip", "status": "code", "request": "line"}``.

    Attributes:
        counts: The lines read so far, by result. They include the records that are still buffered.

    Raises:
        ConfigurationError: An argument is invalid. While iterating: a file is compressed, but not with gzip.
        OSError: A file is missing. While iterating: a file cannot be read.
    """

    def __init__(
        self,
        paths: Iterable[str | PathLike[str]],
        *,
        format: str | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(paths, (str, bytes, PathLike)):
            raise ConfigurationError(f"expected a list of files, such as ['access.log'], not {quoted(paths)}")
        self._files = [_LogFile(path) for path in paths]
        if not self._files:
            raise ConfigurationError("expected at least one file, such as ['access.log'], not []")
        if sum(file.name == STANDARD_INPUT for file in self._files) > 1:
            raise ConfigurationError("expected standard input once, such as ['-'], not several times")
        self._parse = _custom(format, fields)
        self._hold = max(MIN_HOLD, HOLD // len(self._files))
        self.counts = LogCounts()

    @property
    def size_bytes(self) -> int | None:
        """The total size of the files; None if one has no known size, such as standard input."""
        sizes = [file.size_bytes for file in self._files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def taken_bytes(self) -> int:
        """The number of bytes read so far."""
        return sum(file.taken_bytes for file in self._files)

    def __iter__(self) -> Iterator[AccessRecord]:
        counts = self.counts = LogCounts()
        latest_us = 0
        for record in heapq.merge(*(self._in_order(file, counts) for file in self._files), key=_time_us):
            if record.time_us < latest_us:
                counts.late += 1
            else:
                latest_us = record.time_us
            yield record

    def _in_order(self, file: _LogFile, counts: LogCounts) -> Iterator[AccessRecord]:
        """Yield the records of a file in order, as far as none is late by more lines than are buffered."""
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


class _LogFile:
    """One file, or standard input.

    Attributes:
        name: The path as given.
        size_bytes: The size of the file; None if it is unknown, as for standard input or a pipe.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.name = os.fspath(path)
        status = None if self.name == STANDARD_INPUT else os.stat(self.name)
        self.size_bytes = status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None
        self._raw: io.BufferedReader | None = None

    @property
    def taken_bytes(self) -> int:
        """The number of bytes read, before decompression; 0 if the size is unknown."""
        if self._raw is None or self.size_bytes is None:
            return 0
        return self.size_bytes if self._raw.closed else self._raw.tell()

    def lines(self) -> Iterator[bytes | Skip]:
        """Yield the lines of the file from its beginning; damaged gzip data ends it with `Skip.GZIP`.

        Raises:
            ConfigurationError: The compression is not supported.
            OSError: The file cannot be read.
        """
        with self._opened() as self._raw:
            file = _unpacked(self._raw, self.name)
            try:
                while line := file.readline(MAX_LINE_BYTES + 2):
                    yield line
                    if len(line) > MAX_LINE_BYTES:
                        while line and not line.endswith(b"\n"):
                            line = file.readline(MAX_LINE_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error):
                yield Skip.GZIP

    def _opened(self) -> AbstractContextManager[io.BufferedReader]:
        if self.name != STANDARD_INPUT:
            return open(self.name, "rb")
        if sys.stdin is None:
            raise ConfigurationError("standard input is closed; expected the path of an access log, or a pipe")
        return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))


def _custom(format: str | None, fields: Mapping[str, str] | None) -> Parse | None:
    if format is not None and fields is not None:
        raise ConfigurationError(
            f"expected format or fields, not both: format {quoted(format)} and fields {quoted(dict(fields))}"
        )
    if format is not None:
        return parse_by_format(format)
    return parse_by_fields(fields) if fields is not None else None


def _unpacked(file: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return the file, decompressed if it is gzip."""
    magic = file.peek(6)
    packer = next((packer for sign, packer in _OTHER_MAGIC.items() if magic.startswith(sign)), None)
    if packer is not None:
        raise ConfigurationError(
            f"cannot read '{escaped(name, 300)}': it is compressed with {packer}; expected plain text or gzip"
        )
    return io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=file))) if magic.startswith(_GZIP_MAGIC) else file
