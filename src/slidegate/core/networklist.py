"""Lists of networks as they stand in files, where some of what is listed may end some day.

What ends is kept apart from what stays: one dictionary for each length of prefix, from the prefix to the end. A lookup
asks one dictionary a length, of which a list has few, and compares the end with now; nothing has to run for an entry
to end, and nothing is built anew.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from os import PathLike

from .errors import ConfigurationError
from .networkformats import check_format, read_entries
from .networks import Networks, parse_network, prefix_length


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, without waiting for who might write to it if it is a pipe; Windows has no such pipes."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


class NetworkReading:
    """One reading of a file of networks: an iterator of (4 or 6, first address, last address, end).

    The end is in microseconds of Unix time, None if there is none.

    Args:
        path: The file.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.
        format: One of `networkformats.FORMATS`.
        column: The column of a CSV file.

    Attributes:
        written_us: When the file was written, in microseconds of Unix time; 0 before it is opened.
        blank: Whether there is nothing in the file but white space, as far as it was read.
        skipped: How much was left out, by cause.

    Raises:
        ConfigurationError: While it is iterated, where the file or a line of it cannot be read.
    """

    def __init__(
        self, path: str | PathLike[str], *, strict: bool = True, format: str = "auto", column: str | int | None = None
    ) -> None:
        check_format(format, column)
        self.written_us = 0
        self.blank = True
        self.skipped: Counter[str] = Counter()
        self._path = path
        self._strict = strict
        self._format = format
        self._column = column

    def __iter__(self) -> Iterator[tuple[int, int, int, int | None]]:
        try:
            with open(self._path, encoding="utf-8-sig", errors="replace", opener=_open_at_once) as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise ConfigurationError("networks: expected a file that can be read again, no pipe or device")
                self.written_us = found.st_mtime_ns // 1_000
                entries = read_entries(self._watched(file), self._format, self._column, self.written_us, self.skipped)
                for line, text, ends_us in entries:
                    try:
                        version, first, last = parse_network(text, strict=self._strict)
                        if not prefix_length(version, first, last):
                            raise ConfigurationError(f"network: {text!r} is every address; leave it out")
                    except ConfigurationError as error:
                        raise ConfigurationError(f"line {line}: {error}") from None
                    yield version, first, last, ends_us
        except OSError as error:
            raise ConfigurationError(f"networks: cannot read {self._path}: {error.strerror or error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._path}, {error}") from None

    def _watched(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self.blank = self.blank and line.isspace()
            yield line


class NetworkList:
    """What one file lists: networks that stay, and networks that end.

    Args:
        reading: A reading of the file.

    Attributes:
        networks: What stays.
        has_ends: Whether anything ends.
        count: The number of entries, as they stand in the file.
        blank: Whether there is nothing in the file but white space.
        skipped: How many entries were left out, by cause.

    Raises:
        ConfigurationError: The file cannot be read, or a line of it.
    """

    __slots__ = ("_ends", "blank", "count", "has_ends", "networks", "skipped")

    def __init__(self, reading: NetworkReading) -> None:
        self.count = 0
        self._ends: dict[int, dict[int, dict[int, int]]] = {4: {}, 6: {}}
        self.networks = Networks.of_ranges(self._sort_out(reading))
        self.has_ends = any(self._ends.values())
        self.blank = reading.blank
        self.skipped = reading.skipped

    def _sort_out(self, reading: NetworkReading) -> Iterator[tuple[int, int, int]]:
        """Yield what stays, and keep what ends."""
        for version, first, last, ends_us in reading:
            self.count += 1
            if ends_us is None:
                yield version, first, last
            else:
                shift = (last - first).bit_length()
                ends = self._ends[version].setdefault(shift, {})
                ends[first >> shift] = max(ends_us, ends.get(first >> shift, ends_us))

    def ending_covers(self, version: int, value: int, now_us: int) -> bool:
        """Tell whether an address lies in a network that ends, later than `now_us` (Unix time)."""
        for shift, ends in self._ends[version].items():  # noqa: SIM110 - a generator takes as long as the lookup
            if ends.get(value >> shift, now_us) > now_us:
                return True
        return False

    def ending_overlaps(self, version: int, first: int, last: int, now_us: int) -> bool:
        """Tell whether a network that ends later than `now_us` has an address in common with a range."""
        for shift, ends in self._ends[version].items():
            low, high = first >> shift, last >> shift
            if high - low < len(ends):
                met = any(ends.get(prefix, now_us) > now_us for prefix in range(low, high + 1))
            else:
                met = any(low <= prefix <= high and ends_us > now_us for prefix, ends_us in ends.items())
            if met:
                return True
        return False
