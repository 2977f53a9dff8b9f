"""Access logs: one file as it stands, or several in the order of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

from ..core.errors import ConfigurationError, quoted
from .access_record import AccessRecord, Skip
from .cores import Cores
from .line_parser import LineParser
from .log_files import LogFile, shown
from .merging import Part, in_order, merged
from .nearest import nearest
from .parsed_lines import LogCounts, parse_block
from .raw_lines import blocks_of

HOLD: Final = 32_768
_LEAST_HELD: Final = 1_024


class AccessLog:
    """The records of one file in the order of its lines, read as they are asked for.

    The file may be plain or packed with gzip or zstd. Iterating again reads the file, and counts, from its start.

    Args:
        path: The file. It is opened when iteration starts, and may then raise an `OSError`.

    Attributes:
        counts: The lines so far, and the fate of each. They are counted in blocks, so they run a little ahead of the
            records.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.counts = LogCounts()

    @property
    def read(self) -> int:
        """Lines that became records, so far."""
        return self.counts.records

    @property
    def skipped(self) -> Counter[Skip]:
        """Lines that did not, by reason, so far."""
        return self.counts.skipped

    @property
    def total(self) -> int:
        """Lines seen so far."""
        return self.counts.lines

    def __iter__(self) -> Iterator[AccessRecord]:
        counts = self.counts = LogCounts()
        parser = LineParser()
        with self.path.open("rb") as file:
            for block in blocks_of(file):
                parsed = parse_block(parser, block)
                counts.add(parsed, str(self.path), counts.lines)
                yield from parsed.records


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
        processes: How many processes parse: 1 for this one alone, None for one on each core. More than one are started
            when a log is large enough; a script then needs ``if __name__ == "__main__":`` around its work.
        hold: How many records are held back to be put in order, from 1 on; among files that overlap they are shared.

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
        processes: int | None = 1,
        hold: int = HOLD,
    ) -> None:
        if isinstance(paths, (str, bytes, PathLike)):
            raise ConfigurationError(f"expected a list of files, such as ['access.log'], not {quoted(paths)}")
        if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
            raise ConfigurationError(f"expected to hold at least 1 record, such as {HOLD}, not {quoted(hold)}")
        self._files = [LogFile(path) for path in paths]
        if not self._files:
            raise ConfigurationError("expected at least one file, such as ['access.log'], not []")
        if sum(file.is_input for file in self._files) > 1:
            raise ConfigurationError("expected standard input once, such as ['-'], not several times")
        self._parser = LineParser(format, fields)
        self._custom = format, fields
        Cores(processes, format, fields)  # which checks the number
        self._processes = processes
        self._hold = hold
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
        self.counts = LogCounts()
        for file in self._files:
            file.taken_bytes = 0
        return self._read(self.counts)

    def complaint(self) -> str:
        """Return why a reading that is over has found no record, in one sentence; empty if it has found one."""
        counts = self.counts
        if counts.records:
            return ""
        names = shown(self._files[0].name) if len(self._files) == 1 else f"the {len(self._files)} files"
        if not counts.broken:
            return f"{names}: the log is empty"
        damage = next((reason for reason in (Skip.GZIP, Skip.ZSTD, Skip.BOMB) if reason in counts.skipped), None)
        if damage is not None and not counts.examples:
            return f"{names}: the log is {damage}"
        found = f"{names}: none of {counts.lines:,} lines is a record of an access log"
        if counts.examples:
            line = counts.examples[0]
            where = f"line {line.number}" if len(self._files) == 1 else f"line {line.number} of '{line.file}'"
            found += f"; {where} {nearest(line.text, line.reason, custom=self._parser.is_custom)}"
        return found

    def _read(self, counts: LogCounts) -> Iterator[AccessRecord]:
        with closing(Cores(self._processes, *self._custom)) as cores:
            latest_us = 0
            for record in self._ordered(cores, counts):
                if record.time_us < latest_us:
                    counts.late += 1
                else:
                    latest_us = record.time_us
                yield record

    def _ordered(self, cores: Cores, counts: LogCounts) -> Iterator[AccessRecord]:
        hold = max(_LEAST_HELD, self._hold // len(self._files)) if self._hold > _LEAST_HELD else self._hold
        readings = [_Reading(file, cores, counts, hold) for file in self._files]
        if len(readings) == 1:
            return readings[0].records()
        return merged(Part(self._first_us(reading.file), reading.records) for reading in readings)

    def _first_us(self, file: LogFile) -> int | None:
        """Return the time of the first record near the start of a file; None where there is none to be seen."""
        if file.size_bytes is None:
            return None
        records = parse_block(self._parser, file.head()).records
        return min(record.time_us for record in records) if records else None


@dataclass
class _Reading:
    """One file on its way through the cores and into order."""

    file: LogFile
    cores: Cores
    counts: LogCounts
    hold: int

    def records(self) -> Iterator[AccessRecord]:
        return in_order(self._unordered(), self.hold)

    def _unordered(self) -> Iterator[AccessRecord]:
        lines = 0
        for parsed in self.cores.parsed(self.file.blocks()):
            self.counts.add(parsed, self.file.name, lines)
            lines += parsed.lines
            yield from parsed.records
