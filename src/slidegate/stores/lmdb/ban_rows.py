"""Bans, strikes and levels as rows of an LMDB environment, as the rules of `core.bans.rules` read and change them.

    bans        key                       record of the ban
    networks    version, length, bits     the key of a ban that is a network
    ban_ends    clock, end, key           nothing: the index of ends, in the store's time and in Unix time
    prefixes    key                       nothing: the networks that policies banned
    history     number                    record of a change
    standings   policy NUL key            place in the queue, then the strike record as JSON
    struck      policy NUL place          key: the one that was struck longest ago comes first
    policies    policy                    JSON: a few numbers of it, how many records it has, the ring of its bans
    meta        "bans"                    how many bans of each length of network there are, and of other keys

So an address is looked up with one question for each length that is in use, and where nobody is banned with none.

A *record* can be found again in a file whose pages nobody can follow any more::

    mark (4 bytes)   version   kind   number (uint64)   length (uint16)   CRC-32 of what follows   JSON

Numbers go up with every change, so the newest record of a key says whether it is banned.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from struct import Struct
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from zlib import crc32

from ...core.addresses import BITS
from ...core.bans.ban import Ban, BanChange, BanSubject, network_place
from ...core.bans.rules import MAX_HISTORY
from ...core.bans.strikes import PolicyState, Strike, StrikeRecord
from ...core.decision import Check
from ...core.limits import Limit
from .layout import BAN_NUMBER, CENSUS, Databases

RECORD_VERSION: Final = 1
BANNED: Final = 1
UNBANNED: Final = 2
KEPT: Final = 3
"""A ban as it stands in `bans`, which is no entry of the history."""
STEP: Final = 200
"""How many rows are read at once: an event loop waits for them, a millisecond or two."""

_KINDS: Final = {"banned": BANNED, "unbanned": UNBANNED}
_MARK: Final = b"\xb5SGB"
_RECORD: Final = Struct("=4sBBQHI")
_NUMBER: Final = Struct(">Q")
_COUNTED: Final = Struct(">BBI")
_CLOCKS: Final = b"s", b"u"
_END_BYTES: Final = 1 + _NUMBER.size
_LONGEST_ROW: Final = 256
_WITHOUT_SLASH: Final = frozenset((32, 64, 128))
"""Lengths of the networks that a bare address may mean."""
_SWEEP_STEP: Final = 64


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


class BanRows:
    """The bans in one transaction, those that are over and were not swept yet among them."""

    def __init__(self, txn: Any, dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs

    def __len__(self) -> int:
        return int(self._txn.stat(self._dbs.bans)["entries"])

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
        self._count(place, 1)

    def remove(self, key: str) -> Ban | None:
        """Take a ban out, and return it."""
        row = row_of(key)
        ban = self._at(row)
        if ban is None:
            return None
        self._txn.delete(row, b"", self._dbs.bans)
        self._txn.delete(row, b"", self._dbs.prefixes)
        for end in _ends(row, ban):
            self._txn.delete(end, b"", self._dbs.ban_ends)
        place = network_place(key)
        if place is not None:
            self._txn.delete(_network(place), b"", self._dbs.networks)
        self._count(place, -1)
        return ban

    def prolong(self, ban: Ban, now_us: int) -> Ban:
        """Let a ban that requests prolong go on from now, and return it."""
        if ban.ends_us is None or now_us + ban.prolong_us <= ban.ends_us:
            return ban
        row, prolonged = row_of(ban.key), ban._replace(ends_us=now_us + ban.prolong_us)
        for end in _ends(row, ban):
            self._txn.delete(end, b"", self._dbs.ban_ends)
        self._write(row, prolonged)
        return prolonged

    def remove_expired(self, now_us: int, wall_us: int, most: int = 2) -> bool:
        """Delete bans that are over, no more than `most` by each clock; return whether there are more."""
        left = False
        for clock, moment_us in zip(_CLOCKS, (now_us, wall_us), strict=True):
            with self._txn.cursor(self._dbs.ban_ends) as ends:
                for step in range(most + 1):
                    if not ends.set_range(clock) or ends.key() > clock + _NUMBER.pack(moment_us) + b"\xff":
                        break
                    if step == most:
                        left = True
                        break
                    end = ends.key()
                    ban = self._at(end[_END_BYTES:])
                    if ban is None or end not in _ends(end[_END_BYTES:], ban):
                        ends.delete()  # its ban cannot be read any more
                    else:
                        self.remove(ban.key)
        return left

    def has_room(self, most: int, now_us: int, wall_us: int) -> bool:
        """Return whether fewer than `most` bans are in force. Those that are over are deleted as far as need be."""
        while len(self) >= most and self.remove_expired(now_us, wall_us, _SWEEP_STEP):
            pass
        return len(self) < most

    def remember(self, change: BanChange) -> None:
        """Add an entry to the history, and delete the oldest one beyond `MAX_HISTORY`."""
        number = self._next_number()
        packed = _record(_KINDS[change.kind], number, change.ban, change.wall_us, change.by)
        self._txn.put(_NUMBER.pack(number), packed, db=self._dbs.history)
        if self._txn.stat(self._dbs.history)["entries"] > MAX_HISTORY:
            with self._txn.cursor(self._dbs.history) as cursor:
                cursor.first()
                cursor.delete()

    def _at(self, row: bytes) -> Ban | None:
        packed = self._txn.get(row, None, self._dbs.bans)
        record = None if packed is None else read_record(packed)
        return None if record is None else record.ban

    def _write(self, row: bytes, ban: Ban) -> None:
        packed = _record(KEPT, self._next_number(), ban, ban.wall_us, ban.by)
        self._txn.put(row, packed, db=self._dbs.bans)
        for end in _ends(row, ban):
            self._txn.put(end, b"", db=self._dbs.ban_ends)

    def _count(self, place: tuple[int, int, bytes] | None, more: int) -> None:
        """Count the bans of a length of network, or of other keys."""
        census = self._txn.get(CENSUS, None, self._dbs.meta) or b""
        counts = {(version, prefix): count for version, prefix, count in _COUNTED.iter_unpack(census)}
        kind = (0, 0) if place is None else place[:2]
        counts[kind] = counts.get(kind, 0) + more
        census = b"".join(_COUNTED.pack(*kind, count) for kind, count in counts.items() if count)
        if census:
            self._txn.put(CENSUS, census, db=self._dbs.meta)
        else:
            self._txn.delete(CENSUS, b"", self._dbs.meta)

    def _next_number(self) -> int:
        packed = self._txn.get(BAN_NUMBER, None, self._dbs.meta)
        number = 1 if packed is None else int(_NUMBER.unpack(packed)[0]) + 1
        self._txn.put(BAN_NUMBER, _NUMBER.pack(number), db=self._dbs.meta)
        return number


class PrefixRows:
    """The networks that policies banned; some of these bans may be over."""

    def __init__(self, txn: Any, dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs

    def __len__(self) -> int:
        return int(self._txn.stat(self._dbs.prefixes)["entries"])

    def __iter__(self) -> Iterator[str]:
        with self._txn.cursor(self._dbs.prefixes) as cursor:
            yield from map(text_of, cursor.iternext(values=False))

    def add(self, key: str) -> None:
        """Add a network; it goes with its ban."""
        self._txn.put(row_of(key), b"", db=self._dbs.prefixes)

    def intersection_update(self, keys: Iterable[str]) -> None:
        """Keep only some of the networks."""
        kept = set(keys)
        for key in [key for key in self if key not in kept]:
            self._txn.delete(row_of(key), b"", self._dbs.prefixes)


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
            found = cursor.set_range(self._queue)
            while found and cursor.key().startswith(self._queue):
                key = text_of(cursor.value())
                record = self.get(key)
                assert record is not None
                yield key, record
                found = cursor.next()

    def get(self, key: str) -> StrikeRecord | None:
        """Return the strike record of a key."""
        row = self._txn.get(row_of(self._policy, key), None, self._dbs.standings)
        return None if row is None else _unpack_record(row)

    def put(self, key: str, record: StrikeRecord) -> None:
        """Record the strike record of a key that has none, at the end of the queue."""
        place = _NUMBER.pack(self._next_place())
        self._txn.put(self._queue + place, key.encode("utf-8", "surrogatepass"), db=self._dbs.struck)
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

    def _next_place(self) -> int:
        with self._txn.cursor(self._dbs.struck) as cursor:
            # The last place of this policy stands before the first row behind all of its places.
            behind = cursor.set_range(self._queue + b"\xff" * (_NUMBER.size + 1))
            if (cursor.prev() if behind else cursor.last()) and cursor.key().startswith(self._queue):
                return int(_NUMBER.unpack(cursor.key()[-_NUMBER.size :])[0]) + 1
        return 0


class PolicyStateRow(PolicyState):
    """The strike records under one policy, and the window of its bans."""

    strikes: StrikeQueueRows

    def __init__(self, txn: Any, dbs: Databases, name: str, row: bytes | None) -> None:
        known, count, made = (None, 0, "") if row is None else json.loads(row)
        super().__init__(StrikeQueueRows(txn, dbs, name, count))
        self.row = row
        self.made = bytes.fromhex(made)
        if known is not None:
            after_us, forgive_us, amount, window_us, resolution = known
            most = Limit(amount, timedelta(microseconds=window_us), resolution=resolution)
            # The rules ask for no more than this of a policy that this process has not met yet.
            self.policy = SimpleNamespace(  # type: ignore[assignment]
                after=SimpleNamespace(window_us=after_us), forgive_us=forgive_us, most=most
            )

    def packed(self) -> bytes:
        """Return the row to write."""
        policy, known = self.policy, None
        if policy is not None:
            most = policy.most
            known = policy.after.window_us, policy.forgive_us, most.amount, most.window_us, most.resolution
        return json.dumps([known, len(self.strikes), self.made.hex()]).encode()


class LmdbBanStorage:
    """All that is remembered about bans, in one transaction; changed states of policies are written by `save`."""

    def __init__(self, txn: Any, dbs: Databases) -> None:
        self._txn = txn
        self._dbs = dbs
        self._states: dict[str, PolicyStateRow] = {}
        self.active_bans = BanRows(txn, dbs)
        self.prefixes = PrefixRows(txn, dbs)

    def state(self, policy: str) -> PolicyStateRow | None:
        """Return the state of a policy; None if there is none."""
        found = self._states.get(policy)
        if found is None:
            row = self._txn.get(row_of(policy), None, self._dbs.policies)
            if row is None:
                return None
            found = self._states[policy] = PolicyStateRow(self._txn, self._dbs, policy, row)
        return found

    def open_state(self, policy: str) -> PolicyStateRow:
        """Return the state of a policy; make one if there is none."""
        found = self.state(policy)
        if found is None:
            found = self._states[policy] = PolicyStateRow(self._txn, self._dbs, policy, None)
        return found

    def states(self) -> list[PolicyStateRow]:
        """Return the states of all policies."""
        return list(self.by_name().values())

    def by_name(self) -> dict[str, PolicyStateRow]:
        """Return the state of each policy, by its name."""
        with self._txn.cursor(self._dbs.policies) as cursor:
            names = {text_of(row) for row in cursor.iternext(values=False)}
        return {name: self.open_state(name) for name in sorted(names.union(self._states))}

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


def bans_of(
    txn: Any, dbs: Databases, census: bytes, checks: Sequence[Check], subjects: Sequence[BanSubject]
) -> list[Ban]:
    """Return the bans of a demand, also those that are over, one perhaps more than once."""
    get, networks = txn.get, dbs.networks
    has_names, lengths = _read_census(census)
    rows = [row_of(key) for _, key, _ in checks if has_names or "/" in key]
    for one in subjects:
        if isinstance(one, str):
            rows.append(row_of(one))
            continue
        version, value = one
        for head, shift in lengths[version]:
            row = get(head + (value >> shift).to_bytes(16, "big"), None, networks)
            if row is not None:
                rows.append(row)
    if not rows:
        return []  # most requests end here
    records = [read_record(packed) for row in rows if (packed := get(row, None, dbs.bans)) is not None]
    return [record.ban for record in records if record is not None]


def part(txn: Any, dbi: Any, row: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    """Return `STEP` rows of a database, from `row` on, and the row to go on with; None at the end."""
    with txn.cursor(dbi) as cursor:
        if not cursor.set_range(row):
            return [], None
        found = list(islice(cursor.iternext(), STEP + 1))
    return (found[:STEP], found[STEP][0]) if len(found) > STEP else (found, None)


def salvage(path: Path) -> list[Ban]:
    """Return the bans whose records can be found in a damaged file, except those that were lifted since."""
    newest: dict[str, Record] = {}
    with path.open("rb") as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            at = pages.find(_MARK)
            while at >= 0:
                record = read_record(pages[at : at + _RECORD.size + 0xFFFF])
                if record is not None and (
                    record.ban.key not in newest or newest[record.ban.key].number <= record.number
                ):
                    newest[record.ban.key] = record
                at = pages.find(_MARK, at + 1)
    return [record.ban for record in newest.values() if record.kind != UNBANNED]


def read_record(packed: bytes) -> Record | None:
    """Read a record; None if there is none, or if it is damaged."""
    if len(packed) < _RECORD.size:
        return None
    mark, version, kind, number, length, checksum = _RECORD.unpack_from(packed)
    body = packed[_RECORD.size : _RECORD.size + length]
    if mark != _MARK or version != RECORD_VERSION or len(body) < length or crc32(body) != checksum:
        return None
    fields, wall_us, by = json.loads(body)
    return Record(kind, number, Ban(*fields), wall_us, by)


def policy_of(row: bytes) -> str:
    """Return the name of the policy of a row of `struck`."""
    return text_of(row[: -_NUMBER.size - 1])


def row_of(*parts: str) -> bytes:
    """Return the key of a row: some names with NUL between them. The end of a long one becomes a digest."""
    text = "\0".join(parts)
    try:
        row = text.encode()
    except UnicodeEncodeError:  # every hit comes here, and to ask for "surrogatepass" takes longer
        row = text.encode("utf-8", "surrogatepass")
    return row if len(row) <= _LONGEST_ROW else row[:_LONGEST_ROW] + blake2b(row, digest_size=32).digest()


def text_of(row: bytes) -> str:
    """Return a name that was written as bytes."""
    return row.decode("utf-8", "surrogatepass")


@lru_cache(maxsize=16)
def _read_census(census: bytes) -> tuple[bool, dict[int, list[tuple[bytes, int]]]]:
    """Return whether a key without a slash may be banned, and for the lengths of networks in use how rows are found.

    That is the beginning of the row and how many bits of an address to drop, by version.
    """
    has_names, found = False, dict[int, list[tuple[bytes, int]]]({4: [], 6: []})
    for version, prefix, _ in _COUNTED.iter_unpack(census):
        has_names = has_names or not version or prefix in _WITHOUT_SLASH
        if version:
            found[version].append((bytes((version, prefix)), BITS[version] - prefix))
    return has_names, found


def _network(place: tuple[int, int, bytes]) -> bytes:
    """Return the row of a network."""
    version, prefix, bits = place
    return bytes((version, prefix)) + bits


def _ends(row: bytes, ban: Ban) -> list[bytes]:
    """Return the rows of the end of a ban by each clock."""
    if ban.ends_us is None:
        return []
    moments = ban.ends_us, ban.wall_us + ban.ends_us - ban.made_us
    return [clock + _NUMBER.pack(max(end_us, 0)) + row for clock, end_us in zip(_CLOCKS, moments, strict=True)]


def _record(kind: int, number: int, ban: Ban, wall_us: int, by: str) -> bytes:
    body = json.dumps([list(ban), wall_us, by], separators=(",", ":")).encode()
    return _RECORD.pack(_MARK, RECORD_VERSION, kind, number, len(body), crc32(body)) + body


def _pack_record(record: StrikeRecord) -> bytes:
    strikes = [list(strike) for strike in record.strikes]
    return json.dumps([record.level, record.last_us, record.until_us, strikes], separators=(",", ":")).encode()


def _unpack_record(row: bytes) -> StrikeRecord:
    level, last_us, until_us, strikes = json.loads(row[_NUMBER.size :])
    return StrikeRecord(level, last_us, until_us, [Strike(*strike) for strike in strikes])
