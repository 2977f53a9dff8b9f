"""Networks in files: blocklists and allowlists that are read again while the application serves.

A file has one address or network per line; text after ``#`` or ``;`` is a comment. JSON is read by `crawlers`.
A changed file replaces all networks of a list in a single assignment, so a lookup never sees a partial list. A file
with an error changes nothing.

The publisher of a file decides whom it refuses. So one that covers nearly everybody is an error as well, and a
blocklist from a file refuses neither private addresses nor trusted proxies: `Networks.from_file` takes both on request.
Networks that are written in code, or in a configuration file, stand as they are written.
"""

from __future__ import annotations

import io
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import TYPE_CHECKING, Final

from .._watcher import FollowedFile, read_whole
from ..core import networks as core
from ..core.addresses import AddressRange, parse_network
from ..core.errors import ConfigurationError, quoted
from ..core.options import options_checked
from ..core.passwords import without_passwords

if TYPE_CHECKING:
    from ..web.keys import KeyCondition

MAX_BYTES: Final = 32 << 20
"""The maximum size of a file: enough for more than a million networks, and it bounds the memory for reading."""
_EVERYBODY: Final = {4: "the IPv4 addresses", 6: "2000::/3, the allocated IPv6 addresses"}
_MOST_BLOCKED: Final = {4: 0.9, 6: 0.9}
_MOST_ALLOWED: Final = {4: 2**-4, 6: 2**-1}
"""Which share of the addresses is too much for a list from a file, by version: 90 %, and a /4."""


class Networks(core.Networks):
    """A set of IPv4 and IPv6 networks: ``Networks(["192.0.2.0/24"])``, or those of a file, see `from_file`.

    ``"192.0.2.7" in networks`` accepts text or an `ipaddress` object; it is False for values that are not addresses.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.

    Raises:
        ConfigurationError: An entry is invalid.
    """

    file: ListFile | None = None

    @classmethod
    @options_checked
    def from_file(
        cls, path: str | PathLike[str], *, wide: bool = False, private: bool = False, service: str | None = None
    ) -> Networks:
        """Read a file of networks, which a `RateLimitMiddleware` with this blocklist or allowlist reads again.

        It has one network a line, or is the JSON in which Google, Bing, Apple, OpenAI, Perplexity, DuckDuckGo and AWS
        publish theirs.

        Requests trigger a look at the file at most once a second; a thread then reads a changed file, once its size and
        times were equal at two looks. A file that is missing, unreadable or empty changes nothing. To empty a list,
        write a comment into the file.

        Args:
            path: The file. Its name without the suffix is the name of the list in refusals and events.
            wide: Take a file that covers nearly everybody: as a blocklist 90 % of the IPv4 addresses or of 2000::/3, as
                an allowlist as many addresses as a /4. By default it is an error, and changes nothing.
            private: As a blocklist, also refuse loopback, private, shared and link-local addresses, and trusted
                proxies. By default these are left out.
            service: The service whose networks are taken from a file that names services, as AWS's does. It is required
                there, because any client can rent an address of EC2.

        Raises:
            ConfigurationError: The file or a line of it is invalid.
        """
        if not isinstance(path, (str, PathLike)) or not os.path.basename(path):
            raise ConfigurationError(f'expected a file, for example "drop.netset", not {quoted(path)}', "path")
        return ListFile(os.fspath(path), wide=wide, private=private, service=service).networks

    def has_client(self) -> KeyCondition:
        """Return a condition for `Rule(when=...)`: the client's whole address is in one of these networks.

        A file of networks is read again when it changes, as for a list.

        Raises:
            ConfigurationError: The file has as many addresses as a /4, without ``wide=True``.
        """
        from .crawlers import client_is_in  # here, as few applications need it

        if self.file is not None:
            self.file.serve_as("has_client()")
        return client_is_in(self, self.file)


class ListFile(FollowedFile):
    """A file of networks, which is followed by the middlewares that have it as a blocklist or an allowlist.

    Args:
        wide: Whether it may cover nearly everybody.
        private: Whether it may refuse private addresses and trusted proxies.
        service: The service whose networks are taken from a file that names services.
        role: What it is, if that is known: ``"blocklist"``, ``"allowlist"`` or ``"has_client()"``.

    Attributes:
        networks: The networks in force.

    Raises:
        ConfigurationError: It cannot be read, a line is invalid, or it covers nearly everybody.
    """

    def __init__(
        self, path: str, *, wide: bool = False, private: bool = False, service: str | None = None, role: str = ""
    ) -> None:
        super().__init__(path, os.path.splitext(os.path.basename(path))[0])
        self.private = private
        self._is_wide = wide
        self._service = service
        self._roles = set[str]()
        if role:
            self._roles.add(role)
        self.networks = self.read()
        self.networks.file = self

    def serve_as(self, role: str) -> None:
        """Let a middleware use the file, from now on.

        Args:
            role: ``"blocklist"``, ``"allowlist"`` or ``"has_client()"``.

        Raises:
            ConfigurationError: It covers nearly everybody.
        """
        self._check_width(self.networks, role)
        self._roles.add(role)

    def read(self) -> Networks:
        """Return the networks in the file; an error in a line names the line."""
        networks = Networks.of_ranges(_ranges(self.path, self._service))
        for role in sorted(self._roles):
            self._check_width(networks, role)
        return networks

    def _check_width(self, networks: Networks, role: str) -> None:
        """Check that the networks of a file do not cover nearly everybody, in however many pieces."""
        most, effect = _MOST_ALLOWED, "apply to very many"
        if role == "blocklist":
            most, effect = _MOST_BLOCKED, "refuse nearly everybody"
        for version, allowed in most.items():
            share = networks.share(version)
            if share < allowed or self._is_wide:
                continue
            percent = int(100 * share)
            raise ConfigurationError(
                f"{self.path}: covers {percent} % of {_EVERYBODY[version]}, so it would {effect}; correct the file, or "
                "if you mean that, write Networks.from_file(path, wide=True), in slidegate.toml "
                "{ path = ..., wide = true }",
                role,
            )

    def load(self) -> tuple[int, Callable[[], None]]:
        networks = self.read()
        return len(networks), lambda: self.networks.become(networks)


def read_entries(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the entries of a file of networks, each with its line number."""
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].partition(";")[0].strip()
        if entry:
            yield number, entry


def _ranges(path: str, service: str | None) -> Iterator[AddressRange]:
    """Read a file, and yield the ranges of its networks."""
    content = read_whole(path, MAX_BYTES, "path").removeprefix(BOM_UTF8)
    begin = content.lstrip()[:1]
    if not begin:  # it is still being written, or what should have written it has failed
        raise ConfigurationError(
            f"cannot read {without_passwords(str(path))}: it is empty; a list that is to contain nothing needs a "
            "comment, such as: # empty",
            "path",
        )
    if begin == b"{":
        from .crawlers import published_ranges  # here, as few applications need it

        try:
            yield from published_ranges(content, service)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error.text}", error.option) from None
        return
    if service is not None:
        raise ConfigurationError(f"{path}: names no services; leave service out", "service")
    for number, entry in read_entries(io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace")):
        try:
            network = parse_network(entry)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from None
        yield network
