"""How bans, strike records, policies and reports are packed for Redis; ``lua/bans.lua`` reads and writes the same.

Redis says of which kinds the bans are that stand there, and `Kinds` which keys to look up for a client: its own, and
one for each length of network in use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from time import monotonic
from typing import Final

from ...core.addresses import BITS, format_network
from ...core.bans.ban import Ban, BanSubject
from ...core.bans.policy import BanPolicy
from ...core.bans.rules import banned, bans_full, shadow_banned, strikes_dropped, unbanned
from ...core.bans.strikes import StrikeRecord
from ...core.logs import Throttle
from ...core.memo import remember
from ...core.store import Event

_FOR_EVER: Final = -1
_MAX_LEVEL: Final = 2**31
"""There is room for as many more."""
_BAN: Final = Struct("<qqqIH")
_RECORD: Final = Struct("<IqqqHH")
_STRIKE: Final = Struct("<qQ")
_POLICY: Final = Struct("<IqqqBHH")
_STEP: Final = Struct("<q")
_TIME: Final = Struct("<q")
_TOLD: Final = Struct("<HH")
_ASKED: Final = Struct("<HH")
_SIZE: Final = Struct("<H")
_COUNTS: Final = re.compile(rb"=([0-9]+)")
_NETWORK_COUNTS: Final = re.compile(rb"/[0-9]+=([0-9]+)")
_NETWORKS: Final = re.compile(rb"([46])/([0-9]{1,3})")


def pack_ban(ban: Ban) -> bytes:
    """Pack a ban without its key."""
    ends_us = _FOR_EVER if ban.ends_us is None else max(ban.ends_us, 0)
    by = ban.by.encode()
    numbers = _BAN.pack(ban.made_us, ends_us, ban.wall_us, min(ban.level, _MAX_LEVEL), len(by))
    return numbers + by + ban.reason.encode()


def unpack_ban(key: bytes, packed: bytes) -> Ban:
    """Read what `pack_ban` packed."""
    made_us, ends_us, wall_us, level, length = _BAN.unpack_from(packed)
    by, reason = packed[_BAN.size : _BAN.size + length], packed[_BAN.size + length :]
    ends = None if ends_us == _FOR_EVER else ends_us
    return Ban(key.decode(), reason.decode(), by.decode(), level, made_us, ends, wall_us)


def pack_record(policy: str, record: StrikeRecord) -> bytes:
    """Pack how a key stands under a policy."""
    name, strikes = policy.encode(), [_STRIKE.pack(at_us, weight) for at_us, weight in record.strikes]
    numbers = min(record.level, _MAX_LEVEL), record.last_us, record.until_us, record.over_us, len(strikes), len(name)
    return _RECORD.pack(*numbers) + name + b"".join(strikes)


def unpack_records(packed: bytes) -> Iterator[tuple[str, StrikeRecord]]:
    """Read how a key stands under each policy."""
    at = 0
    while at < len(packed):
        level, last_us, until_us, over_us, many, length = _RECORD.unpack_from(packed, at)
        name_at = at + _RECORD.size
        strikes_at = name_at + length
        at = strikes_at + many * _STRIKE.size
        strikes = tuple(_STRIKE.iter_unpack(packed[strikes_at:at]))
        yield packed[name_at:strikes_at].decode(), StrikeRecord(level, last_us, until_us, over_us, strikes)


def pack_policy(policy: BanPolicy) -> bytes:
    """Pack the parts of a policy that decide about strikes and bans."""
    name, ladder = policy.name.encode(), policy.ladder_us
    after = policy.after.amount, policy.after.window_us, policy.grain_us
    numbers = _POLICY.pack(*after, policy.forgive_us, policy.shadow, len(ladder), len(name))
    return numbers + name + b"".join(map(_STEP.pack, ladder))


class Kinds:
    """Of which kinds the bans in Redis are, see ``lua/banned.lua``.

    Args:
        told: What Redis says of them: empty where there are no bans.

    Attributes:
        text: The same without how many there are of each.
    """

    def __init__(self, told: bytes) -> None:
        self.text = text_of_kinds(told)
        networks = [(int(version), int(length)) for version, length in _NETWORKS.findall(self.text)]
        self._networks = [(version, length) for version, length in networks if length <= BITS[version]]
        self._known: dict[str, bytes] = {}

    def keys_of(self, subjects: Sequence[BanSubject]) -> bytes:
        """Return the keys under which the bans of a client would stand, packed: its own first, then networks."""
        asked = repr(subjects)  # a client chooses its address, and so the hash of a number
        packed = self._known.get(asked)
        if packed is None:
            packed = remember(self._known, asked, self._pack(subjects))
        return packed

    def covers(self, other: Kinds) -> bool:
        """Tell whether bans of other kinds are found by the same keys."""
        return set(other.text.split()) <= set(self.text.split())

    def _pack(self, subjects: Sequence[BanSubject]) -> bytes:
        keys = dict.fromkeys(key for key in subjects if isinstance(key, str))
        keys.pop("", None)  # under the empty key Redis holds no ban
        addresses = [address for address in subjects if not isinstance(address, str)]
        networks = [
            format_network(*address, length)
            for address in addresses
            for version, length in self._networks
            if version == address[0]
        ]
        texts = [key.encode() for key in (*keys, *networks)]
        return _ASKED.pack(len(keys), len(texts)) + b"".join([_SIZE.pack(len(text)) + text for text in texts])


def text_of_kinds(told: bytes) -> bytes:
    """Return what Redis says of kinds without how many there are of each."""
    return _COUNTS.sub(b"", told)


def count_of_kinds(told: bytes) -> int:
    """Return how many bans there are."""
    return sum(map(int, _COUNTS.findall(told)))


def count_of_networks(told: bytes) -> int:
    """Return how many bans of networks there are."""
    return sum(map(int, _NETWORK_COUNTS.findall(told)))


def unpack_told(packed: bytes) -> tuple[int, list[Ban]]:
    """Read the bans in force that were found, and when that was in the bans' time."""
    (now_us,), at, bans = _TIME.unpack_from(packed), _TIME.size, []
    while at < len(packed):
        row, key = _TOLD.unpack_from(packed, at)
        at += _TOLD.size + key + row
        bans.append(unpack_ban(packed[at - row - key : at - row], packed[at - row : at]))
    return now_us, bans


BANNED, UNBANNED, SHADOW, FULL, DROPPED = range(1, 6)

_HEAD: Final = Struct("<BH")


class Teller:
    """Turns reports into events.

    Args:
        tell: Passes events on.
        max_bans: How many bans may be held.
    """

    def __init__(self, tell: Callable[[Sequence[Event]], None], max_bans: int) -> None:
        self._tell = tell
        self._max_bans = max_bans
        self._throttle = Throttle()

    def tell(self, reports: Sequence[bytes], by: str) -> None:
        """Tell of the changes that a command has made.

        Args:
            reports: The reports of Redis.
            by: The name of whoever took a ban back.
        """
        events = [event for report in reports for event in self._events(report, by)]
        if events:
            self._tell(events)

    def _events(self, report: bytes, by: str) -> list[Event]:
        kind, length = _HEAD.unpack_from(report)
        packed, row = report[_HEAD.size : _HEAD.size + length], report[_HEAD.size + length :]
        if kind == BANNED:
            return [banned(unpack_ban(packed, row))]
        if kind == UNBANNED:
            return [unbanned(unpack_ban(packed, row), by)]
        if kind == SHADOW:
            return [shadow_banned(unpack_ban(packed, row))]
        event = bans_full(self._max_bans, packed.decode()) if kind == FULL else strikes_dropped(self._max_bans)
        is_left_out = self._throttle.left_out(event.kind, monotonic()) is None  # it may go on and on
        return [] if is_left_out else [event]
