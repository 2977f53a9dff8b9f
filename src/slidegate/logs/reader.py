"""Access logs: the records of several files in the order of time, read as they are asked for.

Nothing here grows with the files. A line is kept up to `MAX_LINE_BYTES` and the rest of it is skipped, so neither a
line without an end nor packed data that unpacks to one fills the memory.

Each file is more or less in order already: servers write a line when the answer is complete, and some note the time at
which the request began. So a file's records pass through a buffer of fixed size, and the files are then merged.
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
STANDARD_INPUT: Final = "-"
_MIN_HOLD: Final = 1_024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_OTHER_MAGIC: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
_time_us: Final = itemgetter(0)


class AccessLogs:
    """The records of several files in the order of their times, read as they are asked for.

    Records that are out of order by up to `hold` lines of their file are put in order; later ones stay where they are,
    and are counted in ``counts.late``. Iterating again reads and counts from the start; standard input is read once.

    Args:
        paths: The files, plain or packed with gzip; ``-`` is standard input.
        format: The format string of nginx, where the log has a custom format; None for the known formats, which are
            detected line by line.
        fields: The names of the fields, where the log is JSON lines of a kind of its own: for each part of a record the
            field that holds it, as in ``{"time": "ts", "client": "ip", "status": "code", "request": "line"}``.
        hold: How many records are held back to be put in order, from 1 on; among several files they are shared.

    Attributes:
        counts: The lines so far, and the fate of each. They run ahead of the records by those that are held back.

    Raises:
        ConfigurationError: An argument cannot be used. While iterating: a file is packed with something else than gzip.
        OSError: A file is missing. While iterating: a file cannot be read.
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
        if sum(file.name == STANDARD_INPUT for file in self._files) > 1:
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
            if record.time_us < latest_us:
                counts.late += 1
            else:
                latest_us = record.time_us
            yield record

    def _in_order(self, file: _LogFile, counts: LogCounts) -> Iterator[AccessRecord]:
        """Yield the records of a file in order, as far as they are not more than `hold` lines late."""
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
        name: The path as it was given.
        size_bytes: How large the file is; None if that is unknown, as of standard input or a pipe.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.name = os.fspath(path)
        status = None if self.name == STANDARD_INPUT else os.stat(self.name)
        self.size_bytes = status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None
        self._open: io.BufferedReader | None = None
        self._taken_bytes = 0

    @property
    def taken_bytes(self) -> int:
        """How much of it has been read; of packed data, before unpacking. 0 for standard input."""
        return self._taken_bytes if self._open is None or self.size_bytes is None else self._open.tell()

    def lines(self) -> Iterator[bytes | Skip]:
        """Yield the lines of the file, from its beginning; the last item may be the damage at which it ends.

        Raises:
            ConfigurationError: The file is packed in a way that cannot be unpacked.
            OSError: It cannot be read.
        """
        with self._opened() as raw:
            file = _unpacked(raw, self.name)
            self._open = raw
            try:
                while line := file.readline(MAX_LINE_BYTES + 2):
                    yield line
                    if len(line) > MAX_LINE_BYTES:
                        while line and not line.endswith(b"\n"):
                            line = file.readline(MAX_LINE_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error):
                yield Skip.GZIP
            finally:
                self._taken_bytes, self._open = self.taken_bytes, None

    def _opened(self) -> AbstractContextManager[io.BufferedReader]:
        if self.name != STANDARD_INPUT:
            return open(self.name, "rb")
        if sys.stdin is None:
            raise ConfigurationError("standard input is closed; expected the name of an access log, or a pipe")
        return nullcontext(cast(io.BufferedReader, sys.stdin.buffer))


def _custom(format: str | None, fields: Mapping[str, str] | None) -> Parse | None:
    if format is not None and fields is not None:
        raise ConfigurationError(
            f"expected a format or fields, not both: format {quoted(format)} and fields {quoted(dict(fields))}"
        )
    if format is not None:
        return parse_by_format(format)
    return parse_by_fields(fields) if fields is not None else None


def _unpacked(file: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return the file as plain text."""
    magic = file.peek(6)
    packer = next((packer for sign, packer in _OTHER_MAGIC.items() if magic.startswith(sign)), None)
    if packer is not None:
        raise ConfigurationError(
            f"cannot read '{escaped(name, 300)}': it is packed with {packer}; expected plain text or gzip, so unpack it"
        )
    return io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=file))) if magic.startswith(_GZIP_MAGIC) else file
