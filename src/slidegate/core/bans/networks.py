"""The banned networks, found by an address that lies in one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..addresses import BITS, Address
from ..errors import ConfigurationError
from .ban import Ban

MAX_NETWORKS: Final = 1_000
"""More belong in a blocklist, which is searched in another way."""


class BannedNetworks:
    """Bans of networks by version and prefix length: a look-up asks one table for each length in use.

    It changes by another one taking its place, so readers need no lock.

    Args:
        bans: The bans; those that refuse their own key alone are left out.

    Attributes:
        bans: The bans by key.
    """

    __slots__ = ("_tables", "bans")

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self.bans: dict[str, Ban] = {}
        # By version: how many bits of an address to drop, and the bans by the bits that are left. These are packed,
        # because a client can choose integers of one hash: it is modulo 2**61 - 1.
        self._tables: dict[int, dict[int, dict[bytes, Ban]]] = {4: {}, 6: {}}
        for ban in bans:
            self._add(ban)

    def of(self, address: Address) -> list[Ban]:
        """Return the bans of the networks that hold an address, also those that are over."""
        version, value = address
        found = []
        for shift, table in self._tables[version].items():
            if (ban := table.get((value >> shift).to_bytes(16, "big"))) is not None:
                found.append(ban)
        return found

    def with_ban(self, ban: Ban) -> BannedNetworks:
        """Return them with a ban in the place of that of its key; without those that are over when it begins.

        Raises:
            ConfigurationError: There are too many.
        """
        others = self.without(ban.key, *(key for key, one in self.bans.items() if one.is_over(ban.made_us)))
        others._add(ban)
        if len(others.bans) > MAX_NETWORKS:
            raise too_many_networks(ban.key)
        return others

    def without(self, *keys: str) -> BannedNetworks:
        """Return them without the bans of some keys."""
        others = BannedNetworks()
        others.bans = self.bans.copy()
        gone = {id(ban) for key in keys if (ban := others.bans.pop(key, None)) is not None}
        for version, tables in self._tables.items():
            for shift, table in tables.items():
                left = {bits: ban for bits, ban in table.items() if id(ban) not in gone} if gone else table.copy()
                if left:
                    others._tables[version][shift] = left
        return others

    def _add(self, ban: Ban) -> None:
        network = ban.network()
        if network is not None:
            version, prefix, bits = network
            self._tables[version].setdefault(BITS[version] - prefix, {})[bits] = ban
            self.bans[ban.key] = ban


def too_many_networks(key: str) -> ConfigurationError:
    """Return the error for the ban of one network too many."""
    return ConfigurationError(
        f"ban: {MAX_NETWORKS:,} networks are banned, which is the most; put {key} into a blocklist, "
        'for example RateLimitMiddleware(..., blocklist="blocked.netset")'
    )
