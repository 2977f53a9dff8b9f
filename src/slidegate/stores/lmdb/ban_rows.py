"""Bans and strike records as rows of an LMDB environment.

    bans      key                  record of the ban
    strikes   key 0xff policy      strike record as JSON
    ban_ends  time, row            when to check a row again, and its database
    meta      "networks"           the keys of the bans of networks, after 8 random bytes as their version
    meta      "lifted " key        record of a lifted ban, kept until the ban would have ended

A *record* can be found in a damaged file whose page structure can no longer be followed::

    mark (4 bytes)   length (uint16)   CRC-32 of the rest   JSON: number, whether it was lifted, ban

Numbers increase with every change, so the newest record of a key determines whether it is banned.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from struct import Struct
from typing import Any, Final
from zlib import crc32

from ...core.bans.ban import Ban
from ...core.bans.networks import BannedNetworks
from ...core.bans.strikes import StrikeRecord
from ...core.limits import MAX_WINDOW_US
from ...core.store import Clock
from .layout import BAN_NUMBER, NETWORKS, Databases, look_later, row_of, rows_with, sweep

_VERSION_BYTES: Final = 8

_MARK: Final = b"\xb5SG3"
_RECORD: Final = Struct("=4sHI")
_LONGEST: Final = _RECORD.size + 0xFFFF
"""The largest size of a record, in bytes."""
_BLOCK: Final = 1 << 20
"""The size of the blocks in which a damaged file is read, in bytes."""
_NUMBER: Final = Struct(">Q")
BANS: Final = b"bans"
STRIKES: Final = b"strikes"
META: Final = b"meta"
_LIFTED: Final = b"lifted "


class KnownNetworks:
    """The banned networks as this process last read them.

    Attributes:
        read: The bytes of their version, and the bans.
    """

    def __init__(self) -> None:
        self.read = b"", BannedNetworks()


class LmdbBanStorage:
    """The stored bans and strike records, in one transaction.

    Args:
        txn: LMDB's transaction.
        dbs: The databases.
        unix_us: Returns Unix time in microseconds.
        known: The cached bans of networks.
    """

    __slots__ = ("_dbs", "_known", "_txn", "_unix_us")

    def __init__(self, txn: Any, dbs: Databases, unix_us: Clock, known: KnownNetworks) -> None:
        self._txn = txn
        self._dbs = dbs
        self._unix_us = unix_us
        self._known = known

    def ban(self, key: str) -> Ban | None:
        """Return the ban of exactly this key."""
        packed = self._txn.get(key.encode(), None, self._dbs.bans)
        return None if packed is None else ban_of(packed)

    def put_ban(self, ban: Ban) -> None:
        """Store a ban, replacing one of the same key."""
        networks = self.networks()
        if ban.network() is not None or ban.key in networks.bans:
            self._keep_networks(networks.with_ban(ban))
        row = ban.key.encode()
        self._txn.put(row, self._packed(ban, lifted=False), db=self._dbs.bans)
        if ban.until_us is not None:
            look_later(self._txn, self._dbs.ban_ends, ban.until_us, row, BANS)

    def remove_ban(self, key: str) -> None:
        """Remove the ban of a key, if it has one; a ban in force is recorded as lifted."""
        ban = self.ban(key)
        if ban is None:
            return
        networks = self.networks()
        if key in networks.bans:
            self._keep_networks(networks.without(key))
        self._txn.delete(key.encode(), b"", self._dbs.bans)
        now_us = self._unix_us()
        if not ban.is_over(now_us):
            row = _LIFTED + key.encode()
            self._txn.put(row, self._packed(ban, lifted=True), db=self._dbs.meta)
            end_us = now_us + MAX_WINDOW_US if ban.until_us is None else ban.until_us
            look_later(self._txn, self._dbs.ban_ends, end_us, row, META)

    def ban_count(self) -> int:
        """Return how many bans there are."""
        return int(self._txn.stat(self._dbs.bans)["entries"])

    def networks(self) -> BannedNetworks:
        """Return the bans of networks, reading them again if their version has changed."""
        packed = self._txn.get(NETWORKS, None, self._dbs.meta) or b""
        version, networks = self._known.read
        if packed[:_VERSION_BYTES] != version:
            keys = json.loads(packed[_VERSION_BYTES:])
            networks = BannedNetworks(ban for key in keys if (ban := self.ban(key)) is not None)
            self._known.read = packed[:_VERSION_BYTES], networks
        return networks

    def record(self, policy: str, key: str) -> StrikeRecord | None:
        """Return the strike record of a key under a policy."""
        packed = self._txn.get(row_of(key, policy.encode()), None, self._dbs.strikes)
        return None if packed is None else record_of(packed)

    def put_record(self, policy: str, key: str, record: StrikeRecord) -> None:
        """Store a strike record, replacing that of the same policy and key."""
        row = row_of(key, policy.encode())
        if self._txn.get(row, None, self._dbs.strikes) is None:
            look_later(self._txn, self._dbs.ban_ends, record.over_us, row, STRIKES)
        self._txn.put(row, json.dumps(record, separators=(",", ":")).encode(), db=self._dbs.strikes)

    def remove_records(self, key: str) -> list[StrikeRecord]:
        """Remove the strike records of a key under all policies, and return them."""
        rows = rows_with(self._txn, self._dbs.strikes, row_of(key))
        for row, _ in rows:
            self._txn.delete(row, b"", self._dbs.strikes)
        return [record_of(packed) for _, packed in rows]

    def record_count(self) -> int:
        """Return how many strike records there are."""
        return int(self._txn.stat(self._dbs.strikes)["entries"])

    def evict_record(self) -> None:
        """Remove a strike record at random."""
        with self._txn.cursor(self._dbs.strikes) as cursor:
            if cursor.set_range(os.urandom(8)) or cursor.first():
                cursor.delete()

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        """Check at most `max_count` due rows, and remove expired ones; return whether there may be more."""
        return sweep(self._txn, self._dbs, self._dbs.ban_ends, now_us, max_count, _due_us)[1]

    def _keep_networks(self, networks: BannedNetworks) -> None:
        keys = json.dumps([*networks.bans]).encode()
        self._txn.put(NETWORKS, os.urandom(_VERSION_BYTES) + keys, db=self._dbs.meta)

    def _packed(self, ban: Ban, *, lifted: bool) -> bytes:
        packed = self._txn.get(BAN_NUMBER, None, self._dbs.meta)
        number = 1 if packed is None else int(_NUMBER.unpack(packed)[0]) + 1
        self._txn.put(BAN_NUMBER, _NUMBER.pack(number), db=self._dbs.meta)
        body = json.dumps([number, lifted, *ban], separators=(",", ":")).encode()
        return _RECORD.pack(_MARK, len(body), crc32(body)) + body


def ban_of(packed: bytes) -> Ban | None:
    """Return the ban of a record; None if the record is damaged."""
    record = _read_record(packed)
    return None if record is None else record[2]


def record_of(packed: bytes) -> StrikeRecord:
    """Return the strike record of a row."""
    return StrikeRecord(*json.loads(packed))


def _due_us(kind: bytes, row: bytes, packed: bytes) -> int | None:
    """Return when a row of `bans`, `strikes` or `meta` can be deleted; None for never."""
    if kind == STRIKES:
        return record_of(packed).over_us
    ban = ban_of(packed)
    if ban is None:
        return 0  # a damaged record is useless
    return ban.since_us + MAX_WINDOW_US if kind == META and ban.until_us is None else ban.until_us


def salvage(path: Path) -> list[Ban]:
    """Return the bans whose records can be found in a damaged file, except those that were lifted later."""
    newest: dict[str, tuple[int, bool, Ban]] = {}
    window = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            window = window[-_LONGEST:] + block  # a record may extend over two blocks
            at = window.find(_MARK)
            while at >= 0:
                record = _read_record(window[at : at + _LONGEST])
                if record is not None:
                    key = record[2].key
                    newest[key] = max(newest.get(key, record), record, key=lambda one: one[0])
                at = window.find(_MARK, at + 1)
    return [ban for _, lifted, ban in newest.values() if not lifted]


def rescue(path: Path, txn: Any, dbs: Databases, unix_us: Clock) -> int:
    """Import the bans that are found in a damaged file; return how many of them are in force.

    Args:
        path: The damaged file.
        txn: A write transaction of the new environment.
        dbs: The databases of the new environment.
        unix_us: Returns Unix time in microseconds.
    """
    storage, now_us = LmdbBanStorage(txn, dbs, unix_us, KnownNetworks()), unix_us()
    bans = [ban for ban in salvage(path) if not ban.is_over(now_us)]
    for ban in bans:
        storage.put_ban(ban)
    return len(bans)


def _read_record(packed: bytes) -> tuple[int, bool, Ban] | None:
    if len(packed) < _RECORD.size:
        return None
    mark, length, checksum = _RECORD.unpack_from(packed)
    body = packed[_RECORD.size : _RECORD.size + length]
    if mark != _MARK or not length or len(body) < length or crc32(body) != checksum:
        return None  # an empty body is invalid: zeros after half a record would match its checksum, 0
    number, lifted, *fields = json.loads(body)
    return number, lifted, Ban(*fields)
