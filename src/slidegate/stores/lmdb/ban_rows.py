"""Bans and strike records as rows of an LMDB environment.

    bans      key                  record of the ban
    strikes   key 0xff policy      strike record as JSON
    meta      "networks"           the keys of the bans that refuse networks, behind 8 random bytes for each version
    meta      "lifted " key        record of a ban that was lifted, as long as it would have lasted

A *record* can be found again in a file whose pages nobody can follow any more::

    mark (4 bytes)   length (uint16)   CRC-32 of what follows   JSON: number, whether it was lifted, ban

Numbers go up with every change, so the newest record of a key says whether it is banned.
"""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ...core.bans.ban import Ban
from ...core.bans.networks import BannedNetworks
from ...core.bans.strikes import StrikeRecord
from ...core.limits import MAX_WINDOW_US
from .layout import BAN, BAN_NUMBER, LIFTED, NETWORKS, STRIKES, due_row

if TYPE_CHECKING:
    from .windows import Transaction

STEP: Final = 200
"""How many rows are read at once: an event loop waits for them, a millisecond or two."""
VERSION_BYTES: Final = 8

_MARK: Final = b"\xb5SG3"
_RECORD: Final = Struct("=4sHI")
_LONGEST: Final = _RECORD.size + 0xFFFF
"""The most bytes of a record."""
_BLOCK: Final = 1 << 20
"""How much of a damaged file is read at a time."""
_NUMBER: Final = Struct(">Q")
_BETWEEN: Final = b"\xff"
_LIFTED: Final = b"lifted "


class LmdbBanStorage:
    """All that is remembered about bans, in one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._txn = transaction.txn
        self._dbs = transaction.dbs

    def ban(self, key: str) -> Ban | None:
        """Return the ban of exactly this key."""
        packed = self._txn.get(key.encode(), None, self._dbs.bans)
        return None if packed is None else ban_of(packed)

    def put_ban(self, ban: Ban) -> None:
        """Put a ban in the place of one of the same key."""
        networks = self.networks()
        if ban.network() is not None or ban.key in networks.bans:
            self._keep_networks(networks.with_ban(ban))
        row = ban.key.encode()
        self._txn.put(row, self._packed(ban, lifted=False), db=self._dbs.bans)
        if ban.ends_us is not None:
            self._txn.put(due_row(ban.ends_us, row), BAN, db=self._dbs.ends)

    def remove_ban(self, key: str) -> None:
        """Remove the ban of a key, if it has one; one in force is noted as lifted."""
        ban = self.ban(key)
        if ban is None:
            return
        networks = self.networks()
        if key in networks.bans:
            self._keep_networks(networks.without(key))
        self._txn.delete(key.encode(), b"", self._dbs.bans)
        now_us = self._transaction.now_us
        if not ban.is_over(now_us):
            self._txn.put(_LIFTED + key.encode(), self._packed(ban, lifted=True), db=self._dbs.meta)
            end_us = now_us + MAX_WINDOW_US if ban.ends_us is None else ban.ends_us
            self._txn.put(due_row(end_us, _LIFTED + key.encode()), LIFTED, db=self._dbs.ends)

    def ban_count(self) -> int:
        """Return how many bans there are."""
        return int(self._txn.stat(self._dbs.bans)["entries"])

    def networks(self) -> BannedNetworks:
        """Return the bans of networks."""
        packed = self._txn.get(NETWORKS, None, self._dbs.meta)
        keys = [] if packed is None else json.loads(packed[VERSION_BYTES:])
        return BannedNetworks(ban for key in keys if (ban := self.ban(key)) is not None)

    def record(self, policy: str, key: str) -> StrikeRecord | None:
        """Return the strike record of a key under a policy."""
        packed = self._txn.get(_strikes_row(policy, key), None, self._dbs.strikes)
        return None if packed is None else record_of(packed)

    def put_record(self, policy: str, key: str, record: StrikeRecord) -> None:
        """Put a strike record in the place of the one that the key has."""
        row = _strikes_row(policy, key)
        if self._txn.get(row, None, self._dbs.strikes) is None:
            self._txn.put(due_row(record.over_us, row), STRIKES, db=self._dbs.ends)
        self._txn.put(row, json.dumps(record, separators=(",", ":")).encode(), db=self._dbs.strikes)

    def remove_records(self, key: str) -> list[StrikeRecord]:
        """Remove the strike records of a key under all policies, and return them."""
        first, removed = key.encode() + _BETWEEN, []
        with self._txn.cursor(self._dbs.strikes) as cursor:
            there = cursor.set_range(first)
            while there and cursor.key().startswith(first):
                removed.append(record_of(cursor.value()))
                there = cursor.delete()
        return removed

    def record_count(self) -> int:
        """Return how many strike records there are."""
        return int(self._txn.stat(self._dbs.strikes)["entries"])

    def evict_record(self) -> None:
        """Remove a strike record at random."""
        with self._txn.cursor(self._dbs.strikes) as cursor:
            if cursor.set_range(os.urandom(8)) or cursor.first():
                cursor.delete()

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        """Look at so many rows whose time has come, of windows too; return whether there may be more."""
        self._transaction.sweep(max_count)
        return not self._transaction.is_swept

    def _keep_networks(self, networks: BannedNetworks) -> None:
        keys = json.dumps([*networks.bans]).encode()
        self._txn.put(NETWORKS, os.urandom(VERSION_BYTES) + keys, db=self._dbs.meta)

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


def struck_of(row: bytes) -> tuple[str, str]:
    """Return the policy and the key of a row of `strikes`."""
    key, _, policy = row.rpartition(_BETWEEN)
    return policy.decode(), key.decode()


def due_us(kind: bytes, packed: bytes) -> int | None:
    """Return when a row of bans, strikes or lifted bans can be deleted; None for never."""
    if kind == STRIKES:
        return record_of(packed).over_us
    ban = ban_of(packed)
    if ban is None:
        return 0  # it cannot be read any more
    return ban.made_us + MAX_WINDOW_US if kind == LIFTED and ban.ends_us is None else ban.ends_us


def part(txn: Any, dbi: Any, row: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Return `STEP` rows of a database, from `row` on, and the row to go on with; None at the end."""
    with txn.cursor(dbi) as cursor:
        if not cursor.set_range(row):
            return [], None
        rows = list(islice(cursor.iternext(), STEP + 1))
    return (rows[:STEP], rows[STEP][0]) if len(rows) > STEP else (rows, None)


def salvage(path: Path) -> list[Ban]:
    """Return the bans whose records can be found in a damaged file, except those that were lifted since."""
    newest: dict[str, tuple[int, bool, Ban]] = {}
    window = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            window = window[-_LONGEST:] + block  # a record may lie in two blocks
            at = window.find(_MARK)
            while at >= 0:
                record = _read_record(window[at : at + _LONGEST])
                if record is not None:
                    key = record[2].key
                    newest[key] = max(newest.get(key, record), record, key=lambda one: one[0])
                at = window.find(_MARK, at + 1)
    return [ban for _, lifted, ban in newest.values() if not lifted]


def _read_record(packed: bytes) -> tuple[int, bool, Ban] | None:
    if len(packed) < _RECORD.size:
        return None
    mark, length, checksum = _RECORD.unpack_from(packed)
    body = packed[_RECORD.size : _RECORD.size + length]
    if mark != _MARK or not length or len(body) < length or crc32(body) != checksum:
        return None  # of nothing the checksum is 0, as zeros behind half a record say
    number, lifted, *fields = json.loads(body)
    return number, lifted, Ban(*fields)


def _strikes_row(policy: str, key: str) -> bytes:
    return key.encode() + _BETWEEN + policy.encode()
