"""A set of IPv4 and IPv6 networks.

It is a sorted list of ranges that neither overlap nor touch, one list for each version, and a lookup is one binary
search. It never changes: to change a list, make another one and swap it.

Plain lists of integers: 200,000 networks are read in half a second and found in less than a microsecond, and hold
about 90 bytes each; arrays would hold less, and make an integer at each step of a search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import Final, Self

from .addresses import parse_address, parse_network
from .errors import ConfigurationError, quoted
from .logs import written

_RUN: Final = 4_096
_EVERYBODY: Final = {4: (0, (1 << 32) - 1), 6: (0x2000 << 112, (0x4000 << 112) - 1)}


class Networks:
    """An immutable set of IPv4 and IPv6 networks.

    ``"192.0.2.7" in networks`` takes text or an `ipaddress` object; a value that is no address is in no network.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.
        strict: Whether host bits behind a prefix are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: An entry cannot be read.
    """

    __slots__ = ("_ranges",)

    _ranges: dict[int, tuple[list[int], list[int]]]
    """The first and the last addresses of the ranges, by 4 and 6; it is read once for a lookup."""

    def __init__(self, networks: Iterable[object] = (), *, strict: bool = True) -> None:
        if isinstance(networks, (str, bytes)) or not isinstance(networks, Iterable):
            raise ConfigurationError(f'networks: expected a list, for example ["192.0.2.0/24"], not {quoted(networks)}')
        self._merge(parse_network(written(network, str), strict=strict) for network in networks)

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int, int]]) -> Self:
        """Make a set of ranges, each (4 or 6, first address, last address)."""
        made = cls()
        made._merge(ranges)
        return made

    def __contains__(self, address: object) -> bool:
        parsed = parse_address(address if isinstance(address, str) else str(address))
        return parsed is not None and self.covers(*parsed)

    def covers(self, version: int, value: int) -> bool:
        """Return whether an address that was read before lies in one of the networks."""
        starts, ends = self._ranges[version]
        at = bisect_right(starts, value) - 1
        return at >= 0 and value <= ends[at]

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the list that holds an address: empty, since a set has none; None if it is not held."""
        return "" if self.covers(version, value) else None

    def overlaps(self, version: int, first: int, last: int) -> bool:
        """Return whether one of the networks has an address in common with the range from `first` to `last`."""
        starts, ends = self._ranges[version]
        at = bisect_right(starts, last) - 1
        return at >= 0 and first <= ends[at]

    def covers_most_of(self) -> str | None:
        """Return the version, ``"IPv4"`` or ``"IPv6"``, of which half or more lies in the networks; None if none does.

        Of IPv6 only 2000::/3 counts, all that is given out: lists of addresses that nobody has hold the rest.
        """
        for version, (low, high) in _EVERYBODY.items():
            ranges = zip(*self._ranges[version], strict=True)
            covered = sum(max(min(last, high) - max(first, low) + 1, 0) for first, last in ranges)
            if 2 * covered > high - low:
                return f"IPv{version}"
        return None

    def __or__(self, other: object) -> Self:
        """Return the set of all addresses of both."""
        if not isinstance(other, Networks):
            return NotImplemented
        return self.of_ranges(chain(self.ranges(), other.ranges()))

    def __len__(self) -> int:
        """Return the number of ranges after merging."""
        return sum(len(starts) for starts, _ in self._ranges.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self._ranges == other._ranges

    def __hash__(self) -> int:
        return hash(tuple(self.ranges()))

    def __repr__(self) -> str:
        ipv4, ipv6 = (len(starts) for starts, _ in self._ranges.values())
        return f"<Networks: {ipv4} IPv4 and {ipv6} IPv6 ranges>"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).of_ranges, (list(self.ranges()),)

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError("Networks are immutable; make another set instead")

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield the ranges after merging, in their order, each as `of_ranges` takes it."""
        for version, (starts, ends) in self._ranges.items():
            for first, last in zip(starts, ends, strict=True):
                yield version, first, last

    def _merge(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        merged: dict[int, tuple[list[int], list[int]]] = {4: ([], []), 6: ([], [])}
        for version, first, last in _in_order(ranges):
            starts, ends = merged[version]
            if ends and first <= ends[-1] + 1:
                ends[-1] = max(last, ends[-1])
            else:
                starts.append(first)
                ends.append(last)
        object.__setattr__(self, "_ranges", merged)


def _in_order(ranges: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Sort in short runs: no other thread gets a turn during a sort, and one of 200,000 ranges takes 150 ms."""
    rest = iter(ranges)
    runs = list(iter(lambda: sorted(islice(rest, _RUN)), []))
    return merge(*runs)
