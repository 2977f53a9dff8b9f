"""Lists that cover nearly everybody are a mistake: it is found before everybody is shut out, or let in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Protocol

from ..core.errors import ConfigurationError
from ..core.networks import Networks
from ..core.public_space import HALF


class Listed(Protocol):
    """A list of networks, as far as its breadth is concerned."""

    def size(self, version: int) -> int:
        """Return how many addresses of IPv4 or IPv6 it holds at most."""

    def ranges(self) -> Iterable[tuple[int, int, int]]:
        """Return its networks as (version, first address, last address)."""


def check_breadth(lists: Sequence[Listed], what: str) -> None:
    """See that lists do not add up to everybody, however that is written.

    Args:
        lists: All lists that are held against one address.
        what: A name for them, for the error message.

    Raises:
        ConfigurationError: They cover more than half of the public addresses of IPv4 or IPv6.
    """
    # A list that is certainly less than half need not be merged, and no honest list is more.
    if all(sum(listed.size(version) for listed in lists) <= half for version, half in HALF.items()):
        return
    ranges = chain.from_iterable(listed.ranges() for listed in lists)
    most = Networks.of_ranges(ranges).covers_most_of()
    if most is not None:
        raise ConfigurationError(
            f"{what}: covers more than half of all public {most} addresses, which cannot be meant; "
            "list whom you mean, for example 192.0.2.0/24"
        )
