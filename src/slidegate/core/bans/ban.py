"""A ban, and the canonical spelling of its key."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from math import inf
from typing import Final, NamedTuple, TypeAlias

from ..addresses import BITS, Address, canonical_key, network_of, prefix_length
from ..durations import moment
from ..errors import ConfigurationError, InvalidKey, quoted
from ..logs import escaped
from ..stored import check_numbers, read_json

BanSubject: TypeAlias = str | Address
"""A key, which its own ban refuses, or an address, which the ban of a network may refuse."""

MAX_REASON: Final = 256
"""The most characters of a reason, and of a key in a message."""
MAX_KEY_BYTES: Final = 64
"""The longest key in a store; longer keys are replaced by digests."""
MANUAL: Final = "manual"
"""The author of what is changed by hand, if none is named."""
OWN_PREFIX: Final = {4: 32, 6: 64}
"""Prefix lengths of a single client. Its ban is looked up by key, and the ban of any other network by address."""


class Ban(NamedTuple):
    """A key that is refused until a moment. Times are microseconds of the store's Unix time.

    A clock that is set moves the end of a ban: set back by an hour, a ban lasts an hour longer.

    Attributes:
        key: An address or network in its canonical spelling, or any other key.
        reason: The reason, for the operator: at most 256 printable characters. Clients never see it.
        by: The policy or the person that made it.
        level: Its number in a series of bans, from 1; 0 for one made by hand.
        since_us: When it began.
        until_us: When it ends; None for never.
    """

    key: str
    reason: str
    by: str
    level: int
    since_us: int
    until_us: int | None

    @property
    def until(self) -> datetime | None:
        """When it ends (UTC); None for never."""
        if self.until_us is None:
            return None
        return moment(self.until_us)

    def left_us(self, now_us: int) -> int | None:
        """Return the time left at a Unix time, in microseconds; None for ever."""
        if self.until_us is None:
            return None
        return max(self.until_us - now_us, 0)

    def is_over(self, now_us: int) -> bool:
        """Return whether it has ended at a Unix time in microseconds."""
        return self.until_us is not None and now_us >= self.until_us

    def network(self) -> tuple[int, int, bytes] | None:
        """Return (version, prefix length, prefix) if it refuses all addresses of a network.

        None if it refuses only its own key: one that is not a network, a single client, or any key banned by a policy,
        because a policy bans keys of clients.
        """
        if self.level:
            return None
        network = network_place(self.key)
        if network is None:
            return None
        version, prefix, _ = network
        if prefix == OWN_PREFIX[version]:
            return None
        return network


def read_ban(stored: bytes) -> Ban:
    """Return the ban of a row of JSON, for `readable`."""
    ban = read_json(Ban, stored)
    "".join(ban[:3]).encode()  # three texts that can be stored again
    check_numbers(ban.level, ban.since_us)
    if ban.until_us is not None:
        check_numbers(ban.until_us)
    return ban


def longest(bans: Iterable[Ban], after_us: float = -inf) -> Ban | None:
    """Return the ban that ends last, the first if several do; None if none ends after `after_us`."""
    ban = max(bans, key=_end_us, default=None)
    if ban is None or _end_us(ban) <= after_us:
        return None
    return ban


def _end_us(ban: Ban) -> float:
    if ban.until_us is None:
        return inf
    return ban.until_us


def ban_key(key: object) -> str:
    """Return the canonical spelling of the key of a ban: an address, a network, or any other key.

    Raises:
        InvalidKey: It is empty or not text, or contains every address of a version.
    """
    if not isinstance(key, str) or not key:
        example = 'for example "192.0.2.7", "192.0.2.0/24" or "user:42"'
        raise InvalidKey(f"ban: expected an address, a network or a key, {example}, not {quoted(key)}")
    spelled = canonical_key(key)
    network = network_place(spelled)
    if network is not None and network[1] == 0:
        raise InvalidKey(f"ban: {quoted(key)} contains every address; to take the service offline, use its front end")
    return spelled


@lru_cache(maxsize=4_096)
def network_place(key: str) -> tuple[int, int, bytes] | None:
    """Return (version, prefix length, packed bits of the prefix) of a key that is a network; else None."""
    network = network_of(key)
    if network is None:
        return None
    version, first, last = network
    prefix = prefix_length(version, first, last)
    bits = first >> (BITS[version] - prefix)
    return version, prefix, bits.to_bytes(16, "big")


def clean_reason(reason: object, name: str = "reason") -> str:
    """Return a reason or an author without blanks around it, escaped as in Python and cut to 256 printable characters.

    Raises:
        ConfigurationError: It is not text.
    """
    if not isinstance(reason, str):
        raise ConfigurationError(f'{name}: expected text, for example "scanner", not {quoted(reason)}')
    return escaped(reason.strip(), MAX_REASON)
