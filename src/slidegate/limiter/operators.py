"""What a limiter asks the files that know the operators of addresses; `slidegate.network` makes keys of such files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..core.arguments import check_list
from ..core.bans.policy import hand_ban_key
from ..core.errors import InvalidKey, quoted
from ..core.store import EventListener

_KIND = "asn:"


class Place(NamedTuple):
    """What a file says of an address.

    Attributes:
        asn: The number of the operator's autonomous system; None if it is not known.
        country: The ISO 3166 code of the country, two capital letters; empty where it is not known.
        name: The name of the operator, empty where it is not known.
    """

    asn: int | None = None
    country: str = ""
    name: str = ""


class NetworkLookup(Protocol):
    """A file that knows networks."""

    has: frozenset[str]
    generation: int

    def find(self, client_key: str) -> Place:
        """Return what the file says of the address of a client, by its key."""

    def look_when_due(self) -> None:
        """Have the file read again if it has changed, now and then."""

    def observe(self, observer: EventListener) -> None:
        """Send an observer the events of the file, once."""


@runtime_checkable
class NetworkKey(Protocol):
    """A key that a file of networks makes."""

    file: Any


def files_of(networks: Iterable[NetworkKey]) -> tuple[NetworkLookup, ...]:
    """Return the files of some keys.

    Raises:
        ConfigurationError: One of them is no such key.
    """
    keys = check_list("networks", networks, 'a list such as [network("GeoLite2-ASN.mmdb")]', NetworkKey)
    return tuple(dict.fromkeys(key.file for key in keys))


def operator_of(client_key: str, files: Sequence[NetworkLookup]) -> str | None:
    """Return the key by which the operator of a client's address is banned; None if no file knows it."""
    for file in files:
        asn = file.find(client_key).asn
        if asn is not None:
            return f"{_KIND}{asn}"
    return None


def described(client_key: str, files: Sequence[NetworkLookup]) -> str:
    """Return what files say of the network of a client, for people: ``AS132203 Tencent, NL``; empty if nothing."""
    places = [file.find(client_key) for file in files]
    operator = next((f"AS{place.asn} {place.name}".rstrip() for place in places if place.asn is not None), "")
    country = next((place.country for place in places if place.country), "")
    return ", ".join(filter(None, (operator, country)))


def check_ban(key: object, files: Sequence[NetworkLookup]) -> None:
    """Check what people ban by hand; an operator only where a file says whose addresses those are.

    Raises:
        InvalidKey: The key cannot be banned.
    """
    spelled = hand_ban_key(key)
    kind, _, number = spelled.partition(":")
    if f"{kind.lower()}:" != _KIND:
        return
    if f"{kind}:" != _KIND or not re.fullmatch("[1-9][0-9]{0,9}", number) or int(number) >= 2**32:
        expected = 'the number of an autonomous system, for example "asn:132203"'
        raise InvalidKey(f"ban: expected {expected}, not {quoted(key)}", expected)
    if not any("asn" in file.has for file in files):
        written = 'Limiter(networks=[network("GeoLite2-ASN.mmdb")])'
        raise InvalidKey(
            f"ban: {quoted(key)} is an operator, and no file says which addresses it has; write {written}", written
        )
