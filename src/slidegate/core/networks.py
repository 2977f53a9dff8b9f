"""IPv4 and IPv6 addresses and networks.

An address is handled as (version, integer): never as an `ipaddress` object, whose hash collides on crafted
addresses, and never as text, of which one address has many. IPv4 mapped into IPv6 (``::ffff:0:0/96``) *is* IPv4,
however it is spelled, decided from its bits.

A set of networks is a sorted list of ranges that neither overlap nor touch, one list for each version, and a
lookup is one binary search. It never changes: to change a list, make another one and swap it.

Plain lists of integers: 200,000 networks are read in half a second and found in less than a microsecond, and hold
about 90 bytes each; arrays would hold less, and make an integer at each step of a search.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from os import PathLike
from typing import Final, TypeAlias

from .errors import ConfigurationError, quoted
from .publicspace import HALF, public_addresses, wide_ranges

Address: TypeAlias = tuple[int, int]
"""(4 or 6, the address as an integer)."""

IPV6_PREFIX: Final = 64
"""One customer's line is usually a /64 (RFC 6177, RIPE-690), so that is one client."""

_BITS = {4: 32, 6: 128}
_RUN: Final = 4_096
_PREFIX = re.compile("0|[1-9][0-9]{0,2}")
_MAPPED: Final = 0xFFFF


def parse_address(text: str) -> Address | None:
    """Read an address as a peer or a header gives it; None if it is not one.

    Strict: no leading zeros, no shortened or numeric IPv4, ASCII digits only. An IPv6 zone is dropped.
    """
    try:
        return 4, int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big")
    except (OSError, ValueError):
        pass
    try:
        value = _ipv6(text.partition("%")[0])
    except (OSError, ValueError):
        return None
    return (4, value & 0xFFFF_FFFF) if value >> 32 == _MAPPED else (6, value)


def is_unspecified(address: Address) -> bool:
    """Tell whether an address is ``0.0.0.0`` or ``::``, which no client has."""
    return not address[1]


def _ipv6(text: str) -> int:
    return int.from_bytes(socket.inet_pton(socket.AF_INET6, text), "big")


def format_network(version: int, value: int, prefix: int) -> str:
    """Write the network of `prefix` bits around an address; a whole IPv4 address without its prefix length.

    RFC 5952 text: lower case, zeros compressed. A bare IPv6 address would mean its /64, so that keeps its length.
    """
    bits = _BITS[version]
    base = value >> (bits - prefix) << (bits - prefix)
    text = str(ipaddress.IPv4Address(base) if version == 4 else ipaddress.IPv6Address(base))
    return text if prefix == bits == 32 else f"{text}/{prefix}"


def parse_network(text: str, *, strict: bool = True) -> tuple[int, int, int]:
    """Read an address or a network in CIDR notation as (version, first address, last address).

    Args:
        text: ``"192.0.2.7"``, ``"192.0.2.0/24"``, ``"2001:db8::/32"``.
        strict: Whether bits behind the prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: The text is neither, or has host bits set while `strict`.
    """
    host, slash, length = text.partition("/")
    address = None if "%" in host else parse_address(host)
    if address is None:
        raise ConfigurationError(f"network: {quoted(text)} is not an address or network, for example 192.0.2.0/24")
    version, value = address
    bits = 128 if ":" in host else 32
    prefix = bits
    if slash:
        if not _PREFIX.fullmatch(length) or int(length) > bits:
            raise ConfigurationError(
                f"network: {quoted(text)} needs a prefix length from 0 to {bits}, for example {host}/{bits}"
            )
        prefix = int(length)
    if bits == 128 and version == 4:
        if prefix < 96:
            raise ConfigurationError(
                f"network: {quoted(text)} holds every IPv4 address; write 0.0.0.0/0 or ::/0 if that is meant"
            )
        bits, prefix = 32, prefix - 96
    size = 1 << (bits - prefix)
    first = value & -size
    if strict and first != value:
        raise ConfigurationError(
            f"network: {quoted(text)} has host bits set; did you mean {format_network(version, value, prefix)}? "
            "(strict=False clears them)"
        )
    return version, first, first + size - 1


def prefix_length(version: int, first: int, last: int) -> int:
    """Return the prefix length of a network, given its first and last address."""
    return _BITS[version] - (last - first).bit_length()


def canonical_key(key: str) -> str:
    """Return the one spelling of a key that is an address or network, any other key as it is."""
    if not key[0].isalnum() and key[0] != ":":
        return key
    address = parse_address(key)
    if address is not None:
        return address_key(*address)
    if "/" in key:
        try:
            version, first, last = parse_network(key, strict=False)
        except ConfigurationError:
            return key
        return format_network(version, first, prefix_length(version, first, last))
    return key


def address_key(version: int, value: int, ipv4_prefix: int = 32, ipv6_prefix: int = IPV6_PREFIX) -> str:
    """Return the key of a client's address: the network of its prefix length, as text."""
    return format_network(version, value, ipv4_prefix if version == 4 else ipv6_prefix)


class Networks:
    """An immutable set of IPv4 and IPv6 networks.

    ``"192.0.2.7" in networks`` takes text or an `ipaddress` object; what is not an address is in no network.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An entry cannot be read.
    """

    __slots__ = ("_ends", "_starts")

    _starts: dict[int, list[int]]
    _ends: dict[int, list[int]]

    def __init__(self, networks: Iterable[object] = (), *, strict: bool = True) -> None:
        if isinstance(networks, (str, bytes)) or not isinstance(networks, Iterable):
            raise ConfigurationError(f'networks: expected a list, for example ["192.0.2.0/24"], not {networks!r}')
        self._merge(parse_network(str(network), strict=strict) for network in networks)

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int, int]]) -> Networks:
        """Make a set of ranges, each (4 or 6, first address, last address)."""
        made = cls()
        made._merge(ranges)
        return made

    @classmethod
    def from_file(
        cls,
        path: str | PathLike[str],
        *,
        strict: bool = True,
        format: str = "auto",
        column: str | int | None = None,
    ) -> Networks:
        """Read a file of networks, in any of the formats that `NetworkFile` has.

        What ends some day does not end here, since a set never changes: `NetworkFiles` keeps to that. What was over
        already when the file was written is left out.

        Args:
            path: The file.
            strict: Whether host bits behind a prefix are an error; otherwise they are cleared.
            format: The name of the format; by default the first lines tell.
            column: The column of a CSV file, by its name or by its number from 1; by default the first.

        Raises:
            ConfigurationError: The file or a line of it cannot be read, or it lists everybody.
        """
        from .networklist import NetworkReading, check_breadth

        reading = NetworkReading(path, strict=strict, format=format, column=column)
        made = cls.of_ranges(
            (version, first, last)
            for version, first, last, ends_us in reading
            if ends_us is None or ends_us > reading.written_us
        )
        check_breadth([made], str(path))
        return made

    def __contains__(self, address: object) -> bool:
        parsed = parse_address(address if isinstance(address, str) else str(address))
        return parsed is not None and self.covers(*parsed)

    def covers(self, version: int, value: int) -> bool:
        """Tell whether an address that was read before lies in one of the networks."""
        place = bisect_right(self._starts[version], value) - 1
        return place >= 0 and value <= self._ends[version][place]

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the list that holds an address: empty, since a set has none; None if it is not held."""
        return "" if self.covers(version, value) else None

    def overlaps(self, version: int, first: int, last: int) -> bool:
        """Tell whether one of the networks has an address in common with the range from `first` to `last`."""
        place = bisect_right(self._starts[version], last) - 1
        return place >= 0 and first <= self._ends[version][place]

    def size(self, version: int) -> int:
        """Return the number of addresses of one version."""
        return sum(self._ends[version]) - sum(self._starts[version]) + len(self._starts[version])

    def covers_most_of(self) -> str | None:
        """Return the version, ``"IPv4"`` or ``"IPv6"``, of whose public addresses more than half lie in the networks.

        None if there is none. Reserved addresses count for nothing.
        """
        for version, half in HALF.items():
            ranges = self._starts[version], self._ends[version]
            if self.size(version) > half and public_addresses(version, *ranges) > half:
                return f"IPv{version}"
        return None

    def wide_ranges(self) -> Iterator[str]:
        """Yield, as text, each range in which a public network wider than an IPv4 /8 or an IPv6 /19 lies."""
        for version, bits in _BITS.items():
            for first, last in wide_ranges(version, self._starts[version], self._ends[version]):
                yield " to ".join(format_network(version, end, bits).partition("/")[0] for end in (first, last))

    def __or__(self, other: object) -> Networks:
        """Return the set of what is in either."""
        if not isinstance(other, Networks):
            return NotImplemented
        return Networks.of_ranges(chain(self.ranges(), other.ranges()))

    def __len__(self) -> int:
        """Return the number of ranges after merging."""
        return len(self._starts[4]) + len(self._starts[6])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and (self._starts, self._ends) == (other._starts, other._ends)

    def __hash__(self) -> int:
        return hash((*self._starts[4], *self._ends[4], *self._starts[6], *self._ends[6]))

    def __repr__(self) -> str:
        return f"<Networks: {len(self._starts[4])} IPv4 and {len(self._starts[6])} IPv6 ranges>"

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError("Networks are immutable; make another set instead")

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges after merging, in their order, each as `of_ranges` takes it."""
        for version, starts in self._starts.items():
            for first, last in zip(starts, self._ends[version], strict=True):
                yield version, first, last

    def _merge(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        starts: dict[int, list[int]] = {4: [], 6: []}
        ends: dict[int, list[int]] = {4: [], 6: []}
        for version, first, last in _in_order(ranges):
            if ends[version] and first <= ends[version][-1] + 1:
                ends[version][-1] = max(last, ends[version][-1])
            else:
                starts[version].append(first)
                ends[version].append(last)
        object.__setattr__(self, "_starts", starts)
        object.__setattr__(self, "_ends", ends)


def _in_order(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Sort in short runs: no other thread gets a turn during a sort, and one of 200,000 ranges takes 150 ms."""
    rest = iter(ranges)
    runs = list(iter(lambda: sorted(islice(rest, _RUN)), []))
    return merge(*runs)
