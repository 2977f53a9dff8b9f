"""The bans of a Redis store: the commands of users, the refusal of requests, and what changes.

The ban of a key and its strikes lie beside its windows, see ``lua/banned.lua``, and the script of windows looks for the
bans of a request's keys where it decides about it. Strikes are counted by the rules of `core.bans` on rows that were
read, and written back where these rows are still what is there; who loses such a race reads again.

The bans of networks are a short list: every worker has all of it, asks once a second whether it has changed, and reads
it again then. A list of the keys of all bans, by their end, says how many there are and lets them be listed.

A worker hears as well which life of the data this is. Another life begins after Redis has lost its data: then a worker
says how many bans it knew of.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ...core.bans.ban import Ban, BanSubject, lasts_longer, longest
from ...core.bans.networks import MAX_NETWORKS, BannedNetworks, too_many_networks
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.rules import LOG_EVERY_US, banned, bans_full, check_room, shadow_banned, unbanned
from ...core.bans.strikes import StrikeRecord
from ...core.decision import BanRefusal, Check
from ...core.errors import StoreUnavailable
from ...core.logs import Throttle
from ...core.store import BanStore, Event
from .ban_rows import (
    BAN_FIELD,
    StruckRecord,
    left_ms,
    pack_ban,
    pack_record,
    read_ban,
    read_record,
    unpack_ban,
    unpack_record,
    unpack_stored,
)
from .clock import monotonic_us
from .errors import sensible, unless_foreign
from .requests import subjects_of
from .script import BANS_SCRIPT
from .strikes import KNOWN_US, Strike, StrikeSums, new_name

if TYPE_CHECKING:
    from .batch import Shared

T = TypeVar("T")

CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
TRIES: Final = 3
"""How often a strike is decided anew because another worker has changed the rows of its key meanwhile."""
_TIME: Final = Struct("<q")


class _Rows(NamedTuple):
    """The rows of a key and a policy at a moment of the server's time."""

    now_us: int
    packed_ban: bytes
    packed_record: bytes

    def ban(self) -> Ban | None:
        """Return the ban in force."""
        return unpack_ban(self.packed_ban)

    def struck(self) -> StruckRecord | None:
        """Return the strike record."""
        return unpack_record(self.packed_record)


class _Change(NamedTuple):
    """What is written in the place of the rows of a key, and the events to emit then."""

    ban: Ban | None
    struck: StruckRecord | None
    events: Sequence[Event]


class RedisBans(BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        shared: The parts of the store.

    Attributes:
        networks: The bans of networks, as Redis has said last.
        version: Which version of `networks` that is; they are read again where Redis says that it has another one.
    """

    def __init__(self, shared: Shared) -> None:
        meta = shared.packing.meta
        self.networks = BannedNetworks()
        self._shared = shared
        self._time = shared.time
        self._batcher = shared.batcher
        self._names = meta, meta + b":index", meta + b":networks"
        self._sums = StrikeSums(self._strike)
        # Nothing sums strikes up by the clock of a test, so they come one after the other.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._throttle = Throttle(LOG_EVERY_US)
        self.version = b""
        self._count = 0
        self._life = b""

    @property
    def index_name(self) -> bytes:
        """The name of the sorted set with the keys of all bans."""
        return self._names[1]

    # -- commands of users ------------------------------------------------------------------------------------------

    @sensible
    async def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. Changes nothing."""
        await self.read_networks(self._batcher().ask)
        keys = dict.fromkeys(subject for subject in subjects if isinstance(subject, str))
        found = await asyncio.gather(*map(self._read, keys))
        bans = [ban for rows in found if (ban := rows.ban()) is not None]
        return longest([*bans, *self._of_networks(subjects, self._time.now_us())])

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Where others of the key and policy were sent less than 100 ms ago, it is sent later, together with those that
        come meanwhile, unless they may be enough for a ban.
        """
        if self._time.is_real:
            return await self._sums.strike(self._batcher().loop, Strike(policy, key, reason), weight)
        async with self._turns.setdefault(self._batcher().loop, asyncio.Lock()):
            made, _ = await self._strike(Strike(policy, key, reason), weight, new_name())
        return made

    def strike_later(self, policy: BanPolicy, key: str, weight: int, reason: str) -> bool:
        """Count a strike as soon as Redis answers again, if that is within ten seconds; False if it is lost."""
        # Strikes wait for a moment of the server's time.
        return self._time.is_real and self._sums.add(self._batcher().loop, Strike(policy, key, reason), weight)

    @sensible
    async def _strike(self, strike: Strike, weight: int, name: str) -> tuple[Ban | None, int]:
        """Count strikes in Redis, once under a name; return the ban that was made, and how many the next one takes."""
        policy, key = strike.policy, strike.key

        async def decide(rows: _Rows) -> _Change | None:
            now_us, struck = rows.now_us, rows.struck()
            before = StruckRecord(key, StrikeRecord()) if struck is None or struck.record.over_us <= now_us else struck
            heard = [(known, at_us) for known, at_us in before.heard if at_us > now_us - KNOWN_US]
            network = self.networks.bans.get(key)
            is_banned = bool(rows.packed_ban) or (network is not None and not network.is_over(now_us))
            if is_banned or any(known == name for known, _ in heard):
                return None
            heard.append((name, now_us))
            record, is_due = before.record.struck(policy, now_us, weight)
            if not is_due:
                return _Change(None, StruckRecord(key, record, heard), [])
            after, made = record.banned(policy, key, strike.reason, self._time.unix_us())
            if policy.shadow:
                return _Change(None, StruckRecord(key, after, heard), [shadow_banned(made)])
            if not await self._has_room(made):
                return _Change(None, StruckRecord(key, record, heard), [])
            return _Change(made, StruckRecord(key, after, heard), [banned(made)])

        rows, change = await self._update(key, policy.name, decide)
        struck = rows.struck()
        counted = sum(count for _, count in struck.record.strikes) if struck is not None else 0
        made = change.ban if change is not None else None
        return made, policy.after.amount - counted

    @sensible
    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        now_us = await self._now_us()
        made = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us, self._time.unix_us())
        await self._put(made)
        self._shared.tell((banned(made),))
        return made

    @sensible
    async def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        unsent = self._sums.forget(key)
        _, own, remembered = await self._command("forget", [], self._names_of(key))
        now_us, network = await self._command("lift", [key.encode(), os.urandom(8)], self._names)
        ban = longest([one for one in map(unpack_ban, (own, network)) if one is not None and not one.is_over(now_us)])
        self._shared.refusals.clear()
        if network:
            await self.read_networks(self._batcher().ask)
        if ban is not None:
            self._shared.tell((unbanned(ban, by),))
        return ban is not None or bool(remembered) or unsent

    @sensible
    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        batcher = self._batcher()
        await self.read_networks(batcher.ask)
        now_us = await self._now_us()
        keys = await batcher.ask(b"ZRANGEBYSCORE", self.index_name, b"(%d" % now_us, b"+inf")
        found = {ban.key: ban for ban in self.networks.bans.values() if not ban.is_over(now_us)}
        async for some in in_steps(keys):
            names = [self._shared.packing.name_of(key.decode(errors="replace")) for key in some]
            rows = (unless_foreign(batcher.ask_about(name, b"HGET", name, BAN_FIELD)) for name in names)
            for ban in map(unpack_stored, await asyncio.gather(*rows)):
                if ban is not None and not ban.is_over(now_us):
                    found[ban.key] = ban
        return list(found.values())

    def count(self) -> int:
        """Return how many bans Redis had when it was heard last: those in force, and those that ended lately."""
        return self._count

    @sensible
    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and levels, as `core.bans.rows` writes it."""
        bans, records = await self.active(), await self._records()
        return list(to_rows(Bans(bans, records), await self._now_us(), self._time.unix_us()))

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Take over rows that `dump` returned; of two bans of a key the one that lasts longer stays."""
        stored = from_rows(rows, await self._now_us(), self._time.unix_us())
        in_force = await self.active()
        new = {ban.key for ban in stored.bans if ban.level} - {ban.key for ban in in_force}
        check_room(self._shared.max_bans, len(new), len(in_force), 0, 0)
        known = {ban.key: ban for ban in in_force}
        longer = [ban for ban in stored.bans if ban.key not in known or lasts_longer(ban, known[ban.key])]
        of_networks, networks = [ban for ban in longer if ban.network() is not None], self.networks
        for ban in of_networks:
            networks = networks.with_ban(ban)  # it raises the error where there are too many
        for ban in of_networks:
            await self._put(ban)
        async for bans in in_steps([ban for ban in longer if ban.network() is None]):
            await asyncio.gather(*map(self._put, bans))
        async for records in in_steps(stored.strike_records):
            await asyncio.gather(*(self._load_record(*one) for one in records))
        return len(stored.bans)

    # -- refusals of requests ---------------------------------------------------------------------------------------

    def refused_by_network(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> BanRefusal | None:
        """Return the refusal of a question by the ban of a network that is known here, None if there is none."""
        now_us = self._time.now_us()
        ban = longest(self._of_networks(subjects_of(checks, subjects), now_us))
        return None if ban is None else BanRefusal(ban.by, ban, now_us, checks)

    # -- news --------------------------------------------------------------------------------------------------------

    @sensible
    async def hear(self, ask: Callable[..., Awaitable[Any]]) -> None:
        """Ask what has changed: how many bans there are, the bans of networks, and the life of the data.

        Args:
            ask: Sends a command about bans.

        Raises:
            StoreUnavailable: Nothing of slidegate stands there, and nothing may be made.
        """
        begins = b"" if self._shared.read_only else os.urandom(8).hex().encode()
        count, version, life = await self._ask_about_all(ask, b"news", begins)
        if self._shared.read_only and not life:
            raise StoreUnavailable(f"redis: nothing of slidegate stands under {self._names[0].decode()}")
        known, self._count = self._count, count
        before, self._life = self._life, life
        if before not in (b"", life):
            message = f"Redis lost its data: counts restart from zero; {known} known bans were lost"
            self._shared.tell((Event("store_reset", message, {"bans": known}),))
        if version != self.version:
            await self.read_networks(ask)

    @sensible
    async def read_networks(self, ask: Callable[..., Awaitable[Any]]) -> None:
        """Read the bans of networks; `ask` as for `hear`."""
        version, fields = await self._ask_about_all(ask, b"networks")
        bans = [read_ban(row) for row in fields[1::2]]
        self.networks, self.version = BannedNetworks(ban for ban in bans if ban is not None), version
        self._shared.refusals.bans.clear()

    async def _ask_about_all(self, ask: Callable[..., Awaitable[Any]], *asked: bytes) -> list[Any]:
        """Run a command about all bans on a server that need not know the script; return what it answers."""
        name, *more = asked
        names, time = (len(self._names), *self._names), self._time.for_script()
        answer: list[Any]
        packed, *answer = await ask(b"EVAL", BANS_SCRIPT.source, *names, name, time, *more)
        self._time.saw(*_TIME.unpack(packed))
        return answer

    # -- commands for Redis ------------------------------------------------------------------------------------------

    async def _update(
        self, key: str, policy: str, decide: Callable[[_Rows], Awaitable[_Change | None]]
    ) -> tuple[_Rows, _Change | None]:
        """Change the ban of a key, and its strike record under a policy, by what stands there.

        Args:
            key: The key.
            policy: The policy; empty where no record is changed.
            decide: Returns what to write; None for nothing. It is asked again where another worker was faster.

        Returns:
            What stands there now, and what was written.

        Raises:
            StoreUnavailable: Others were faster each time.
        """
        field, rows = policy.encode(), await self._read(key, policy)
        for _ in range(TRIES):
            change = await decide(rows)
            if change is None:
                return rows, None
            ban, record = pack_ban(change.ban), pack_record(change.struck)
            ban_ends_us = 0 if change.ban is None else change.ban.ends_us
            over_us = 0 if change.struck is None else change.struck.record.over_us
            ban_ms, record_ms = (left_ms(end_us, rows.now_us, self._time.slack_ms) for end_us in (ban_ends_us, over_us))
            asked: list[bytes | int] = [field, rows.packed_ban, rows.packed_record, ban, ban_ms, record, record_ms]
            now_us, ban, record, written = await self._command("write", asked, self._names_of(key))
            rows = _Rows(now_us, ban, record)
            if written:
                self._shared.tell(change.events)
                return rows, change
        raise StoreUnavailable("redis: the strikes of a key change with every answer", concerns="key")

    async def _read(self, key: str, policy: str = "") -> _Rows:
        now_us, ban, record = await self._command("read", [policy.encode()], self._names_of(key))
        return _Rows(now_us, ban, record)

    def _names_of(self, key: str) -> tuple[bytes, bytes]:
        return self._shared.packing.name_of(key), self._shared.packing.strikes_name(key)

    async def _put(self, ban: Ban) -> None:
        """Put a ban in force, in the place of one of its key."""
        await self._note(ban)
        row, lives_ms = pack_ban(ban), left_ms(ban.ends_us, self._time.now_us(), self._time.slack_ms)
        if ban.network() is None:
            await self._command("put", [row, lives_ms], self._names_of(ban.key))
            return
        asked: list[bytes | int] = [ban.key.encode(), row, lives_ms, MAX_NETWORKS, os.urandom(8)]
        _, written = await self._command("ban_network", asked, self._names)
        if not written:
            await self._batcher().ask(b"ZREM", self.index_name, ban.key.encode())
            raise too_many_networks(ban.key)
        await self._command("put", [b"", 0], self._names_of(ban.key))
        await self.read_networks(self._batcher().ask)

    async def _load_record(self, policy: str, key: str, record: StrikeRecord) -> None:
        async def decide(rows: _Rows) -> _Change | None:
            struck = rows.struck()
            if struck is not None and struck.record.last_us > record.last_us:
                return None
            return _Change(rows.ban(), StruckRecord(key, record), [])

        await self._update(key, policy, decide)

    async def _records(self) -> list[tuple[str, str, StrikeRecord]]:
        """Return (policy, key, record) of all keys that have one, which are searched for among all names."""
        batcher, found = self._batcher(), dict[tuple[str, str], StrikeRecord]()
        now_us = await self._now_us()
        async for names in batcher.names(self._shared.packing.strikes, CHUNK):
            asked = await asyncio.gather(*(unless_foreign(batcher.ask_about(name, b"HGETALL", name)) for name in names))
            for fields in filter(None, asked):
                for policy, row in zip(fields[::2], fields[1::2], strict=True):
                    struck = read_record(row)
                    if struck is not None and struck.record.over_us > now_us:
                        found[policy.decode(errors="replace"), struck.key] = struck.record
        return [(*whose, record) for whose, record in found.items()]

    async def _has_room(self, ban: Ban) -> bool:
        """Note an automatic ban; where there are too many, take the note back and return False."""
        if await self._note(ban) <= self._shared.max_bans:
            return True
        await self._batcher().ask(b"ZREM", self.index_name, ban.key.encode())
        if self._throttle.left_out("bans_full", monotonic_us()) is not None:
            self._shared.tell((bans_full(self._shared.max_bans, ban.key),))
        return False

    async def _note(self, ban: Ban) -> int:
        """Note the key of a ban and its end; return how many bans there are."""
        end: bytes | int = b"+inf" if ban.ends_us is None else ban.ends_us
        _, self._count = await self._command("note", [ban.key.encode(), end], self._names)
        return self._count

    async def _now_us(self) -> int:
        now_us, self._count = await self._command("note", [], self._names)
        return int(now_us)

    async def _command(self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes]) -> list[Any]:
        """Run a command of ``lua/bans.lua``; return the server's time, and what else it answers."""
        packed, *answer = await self._batcher().run(BANS_SCRIPT, keys, [name.encode(), self._time.for_script(), *asked])
        (now_us,) = _TIME.unpack(packed)
        self._time.saw(now_us)
        return [now_us, *answer]

    def _of_networks(self, subjects: Iterable[BanSubject], now_us: int) -> list[Ban]:
        networks = self.networks
        if not networks.bans:
            return []
        found: list[Ban] = []
        for one in subjects:
            if not isinstance(one, str):
                found += networks.of(one)
            elif one in networks.bans:
                found.append(networks.bans[one])
        return [ban for ban in (_begun_by(ban, now_us) for ban in found) if not ban.is_over(now_us)]


def _begun_by(ban: Ban, now_us: int) -> Ban:
    """Return a ban that begins no later than now: a server whose clock was set back does not prolong it."""
    if ban.made_us <= now_us:
        return ban
    return ban._replace(made_us=now_us, ends_us=None if ban.ends_us is None else ban.ends_us - ban.made_us + now_us)


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks go on in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)
