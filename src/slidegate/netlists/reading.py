"""Lists of networks as they stand in files, where some entries may end some day.

Entries that end are kept apart from those that stay: one dictionary for each length of prefix, from the prefix to the
end. A lookup asks one dictionary a length, of which a list has few, and compares the end with now; nothing has to run
for an entry to end, and nothing is built anew.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Final

from ..core.addresses import parse_network, prefix_length
from ..core.errors import ConfigurationError
from ..core.networks import Networks
from .breadth import check_breadth
from .formats import check_format, read_entries
from .ranges import parse_range
from .whole_file import read_whole

MOST_BYTES: Final = 32 << 20
"""The size of a file: more than a million networks, and their memory while they are read is bounded."""
_PROMISE: Final = re.compile(r"[#;]\s*+entries:\s*+([0-9]{1,12})\s*+", re.IGNORECASE)


class NetworkReading:
    """One reading of a file of networks: an iterator of (4 or 6, first address, last address, end).

    The end is in microseconds of Unix time, None if there is none.

    Args:
        path: The file.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.
        format: One of `formats.FORMATS`.
        column: The column of a CSV file.

    Attributes:
        path: The file.
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
        self.path = path
        self._strict = strict
        self._format = format
        self._column = column

    def __iter__(self) -> Iterator[tuple[int, int, int, int | None]]:
        try:
            content, self.written_us = read_whole(self.path, MOST_BYTES)
        except OSError as error:
            raise ConfigurationError(f"networks: cannot read {self.path}: {error.strerror or error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}, networks: {error}") from None
        try:
            yield from self._entries(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "replace"))
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.path}, {error}") from None

    def _entries(self, lines: Iterable[str]) -> Iterator[tuple[int, int, int, int | None]]:
        promised: list[int] = []
        count = 0
        entries = read_entries(
            self._watched(lines, promised), self._format, self._column, self.written_us, self.skipped
        )
        for line, text, ends_us in entries:
            try:
                version, first, last = (parse_range if ends_us is None else parse_network)(text, strict=self._strict)
                if not prefix_length(version, first, last):
                    raise ConfigurationError(f"network: {text!r} is every address; leave it out")
            except ConfigurationError as error:
                raise ConfigurationError(f"line {line}: {error}") from None
            count += 1
            yield version, first, last, ends_us
        for number in promised:
            if number != count:
                raise ConfigurationError(f"expected {number} entries, as a comment in it says, but there are {count}")

    def _watched(self, lines: Iterable[str], promised: list[int]) -> Iterator[str]:
        for line in lines:
            self.blank = self.blank and line.isspace()
            if line[:1] in ("#", ";") and (found := _PROMISE.fullmatch(line)):
                promised.append(int(found[1]))
            yield line


class NetworkList:
    """The networks of one file: some stay, some end.

    Args:
        reading: A reading of the file.

    Attributes:
        networks: The entries that stay.
        has_ends: Whether anything ends.
        count: The number of entries, as they stand in the file.
        blank: Whether there is nothing in the file but white space.
        skipped: How many entries were left out, by cause.

    Raises:
        ConfigurationError: The file cannot be read, or a line of it, or it lists everybody.
    """

    __slots__ = ("_ends", "blank", "count", "has_ends", "networks", "skipped")

    def __init__(self, reading: NetworkReading) -> None:
        self.count = 0
        self._ends: dict[int, dict[int, dict[int, int]]] = {4: {}, 6: {}}
        self.networks = Networks.of_ranges(self._sort_out(reading))
        self.has_ends = any(self._ends.values())
        self.blank = reading.blank
        self.skipped = reading.skipped
        check_breadth([self], str(reading.path))

    def size(self, version: int) -> int:
        """Return the most addresses of one version that the list may hold; less where its entries overlap."""
        return self.networks.size(version) + sum(len(ends) << shift for shift, ends in self._ends[version].items())

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield what the list holds, ended or not, as `Networks.of_ranges` takes it."""
        yield from self.networks.ranges()
        for version, lengths in self._ends.items():
            for shift, ends in lengths.items():
                for prefix in ends:
                    yield version, prefix << shift, ((prefix + 1) << shift) - 1

    def _sort_out(self, reading: NetworkReading) -> Iterator[tuple[int, int, int]]:
        """Yield the entries that stay, and keep those that end."""
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
