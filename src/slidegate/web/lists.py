"""Networks in files: blocklists and allowlists that are read again while the application serves.

A file has one address or network per line; text after ``#`` or ``;`` is a comment.
A changed file replaces all networks of a list in a single assignment, so a lookup never sees a partial list. A file
with an error changes nothing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Final

from ..core import networks as core
from ..core.addresses import parse_network
from ..core.errors import ConfigurationError, quoted
from .file_watcher import FollowedFile, read_whole

MAX_BYTES: Final = 32 << 20
"""The maximum size of a file: enough for more than a million networks, and it bounds the memory for reading."""


class Networks(core.Networks):
    """A set of IPv4 and IPv6 networks: ``Networks(["192.0.2.0/24"])``, or those of a file, see `from_file`.

    ``"192.0.2.7" in networks`` accepts text or an `ipaddress` object; it is False for values that are not addresses.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.

    Raises:
        ConfigurationError: An entry is invalid.
    """

    file: ListFile | None = None
    """The file from which the networks are read; None for copies."""

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Networks:
        """Read a file of networks, which a `RateLimitMiddleware` with this blocklist or allowlist reads again.

        Requests trigger a look at the file at most once a second; a thread then reads a changed file, once its size and
        times were equal at two looks. A file that is missing, unreadable or empty changes nothing. To empty a list,
        write a comment into the file.

        Args:
            path: The file. Its name without the suffix is the name of the list in refusals and events.

        Raises:
            ConfigurationError: The file or a line of it is invalid.
        """
        if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
            raise ConfigurationError(f'expected a file, for example "drop.netset", not {quoted(path)}', "path")
        return ListFile(os.fspath(path)).networks

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the file, else ``""``, if a parsed address is in one of the networks; None if not."""
        found = super().find(version, value)
        return found if found is None or self.file is None else self.file.name


class ListFile(FollowedFile):
    """A file of networks, which is followed by the middlewares that have it as a blocklist or an allowlist.

    Args:
        path: The file.

    Attributes:
        networks: The networks in force.

    Raises:
        ConfigurationError: It cannot be read, or a line is invalid.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, os.path.splitext(os.path.basename(path))[0])
        self.networks = self.read()
        object.__setattr__(self.networks, "file", self)

    def read(self) -> Networks:
        """Return the networks in the file; an error in a line names the line."""
        return Networks.of_ranges(_ranges(self.path))

    def load(self) -> tuple[int, Callable[[], None]]:
        """See `FollowedFile.load`."""
        networks = self.read()
        return len(networks), lambda: self.networks.become(networks)


def read_entries(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the entries of a file of networks, each with its line number."""
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].partition(";")[0].strip()
        if entry:
            yield number, entry


def _ranges(path: str) -> Iterator[tuple[int, int, int]]:
    """Read a file, and yield its networks as (4 or 6, first address, last address)."""
    content = read_whole(path, MAX_BYTES, "path")
    for number, entry in read_entries(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "replace")):
        try:
            found = parse_network(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
        yield found
