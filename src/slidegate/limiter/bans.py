"""Bans by hand: which keys can be banned, those of operators included, and bans as lines of JSON.

`slidegate.network` makes keys from the files that map addresses to operators and countries. `Limiter.export_bans`
yields the lines, and `Limiter.import_bans` reads them.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from ..core.addresses import parse_network
from ..core.bans.ban import Ban, network_place
from ..core.bans.policy import hand_ban_key
from ..core.bans.rows import HEADER, from_rows
from ..core.errors import InvalidKey, quoted
from ..core.events import EventListener
from .aio import yielding_to_others

_OPERATOR: Final = "asn:"
AT_ONCE: Final = 50
"""How many lines are read in one iteration of the event loop: at 20 us each, a millisecond."""
Fields: TypeAlias = tuple[str | int | None, ...]
"""The fields of a `Ban`. The garbage collector walks 100,000 named tuples in 15 ms, and plain ones of texts never."""


class Place(NamedTuple):
    """The operator and country of an address.

    Attributes:
        asn: The number of the operator's autonomous system; None if unknown.
        country: The ISO 3166 code of the country, two capital letters; empty if unknown.
    """

    asn: int | None = None
    country: str = ""


class FollowedFile(Protocol):
    """A file behind lists or networks, which is read again when it changes.

    Attributes:
        generation: How often its content was replaced.
    """

    generation: int

    def check_if_due(self) -> None:
        """Check periodically whether the file has changed, and reload it then."""

    def observe(self, observer: EventListener) -> None:
        """Subscribe an observer to the events of the file; a second call with it does nothing."""


class NetworkLookup(FollowedFile, Protocol):
    """A file of networks with their operators or countries.

    Attributes:
        has: Which fields of a `Place` it knows: ``asn``, ``country``.
    """

    has: frozenset[str]

    def find(self, client_key: str) -> Place:
        """Look up the address of a client, given by its key."""


class NetworkKey(Protocol):
    """A key that is looked up in a file of networks."""

    file: Any


def files_of(networks: Iterable[NetworkKey]) -> tuple[NetworkLookup, ...]:
    """Return the files of network keys, without duplicates."""
    return tuple(dict.fromkeys(key.file for key in networks))


def operators_of(client_key: str, files: Sequence[NetworkLookup]) -> list[str]:
    """Return the ban keys of the operator of a client's address, one for each file that has it."""
    return [f"{_OPERATOR}{asn}" for file in files if (asn := file.find(client_key).asn) is not None]


def check_ban(key: object, files: Sequence[NetworkLookup]) -> None:
    """Validate the key of a manual ban; one of an operator needs a file with operators.

    Raises:
        InvalidKey: The key cannot be banned.
    """
    spelled = hand_ban_key(key)
    if "/" in str(key) and network_place(spelled) is not None:
        parse_network(str(key))  # with host bits it would ban many more than was meant
    kind, _, number = spelled.partition(":")
    if f"{kind.lower()}:" != _OPERATOR:
        return
    if f"{kind}:" != _OPERATOR or not re.fullmatch("[1-9][0-9]{0,9}", number) or int(number) >= 2**32:
        expected = 'the number of an autonomous system, for example "asn:132203"'
        raise InvalidKey(f"ban: expected {expected}, not {quoted(key)}")
    if not any("asn" in file.has for file in files):
        example = 'Limiter(networks=[network("GeoLite2-ASN.mmdb")])'
        raise InvalidKey(f"ban: {quoted(key)} is an operator, and no file maps its addresses; write {example}")


# -- lines of JSON -----------------------------------------------------------------------------------------------------


async def lines_of(bans: AsyncIterator[Ban]) -> AsyncIterator[str]:
    """Yield the lines of an export."""
    yield _line(HEADER)
    async for ban in bans:
        yield _line(ban._asdict())


async def read_export(lines: Iterable[str] | AsyncIterable[str]) -> deque[Fields]:
    """Return the bans of an export; those of networks are first, the last one foremost: there may be too many of them.

    Other tasks run in between.

    Raises:
        ConfigurationError: A line is invalid.
    """
    if isinstance(lines, AsyncIterable):
        lines = [line async for line in lines]
    bans: deque[Fields] = deque()
    async for ban in yielding_to_others(from_rows(_rows(lines)), AT_ONCE):
        if ban.network() is None:
            bans.append(tuple(ban))
        else:
            bans.appendleft(tuple(ban))
    return bans


def drained(bans: deque[Fields]) -> Iterator[Ban]:
    """Yield the bans, and drop each: dropping 100,000 at once takes an event loop 10 ms."""
    while bans:
        yield Ban._make(bans.popleft())


def _line(row: object) -> str:
    return json.dumps(row) + "\n"


def _rows(lines: Iterable[Any]) -> Iterator[Any]:
    """Yield what each line says; one that is not JSON itself, which is no row."""
    for line in lines:
        row = line
        with suppress(ValueError, TypeError, RecursionError):
            row = json.loads(line)
        yield row
