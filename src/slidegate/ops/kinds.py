"""Kinds of keys: what is known of each, how its keys begin, and what one key stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .. import Limiter, client_ip, cookie, header, query
from ..core import Ban
from ..core.addresses import AddressRange, network_of
from ..limiter import PublishedRule

ADDRESS: Final = "address"
EVERYONE: Final = "everyone"
FUNCTION: Final = "function"
"""The kind of the keys that a function of the application's returns, which may be any."""
_DIGEST: Final = re.compile("(.*)#[0-9a-f]{32}")
PEERS: Final = ("peer:", "unknown-peer")
"""How the keys of clients begin that have no address."""
SHOWN: Final = 31
"""How much of a kind stands in front of a digest: keys have at most 64 characters."""


class Kind(NamedTuple):
    """What the keys of a kind have in common.

    Attributes:
        of_people: Whether each of several people behind one address may have a key of its own.
        else_address: Whether the client's address counts for a request without such a key.
        in_text: Whether the value stands in the key as text; else as a digest.
        logged: Whether an access log has what the key is made of.
        named: Makes the key of a named value that clients send, which operators type; None for other kinds.
    """

    of_people: bool = True
    else_address: bool = False
    in_text: bool = False
    logged: bool = False
    named: Callable[[str], Any] | None = None


_OF_ADDRESSES: Final = Kind(of_people=False, logged=True)
KINDS: Final = {
    **dict.fromkeys((ADDRESS, "client", EVERYONE, "network", "asn", "country"), _OF_ADDRESSES),
    "mcp_tool": Kind(of_people=False, in_text=True),
    "path": Kind(logged=True),
    "header": Kind(else_address=True, named=header),
    "cookie": Kind(else_address=True, named=cookie),
    "query": Kind(else_address=True, logged=True, named=query),
    "user": Kind(else_address=True, in_text=True),
}
"""The kinds by the word with which their names and keys begin; all others are those of functions."""


def named_kind(text: str) -> Kind:
    """Return what is known of a kind, given its name or one of its keys."""
    word = text.partition(":")[0].partition("/")[0]
    if word not in KINDS and network_of(text) is not None:
        return _OF_ADDRESSES
    return KINDS.get(word, Kind())


def kind_of(key: str) -> str:
    """Return the kind of a key as far as the key shows it.

    It is ``header:x-api-key`` of a digest, of a long name only the beginning, and ``user`` of ``user:ann``.
    """
    digest = _DIGEST.fullmatch(key)
    if digest is not None:
        return digest[1]
    if network_of(key) is not None:
        return ADDRESS
    return key.partition(":")[0]


def is_operator(key: str) -> bool:
    """Return whether a key stands for all addresses of an operator: ``asn:64496``."""
    return key.startswith("asn:")


def beginnings_of(kind: str) -> tuple[str, ...]:
    """Return how the keys of a kind begin that are no addresses; those of functions may begin with anything."""
    if kind == FUNCTION:
        return ("",)
    if kind == EVERYONE:
        return (kind,)
    if kind == ADDRESS:
        return PEERS
    name, _, by = kind.partition(":")
    if name == "network":
        return (f"{by}:",)
    # Of a long name there is a digest, as of all long texts.
    if named_kind(kind).in_text:
        return f"{name}:", "long#"
    digests = f"{kind[:SHOWN]}#"
    # Combined keys have `+` between their kinds, but so may the name of a header.
    if "+" in kind:
        return "combined#", digests
    return (digests,)


# -- what a key stands for ---------------------------------------------------------------------------------------------


Share: TypeAlias = Literal["none", "part", "whole"]
"""How much of what a key stands for is among some addresses."""


class Subject:
    """What a key stands for: an address, a network of them, or something else by which requests are counted.

    Args:
        limiter: Returns the canonical forms of keys.
        key: The key as it was typed, or that of a value.

    Attributes:
        key: The key in its canonical form.
        addresses: The range of addresses that it stands for; None if it is neither an address nor a network.
    """

    def __init__(self, limiter: Limiter, key: Any) -> None:
        self.key = limiter.key_for(key)
        self._typed = self.key
        if isinstance(key, str):
            self._typed = key
        self.addresses = network_of(self._typed)

    def counted_by(self, rule: PublishedRule) -> str:
        """Return the key by which a rule counts requests of it, as a function may; empty if it is another one."""
        if rule.key == EVERYONE:
            return EVERYONE
        if rule.key == FUNCTION:
            return self.key
        if not self.addresses:
            if self.key.startswith(beginnings_of(rule.key)):
                return self.key
            return ""
        # A combined key is a digest, whatever it is made of.
        has_address = rule.key == ADDRESS or (named_kind(rule.key).else_address and "+" not in rule.key)
        if self.is_several(rule) or not has_address:
            return ""
        address = client_ip(ipv4_prefix=rule.ipv4_prefix, ipv6_prefix=rule.ipv6_prefix)
        return address.truncated(self._typed)

    def among(self, rule: PublishedRule) -> str:
        """Return which of its requests are counted so: those of an address without a header's key; empty for all."""
        if self.addresses is None or rule.key in (ADDRESS, EVERYONE, FUNCTION):
            return ""
        return f" without {rule.key}"

    def is_several(self, rule: PublishedRule) -> bool:
        """Return whether it is a network with several clients, each with an address that the rule counts by itself."""
        if not self.addresses:
            return False
        version, first, last = self.addresses
        bits = 128 - rule.ipv6_prefix
        if version == 4:
            bits = 32 - rule.ipv4_prefix
        return (last - first) >> bits > 0

    def share_in(self, ranges: Iterable[AddressRange]) -> Share:
        """Return how much of its addresses is in some ranges, no two of which touch; a part if they are not known."""
        if not self.addresses:
            return "part"
        own_version, first, last = self.addresses
        share: Share = "none"
        for version, low, high in ranges:
            if version != own_version or high < first or last < low:
                continue
            if low <= first and last <= high:
                return "whole"
            share = "part"
        return share

    def share_banned(self, ban: Ban) -> Share:
        """Return how much of its addresses a ban refuses: one by hand refuses a whole network, a policy's its key."""
        banned = network_of(ban.key)
        if ban.level or not banned or not self.addresses:
            return "none"
        return self.share_in([banned])


def ranges_in(text: str) -> Iterator[AddressRange]:
    """Yield the ranges of a list as they are published: ``4:cb007100-cb0071ff``."""
    for range_text in text.split():
        version, _, span = range_text.partition(":")
        first, _, last = span.partition("-")
        yield int(version), int(first, 16), int(last, 16)
