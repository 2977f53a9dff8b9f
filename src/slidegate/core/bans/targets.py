"""The keys and networks that a ban may be for.

Not everything that strikes is a client: a ban on a proxy, on the host itself or on a network that holds one of them
shuts out people who did nothing. People who ban by hand may ban those too, but not a part of the internet that belongs
to nobody in particular: two such bans shut out everybody.
"""

from __future__ import annotations

from typing import Final, Protocol

from ..addresses import address_key, parse_network, prefix_length
from ..errors import ConfigurationError, InvalidKey, quoted
from ..networks import Networks
from .in_force import ban_key
from .policy import BanPolicy

PRIVATE: Final = Networks(
    [
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    ]
)
"""Loopback (RFC 1122, 4291), private (RFC 1918, 4193), shared (RFC 6598) and link-local (RFC 3927, 4291) addresses."""

REGISTRY: Final = {4: 8, 6: 19}
"""Prefix lengths of the widest networks that registries hand out."""
WIDEST: Final = {4: 24, 6: 48}
"""Prefix lengths of the most that one customer is given: a /48 (RFC 6177), or a /24, the least that is routed. A wider
network that strikes is nobody, unless the policy bans such prefixes: a user may have called himself 192.0.0.0/16."""


class NetworkSet(Protocol):
    """Networks, one list of them or several."""

    def overlaps(self, version: int, first: int, last: int) -> bool:
        """Tell whether one of them has an address in common with the range from `first` to `last`."""


def hand_ban_key(key: object) -> str:
    """Return the one spelling of what people ban by hand; see `ban_key`.

    Raises:
        InvalidKey: `ban_key` refuses it, or it is a network wider than an IPv4 /8 or an IPv6 /19.
    """
    known = ban_key(key)
    try:
        version, first, last = parse_network(known)
    except ConfigurationError:
        return known  # an account, an API key
    most = REGISTRY[version]
    if prefix_length(version, first, last) < most:
        raise InvalidKey(
            f"ban: {quoted(key)} is wider than an IPv{version} /{most}, the most that one registry is given; "
            'ban the networks that you mean, for example "192.0.2.0/24"',
            f'a network no wider than an IPv{version} /{most}, for example "192.0.2.0/24"',
        )
    return known


def ban_target(policy: BanPolicy, key: str, protected: NetworkSet | None = None) -> tuple[str, str] | None:
    """Return whom a strike of `key` may ban: the key, and the prefix above it or "" for none. None for nobody.

    Args:
        policy: The policy.
        key: The key in its one spelling.
        protected: Trusted proxies and the allowlist: no network that meets one of theirs is banned.
    """
    try:
        version, first, last = parse_network(key)
    except ConfigurationError:
        return key, ""  # an account, an API key
    return range_target(policy, key, version, first, last, protected)


def range_target(
    policy: BanPolicy, key: str, version: int, first: int, last: int, protected: NetworkSet | None = None
) -> tuple[str, str] | None:
    """Do what `ban_target` does for a key whose first and last address are at hand."""
    if not _may_ban(policy, version, first, last, protected):
        return None
    if policy.prefix is None:
        return key, ""
    wanted = policy.ipv4_prefix if version == 4 else policy.ipv6_prefix
    prefix = address_key(version, first, policy.ipv4_prefix, policy.ipv6_prefix)
    if prefix_length(version, first, last) <= wanted or not _may_ban(policy, *parse_network(prefix), protected):
        return key, ""
    return key, prefix


def _may_ban(policy: BanPolicy, version: int, first: int, last: int, protected: NetworkSet | None) -> bool:
    wanted = policy.ipv4_prefix if version == 4 else policy.ipv6_prefix
    if prefix_length(version, first, last) < min(wanted, WIDEST[version]):
        return False
    if not policy.ban_private and PRIVATE.overlaps(version, first, last):
        return False
    return protected is None or not protected.overlaps(version, first, last)
