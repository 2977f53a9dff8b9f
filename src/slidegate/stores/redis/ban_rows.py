"""The stored format of bans and levels. Each begins with its end, which the scripts read."""

from __future__ import annotations

import json
from struct import Struct
from typing import Final

from ...core.bans.ban import Ban
from ...core.bans.strikes import Level

_END: Final = Struct("<q")
_FOR_EVER: Final = -1
_LEVEL: Final = Struct("<qqI")


def pack_ban(ban: Ban) -> bytes:
    """Pack a ban."""
    end_us = _FOR_EVER if ban.until_us is None else max(ban.until_us, 0)
    return _END.pack(end_us) + json.dumps(ban._asdict(), separators=(",", ":")).encode()


def unpack_ban(packed: bytes) -> Ban:
    """Unpack what `pack_ban` packed.

    Raises:
        ValueError: The bytes are not a ban.
    """
    return Ban(**json.loads(packed[_END.size :]))


def pack_level(level: Level) -> bytes:
    """Pack a level."""
    return _LEVEL.pack(level.over_us, level.until_us, level.level)


def unpack_level(packed: bytes) -> Level | None:
    """Unpack what `pack_level` packed; None if it is empty."""
    if not packed:
        return None
    over_us, until_us, level = _LEVEL.unpack(packed)
    return Level(level, until_us, over_us)
