"""The stored format of bans and strike records; ``lua/banned.lua`` reads the ends at their start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ...core.bans.ban import Ban
from ...core.bans.strikes import StrikeRecord

_END: Final = Struct("<q")
_FOR_EVER: Final = -1
FOR_EVER_MS: Final = 100 * 365 * 86_400_000
_LENGTH: Final = Struct("<H")


class StruckRecord(NamedTuple):
    """A strike record, its key, and the batches that it counted recently.

    Attributes:
        key: The key.
        record: The record.
        heard: (name, time in microseconds) of each batch of strikes that was counted in the last `KNOWN_US`.
    """

    key: str
    record: StrikeRecord
    heard: Sequence[tuple[str, int]] = ()


def pack_ban(ban: Ban | None) -> bytes:
    """Pack a ban; None becomes empty bytes."""
    if ban is None:
        return b""
    end_us = _FOR_EVER if ban.until_us is None else max(ban.until_us, 0)
    return _END.pack(end_us) + json.dumps(ban, separators=(",", ":")).encode()


def unpack_ban(packed: bytes) -> Ban | None:
    """Unpack what `pack_ban` packed.

    Raises:
        ValueError: The bytes are not a ban.
    """
    return Ban(*json.loads(packed[_END.size :])) if packed else None


def unpack_bans(packed: bytes) -> list[Ban]:
    """Unpack the bans of an answer, each preceded by its length."""
    bans, at = [], 0
    while at < len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size + length
        ban = unpack_ban(packed[at - length : at])
        if ban is not None:
            bans.append(ban)
    return bans


def pack_record(struck: StruckRecord | None) -> bytes:
    """Pack a strike record; None becomes empty bytes."""
    if struck is None:
        return b""
    text = json.dumps(struck, separators=(",", ":")).encode()
    return _END.pack(min(struck.record.over_us, 2**62)) + text


def unpack_record(packed: bytes) -> StruckRecord | None:
    """Unpack what `pack_record` packed.

    Raises:
        ValueError: The bytes are not a record.
    """
    if not packed:
        return None
    key, fields, heard = json.loads(packed[_END.size :])
    return StruckRecord(key, StrikeRecord(*fields), [(name, at_us) for name, at_us in heard])


def left_ms(end_us: int | None, now_us: int, slack_ms: int) -> int:
    """Return the TTL in ms of data that is needed until `end_us`; a hundred years if that is None."""
    return FOR_EVER_MS if end_us is None else min(max(end_us - now_us, 0) // 1_000 + slack_ms, FOR_EVER_MS)
