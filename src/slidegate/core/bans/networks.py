"""Lookup of the banned networks that contain an address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..addresses import BITS
from ..errors import ConfigurationError
from .ban import Ban, BanSubject

MAX_NETWORKS: Final = 1_000
"""The most banned networks; longer lists belong in a blocklist, which has a faster lookup."""


class BannedNetworks:
    """Bans of networks by version and prefix length: a lookup searches one table for each prefix length in use.

    Immutable: a change creates a new object, so readers need no lock.

    Args:
        bans: The bans; those that refuse only their own key are ignored.
    """

    __slots__ = ("_tables", "bans")

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self.bans: dict[str, Ban] = {}
        # By version: the number of low bits to drop from an address, and the bans by the remaining bits. The bits are
        # packed into bytes, because clients could choose integers with equal hashes (they are modulo 2**61 - 1).
        self._tables: dict[int, dict[int, dict[bytes, Ban]]] = {4: {}, 6: {}}
        for ban in bans:
            self._add(ban)

    def of(self, subject: BanSubject) -> list[Ban]:
        """Return the bans of the networks that contain an address, or that are a key, including expired ones."""
        if isinstance(subject, str):
            if subject not in self.bans:
                return []
            return [self.bans[subject]]
        version, value = subject
        bans: list[Ban] = []
        for shift, table in self._tables[version].items():
            bits = (value >> shift).to_bytes(16, "big")
            if bits in table:
                bans.append(table[bits])
        return bans

    def with_ban(self, ban: Ban, now_us: int) -> BannedNetworks:
        """Return a copy with a ban added or replaced, without the bans that have expired when it begins.

        The caller deletes those from its store, too, so that all processes decide alike if the clock is set back.

        Args:
            ban: The ban; one that is imported may begin in the future, because a clock was set back.
            now_us: The Unix time in microseconds.

        Raises:
            ConfigurationError: There are more than `MAX_NETWORKS`.
        """
        begins_us = min(ban.since_us, now_us)
        # As `Ban.is_over` says, without a call for each of a thousand.
        ended = [key for key, ban in self.bans.items() if ban.until_us is not None and ban.until_us <= begins_us]
        changed = self.without(*ended)
        changed._add(ban)
        if len(changed.bans) > MAX_NETWORKS:
            raise too_many_networks(ban.key)
        return changed

    def without(self, *keys: str) -> BannedNetworks:
        """Return a copy without the bans of some keys."""
        copy = BannedNetworks()
        copy.bans = self.bans.copy()
        for version, tables in self._tables.items():
            copy._tables[version] = {shift: table.copy() for shift, table in tables.items()}
        for key in copy.bans.keys() & keys:
            copy._remove(key)
        return copy

    def _add(self, ban: Ban) -> None:
        place = ban.network()
        if place is None:
            return
        version, prefix, bits = place
        table = self._tables[version].setdefault(BITS[version] - prefix, {})
        table[bits] = ban
        self.bans[ban.key] = ban

    def _remove(self, key: str) -> None:
        place = self.bans.pop(key).network()
        assert place is not None, "others are not added"
        version, prefix, bits = place
        tables, shift = self._tables[version], BITS[version] - prefix
        del tables[shift][bits]
        if not tables[shift]:
            del tables[shift]  # else each lookup would search it


def too_many_networks(key: str) -> ConfigurationError:
    """Return the error for a ban of more than `MAX_NETWORKS` networks."""
    return ConfigurationError(
        f"ban: {MAX_NETWORKS:,} networks are already banned, which is the maximum; put {key} into a blocklist, "
        'for example RateLimitMiddleware(..., blocklist=Networks.from_file("blocked.netset"))'
    )
