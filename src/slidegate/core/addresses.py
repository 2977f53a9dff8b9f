"""Parsing and formatting of IPv4 and IPv6 addresses and networks.

An address is handled as (version, integer): never as an `ipaddress` object, whose hash collides on crafted
addresses, and never as text, because one address has many spellings. IPv4 mapped into IPv6 (``::ffff:0:0/96``) *is*
IPv4, however it is spelled, decided from its bits.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final, TypeAlias

from .errors import ConfigurationError, quoted

Address: TypeAlias = tuple[int, int]
"""(4 or 6, the address as an integer)."""
AddressRange: TypeAlias = tuple[int, int, int]
"""(4 or 6, the first address, the last one)."""

IPV6_PREFIX: Final = 64
"""The default prefix length of one client: a subscriber is usually assigned a /64 (RFC 6177, RIPE-690)."""

BITS: Final = {4: 32, 6: 128}
"""The length of an address in bits, by version."""

_KIND: Final = "(?![A-Fa-f]+:)[A-Za-z_-]+:(?!//)"
"""How a key begins that names its kind: by a word that is no hexadecimal number, nor the scheme of a URL."""
_FIRST: Final = frozenset("0123456789abcdefABCDEF:")
"""The characters that an address can begin with."""


def parse_address(text: object) -> Address | None:
    """Parse an address as it appears in a peer name or a header; None if it is not one.

    Strict: no leading zeros, no shortened or numeric IPv4, ASCII digits only. An IPv6 zone is dropped.

    Raises:
        ConfigurationError: It is not text.
    """
    if not isinstance(text, str):  # annotated as `str`, compiled code would raise TypeError before this check
        raise ConfigurationError(f'address: expected text such as "192.0.2.7", not {quoted(text)}')
    # Most keys are names, and a call of `inet_pton` takes a microsecond.
    if text[:1] not in _FIRST:
        return None
    try:
        if ":" not in text:
            return 4, int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big")
        value = int.from_bytes(socket.inet_pton(socket.AF_INET6, text.partition("%")[0]), "big")
    except (OSError, ValueError):
        return None
    if value >> 32 == 0xFFFF:
        return 4, value & 0xFFFF_FFFF
    return 6, value


def is_unspecified(address: Address) -> bool:
    """Return whether an address is ``0.0.0.0`` or ``::``, which no client can have."""
    return not address[1]


def format_network(version: int, value: int, prefix: int) -> str:
    """Format the network of `prefix` bits that contains an address; a single IPv4 address has no prefix length.

    RFC 5952 text: lower case, zeros compressed. A single IPv6 address keeps its /128: without it, it means its /64.
    """
    bits = BITS[version]
    base = value >> (bits - prefix) << (bits - prefix)
    if version == 4:
        text = socket.inet_ntop(socket.AF_INET, base.to_bytes(4, "big"))
        if prefix == bits:
            return text
    else:
        # `inet_ntop` takes a tenth of the time, but writes some IPv6 addresses with a part in IPv4.
        text = str(ipaddress.IPv6Address(base))
    return f"{text}/{prefix}"


def parse_network(text: str, *, strict: bool = True) -> AddressRange:
    """Parse an address or a network in CIDR notation.

    Args:
        text: ``"192.0.2.7"``, ``"192.0.2.0/24"``, ``"2001:db8::/32"``.
        strict: Whether host bits are an error; otherwise they are cleared.

    Raises:
        ConfigurationError: The value is not text, not an address or network, or has host bits set while `strict`.
    """
    if not isinstance(text, str):
        raise ConfigurationError(f'network: expected text such as "192.0.2.0/24", not {quoted(text)}')
    host, slash, length = text.partition("/")
    address = None
    if "%" not in host:  # a zone
        address = parse_address(host)
    if address is None:
        raise ConfigurationError(f"network: {quoted(text)} is not an address or network, for example 192.0.2.0/24")
    version, value = address
    prefix = bits = 128 if ":" in host else 32
    if slash:
        if not re.fullmatch("0|[1-9][0-9]{0,2}", length) or int(length) > bits:
            raise ConfigurationError(
                f"network: {quoted(text)} needs a prefix length from 0 to {bits} and nothing behind it, for example /24"
            )
        prefix = int(length)
    if bits == 128 and version == 4:
        if prefix < 96:
            raise ConfigurationError(
                f"network: {quoted(text)} contains all IPv4 addresses; write 0.0.0.0/0 or ::/0 if you mean that"
            )
        bits, prefix = 32, prefix - 96
    size = 1 << (bits - prefix)
    first = value & -size
    if strict and first != value:
        raise ConfigurationError(
            f"network: {quoted(text)} has host bits set; write {format_network(version, value, prefix)}"
        )
    return version, first, first + size - 1


def network_of(key: str) -> AddressRange | None:
    """Return the range of a key that is an address or a network; else None."""
    try:
        return parse_network(key, strict=False)
    except ConfigurationError:
        return None


def resembles_address(key: str) -> bool:
    """Return whether a key looks like an address or a network: ``203.0.113.300`` does, ``user:10.0.0.1`` does not."""
    text = key.strip("[]()<>\"'")
    if re.match(_KIND, text):
        return False
    if re.match(r"\d+(\.\d+){3}[-/,;\s]", text):  # with a netmask, an end or another address behind it
        return True
    dotted = text.split(".")
    if len(dotted) == 4 and sum(map(str.isdigit, dotted)) >= 3:
        return True
    return "::" in text and len(re.findall(r"\b[0-9A-Fa-f]+\b", text)) >= 2


def prefix_length(version: int, first: int, last: int) -> int:
    """Return the prefix length of a network, given its first and last address."""
    return BITS[version] - (last - first).bit_length()


def canonical_key(key: str) -> str:
    """Return the canonical spelling of a key that is an address or network, and any other key unchanged."""
    address = parse_address(key)
    if address is not None:
        return address_key(*address)
    if "/" not in key:
        return key
    network = network_of(key)
    if network is None:
        return key
    version, first, last = network
    return format_network(version, first, prefix_length(version, first, last))


def address_key(version: int, value: int, ipv4_prefix: int = 32, ipv6_prefix: int = IPV6_PREFIX) -> str:
    """Return the key of a client's address: the network that contains it, as text."""
    prefix = ipv6_prefix
    if version == 4:
        prefix = ipv4_prefix
    return format_network(version, value, prefix)
