"""Networks in files: blocklists and allowlists that are reloaded while the application serves.

A file has one address, network or range (``192.0.2.0 - 192.0.2.99``) per line. A number after it is a score, which is
ignored, and text after ``#`` or ``;`` is a comment.

All lists are stored in one tuple. A changed file creates a new tuple, which replaces the old one in a single
assignment, so a lookup never sees a partial list. An invalid file changes nothing.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Final, NamedTuple, Self

from ..core import networks as core
from ..core.addresses import parse_address, parse_network
from ..core.arguments import check_flag, expect
from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..core.store import Event
from .file_watcher import FileVersion, FileWatcher, Versions, read_named

MAX_BYTES: Final = 32 << 20
"""The maximum size of a file: enough for more than a million networks, and it bounds the memory for reading."""


class Networks(core.Networks):
    """A set of IPv4 and IPv6 networks: ``Networks(["192.0.2.0/24"])``, or those of files, see `from_file`.

    ``"192.0.2.7" in networks`` accepts text or an `ipaddress` object; it is False for values that are not addresses.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.
        strict: Whether host bits after the prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An entry is invalid.
    """

    files: ListFiles | None = None

    @classmethod
    def from_file(
        cls,
        *paths: str | PathLike[str],
        name: str = "",
        strict: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Read files of networks; a `RateLimitMiddleware` with this blocklist or allowlist reloads them.

        Requests trigger a check at most once a second; a thread then reads the files that have changed. A changed file
        is read once its size and times were equal in two checks. A file that is missing, unreadable, or suddenly has
        zero bytes changes nothing. Copies, and sets created with ``|``, contain the networks at that time and are not
        reloaded.

        Args:
            paths: The files. A refusal names the first one that contains the address.
            name: The name of the list in refusals and events; by default each file's name without its suffix.
            strict: Whether host bits after the prefix are an error; otherwise they are cleared.
            clock: Returns the time in seconds, for the interval between two checks.

        Raises:
            ConfigurationError: A file or a line is invalid, two files have one name, or they cover half of all
                addresses.
        """
        if not paths:
            raise ConfigurationError('from_file: expected the path of a file, for example "blocked.netset"')
        if name and len(paths) > 1:
            raise ConfigurationError(
                f"{quoted(name)} names one file; remove it to name each list like its file", "name"
            )
        return cls.of_files([ListFile(os.fspath(_path(path)), name, strict) for path in paths], clock)

    @classmethod
    def of_files(cls, files: Sequence[ListFile], clock: Callable[[], float]) -> Self:
        """Return the same set as `from_file`, for files with their own names."""
        made = cls()
        object.__setattr__(made, "files", ListFiles(files, made._take, clock))
        return made

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the first file that contains an address, or "" without files; None if it is in none."""
        return super().find(version, value) if self.files is None else self.files.find(version, value)

    def _take(self, found: core.Networks) -> None:
        object.__setattr__(self, "_ranges", found._ranges)


@dataclass(frozen=True, slots=True)
class ListFile:
    """A file that lists networks.

    Args:
        path: The file.
        name: The name of the list in events and refusals; by default the file's name without its suffix.
        strict: Whether host bits after the prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An option is invalid.
    """

    path: str
    name: str = ""
    strict: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError(f'expected text, for example "spamhaus", not {quoted(self.name)}', "name")
        check_flag("strict", self.strict)
        object.__setattr__(self, "name", self.name or os.path.splitext(os.path.basename(_path(self.path)))[0])

    def read(self) -> NetworkList:
        """Read the file.

        Raises:
            ConfigurationError: The file cannot be read, or a line is invalid; the message names the line.
        """
        ranges = list(_read_ranges(self))
        networks = core.Networks.of_ranges(ranges)
        check_breadth(networks, "path", self.path)
        return NetworkList(self, networks, len(ranges))


class NetworkList(NamedTuple):
    """The content of a file."""

    file: ListFile
    networks: core.Networks
    entries: int
    """The number of entries in the file, before overlapping ones are merged."""


class ListState(NamedTuple):
    """The active version of a file of networks."""

    name: str
    path: str
    entries: int
    written_ns: int | None
    """When it was written, in nanoseconds of Unix time; None if the file was missing."""


class ListFiles(FileWatcher):
    """The files of a set of networks, and their content.

    Args:
        files: The files.
        take: Called with all their networks, now and after each reload.
        clock: Returns the time in seconds, for the interval between two checks.

    Attributes:
        generation: The number of reloads.

    Raises:
        ConfigurationError: A file is invalid, two files have one name, or they cover half of all addresses.
    """

    def __init__(
        self, files: Sequence[ListFile], take: Callable[[core.Networks], None], clock: Callable[[], float]
    ) -> None:
        names = [file.name for file in files]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"two lists are named {quoted(twice)}; give one of them another name", "files")
        self._take = take
        super().__init__([file.path for file in files], self._read_again, clock)
        self._lists = tuple(file.read() for file in files)
        self.generation = 0
        take(_united(self._lists))

    @property
    def states(self) -> list[ListState]:
        """The state of each file."""
        read = [(listed.file, listed.entries, self.versions[listed.file.path]) for listed in self._lists]
        return [ListState(file.name, file.path, entries, seen and seen.written_ns) for file, entries, seen in read]

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the first list that contains an address (see `parse_address`), else None."""
        for listed in self._lists:
            if listed.networks.covers(version, value):
                return listed.file.name
        return None

    def _read_again(self, changed: Versions) -> Callable[[], None]:
        lists, events = list(self._lists), []
        for number, before in enumerate(self._lists):
            if before.file.path in changed:
                try:
                    lists[number] = _reread(before, changed[before.file.path])
                    _united(lists)
                except ConfigurationError as error:
                    lists[number] = before
                    events.append((logging.ERROR, _event(before.file, "list_rejected", f" is kept unchanged: {error}")))
                else:
                    count = lists[number].entries
                    event = _event(before.file, "list_reloaded", f": {count} entries", count=count)
                    events.append((logging.WARNING if before.entries and not count else logging.INFO, event))
        united = _united(lists)

        def apply() -> None:
            self._lists = tuple(lists)
            self._take(united)
            self.generation += 1  # last, so that nothing cached for this generation comes from the old lists
            for level, event in events:
                self.report(level, event)

        return apply


def _path(path: object) -> str | PathLike[str]:
    """Return the path of a file.

    Raises:
        ConfigurationError: It is not the path of a file.
    """
    if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
        raise ConfigurationError(f'expected a file, for example "drop.netset", not {quoted(path)}', "path")
    return path


def _united(lists: Sequence[NetworkList]) -> core.Networks:
    """Return the networks of all lists.

    Raises:
        ConfigurationError: They cover half of all addresses.
    """
    if len(lists) == 1:
        return lists[0].networks
    united = core.Networks.of_ranges(chain.from_iterable(listed.networks.ranges() for listed in lists))
    check_breadth(united, "files")
    return united


def _reread(before: NetworkList, version: FileVersion | None) -> NetworkList:
    path = before.file.path
    if version is not None and not version.size and before.entries:
        raise ConfigurationError(f"{path}: has zero bytes; to empty the list, write a comment such as: # empty")
    try:
        return before.file.read()
    except ConfigurationError:
        raise
    except Exception as error:
        logger.exception("reading %s failed", path)
        raise ConfigurationError(f"{path}: {error}") from error


def _event(file: ListFile, kind: str, message: str, **more: object) -> Event:
    return Event(kind, f"list {file.name!r}{message}", {"list": file.name, "path": file.path, **more})


def files_of(networks: core.Networks | None) -> ListFiles | None:
    """Return the files of a blocklist or allowlist; None if it has none."""
    return networks.files if isinstance(networks, Networks) else None


def checked_files(lists: Mapping[str, core.Networks | None]) -> Iterator[ListFiles]:
    """Check the lists of a middleware, by option name, and yield their files.

    Raises:
        ConfigurationError: A list is not a set of networks, or covers half of all addresses.
    """
    for what, given in lists.items():
        expect(what, given, core.Networks, 'Networks(["192.0.2.0/24"]) or Networks.from_file("blocked.netset")')
        if given is not None:
            check_breadth(given, what)
        files = files_of(given)
        if files is not None:
            yield files


def check_breadth(networks: core.Networks, what: str, file: str = "") -> None:
    """Check that networks do not cover most addresses, in whatever way they are written.

    Args:
        networks: All networks against which an address is matched.
        what: Their name, for the error message.
        file: The file that lists them.

    Raises:
        ConfigurationError: They cover half of the addresses of IPv4 or IPv6, or more.
    """
    covered = networks.covers_most_of()
    if covered is not None:
        where = f"{file}: " if file else ""
        raise ConfigurationError(
            f"{where}covers half of all {covered} addresses or more, which is probably a mistake; "
            "list smaller networks, for example 192.0.2.0/24",
            what,
        )


def read_entries(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the entries of a file of networks, each with its line number."""
    for number, line in enumerate(lines, start=1):
        entry = _without_score(line.partition("#")[0].partition(";")[0])
        if entry:
            yield number, entry


def _read_ranges(file: ListFile) -> Iterator[tuple[int, int, int]]:
    """Yield the networks of a file as (4 or 6, first address, last address)."""
    path = file.path
    content = read_named("path", path, MAX_BYTES)
    for number, text in read_entries(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "replace")):
        try:
            found = _parse_range(text, strict=file.strict)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
        yield found


def _parse_range(text: str, *, strict: bool) -> tuple[int, int, int]:
    """Parse an address, a network, or two addresses with ``-`` between them."""
    left, dash, right = text.partition("-")
    if not dash:
        return parse_network(text, strict=strict)
    first, last = parse_address(left.strip()), parse_address(right.strip())
    if first is None or last is None:
        raise ConfigurationError(f"network: expected a range such as 192.0.2.0 - 192.0.2.99, not {quoted(text)}")
    if first[0] != last[0] or first[1] > last[1]:
        raise ConfigurationError(f"network: {quoted(text)} ends before it starts; write the lower address first")
    return first[0], first[1], last[1]


def _without_score(text: str) -> str:
    parts = text.rsplit(None, 1)
    return parts[0] if len(parts) == 2 and parts[1].isdecimal() else text.strip()
