"""Lookup of the banned networks that contain an address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from ..addresses import BITS
from ..errors import ConfigurationError
from .ban import Ban, BanSubject

MAX_NETWORKS: Final = 1_000
"""The most banned networks; longer lists belong in a blocklist, which has a faster lookup."""

_Tables: TypeAlias = dict[int, dict[int, dict[bytes, Ban]]]
"""Bans by version, by the number of low bits to drop from an address, and by the remaining bits. These are packed,
because clients could choose integers with equal hashes (they are modulo 2**61 - 1)."""


class BannedNetworks:
    """Bans of networks by version and prefix length: a lookup searches one table for each prefix length in use.

    Immutable: a change creates a new object, so readers need no lock. Tables are made by the first lookup.

    Args:
        bans: The bans; those that refuse only their own key are ignored.
    """

    __slots__ = ("_tables", "bans")

    def __init__(self, bans: Iterable[Ban] = ()) -> None:
        self.bans = {ban.key: ban for ban in bans if ban.network() is not None}
        self._tables: _Tables | None = None

    def of(self, subject: BanSubject) -> list[Ban]:
        """Return the bans of the networks that contain an address, or that are a key, including expired ones."""
        if isinstance(subject, str):
            if subject not in self.bans:
                return []
            return [self.bans[subject]]
        version, value = subject
        if self._tables is None:
            self._tables = self._indexed()
        bans: list[Ban] = []
        for shift, table in self._tables[version].items():
            bits = (value >> shift).to_bytes(16, "big")
            if bits in table:
                bans.append(table[bits])
        return bans

    def with_ban(self, ban: Ban, now_us: int) -> BannedNetworks:
        """Return a copy with the ban of a network added or replaced, without those that have expired when it begins.

        The caller deletes those from its store, too, so that all processes decide alike if the clock is set back.

        Args:
            ban: The ban; one that is imported may begin in the future, because a clock was set back.
            now_us: The Unix time in microseconds.

        Raises:
            ConfigurationError: There are more than `MAX_NETWORKS`.
        """
        begins_us = min(ban.since_us, now_us)
        # As `Ban.is_over` says, without a call for each of a thousand.
        ended = [key for key, old in self.bans.items() if old.until_us is not None and old.until_us <= begins_us]
        changed = self.without(*ended)
        changed.bans[ban.key] = ban
        if len(changed.bans) > MAX_NETWORKS:
            raise too_many_networks(ban.key)
        return changed

    def without(self, *keys: str) -> BannedNetworks:
        """Return a copy without the bans of some keys."""
        copy = BannedNetworks()
        copy.bans = self.bans.copy()
        for key in keys:
            copy.bans.pop(key, None)
        return copy

    def _indexed(self) -> _Tables:
        tables: _Tables = {4: {}, 6: {}}
        for ban in self.bans.values():
            place = ban.network()
            assert place is not None, "others are not kept"
            version, prefix, bits = place
            tables[version].setdefault(BITS[version] - prefix, {})[bits] = ban
        return tables


def too_many_networks(key: str) -> ConfigurationError:
    """Return the error for a ban of more than `MAX_NETWORKS` networks."""
    return ConfigurationError(
        f"ban: {MAX_NETWORKS:,} networks are already banned, which is the maximum; put {key} into a blocklist, "
        'for example RateLimitMiddleware(..., blocklist=Networks.from_file("blocked.netset"))'
    )
