"""A set of IPv4 and IPv6 networks.

For each version it has a sorted list of bounds: where a range begins, where it has ended, where the next one begins.
Ranges neither overlap nor touch, so an address is in one if the number of bounds up to it is odd, which one binary
search finds. A set is not changed but by `become`, with which it takes over the networks of another one, all at once.

The bounds are plain lists of integers: 200,000 networks load in half a second, are found in less than a microsecond,
and take about 90 bytes each. Arrays would be smaller, but create an integer object at each step of a search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Any, Final, Self, TypeAlias

from .addresses import AddressRange, parse_address, parse_network
from .errors import ConfigurationError, quoted
from .logs import safe_text

_RUN: Final = 4_096
"""How many ranges are sorted at once."""
_CLIENTS: Final = {4: (0, 1 << 32), 6: (0x2000 << 112, 0x4000 << 112)}
"""The first address that clients can have and the one behind the last, by version. Of IPv6 that is 2000::/3, because
only that is allocated; bogon lists legitimately contain the rest."""


class Networks:
    """A set of IPv4 and IPv6 networks.

    ``"192.0.2.7" in networks`` accepts text or an `ipaddress` object; it is false for a value that is not an address.

    Args:
        networks: Addresses and networks as text or `ipaddress` objects.

    Raises:
        ConfigurationError: An entry is not an address or network.
    """

    __slots__ = ("_bounds",)

    file: Any = None
    """The file from which the networks are read, and read again; None for those of code."""
    _bounds: dict[int, list[int]]
    """By version (4 or 6): the first address of each range, and the one behind its last."""

    def __init__(self, networks: Iterable[object] = ()) -> None:
        if isinstance(networks, str):  # which would be a list of letters
            raise ConfigurationError(f'expected a list such as ["192.0.2.0/24"], not {quoted(networks)}', "networks")
        self._merge(parse_network(safe_text(network, is_message=True)) for network in networks)

    @classmethod
    def of_ranges(cls, ranges: Iterable[AddressRange]) -> Self:
        """Return the set of some ranges."""
        networks = cls()
        networks._merge(ranges)
        return networks

    def become(self, other: Networks) -> None:
        """Take over the networks of another set. A look-up in another thread sees those before or after."""
        self._bounds = other._bounds

    def __contains__(self, address: object) -> bool:
        parsed = parse_address(str(address))
        return parsed is not None and self.covers(*parsed)

    def covers(self, version: int, value: int) -> bool:
        """Return whether a parsed address is in one of the networks."""
        return bisect_right(self._bounds[version], value) % 2 == 1

    def overlaps(self, version: int, first: int, last: int) -> bool:
        """Return whether one of the networks has an address in common with the range from `first` to `last`."""
        bounds = self._bounds[version]
        before = bisect_right(bounds, first)
        return before % 2 == 1 or before < bisect_right(bounds, last)

    def share(self, version: int) -> float:
        """Return the share of the addresses that clients can have which is in one of the networks."""
        lowest, end = _CLIENTS[version]
        covered = 0
        for own, first, last in self.ranges():
            if own == version:
                covered += max(min(last + 1, end) - max(first, lowest), 0)
        return covered / (end - lowest)

    def covers_most(self) -> bool:
        """Return whether the networks cover at least half of the addresses of a version."""
        return max(self.share(4), self.share(6)) >= 0.5

    def __len__(self) -> int:
        """Return the number of ranges after merging."""
        return sum(map(len, self._bounds.values())) // 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Networks) and self._bounds == other._bounds

    def __hash__(self) -> int:
        return hash(tuple(self.ranges()))

    def __repr__(self) -> str:
        return f"<Networks: {len(self._bounds[4]) // 2} IPv4 and {len(self._bounds[6]) // 2} IPv6 ranges>"

    def ranges(self) -> Iterator[AddressRange]:
        """Yield the merged ranges in ascending order."""
        for version, bounds in self._bounds.items():
            each = iter(bounds)
            for first in each:
                yield version, first, next(each) - 1

    def ranges_without(self, others: Networks) -> Iterator[AddressRange]:
        """Yield the ranges of the addresses that others do not have, in ascending order."""
        spared = [*others.ranges()]
        for version, first, last in self.ranges():
            for other, begin, end in spared:
                if other != version or end < first or begin > last:
                    continue
                if begin > first:
                    yield version, first, begin - 1
                first = end + 1
            if first <= last:
                yield version, first, last

    def _merge(self, ranges: Iterable[AddressRange]) -> None:
        """Take over some ranges; those that overlap or touch become one."""
        # Sorted in short runs: a sort of 200,000 ranges takes 150 ms, during which no other thread can run.
        rest = iter(ranges)
        runs: list[list[AddressRange]] = []
        while run := sorted(islice(rest, _RUN)):
            runs.append(run)
        merged: dict[int, list[int]] = {4: [], 6: []}
        for version, first, last in merge(*runs):
            bounds = merged[version]
            if bounds and first <= bounds[-1]:
                bounds[-1] = max(last + 1, bounds[-1])
            else:
                bounds += first, last + 1
        self._bounds = merged


AnyNetworks: TypeAlias = Networks | Iterable[object]
"""Networks as options take them."""


def networks_of(networks: Any, option: str) -> Any:
    """Return a list of networks as a set; a set stays, as it may follow a file, and so does None."""
    if networks is None or isinstance(networks, Networks):
        return networks
    try:
        return Networks(networks)
    except ConfigurationError as error:
        raise ConfigurationError(str(error), option) from None
