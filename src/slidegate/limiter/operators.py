"""Lookups in the files that map addresses to operators and countries; `slidegate.network` makes keys from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..core.addresses import parse_network
from ..core.bans.ban import network_place
from ..core.bans.policy import hand_ban_key
from ..core.errors import InvalidKey, quoted
from ..core.events import EventListener

_KIND: Final = "asn:"


class Place(NamedTuple):
    """The operator and country of an address.

    Attributes:
        asn: The number of the operator's autonomous system; None if unknown.
        country: The ISO 3166 code of the country, two capital letters; empty if unknown.
    """

    asn: int | None = None
    country: str = ""


class NetworkLookup(Protocol):
    """A file of networks with their operators or countries.

    Attributes:
        has: Which fields of a `Place` it knows: ``asn``, ``country``.
        generation: How often its content was replaced.
    """

    has: frozenset[str]
    generation: int

    def find(self, client_key: str) -> Place:
        """Look up the address of a client, given by its key."""

    def check_if_due(self) -> None:
        """Check periodically whether the file has changed, and reload it then."""

    def observe(self, observer: EventListener) -> None:
        """Subscribe an observer to the events of the file; a second call with it does nothing."""


class NetworkKey(Protocol):
    """A key that is looked up in a file of networks."""

    file: Any


def files_of(networks: Iterable[NetworkKey]) -> tuple[NetworkLookup, ...]:
    """Return the files of network keys, without duplicates."""
    return tuple(dict.fromkeys(key.file for key in networks))


def operators_of(client_key: str, files: Sequence[NetworkLookup]) -> list[str]:
    """Return the ban keys of the operator of a client's address, one for each file that has it."""
    return [f"{_KIND}{asn}" for file in files if (asn := file.find(client_key).asn) is not None]


def check_ban(key: object, files: Sequence[NetworkLookup]) -> None:
    """Validate the key of a manual ban; one of an operator needs a file with operators.

    Raises:
        InvalidKey: The key cannot be banned.
    """
    spelled = hand_ban_key(key)
    if "/" in str(key) and network_place(spelled) is not None:
        parse_network(str(key))  # with host bits it would ban many more than was meant
    kind, _, number = spelled.partition(":")
    if f"{kind.lower()}:" != _KIND:
        return
    if f"{kind}:" != _KIND or not re.fullmatch("[1-9][0-9]{0,9}", number) or int(number) >= 2**32:
        expected = 'the number of an autonomous system, for example "asn:132203"'
        raise InvalidKey(f"ban: expected {expected}, not {quoted(key)}")
    if not any("asn" in file.has for file in files):
        written = 'Limiter(networks=[network("GeoLite2-ASN.mmdb")])'
        raise InvalidKey(f"ban: {quoted(key)} is an operator, and no file maps its addresses; write {written}")
