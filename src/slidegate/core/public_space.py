"""How much of the public address space a set of ranges covers.

Public addresses are those that a client on the internet may have: IPv4 without the blocks that RFC 6890 and its
successors reserve, and 2000::/3, which is all of IPv6 that is given out. Reserved addresses count for nothing, so a
list of those that never send anything (224.0.0.0/3 stands in many) covers nobody.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_RESERVED: Final = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
)


def _around(reserved: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges between IPv4 networks that are in order."""
    start = 0
    for network in map(ipaddress.IPv4Network, reserved):
        if int(network[0]) > start:
            yield start, int(network[0]) - 1
        start = int(network[-1]) + 1


PUBLIC: Final[dict[int, tuple[tuple[int, int], ...]]] = {
    4: tuple(_around(_RESERVED)),
    6: ((0x2000 << 112, (0x4000 << 112) - 1),),
}
"""The ranges of public addresses, by version."""
HALF: Final = {version: sum(last - first + 1 for first, last in ranges) // 2 for version, ranges in PUBLIC.items()}
"""Half of the public addresses, by version."""
WIDEST: Final = {4: 1 << 24, 6: 1 << 109}
"""The size of the widest networks that registries hand out: an IPv4 /8 and an IPv6 /19."""


def public_addresses(version: int, starts: Sequence[int], ends: Sequence[int]) -> int:
    """Return how many public addresses lie in ranges that are in order and do not overlap."""
    found = 0
    public = iter(PUBLIC[version])
    low, high = next(public)
    for first, last in zip(starts, ends, strict=True):
        while high < first or high < last:
            found += max(high - max(low, first) + 1, 0)
            low, high = next(public, (1 << 129, 1 << 129))
        found += max(last - max(low, first) + 1, 0)
    return found


def is_wide(version: int, first: int, last: int) -> bool:
    """Return whether a range holds a whole network wider than `WIDEST` with public addresses in it."""
    size = 2 * WIDEST[version]
    for low, high in PUBLIC[version] if last - first >= size - 1 else ():
        network = max(first, low) // size * size
        network += 0 if network >= first else size
        if network <= high and network + size - 1 <= last:
            return True
    return False
