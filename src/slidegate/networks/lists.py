"""Networks in files: blocklists and allowlists that are read again while the application serves.

A file has one address or network per line; text after ``#`` or ``;`` is a comment.
A changed file replaces all networks of a list in a single assignment, so a lookup never sees a partial list. A file
with an error changes nothing.

Whoever publishes a file decides whom it refuses. So one that covers nearly everybody is an error as well, and a
blocklist from a file refuses neither private addresses nor trusted proxies: `Networks.from_file` takes both on request.
Networks that are written in code, or in a configuration file, stand as they are written.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Final

from ..core import networks as core
from ..core.addresses import parse_network
from ..core.arguments import check_flag
from ..core.encodings import utf_8_needed
from ..core.errors import ConfigurationError, quoted
from ..core.networks import ADDRESSES
from ..core.passwords import without_passwords
from ..files.watcher import FollowedFile, read_whole

MAX_BYTES: Final = 32 << 20
"""The maximum size of a file: enough for more than a million networks, and it bounds the memory for reading."""
_EVERYBODY: Final = {4: "the IPv4 addresses", 6: "2000::/3, the allocated IPv6 addresses"}
_WIDEST: Final[Mapping[str, Mapping[int, int]]] = {
    "blocklist": {version: -(-addresses * 9 // 10) for version, addresses in ADDRESSES.items()},
    "allowlist": {4: 1 << 32 - 4, 6: 1 << 128 - 4},
}
"""How many addresses are too many for a list from a file, by what it is for and by version."""


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
    def from_file(cls, path: str | PathLike[str], *, wide: bool = False, private: bool = False) -> Networks:
        """Read a file of networks, which a `RateLimitMiddleware` with this blocklist or allowlist reads again.

        Requests trigger a look at the file at most once a second; a thread then reads a changed file, once its size and
        times were equal at two looks. A file that is missing, unreadable or empty changes nothing. To empty a list,
        write a comment into the file.

        Args:
            path: The file. Its name without the suffix is the name of the list in refusals and events.
            wide: Take a file that covers nearly everybody: as a blocklist 90 % of the IPv4 addresses or of 2000::/3, as
                an allowlist as many addresses as a /4. By default it is an error, and changes nothing.
            private: As a blocklist, also refuse loopback, private, shared and link-local addresses, and trusted
                proxies. By default these are left out, which the event ``list_spared`` reports.

        Raises:
            ConfigurationError: The file or a line of it is invalid.
        """
        if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
            raise ConfigurationError(f'expected a file, for example "drop.netset", not {quoted(path)}', "path")
        return ListFile(os.fspath(path), wide=wide, private=private).networks

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the file, else ``""``, if a parsed address is in one of the networks; None if not."""
        found = super().find(version, value)
        return found if found is None or self.file is None else self.file.name


class ListFile(FollowedFile):
    """A file of networks, which is followed by the middlewares that have it as a blocklist or an allowlist.

    Args:
        path: The file.
        wide: Whether it may cover nearly everybody.
        private: Whether it may refuse private addresses and trusted proxies.
        role: What it is, if that is known: a key of `_WIDEST`.

    Attributes:
        networks: The networks in force.
        private: Whether it may refuse private addresses and trusted proxies.

    Raises:
        ConfigurationError: It cannot be read, a line is invalid, or it covers nearly everybody.
    """

    def __init__(self, path: str, *, wide: bool = False, private: bool = False, role: str = "") -> None:
        super().__init__(path, os.path.splitext(os.path.basename(path))[0])
        self.private = check_flag("private", private)
        self._is_wide = check_flag("wide", wide)
        self._roles = {role} if role else set[str]()
        self.networks = self.read()
        object.__setattr__(self.networks, "file", self)

    def serve_as(self, role: str) -> None:
        """Let a middleware use the file, from now on.

        Args:
            role: ``"blocklist"`` or ``"allowlist"``.

        Raises:
            ConfigurationError: It covers nearly everybody.
        """
        self._check_width(self.networks, role)
        self._roles.add(role)

    def read(self) -> Networks:
        """Return the networks in the file; an error in a line names the line."""
        networks = Networks.of_ranges(_ranges(self.path))
        for role in sorted(self._roles):
            self._check_width(networks, role)
        return networks

    def _check_width(self, networks: Networks, role: str) -> None:
        """Check that the networks of a file do not cover nearly everybody, in however many pieces."""
        for version, allowed in _WIDEST[role].items():
            covered = networks.covered(version)
            if covered < allowed or self._is_wide:
                continue
            percent = 100 * covered // ADDRESSES[version]
            name = json.dumps(os.path.basename(self.path))
            does = "refuse nearly everybody" if role == "blocklist" else "exempt very many from all limits"
            raise ConfigurationError(
                f"{self.path}: covers {percent} % of {_EVERYBODY[version]}, so it would {does}; correct the file, or "
                f"if you mean that, write Networks.from_file({name}, wide=True), in slidegate.toml {role} = "
                f"{{ path = {name}, wide = true }}",
                role,
            )

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
    if problem := utf_8_needed(content):
        raise ConfigurationError(f"cannot read {without_passwords(str(path))}: {problem}", "path")
    for number, entry in read_entries(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", "replace")):
        try:
            found = parse_network(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
        yield found


def file_of(networks: object) -> ListFile | None:
    """Return the file behind networks; None if they were given in code, or there are none."""
    if isinstance(networks, Networks):
        return networks.file
    return None
