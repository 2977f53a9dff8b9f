"""Reads files of access logs, and merges their records by time; `lines` reads each line.

Memory use is constant, whatever a file contains. A file is only roughly in order, because servers write a line when the
response is complete, and some log the start of the request. So the records of each file are sorted within a buffer, and
the files are then merged.
"""

from __future__ import annotations

import gzip
import heapq
import zlib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from ...core.logs import escaped
from .lines import AccessRecord, line_parser

BUFFERED: Final = 32_768
"""The number of records buffered for sorting; several files share it."""
MAX_LINE_BYTES: Final = 65_536  # nginx reads at most four header buffers of 8 KiB
MAX_SHOWN: Final = 160
STANDARD_INPUT: Final = "-"


class AccessLogs:
    """The records of several files in chronological order, read lazily, once.

    Records that are out of order by up to 32,768 lines, in several files by their share of it, are sorted; later ones
    are yielded as they come, and counted.

    Args:
        names: The files, plain or compressed with gzip; ``-`` is standard input.
        regex: As for `line_parser`.

    Attributes:
        lines: Lines read so far that are not empty. Damaged gzip data counts as one.
        unreadable: How many of these lines are no records.
        late: Records yielded after a record of a later time.
        example: The first unreadable line, with its file, number and reason, safe to display.

    Raises:
        ConfigurationError: The regular expression is invalid.
        OSError: While iterating: a file is missing or cannot be read.
    """

    def __init__(self, names: Sequence[str], regex: str | None = None) -> None:
        self.lines = self.unreadable = self.late = 0
        self.example = ""
        self._names = names
        self._parse = line_parser(regex)

    def __iter__(self) -> Iterator[AccessRecord]:
        latest_us = 0
        for record in heapq.merge(*map(self._in_order, self._names), key=attrgetter("time_us")):
            self.late += record.time_us < latest_us
            latest_us = max(latest_us, record.time_us)
            yield record

    def _in_order(self, name: str) -> Iterator[AccessRecord]:
        """Yield the records of a file in order, as far as none is late by more lines than are buffered."""
        heap: list[tuple[int, int, AccessRecord]] = []  # by time; those of one moment as they come
        most = max(BUFFERED // len(self._names), 1)
        for number, record in enumerate(self._records(name)):
            heapq.heappush(heap, (record.time_us, number, record))
            if len(heap) > most:
                yield heapq.heappop(heap)[2]
        for _, _, record in sorted(heap):
            yield record

    def _records(self, name: str) -> Iterator[AccessRecord]:
        """Yield the records of a file as they come, and count its lines."""
        for number, line in enumerate(_lines(name), 1):
            text = line.decode("utf-8-sig", "replace").strip()
            if not text:
                continue
            self.lines += 1
            record = self._parse(text)
            if isinstance(record, AccessRecord):
                yield record
                continue
            self.unreadable += 1
            if not self.example:
                where = f"line {number} of '{escaped(name, MAX_SHOWN)}'"
                self.example = f"{where}: {record}: {escaped(text, MAX_SHOWN)}"


def _lines(name: str) -> Iterator[bytes]:
    """Yield the lines of a file, each cut to `MAX_LINE_BYTES`."""
    opened: str | int = name
    if name == STANDARD_INPUT:
        opened = 0  # its descriptor
    with open(opened, "rb", closefd=name != STANDARD_INPUT) as raw:
        file: Any = raw
        if raw.peek(2).startswith(b"\x1f\x8b"):
            file = gzip.GzipFile(fileobj=raw)
        try:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
                while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):  # the rest could pass for a line
                    line = file.readline(MAX_LINE_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            yield b"(the compressed data is damaged)"
