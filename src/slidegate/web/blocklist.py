"""The blocklist of a middleware, without what a list from a file must not refuse."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.addresses import AddressRange
from ..core.bans.policy import PRIVATE
from ..core.networks import Networks


class Blocklist:
    """The networks that a middleware refuses.

    Lists of others contain private networks (those that must not be routed), whose addresses here are probes, gateways,
    the proxies and the neighbours. A list from a file spares them, unless it says ``private=True``.

    Args:
        trusted: Those of trusted proxies.
    """

    def __init__(self, networks: Networks, trusted: Networks) -> None:
        self._networks = networks
        self._spared = Networks()
        if networks.file is not None and not networks.file.private:
            self._spared = Networks.of_ranges([*PRIVATE.ranges(), *trusted.ranges()])

    def find(self, version: int, value: int) -> str | None:
        """Return the name of the list if it refuses an address; None if not."""
        name = self._networks.find(version, value)
        if name is not None and self._spared.covers(version, value):
            return None
        return name

    def ranges(self) -> Iterator[AddressRange]:
        """Yield the ranges that it refuses."""
        spared = [*self._spared.ranges()]
        for version, first, last in self._networks.ranges():
            for other, begin, end in spared:  # in ascending order
                if other != version or end < first or begin > last:
                    continue
                if begin > first:
                    yield version, first, begin - 1
                first = end + 1
            if first <= last:
                yield version, first, last
