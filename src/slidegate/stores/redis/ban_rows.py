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
from ...core.bans.ban import Ban, BanChange, BanSubject
from ...core.bans.policy import BanPolicy
from ...core.bans.rules import banned, bans_capped, bans_full, shadow_banned, strikes_dropped, unbanned
from ...core.bans.strikes import Strike, StrikeRecord
from ...core.logs import Throttle
from ...core.memo import remember
from ...core.store import Event

_FOR_EVER: Final = -1
_MAX_NUMBER: Final = 2**32 - 1
_BAN: Final = Struct("<qqqqIH")
_CHANGE: Final = Struct("<BqH")
_STANDING: Final = Struct("<IqqqqHH")
_STRIKE: Final = Struct("<qQH")
_POLICY: Final = Struct("<IqqqdqBBIHqqHH")
_STEP: Final = Struct("<q")
_KINDS: Final = {1: "banned", 2: "unbanned"}
_TIME: Final = Struct("<q")
_TOLD: Final = Struct("<HH")
_SIZE: Final = Struct("<H")
_COUNTS: Final = re.compile(rb"=([0-9]+)")
_NETWORKS: Final = re.compile(rb"([46])/([0-9]{1,3})")


def pack_ban(ban: Ban) -> bytes:
    """Pack a ban without its key."""
    ends_us = _FOR_EVER if ban.ends_us is None else max(ban.ends_us, 0)
    by = ban.by.encode()
    return (
        _BAN.pack(ban.made_us, ends_us, ban.wall_us, ban.prolong_us, min(ban.level, _MAX_NUMBER), len(by))
        + by
        + ban.reason.encode()
    )


def unpack_ban(key: bytes, packed: bytes) -> Ban:
    """Read what `pack_ban` packed."""
    made_us, ends_us, wall_us, prolong_us, level, length = _BAN.unpack_from(packed)
    by, reason = packed[_BAN.size : _BAN.size + length], packed[_BAN.size + length :]
    ends = None if ends_us == _FOR_EVER else ends_us
    return Ban(key.decode(), reason.decode(), by.decode(), level, made_us, ends, wall_us, prolong_us)


def unpack_change(packed: bytes) -> BanChange:
    """Read an entry of the history."""
    kind, wall_us, size = _CHANGE.unpack_from(packed)
    by, at = packed[_CHANGE.size : _CHANGE.size + size], _CHANGE.size + size
    (size,) = _SIZE.unpack_from(packed, at)
    at += _SIZE.size
    ban = unpack_ban(packed[at : at + size], packed[at + size :])
    return BanChange(_KINDS[kind], ban, wall_us, by.decode())  # type: ignore[arg-type]


def pack_record(policy: str, record: StrikeRecord) -> bytes:
    """Pack how a key stands under a policy that may not be known here."""
    name = policy.encode()
    strikes = [
        _STRIKE.pack(strike.at_us, strike.weight, len(source)) + source
        for strike in record.strikes
        for source in (strike.source.encode(),)
    ]
    numbers = min(record.level, _MAX_NUMBER), record.last_us, record.until_us, 0, 0, len(strikes), len(name)
    return _STANDING.pack(*numbers) + name + b"".join(strikes)


def unpack_records(packed: bytes) -> Iterator[tuple[str, StrikeRecord, int, int]]:
    """Read how a key stands under each policy: its name, the strike record, its window and its `forgive_us`."""
    at = 0
    while at < len(packed):
        level, last_us, until_us, window_us, forgive_us, many, length = _STANDING.unpack_from(packed, at)
        at += _STANDING.size
        name = packed[at : at + length].decode()
        at += length
        record = StrikeRecord(level, last_us, until_us)
        for _ in range(many):
            at_us, weight, length = _STRIKE.unpack_from(packed, at)
            at += _STRIKE.size
            record.strikes.append(Strike(at_us, weight, packed[at : at + length].decode()))
            at += length
        yield name, record, window_us, forgive_us


def pack_policy(policy: BanPolicy) -> bytes:
    """Pack the parts of a policy that decide about strikes and bans."""
    max_rate, name = policy.max_rate, policy.name.encode()
    return (
        _POLICY.pack(
            policy.after.amount,
            policy.after.window_us,
            policy.grain_us,
            policy.forgive_us,
            policy.jitter,
            policy.longest_us,
            policy.prolong,
            policy.action == "shadow",
            max_rate.amount,
            max_rate.resolution,
            max_rate.counter.step_us,
            max_rate.span_us,
            len(policy.ladder_us),
            len(name),
        )
        + name
        + b"".join(map(_STEP.pack, policy.ladder_us))
    )


def made_name(policy: BanPolicy) -> str:
    """Return what the window of the bans that a policy made is called."""
    max_rate = policy.max_rate
    return f"made:{policy.name}:{max_rate.window_us}:{max_rate.resolution}"


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
        """Return the keys under which the bans of a client would stand, packed."""
        asked = repr(subjects)  # a client chooses its address, and so the hash of a number
        packed = self._known.get(asked)
        if packed is None:
            packed = remember(self._known, asked, self._pack(subjects))
        return packed

    def covers(self, other: Kinds) -> bool:
        """Tell whether bans of other kinds are found by the same keys."""
        return set(other.text.split()) <= set(self.text.split())

    def _pack(self, subjects: Sequence[BanSubject]) -> bytes:
        keys: list[str] = []
        for guard in subjects:
            if isinstance(guard, str):
                keys += [guard] if guard else []  # under the empty key Redis holds no ban
            else:
                keys += [format_network(*guard, length) for version, length in self._networks if version == guard[0]]
        texts = [key.encode() for key in keys]
        return _SIZE.pack(len(texts)) + b"".join([_SIZE.pack(len(text)) + text for text in texts])


def text_of_kinds(told: bytes) -> bytes:
    """Return what Redis says of kinds without how many there are of each."""
    return _COUNTS.sub(b"", told)


def count_of_kinds(told: bytes) -> int:
    """Return how many bans there are."""
    return sum(map(int, _COUNTS.findall(told)))


def unpack_told(packed: bytes) -> tuple[int, list[Ban]]:
    """Read the bans in force that were found, and when that was in the bans' time."""
    (now_us,), at, bans = _TIME.unpack_from(packed), _TIME.size, []
    while at < len(packed):
        row, key = _TOLD.unpack_from(packed, at)
        at += _TOLD.size + key + row
        bans.append(unpack_ban(packed[at - row - key : at - row], packed[at - row : at]))
    return now_us, bans


BANNED, UNBANNED, SHADOW, CAPPED, FULL, FULL_OF_PREFIXES, DROPPED = range(1, 8)
SAY_EVERY_S: Final = 60.0

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
        self._throttle = Throttle(SAY_EVERY_S)

    def tell(self, reports: Sequence[bytes], policy: BanPolicy | None = None, by: str = "") -> None:
        """Tell of the changes that a command has made.

        Args:
            reports: The reports of Redis.
            policy: The policy that was at work.
            by: The name of whoever took a ban back.
        """
        events = [event for report in reports for event in self._events(report, policy, by)]
        if events:
            self._tell(events)

    def _events(self, report: bytes, policy: BanPolicy | None, by: str) -> list[Event]:
        kind, length = _HEAD.unpack_from(report)
        packed, row = report[_HEAD.size : _HEAD.size + length], report[_HEAD.size + length :]
        if kind == BANNED:
            return [banned(unpack_ban(packed, row))]
        if kind == UNBANNED:
            return [unbanned(unpack_ban(packed, row), by)]
        if kind == SHADOW:
            return [shadow_banned(unpack_ban(packed, row))]
        key, about = packed.decode(), ""
        if kind == CAPPED and policy is not None:
            event, about = bans_capped(policy, key), policy.name
        elif kind == DROPPED:
            event = strikes_dropped(self._max_bans)
        else:
            event = bans_full(self._max_bans, key, of_prefixes=kind == FULL_OF_PREFIXES)
        is_left_out = self._throttle.left_out((event.kind, about), monotonic()) is None  # it may go on and on
        return [] if is_left_out else [event]
