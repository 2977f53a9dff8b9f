"""Named lists of networks in files that change while the application serves.

All lists are held in one tuple, and a changed file becomes another tuple, which one assignment puts in its place: a
lookup sees the lists before or after, never half of one. A file that cannot be used changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

from ...core.errors import ConfigurationError
from ...core.logs import logger
from ...core.networks import Networks
from ...core.store import Clock, Event, Observer, Observers
from ...netlists.breadth import check_breadth
from .watching import SHRUNK_S, Change, Follower, stamp_of

if TYPE_CHECKING:
    from pathlib import Path

    from ...netlists.reading import NetworkList


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """A file that lists networks.

    Args:
        path: The file.
        name: The name of the list in events and refusals; by default the file's name without its suffix.
        format: ``"plain"``, ``"jsonl"``, ``"csv"``, ``"nginx"``, ``"fail2ban"`` or ``"crowdsec"``; with ``"auto"``
            the first line that is no comment and not blank tells the format.
        column: The column of a CSV file, by its name or by its number from 1; by default the first.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: A value cannot work.
    """

    path: str | PathLike[str]
    name: str = ""
    format: str = "auto"
    column: str | int | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        from ...netlists.formats import check_format  # most processes read no file of networks

        if not isinstance(self.path, (str, PathLike)) or not _path(self.path).name:
            raise ConfigurationError(f'path: expected a file, for example "drop.netset", not {self.path!r}')
        if not isinstance(self.name, str):
            raise ConfigurationError(f'name: expected text, for example "spamhaus", not {self.name!r}')
        if not isinstance(self.strict, bool):
            raise ConfigurationError(f"strict: expected True or False, not {self.strict!r}")
        check_format(self.format, self.column)
        object.__setattr__(self, "path", _path(self.path))
        object.__setattr__(self, "name", self.name or _path(self.path).stem)

    def read(self) -> NetworkList:
        """Read the file.

        Raises:
            ConfigurationError: It cannot be read, or a line of it; the message names the line.
        """
        from ...netlists.reading import NetworkList, NetworkReading

        return NetworkList(NetworkReading(self.path, strict=self.strict, format=self.format, column=self.column))


class NetworkFiles:
    """Lists of networks, each in a file with a name, that follow their files.

    Give it to a `RateLimitMiddleware` as `blocklist` or `allowlist`: it looks at the files at most once a second, when
    requests come, and reads those that have changed, in a thread. A file that is renamed into place takes over at once,
    one that is changed in place when it has stood still for ten seconds, and for another minute if it has lost more
    than half of its entries. A file that cannot be read, that has vanished, or that is suddenly blank, changes nothing.
    Entries that end are left out from their end on.

    Args:
        files: The files, or their paths. A refusal names the first one that holds the address.
        clock: Returns seconds; measures the time between two looks.
        wall_clock: Returns microseconds of Unix time, by which entries end.

    Raises:
        ConfigurationError: A file cannot be read, two have one name, or they add up to everybody.
    """

    def __init__(
        self,
        files: Iterable[NetworkFile | str | PathLike[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Clock = lambda: time.time_ns() // 1_000,
    ) -> None:
        if isinstance(files, (str, PathLike, NetworkFile)) or not isinstance(files, Iterable):
            raise ConfigurationError(f'files: expected a list, for example ["drop.netset"], not {files!r}')
        self._files = tuple(file if isinstance(file, NetworkFile) else NetworkFile(file) for file in files)
        names = [file.name for file in self._files]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"files: two lists are called {twice!r}; give one of them another name")
        self._wall_clock = wall_clock
        self._observers = Observers()
        self._follower = Follower(self._read_again, clock)
        self._follower.stamps = {_path(file.path): stamp_of(_path(file.path)) for file in self._files}
        self._lists = tuple((file.name, file.read()) for file in self._files)
        check_breadth([listed for _, listed in self._lists], "files")

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of entries of each list, by its name."""
        return {name: listed.count for name, listed in self._lists}

    @property
    def states(self) -> list[tuple[NetworkFile, int, int | None]]:
        """Each file, the number of entries at work, and when the version of them was written, in ns of Unix time."""
        stamps = self._follower.stamps
        found = zip(self._files, self._lists, strict=True)
        return [
            (file, listed.count, None if (stamp := stamps.get(_path(file.path))) is None else stamp.written_ns)
            for file, (_, listed) in found
        ]

    def __repr__(self) -> str:
        return f"<NetworkFiles: {', '.join(f'{name} ({count})' for name, count in self.counts.items())}>"

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the first list that holds an address (see `parse_address`) now, else None."""
        for name, listed in self._lists:
            if listed.networks.covers(version, value):
                return name
            if listed.has_ends and listed.ending_covers(version, value, self._wall_clock()):
                return name
        return None

    def covers(self, version: int, value: int) -> bool:
        """Return whether one of the lists holds an address now."""
        return self.find(version, value) is not None

    def overlaps(self, version: int, first: int, last: int) -> bool:
        """Return whether a network of one of the lists has an address in common with the range, now."""
        now_us = self._wall_clock()
        return any(
            listed.networks.overlaps(version, first, last) or listed.ending_overlaps(version, first, last, now_us)
            for _, listed in self._lists
        )

    def wide_ranges(self) -> Iterator[str]:
        """Yield the ranges of `Networks.wide_ranges` for each list, with its name."""
        for name, listed in self._lists:
            yield from (f"{found} ({name})" for found in Networks.of_ranges(listed.ranges()).wide_ranges())

    def observe(self, observer: Observer) -> None:
        """Send `observer` each further ``list_reloaded``, ``list_rejected`` and ``list_shrunk`` once."""
        if observer not in self._observers:
            self._observers.add(observer)

    def due(self) -> bool:
        """Return whether the last look at the files is a second old."""
        return self._follower.due()

    def look_aside(self) -> None:
        """Look at the files in a thread, and read there those that have changed; return at once."""
        self._follower.look_aside()

    async def look(self) -> None:
        """Do the same as `look_aside`, and wait for its end."""
        await self._follower.look()

    def _read_again(self, changes: Mapping[Path, Change]) -> set[Path]:
        events: list[tuple[int, Event]] = []
        lists = []
        waiting: set[Path] = set()
        for file, (name, before) in zip(self._files, self._lists, strict=True):
            listed, change = before, changes.get(_path(file.path))
            if change is not None:
                listed, level, event = self._replaced(file, before)
                if change.loses_too_much(before.count, listed.count):
                    listed, level, event = before, logging.WARNING, _shrunk(file, before.count, listed.count)
                    waiting.add(change.path)
                if not change.still():
                    waiting.add(change.path)
                    listed = before
                else:
                    events.append((level, event))
            lists.append((name, listed))
        try:
            check_breadth([listed for _, listed in lists], "files")
        except ConfigurationError as error:
            names = [file.name for file in self._files if file.path in changes]
            details: dict[str, object] = {"list": names[0], "path": ", ".join(sorted(map(str, changes)))}
            message = f"the lists stay as they are: with {', '.join(map(repr, names))} together, {error}"
            events = [(logging.ERROR, Event("list_rejected", message, details))]
        else:
            self._lists = tuple(lists)
        for level, event in events:
            self._tell(level, event)
        return waiting

    def _replaced(self, file: NetworkFile, before: NetworkList) -> tuple[NetworkList, int, Event]:
        """Return the list to go on with, the level of the log line, and the event."""
        details: dict[str, object] = {"list": file.name, "path": str(file.path)}
        try:
            listed = file.read()
            if listed.blank and before.count and file.format != "fail2ban":
                raise ConfigurationError(f"{file.path}: is blank; for a list of nothing, write a comment: # nothing")
        except Exception as error:
            if not isinstance(error, ConfigurationError):
                logger.exception("reading %s failed", file.path)
            message = f"list {file.name!r} stays as it is: {error}"
            return before, logging.ERROR, Event("list_rejected", message, details)
        details |= {"count": listed.count, "skipped": dict(listed.skipped)}
        skipped = "".join(f", {count} skipped ({cause})" for cause, count in listed.skipped.items())
        level = logging.WARNING if before.count and not listed.count else logging.INFO
        return listed, level, Event("list_reloaded", f"list {file.name!r}: {listed.count} entries{skipped}", details)

    def _tell(self, level: int, event: Event) -> None:
        logger.log(level, "%s: %s", event.kind, event.message)
        self._observers.tell(event)


def _shrunk(file: NetworkFile, before: int, now: int) -> Event:
    message = (
        f"list {file.name!r} stays as it is for {SHRUNK_S:.0f} s more: it was changed in place and has {now} entries "
        f"left of {before}, as while it is still being written; a file that is renamed into place is taken at once"
    )
    return Event("list_shrunk", message, {"list": file.name, "path": str(file.path), "count": now, "before": before})


AddressList: TypeAlias = Networks | NetworkFiles
"""The types of a blocklist or an allowlist."""


def followed(observer: Observer, **lists: AddressList | None) -> tuple[NetworkFiles, ...]:
    """Check the lists of a middleware, and return those that follow files; their events go to `observer`.

    Raises:
        ConfigurationError: A list is something else.
    """
    for what, given in lists.items():
        if given is not None and not isinstance(given, (Networks, NetworkFiles)):
            example = 'Networks(["192.0.2.0/24"])'
            raise ConfigurationError(f"{what}: expected Networks or NetworkFiles, for example {example}, not {given!r}")
        if isinstance(given, Networks):
            check_breadth([given], what)
    files = tuple(given for given in lists.values() if isinstance(given, NetworkFiles))
    for given in files:
        given.observe(observer)
    return files


def _path(path: str | PathLike[str]) -> Path:
    from pathlib import Path  # most processes follow no file

    return Path(path)
