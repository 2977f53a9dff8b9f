"""Bans, strikes and levels as rows of an LMDB environment, as the rules of `core.bans.rules` read and change them.

    bans        key                       record of the change that made it
    networks    version, length, bits     the key of a ban that is a network
    ban_ends    clock, end, key           nothing: the index of ends, in the store's time and in Unix time
    history     number                    record of a change
    standings   policy NUL key            number of the last strike, then the strike record as JSON
    struck      policy NUL number         key: the one that was struck longest ago comes first
    policies    policy                    JSON: its spans, how many strike records it has, the ring of its bans
    meta        "bans"                    how many bans of each length of network there are, and of other keys

So an address is looked up with one question for each length that is in use, and where nobody is banned with none.

A *record* can be found again in a file whose pages nobody can follow any more::

    mark (4 bytes)   length (uint16)   CRC-32 of what follows   JSON: number, kind, ban, time, author

Numbers go up with every change, so the newest record of a key says whether it is banned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ...core.addresses import BITS
from ...core.bans.ban import Ban, BanChange, BanSubject, network_place
from ...core.bans.rules import MAX_HISTORY
from ...core.bans.strikes import PolicyState, Strike, StrikeRecord
from ...core.decision import Check
from .layout import BAN_NUMBER, CENSUS, Databases

if TYPE_CHECKING:
    from .windows import Transaction

STEP: Final = 200
"""How many rows are read at once: an event loop waits for them, a millisecond or two."""

_MARK: Final = b"\xb5SG2"
_RECORD: Final = Struct("=4sHI")
_LONGEST: Final = _RECORD.size + 0xFFFF
"""The most bytes of a record."""
_BLOCK: Final = 1 << 20
"""How much of a damaged file is read at a time."""
_NUMBER: Final = Struct(">Q")
_COUNTED: Final = Struct(">BBI")
_OTHER_KEYS: Final = 0, 0
_PREFIXES: Final = 1, 0
"""Among the counts, those of bans that are no network, and once more of those that policies made of prefixes."""
_CLOCKS: Final = b"s", b"u"
_END_BYTES: Final = 1 + _NUMBER.size


class BanRows:
    """The bans in one transaction, those that are over and were not swept yet among them."""

    def __init__(self, txn: Any, dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs

    def __len__(self) -> int:
        return int(self._txn.stat(self._dbs.bans)["entries"])

    @property
    def prefixes(self) -> int:
        """How many of them are of prefixes that policies banned."""
        return self._counts().get(_PREFIXES, 0)

    def get(self, key: str) -> Ban | None:
        """Return the ban of exactly this key, whether or not it is over."""
        return self._at(row_of(key))

    def add(self, ban: Ban) -> None:
        """Put a ban in force, in the place of one of the same key."""
        self.remove(ban.key)
        row = row_of(ban.key)
        self._write(row, ban)
        place = network_place(ban.key)
        if place is not None:
            self._txn.put(_network(place), row, db=self._dbs.networks)
        self._count(ban, place, 1)

    def remove(self, key: str) -> Ban | None:
        """Take a ban out, and return it."""
        row = row_of(key)
        ban = self._at(row)
        if ban is None:
            return None
        self._txn.delete(row, b"", self._dbs.bans)
        for end in _ends(row, ban):
            self._txn.delete(end, b"", self._dbs.ban_ends)
        place = network_place(key)
        if place is not None:
            self._txn.delete(_network(place), b"", self._dbs.networks)
        self._count(ban, place, -1)
        return ban

    def remove_expired(self, now_us: int, wall_us: int, max_count: int = 2) -> bool:
        """Delete bans that are over, no more than `max_count` by each clock; return whether there are more."""
        left = False
        for clock, moment_us in zip(_CLOCKS, (now_us, wall_us), strict=True):
            with self._txn.cursor(self._dbs.ban_ends) as ends:
                for step in range(max_count + 1):
                    if not ends.set_range(clock) or ends.key() > clock + _NUMBER.pack(moment_us) + b"\xff":
                        break
                    if step == max_count:
                        left = True
                        break
                    end = ends.key()
                    ban = self._at(end[_END_BYTES:])
                    if ban is None or end not in _ends(end[_END_BYTES:], ban):
                        ends.delete()  # its ban cannot be read any more
                    else:
                        self.remove(ban.key)
        return left

    def remember(self, change: BanChange) -> None:
        """Add an entry to the history, and delete the oldest one beyond `MAX_HISTORY`."""
        number = _next_number(self._txn, self._dbs)
        self._txn.put(_NUMBER.pack(number), _pack_change(number, change), db=self._dbs.history)
        if self._txn.stat(self._dbs.history)["entries"] > MAX_HISTORY:
            with self._txn.cursor(self._dbs.history) as cursor:
                cursor.first()
                cursor.delete()

    def _at(self, row: bytes) -> Ban | None:
        packed = self._txn.get(row, None, self._dbs.bans)
        change = None if packed is None else read_change(packed)
        return None if change is None else change.ban

    def _write(self, row: bytes, ban: Ban) -> None:
        change = BanChange("banned", ban, ban.wall_us, ban.by)
        self._txn.put(row, _pack_change(_next_number(self._txn, self._dbs), change), db=self._dbs.bans)
        for end in _ends(row, ban):
            self._txn.put(end, b"", db=self._dbs.ban_ends)

    def _counts(self) -> dict[tuple[int, int], int]:
        census = self._txn.get(CENSUS, None, self._dbs.meta) or b""
        return {(version, prefix): count for version, prefix, count in _COUNTED.iter_unpack(census)}

    def _count(self, ban: Ban, place: tuple[int, int, bytes] | None, more: int) -> None:
        """Count a ban more or less, by its length of network."""
        counts = self._counts()
        for kind in (_OTHER_KEYS if place is None else place[:2], *([_PREFIXES] if ban.is_prefix else [])):
            counts[kind] = counts.get(kind, 0) + more
        census = b"".join(_COUNTED.pack(*kind, count) for kind, count in counts.items() if count)
        if census:
            self._txn.put(CENSUS, census, db=self._dbs.meta)
        else:
            self._txn.delete(CENSUS, b"", self._dbs.meta)


class StrikeQueueRows:
    """The strike records under one policy."""

    def __init__(self, txn: Any, dbs: Databases, policy: str, count: int) -> None:
        self._txn = txn
        self._dbs = dbs
        self._policy = policy
        self._queue = row_of(policy, "")
        self._count = count

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[str, StrikeRecord]]:
        """Yield each key and its strike record; the key that was struck longest ago comes first."""
        with self._txn.cursor(self._dbs.struck) as cursor:
            is_there = cursor.set_range(self._queue)
            while is_there and cursor.key().startswith(self._queue):
                key = text_of(cursor.value())
                record = self.get(key)
                assert record is not None
                yield key, record
                is_there = cursor.next()

    def get(self, key: str) -> StrikeRecord | None:
        """Return the strike record of a key."""
        row = self._txn.get(row_of(self._policy, key), None, self._dbs.standings)
        return None if row is None else _unpack_record(row)

    def put(self, key: str, record: StrikeRecord) -> None:
        """Record the strike record of a key that has none, at the end of the queue."""
        place = _NUMBER.pack(_next_number(self._txn, self._dbs))
        self._txn.put(self._queue + place, key.encode(), db=self._dbs.struck)
        self._txn.put(row_of(self._policy, key), place + _pack_record(record), db=self._dbs.standings)
        self._count += 1

    def keep(self, key: str, record: StrikeRecord) -> None:
        """Record a change of a strike record; the key stays where it is in the queue."""
        row = row_of(self._policy, key)
        place = self._txn.get(row, None, self._dbs.standings)[: _NUMBER.size]
        self._txn.put(row, place + _pack_record(record), db=self._dbs.standings)

    def take(self, key: str) -> StrikeRecord | None:
        """Take the strike record of a key out, and return it; None if it has none."""
        row = self._txn.pop(row_of(self._policy, key), self._dbs.standings)
        if row is None:
            return None
        self._txn.delete(self._queue + row[: _NUMBER.size], b"", self._dbs.struck)
        self._count -= 1
        return _unpack_record(row)


class PolicyStateRow(PolicyState):
    """The strike records under one policy, and the window of its bans."""

    strikes: StrikeQueueRows

    def __init__(self, txn: Any, dbs: Databases, name: str, row: bytes | None) -> None:
        values = (0, 0, (0, 0), 0, "") if row is None else json.loads(row)
        window_us, forgive_us, max_rate, count, made = values
        super().__init__(name, StrikeQueueRows(txn, dbs, name, count))
        self.window_us, self.forgive_us = window_us, forgive_us
        self.max_rate, self.made = tuple(max_rate), bytes.fromhex(made)
        self.row = row

    def packed(self) -> bytes:
        """Return the row to write."""
        values = (self.window_us, self.forgive_us, self.max_rate, len(self.strikes), self.made.hex())
        return json.dumps(values).encode()


class LmdbBanStorage:
    """All that is remembered about bans, in one transaction; changed states of policies are written by `save`."""

    def __init__(self, transaction: Transaction) -> None:
        self._txn = transaction.txn
        self._dbs = transaction.dbs
        self._states: dict[str, PolicyStateRow] = {}
        self.active_bans = BanRows(self._txn, self._dbs)

    def state(self, policy: str) -> PolicyStateRow | None:
        """Return the state of a policy; None if there is none."""
        state = self._states.get(policy)
        if state is None:
            row = self._txn.get(row_of(policy), None, self._dbs.policies)
            if row is None:
                return None
            state = self._states[policy] = PolicyStateRow(self._txn, self._dbs, policy, row)
        return state

    def open_state(self, policy: str) -> PolicyStateRow:
        """Return the state of a policy; make one if there is none."""
        state = self.state(policy)
        if state is None:
            state = self._states[policy] = PolicyStateRow(self._txn, self._dbs, policy, None)
        return state

    def states(self) -> list[PolicyStateRow]:
        """Return the states of all policies."""
        with self._txn.cursor(self._dbs.policies) as cursor:
            names = {text_of(row) for row in cursor.iternext(values=False)}
        return [self.open_state(name) for name in sorted(names.union(self._states))]

    def strike_records(self) -> int:
        """Return how many strike records there are under all policies."""
        return int(self._txn.stat(self._dbs.standings)["entries"])

    def remember(self, change: BanChange) -> None:
        """Add a change to the history."""
        self.active_bans.remember(change)

    def save(self) -> None:
        """Write the states that have changed."""
        for name, state in self._states.items():
            packed = state.packed()
            if packed != state.row:
                self._txn.put(row_of(name), packed, db=self._dbs.policies)


def bans_of(transaction: Transaction, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> list[Ban]:
    """Return the bans of a question, also those that are over, one perhaps more than once."""
    get, dbs = transaction.txn.get, transaction.dbs
    census = get(CENSUS, None, dbs.meta)
    if census is None:
        return []  # most requests end here
    rows = [row_of(key) for _, key, _ in checks]
    for one in subjects:
        if isinstance(one, str):
            rows.append(row_of(one))
            continue
        version, value = one
        for head, shift in _lengths(census)[version]:
            row = get(head + (value >> shift).to_bytes(16, "big"), None, dbs.networks)
            if row is not None:
                rows.append(row)
    changes = [read_change(packed) for row in rows if (packed := get(row, None, dbs.bans)) is not None]
    return [change.ban for change in changes if change is not None]


def part(txn: Any, dbi: Any, row: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Return `STEP` rows of a database, from `row` on, and the row to go on with; None at the end."""
    with txn.cursor(dbi) as cursor:
        if not cursor.set_range(row):
            return [], None
        rows = list(islice(cursor.iternext(), STEP + 1))
    return (rows[:STEP], rows[STEP][0]) if len(rows) > STEP else (rows, None)


def salvage(path: Path) -> list[Ban]:
    """Return the bans whose records can be found in a damaged file, except those that were lifted since."""
    newest: dict[str, tuple[int, BanChange]] = {}
    window = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            window = window[-_LONGEST:] + block  # a record may lie in two blocks
            at = window.find(_MARK)
            while at >= 0:
                record = _read_record(window[at : at + _LONGEST])
                if record is not None:
                    key = record[1].ban.key
                    newest[key] = max(newest.get(key, record), record, key=lambda one: one[0])
                at = window.find(_MARK, at + 1)
    return [change.ban for _, change in newest.values() if change.kind == "banned"]


def read_change(packed: bytes) -> BanChange | None:
    """Return the change of a record; None if there is none, or if it is damaged."""
    record = _read_record(packed)
    return None if record is None else record[1]


def _read_record(packed: bytes) -> tuple[int, BanChange] | None:
    if len(packed) < _RECORD.size:
        return None
    mark, length, checksum = _RECORD.unpack_from(packed)
    body = packed[_RECORD.size : _RECORD.size + length]
    if mark != _MARK or not length or len(body) < length or crc32(body) != checksum:
        return None  # of nothing the checksum is 0, as zeros behind half a record say
    number, kind, fields, wall_us, by = json.loads(body)
    return number, BanChange(kind, Ban(*fields), wall_us, by)


def _pack_change(number: int, change: BanChange) -> bytes:
    body = json.dumps([number, *change], separators=(",", ":")).encode()
    return _RECORD.pack(_MARK, len(body), crc32(body)) + body


def policy_of(row: bytes) -> str:
    """Return the name of the policy of a row of `struck`."""
    return text_of(row[: -_NUMBER.size - 1])


def row_of(*names: str) -> bytes:
    """Return the key of a row: some names with NUL between them."""
    return "\0".join(names).encode()


def text_of(row: bytes) -> str:
    """Return a name that was written as bytes."""
    return row.decode()


@lru_cache(maxsize=16)
def _lengths(census: bytes) -> dict[int, list[tuple[bytes, int]]]:
    """Return how the rows of networks are found, for each version and length in use.

    That is the beginning of the row, and how many bits of an address to drop.
    """
    lengths: dict[int, list[tuple[bytes, int]]] = {4: [], 6: []}
    for version, prefix, _ in _COUNTED.iter_unpack(census):
        if version in lengths:
            lengths[version].append((bytes((version, prefix)), BITS[version] - prefix))
    return lengths


def _next_number(txn: Any, dbs: Databases) -> int:
    packed = txn.get(BAN_NUMBER, None, dbs.meta)
    number = 1 if packed is None else int(_NUMBER.unpack(packed)[0]) + 1
    txn.put(BAN_NUMBER, _NUMBER.pack(number), db=dbs.meta)
    return number


def _network(place: tuple[int, int, bytes]) -> bytes:
    """Return the row of a network."""
    version, prefix, bits = place
    return bytes((version, prefix)) + bits


def _ends(row: bytes, ban: Ban) -> list[bytes]:
    """Return the rows of the end of a ban by each clock."""
    return [clock + _NUMBER.pack(max(end_us, 0)) + row for clock, end_us in zip(_CLOCKS, ban.ends(), strict=False)]


def _pack_record(record: StrikeRecord) -> bytes:
    strikes = [list(strike) for strike in record.strikes]
    return json.dumps([record.level, record.last_us, record.until_us, strikes], separators=(",", ":")).encode()


def _unpack_record(row: bytes) -> StrikeRecord:
    level, last_us, until_us, strikes = json.loads(row[_NUMBER.size :])
    return StrikeRecord(level, last_us, until_us, [Strike(*strike) for strike in strikes])
