"""Bans and strikes as bytes.

A ban is written as a *record* that can be found again in a file whose pages nobody can follow any more::

    mark (4 bytes)   version   kind   number (uint64)   length (uint16)   CRC-32 of what follows   JSON

Numbers go up with every change, so the newest record of a key says whether it is banned.
"""

from __future__ import annotations

import json
import mmap
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from ....core.bans.in_force import Ban, BanChange
from ....core.bans.standing import Standing, Strike

RECORD_VERSION: Final = 1
BANNED: Final = 1
UNBANNED: Final = 2
KEPT: Final = 3
"""A ban as it stands in `bans`, which is no entry of the history."""

_KINDS: Final = {"banned": BANNED, "unbanned": UNBANNED}
_MARK: Final = b"\xb5SGB"
_RECORD: Final = Struct("=4sBBQHI")
_STANDING: Final = Struct("=BIqqI")
_STRIKE: Final = Struct("=qQB")
_LONGEST_ROW: Final = 256
_FIELDS: Final = ("key", "reason", "by", "rung", "made_us", "ends_us", "wall_us", "prolong_us")


class Record(NamedTuple):
    """A record: its kind, its number, the ban, and the time and the author of the change."""

    kind: int
    number: int
    ban: Ban
    wall_us: int
    by: str

    def change(self) -> BanChange:
        """Return the record as an entry of the history."""
        return BanChange("unbanned" if self.kind == UNBANNED else "banned", self.ban, self.wall_us, self.by)


def pack_ban(number: int, ban: Ban) -> bytes:
    """Return a ban as bytes, for `bans`."""
    return _pack(KEPT, number, ban, ban.wall_us, ban.by)


def pack_change(number: int, change: BanChange) -> bytes:
    """Return an entry of the history as bytes."""
    return _pack(_KINDS[change.kind], number, change.ban, change.wall_us, change.by)


def _pack(kind: int, number: int, ban: Ban, wall_us: int, by: str) -> bytes:
    fields = [getattr(ban, field) for field in _FIELDS]
    body = json.dumps([fields, wall_us, by], separators=(",", ":")).encode()
    return _RECORD.pack(_MARK, RECORD_VERSION, kind, number, len(body), crc32(body)) + body


def unpack_record(packed: bytes, at: int = 0) -> Record | None:
    """Read the record that begins at a byte; None if there is none, or if it is damaged."""
    if len(packed) - at < _RECORD.size:
        return None
    mark, version, kind, number, length, checksum = _RECORD.unpack_from(packed, at)
    at += _RECORD.size
    body = packed[at : at + length]
    if mark != _MARK or version != RECORD_VERSION or len(body) < length or crc32(body) != checksum:
        return None
    fields, wall_us, by = json.loads(body)
    return Record(kind, number, Ban(**dict(zip(_FIELDS, fields, strict=True))), wall_us, by)


def salvage(path: Path) -> list[Ban]:
    """Return the bans whose records can be found in a damaged file, except those that were lifted since."""
    newest: dict[str, Record] = {}
    with path.open("rb") as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            at = pages.find(_MARK)
            while at >= 0:
                record = unpack_record(pages[at : at + _RECORD.size + 0xFFFF])
                if record is not None and (
                    record.ban.key not in newest or newest[record.ban.key].number <= record.number
                ):
                    newest[record.ban.key] = record
                at = pages.find(_MARK, at + 1)
    return [record.ban for record in newest.values() if record.kind != UNBANNED]


def pack_standing(standing: Standing) -> bytes:
    """Return the standing of a key under a policy as bytes."""
    head = _STANDING.pack(RECORD_VERSION, standing.rung, standing.last_us, standing.until_us, len(standing.strikes))
    sources = [strike.source.encode("utf-8", "surrogatepass")[:255] for strike in standing.strikes]
    return head + b"".join(
        _STRIKE.pack(strike.at_us, strike.weight, len(source)) + source
        for strike, source in zip(standing.strikes, sources, strict=True)
    )


def unpack_standing(packed: bytes, at: int = 0) -> Standing:
    """Read the standing that begins at a byte."""
    _, rung, last_us, until_us, count = _STANDING.unpack_from(packed, at)
    at += _STANDING.size
    strikes = []
    for _ in range(count):
        at_us, weight, length = _STRIKE.unpack_from(packed, at)
        at += _STRIKE.size
        strikes.append(Strike(at_us, weight, packed[at : at + length].decode("utf-8", "surrogatepass")))
        at += length
    return Standing(rung, last_us, until_us, strikes)


def row_of(*parts: str) -> bytes:
    """Return the key of a row: some names with NUL between them. The end of a long one becomes a digest."""
    row = b"\0".join(part.encode("utf-8", "surrogatepass") for part in parts)
    return row if len(row) <= _LONGEST_ROW else row[:_LONGEST_ROW] + blake2b(row, digest_size=32).digest()


def text_of(row: bytes) -> str:
    """Return a name that was written as bytes."""
    return row.decode("utf-8", "surrogatepass")
