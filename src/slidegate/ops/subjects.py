"""What a key stands for: an address, a network of them, or something else by which requests are counted."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from .. import ConfigurationError, Limiter, Networks, client_ip
from ..core import Ban
from ..limiter import PublishedRule
from .kinds import ADDRESS, kind_of


class Part(NamedTuple):
    """How much of what a key stands for is in some networks."""

    is_whole: bool
    is_any: bool


class Subject:
    """What a key stands for.

    Args:
        limiter: Returns the canonical forms of keys.
        key: The key as it was typed, or that of a value.

    Attributes:
        key: The key in its canonical form.
        kind: The kind, as far as the key shows it: ``address``, ``user``, ``header:x-api-key``.
    """

    def __init__(self, limiter: Limiter, key: Any) -> None:
        self.key = limiter.key_for(key)
        self._typed = key if isinstance(key, str) else self.key
        self._networks: Networks | None = None
        try:
            self._networks = Networks([self._typed])
        except ConfigurationError:
            self.kind = kind_of(self.key)
        else:
            self.kind = ADDRESS

    @property
    def is_address(self) -> bool:
        """Whether it is an address or a network."""
        return self._networks is not None

    def client_key(self, rule: PublishedRule) -> str:
        """Return the key by which a published rule counts a client with its address."""
        if self._networks is None:
            return self.key
        return _truncated(self._typed, rule)

    def is_several(self, rule: PublishedRule) -> bool:
        """Return whether it is a network with several clients, each of which the rule counts by a key of its own."""
        if self._networks is None:
            return False
        ((version, first, _),) = self._networks.ranges()
        address: IPv4Address | IPv6Address = IPv6Address(first)
        if version == 4:
            address = IPv4Address(first)
        return _truncated(str(address), rule) != self.client_key(rule)

    def part_in(self, networks: Networks) -> Part:
        """Return how much of its addresses is in some networks."""
        if self._networks is None:
            return Part(False, False)
        ((version, first, last),) = self._networks.ranges()
        together = Networks.of_ranges([*networks.ranges(), (version, first, last)])
        return Part(together == networks, networks.overlaps(version, first, last))

    def part_banned(self, ban: Ban) -> Part:
        """Return how much of its addresses a ban of a network refuses, which somebody has made by hand."""
        if self._networks is None or ban.level:
            return Part(False, False)
        try:
            return self.part_in(Networks([ban.key]))
        except ConfigurationError:  # of something else
            return Part(False, False)


def _truncated(key: str, rule: PublishedRule) -> str:
    return client_ip(ipv4_prefix=rule.ipv4_prefix, ipv6_prefix=rule.ipv6_prefix).truncated(key)


def networks_of(ranges: Iterable[str]) -> Networks:
    """Return the networks of a list whose ranges are published as texts."""
    found: list[tuple[int, int, int]] = []
    for text in ranges:
        for one in text.split():
            version, _, span = one.partition(":")
            first, _, last = span.partition("-")
            found.append((int(version), int(first, 16), int(last, 16)))
    return Networks.of_ranges(found)
