"""Networks in files, and named lists of them that change while the application serves.

A file has an address, a network or a range (``192.0.2.0 - 192.0.2.99``) a line, where a number behind it is a score and
text behind ``#`` or ``;`` a comment; or a JSON object with a ``cidr`` a line; or it is CSV with a named column.

All lists are held in one tuple, and a changed file becomes another tuple, which one assignment puts in its place: a
lookup sees the lists before or after, never half of one. A file that cannot be used changes nothing.
"""

from __future__ import annotations

import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Final, Self, TypeAlias

from ..core import networks as core
from ..core.addresses import parse_address, parse_network
from ..core.arguments import check_flag
from ..core.errors import MAX_QUOTED, ConfigurationError, quoted
from ..core.logs import logger
from ..core.store import Event, Observer, Observers
from .file_watcher import FileVersion, FileWatcher, Versions, read_whole

MAX_BYTES: Final = 32 << 20
"""The size of a file: more than a million networks, and their memory while they are read is bounded."""


class Networks(core.Networks):
    """An immutable set of IPv4 and IPv6 networks.

    ``"192.0.2.7" in networks`` takes text or an `ipaddress` object; a value that is not an address is in no network.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An entry cannot be read.
    """

    __slots__ = ()

    @classmethod
    def from_file(cls, path: str | PathLike[str], *, strict: bool = True, column: str | None = None) -> Self:
        """Read a file of networks, as `NetworkFile` does.

        Args:
            path: The file.
            strict: Whether host bits behind a prefix are an error; otherwise they are cleared.
            column: The name of the column of a CSV file; None for a file of lines.

        Raises:
            ConfigurationError: The file or a line of it cannot be read, or it lists everybody.
        """
        file = NetworkFile(path, column=column, strict=strict)
        made = cls.of_ranges(_read_ranges(file))
        check_breadth([made], file.path)
        return made


@dataclass(frozen=True, slots=True, init=False)
class NetworkFile:
    """A file that lists networks.

    Args:
        path: The file.
        name: The name of the list in events and refusals; by default the file's name without its suffix.
        column: The name of the column of a CSV file; None for a file of lines.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: A value cannot work.
    """

    path: str
    name: str
    column: str | None
    strict: bool

    def __init__(
        self, path: str | PathLike[str], name: str = "", column: str | None = None, strict: bool = True
    ) -> None:
        if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
            raise ConfigurationError(f'path: expected a file, for example "drop.netset", not {quoted(path)}')
        if not isinstance(name, str):
            raise ConfigurationError(f'name: expected text, for example "spamhaus", not {quoted(name)}')
        if column is not None and (not isinstance(column, str) or not column):
            raise ConfigurationError(
                f'column: expected the name of a column of a CSV file, for example "ip", not {quoted(column)}'
            )
        stem, _ = os.path.splitext(os.path.basename(path))
        object.__setattr__(self, "path", os.fspath(path))
        object.__setattr__(self, "name", name or stem)
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "strict", check_flag("strict", strict))

    def read(self) -> NetworkList:
        """Read the file.

        Raises:
            ConfigurationError: It cannot be read, or a line of it; the message names the line.
        """
        ranges = list(_read_ranges(self))
        networks = core.Networks.of_ranges(ranges)
        check_breadth([networks], self.path)
        return NetworkList(self, networks, len(ranges))


@dataclass(frozen=True, slots=True)
class NetworkList:
    """What a file lists."""

    file: NetworkFile
    networks: core.Networks
    count: int
    """The number of entries, as they stand in the file."""


class NetworkFiles(FileWatcher):
    """Lists of networks, each in a file with a name, that follow their files.

    Give it to a `RateLimitMiddleware` as `blocklist` or `allowlist`: it looks at the files at most once a second, when
    requests come, and reads those that have changed, in a thread. Another version of a file takes over when it had the
    same size and times at two looks in a row. A file that cannot be read, that has vanished, or that suddenly has zero
    bytes, changes nothing.

    Args:
        files: The files, or their paths. A refusal names the first one that holds the address.
        clock: Returns seconds; measures the time between two looks.

    Attributes:
        generation: How often lists were read again and taken.

    Raises:
        ConfigurationError: A file cannot be read, two have one name, or they add up to everybody.
    """

    def __init__(
        self, files: Iterable[NetworkFile | str | PathLike[str]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if isinstance(files, (str, PathLike, NetworkFile)) or not isinstance(files, Iterable):
            raise ConfigurationError(f'files: expected a list, for example ["drop.netset"], not {quoted(files)}')
        made = [file if isinstance(file, NetworkFile) else NetworkFile(file) for file in files]
        names = [file.name for file in made]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"files: two lists are called {quoted(twice)}; give one of them another name")
        self._observers = Observers()
        super().__init__([file.path for file in made], self._read_again, clock)
        self._lists = tuple(file.read() for file in made)
        self.generation = 0
        check_breadth((listed.networks for listed in self._lists), "files")

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of entries of each list, by its name."""
        return {listed.file.name: listed.count for listed in self._lists}

    @property
    def states(self) -> list[tuple[NetworkFile, int, int | None]]:
        """Each file, the number of entries at work, and when the version of them was written, in ns of Unix time."""
        read = [(listed, self.versions[listed.file.path]) for listed in self._lists]
        return [(listed.file, listed.count, version and version.written_ns) for listed, version in read]

    def __repr__(self) -> str:
        return f"<NetworkFiles: {', '.join(f'{name} ({count})' for name, count in self.counts.items())}>"

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the first list that holds an address (see `parse_address`), else None."""
        for listed in self._lists:
            if listed.networks.covers(version, value):
                return listed.file.name
        return None

    def covers(self, version: int, value: int) -> bool:
        """Return whether one of the lists holds an address."""
        return self.find(version, value) is not None

    def overlaps(self, version: int, first: int, last: int) -> bool:
        """Return whether a network of one of the lists has an address in common with the range."""
        return any(listed.networks.overlaps(version, first, last) for listed in self._lists)

    def observe(self, observer: Observer) -> None:
        """Send `observer` each further ``list_reloaded`` and ``list_rejected`` once."""
        if observer not in self._observers:
            self._observers.add(observer)

    def _read_again(self, changed: Versions) -> Callable[[], None]:
        lists = list(self._lists)
        events = []
        for number, before in enumerate(self._lists):
            if before.file.path in changed:
                try:
                    lists[number] = _reread(before, changed[before.file.path])
                    check_breadth((listed.networks for listed in lists), "files")
                except ConfigurationError as error:
                    lists[number] = before
                    events.append((logging.ERROR, _event(before.file, "list_rejected", f" stays as it is: {error}")))
                else:
                    count = lists[number].count
                    event = _event(before.file, "list_reloaded", f": {count} entries", count=count)
                    events.append((logging.WARNING if before.count and not count else logging.INFO, event))

        def put_to_work() -> None:
            self._lists = tuple(lists)
            self.generation += 1  # behind the lists: what is remembered of this generation is never older
            for level, event in events:
                logger.log(level, "%s: %s", event.kind, event.message)
                self._observers.tell(event)

        return put_to_work


def _reread(before: NetworkList, version: FileVersion | None) -> NetworkList:
    path = before.file.path
    if version is not None and not version.size and before.count:
        raise ConfigurationError(f"{path}: has zero bytes; for a list of nothing, write a comment: # nothing")
    try:
        return before.file.read()
    except ConfigurationError:
        raise
    except Exception as error:
        logger.exception("reading %s failed", path)
        raise ConfigurationError(f"{path}: {error}") from error


def _event(file: NetworkFile, kind: str, message: str, **more: object) -> Event:
    return Event(kind, f"list {file.name!r}{message}", {"list": file.name, "path": file.path, **more})


AddressList: TypeAlias = core.Networks | NetworkFiles
"""The types of a blocklist or an allowlist."""


def followed(observer: Observer, **lists: AddressList | None) -> tuple[NetworkFiles, ...]:
    """Check the lists of a middleware, and return those that follow files; their events go to `observer`.

    Raises:
        ConfigurationError: A list is something else.
    """
    for what, given in lists.items():
        if given is not None and not isinstance(given, (core.Networks, NetworkFiles)):
            example = 'Networks(["192.0.2.0/24"])'
            raise ConfigurationError(
                f"{what}: expected Networks or NetworkFiles, for example {example}, not {quoted(given)}"
            )
        if isinstance(given, core.Networks):
            check_breadth([given], what)
    files = tuple(given for given in lists.values() if isinstance(given, NetworkFiles))
    for given in files:
        given.observe(observer)
    return files


def check_breadth(lists: Iterable[core.Networks], what: str) -> None:
    """See that lists do not add up to everybody, however that is written.

    Args:
        lists: All lists that are held against one address.
        what: A name for them, for the error message.

    Raises:
        ConfigurationError: They cover half of the addresses of IPv4 or IPv6, or more.
    """
    every = list(lists)
    if len(every) != 1:
        every = [core.Networks.of_ranges(chain.from_iterable(listed.ranges() for listed in every))]
    covered = every[0].covers_most_of()
    if covered is not None:
        raise ConfigurationError(
            f"{what}: covers half of all {covered} addresses or more, which cannot be meant; "
            "list whom you mean, for example 192.0.2.0/24"
        )


def read_entries(lines: Iterable[str], column: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the entries of a file of networks, each with its line.

    Args:
        lines: The lines of the file.
        column: The name of the column of a CSV file; None for a file of lines.

    Raises:
        ConfigurationError: A line cannot be read; the message begins with its number.
    """
    if column is not None:
        yield from _read_csv(lines, column)
        return
    for number, line in enumerate(lines, start=1):
        if line.lstrip()[:1] == "{":
            entry = _read_json(line.strip(), number)
        else:
            entry = _without_score(line.partition("#")[0].partition(";")[0])
        if entry:
            yield number, entry


def _read_ranges(file: NetworkFile) -> Iterator[tuple[int, int, int]]:
    """Yield the networks of a file as (4 or 6, first address, last address)."""
    path = file.path
    try:
        content = read_whole(path, MAX_BYTES)
    except OSError as error:
        raise ConfigurationError(f"networks: cannot read {path}: {error.strerror or error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}, networks: {error}") from None
    try:
        for number, text in read_entries(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "replace"), file.column):
            try:
                found = _parse_range(text, strict=file.strict)
            except ConfigurationError as error:
                raise ConfigurationError(f"line {number}: {error}") from None
            yield found
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}, {error}") from None


def _parse_range(text: str, *, strict: bool) -> tuple[int, int, int]:
    """Read an address, a network, or two addresses with ``-`` between them."""
    left, dash, right = text.partition("-")
    if not dash:
        return parse_network(text, strict=strict)
    first, last = parse_address(left.strip()), parse_address(right.strip())
    if first is None or last is None:
        raise ConfigurationError(f"network: {quoted(text)} is no range, for example 192.0.2.0 - 192.0.2.99")
    if first[0] != last[0] or first[1] > last[1]:
        raise ConfigurationError(f"network: {quoted(text)} ends before it begins; write the lower address first")
    return first[0], first[1], last[1]


def _without_score(text: str) -> str:
    parts = text.rsplit(None, 1)
    return parts[0] if len(parts) == 2 and parts[1].isdecimal() else text.strip()


def _read_json(text: str, number: int) -> str:
    """Return the network of a JSON object; empty for one that says something about the list."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"line {number}: not JSON that can be read: {quoted(str(error))}") from None
    entry = found.get("cidr", "" if found.get("type") == "metadata" else None)
    if not isinstance(entry, str):
        example = '{"cidr": "192.0.2.0/24"}'
        raise ConfigurationError(
            f"line {number}: expected an object with a cidr, for example {example}, not {quoted(text)}"
        )
    return entry


def _read_csv(lines: Iterable[str], column: str) -> Iterator[tuple[int, str]]:
    import csv  # most processes read no such file

    reader = csv.reader(lines, strict=True)
    rows = (row for row in reader if any(row) and not row[0].lstrip().startswith("#"))
    try:
        names = [name.strip() for name in next(rows, [column])]
        if column not in names:
            known = ", ".join(names)[:MAX_QUOTED]
            raise ConfigurationError(
                f"line {reader.line_num}: expected a column named {quoted(column)}, not one of {known}"
            )
        place = names.index(column)
        for row in rows:
            if place >= len(row):
                raise ConfigurationError(f"line {reader.line_num}: ends before its column {quoted(column)}")
            yield reader.line_num, row[place].strip()
    except csv.Error as error:
        raise ConfigurationError(f"line {reader.line_num}: not CSV: {error}") from None
