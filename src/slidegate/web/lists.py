"""Networks in files: block and allow lists that change while the application serves.

A file has an address, a network or a range (``192.0.2.0 - 192.0.2.99``) a line, where a number behind it is a score and
text behind ``#`` or ``;`` a comment.

All lists are held in one tuple, and a changed file becomes another tuple, which one assignment puts in its place: a
lookup sees the lists before or after, never half of one. A file that cannot be used changes nothing.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Final, NamedTuple, Self

from ..core import networks as core
from ..core.addresses import parse_address, parse_network
from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, quoted
from ..core.logs import logger
from ..core.store import Event, EventListener
from .file_watcher import FileVersion, FileWatcher, Versions, read_named

MAX_BYTES: Final = 32 << 20
"""The size of a file: more than a million networks, and their memory while they are read is bounded."""


class Networks(core.Networks):
    """A set of IPv4 and IPv6 networks: ``Networks(["192.0.2.0/24"])``, or those of files, see `from_file`.

    ``"192.0.2.7" in networks`` takes text or an `ipaddress` object; a value that is not an address is in no network.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An entry cannot be read.
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
        """Read files of networks, which are followed where a `RateLimitMiddleware` has them as its block or allow list.

        The middleware looks at the files at most once a second, when requests come, and reads those that have changed,
        in a thread. A changed file is read once its size and times were the same in two checks. A
        file that cannot be read, that has vanished, or that suddenly has zero bytes, changes nothing. A copy, and a set
        made with ``|``, hold what the files list at that moment.

        Args:
            paths: The files. A refusal names the first one that holds the address.
            name: The name of the list in refusals and events; by default each file's name without its suffix.
            strict: Whether host bits behind a prefix are an error; otherwise they are cleared.
            clock: Returns seconds; measures the time between two looks.

        Raises:
            ConfigurationError: A file or a line of it cannot be read, two have one name, or they add up to everybody.
        """
        if not paths:
            raise ConfigurationError('from_file: expected the path of a file, for example "blocked.netset"')
        if name and len(paths) > 1:
            raise ConfigurationError(f"{quoted(name)} names one file; several have the names of their files", "name")
        return cls.of_files([ListFile(os.fspath(_path(path)), name, strict) for path in paths], clock)

    @classmethod
    def of_files(cls, files: Sequence[ListFile], clock: Callable[[], float]) -> Self:
        """Make what `from_file` makes, of files that have names of their own."""
        made = cls()
        object.__setattr__(made, "files", ListFiles(files, made._take, clock))
        return made

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the first file that holds an address; empty without files, None if it is not held."""
        return super().find(version, value) if self.files is None else self.files.find(version, value)

    def _take(self, found: core.Networks) -> None:
        object.__setattr__(self, "_ranges", found._ranges)


@dataclass(frozen=True, slots=True)
class ListFile:
    """A file that lists networks.

    Args:
        path: The file.
        name: The name of the list in events and refusals; by default the file's name without its suffix.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: A value cannot work.
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
            ConfigurationError: It cannot be read, or a line of it; the message names the line.
        """
        ranges = list(_read_ranges(self))
        networks = core.Networks.of_ranges(ranges)
        check_breadth(networks, "path", self.path)
        return NetworkList(self, networks, len(ranges))


class NetworkList(NamedTuple):
    """What a file lists."""

    file: ListFile
    networks: core.Networks
    entries: int
    """The number of entries, as they stand in the file."""


class ListState(NamedTuple):
    """A file of networks and the version of it that is at work."""

    name: str
    path: str
    entries: int
    written_ns: int | None
    """When it was written, in nanoseconds of Unix time; None for a file that was gone."""


class ListFiles(FileWatcher):
    """The files of a set of networks, and what they list.

    Args:
        files: The files.
        take: Called with all their networks, now and whenever a file was read again.
        clock: Returns seconds; measures the time between two looks.

    Attributes:
        generation: How often files were read again and taken.

    Raises:
        ConfigurationError: A file cannot be read, two have one name, or they add up to everybody.
    """

    def __init__(
        self, files: Sequence[ListFile], take: Callable[[core.Networks], None], clock: Callable[[], float]
    ) -> None:
        names = [file.name for file in files]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"two lists are called {quoted(twice)}; give one of them another name", "files")
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
        """Return the name of the first list that holds an address (see `parse_address`), else None."""
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
                    events.append((logging.ERROR, _event(before.file, "list_rejected", f" stays as it is: {error}")))
                else:
                    count = lists[number].entries
                    event = _event(before.file, "list_reloaded", f": {count} entries", count=count)
                    events.append((logging.WARNING if before.entries and not count else logging.INFO, event))
        united = _united(lists)

        def put_to_work() -> None:
            self._lists = tuple(lists)
            self._take(united)
            self.generation += 1  # behind the lists: what is remembered of this generation is never older
            for level, event in events:
                logger.log(level, "%s: %s", event.kind, event.message)
                self._observers.tell(event)

        return put_to_work


def _path(path: object) -> str | PathLike[str]:
    """Return the path of a file.

    Raises:
        ConfigurationError: It is not a path of a file.
    """
    if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
        raise ConfigurationError(f'expected a file, for example "drop.netset", not {quoted(path)}', "path")
    return path


def _united(lists: Sequence[NetworkList]) -> core.Networks:
    """Return the networks of all lists.

    Raises:
        ConfigurationError: They add up to everybody.
    """
    if len(lists) == 1:
        return lists[0].networks
    united = core.Networks.of_ranges(chain.from_iterable(listed.networks.ranges() for listed in lists))
    check_breadth(united, "files")
    return united


def _reread(before: NetworkList, version: FileVersion | None) -> NetworkList:
    path = before.file.path
    if version is not None and not version.size and before.entries:
        raise ConfigurationError(f"{path}: has zero bytes; for a list of nothing, write a comment: # nothing")
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
    """Return the files of a block or allow list, if it has any."""
    return networks.files if isinstance(networks, Networks) else None


def followed(observer: EventListener, **lists: core.Networks | None) -> tuple[ListFiles, ...]:
    """Check the lists of a middleware, and return the files that they follow; their events go to `observer`.

    Raises:
        ConfigurationError: A list is something else.
    """
    for what, given in lists.items():
        if given is not None and not isinstance(given, core.Networks):
            examples = 'Networks(["192.0.2.0/24"]) or Networks.from_file("blocked.netset")'
            raise ConfigurationError(f"expected Networks, for example {examples}, not {quoted(given)}", what)
        if given is not None:
            check_breadth(given, what)
    followed_files = tuple(files for given in lists.values() if (files := files_of(given)) is not None)
    for files in followed_files:
        files.observe(observer)
    return followed_files


def check_breadth(networks: core.Networks, what: str, file: str = "") -> None:
    """See that networks do not add up to everybody, however that is written.

    Args:
        networks: All networks that are held against one address.
        what: A name for them, for the error message.
        file: The file that lists them.

    Raises:
        ConfigurationError: They cover half of the addresses of IPv4 or IPv6, or more.
    """
    covered = networks.covers_most_of()
    if covered is not None:
        where = f"{file}: " if file else ""
        raise ConfigurationError(
            f"{where}covers half of all {covered} addresses or more, which cannot be meant; "
            "list whom you mean, for example 192.0.2.0/24",
            what,
        )


def read_entries(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the entries of a file of networks, each with the number of its line."""
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
