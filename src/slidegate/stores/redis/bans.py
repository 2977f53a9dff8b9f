"""The bans of a Redis store: the commands of users, the refusal of requests, and what answers say about bans.

The ban of a key and its strikes lie beside its windows, see ``lua/banned.lua``, and the script of windows looks for the
bans of a request's keys where it decides about it. Strikes are counted by the rules of `core.bans` on rows that were
read, and written back where these rows are still what is there; who loses such a race reads again.

The bans of networks are a short list: every worker has all of it, and reads it again when an answer says that it has
changed. A list of the keys of all bans, by their end, says how many there are and lets them be listed.

Every answer also says which life of the data it belongs to. Another life begins after Redis has lost its data: then a
worker says how many bans it knew of.
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
from ...core.errors import StoreError, StoreUnavailable
from ...core.limits import MAX_WINDOW_US
from ...core.logs import Throttle
from ...core.store import BanStore, Clock, Event
from ..system_clock import system_us
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
from .clock import STEP_US
from .errors import sensible
from .refusals import RefusalCache, monotonic_us
from .requests import subjects_of
from .script import BANS_SCRIPT, Packing
from .strikes import KNOWN_US, Strike, StrikeSums, new_name

if TYPE_CHECKING:
    from .batch import Batcher

T = TypeVar("T")

CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
TRIES: Final = 3
"""How often a strike is decided anew because another worker has changed the rows of its key meanwhile."""
LIFE_BYTES: Final = 16
BEGIN_AGAIN_US: Final = 1_000_000
SLACK_MS: Final = 1_000
TEST_SLACK_MS: Final = 86_400_000
_TIME: Final = Struct("<q")
_COUNT: Final = Struct("<I")
COUNT_BYTES: Final = _COUNT.size
_REAL: Final = -1


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
        batcher: Returns the batcher of the running event loop.
        packing: Names keys.
        clock: The clock of a test.
        refusals: Remembers what was refused.
        emit: Passes events on.
        max_bans: How many bans to hold.
        read_only: Whether nothing is made where nothing of slidegate stands.

    Attributes:
        networks: The bans of networks, as Redis has said last.
        reset_us: When all windows were reset, as far as is known here; -1 for never.
    """

    def __init__(
        self,
        batcher: Callable[[], Batcher],
        packing: Packing,
        clock: Clock | None,
        refusals: RefusalCache,
        emit: Callable[[Sequence[Event]], None],
        max_bans: int,
        *,
        read_only: bool,
    ) -> None:
        self.networks = BannedNetworks()
        self.reset_us = -1
        self._batcher = batcher
        self._packing = packing
        self._names = packing.meta, packing.meta + b":index", packing.meta + b":networks"
        self._clock = clock
        self._refusals = refusals
        self._emit = emit
        self._max_bans = max_bans
        self._read_only = read_only
        self._sums = StrikeSums(self._strike)
        # Nothing sums strikes up by the clock of a test, so they come one after the other.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._throttle = Throttle(LOG_EVERY_US)
        self._version = b""
        self._reading = False
        self._count = 0
        self._life = b""
        self._begins = False
        self._begin_from_us = 0
        self._ahead_us = self._networks_ahead_us = 0

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
        return longest([*bans, *self._of_networks(subjects, self.now_us())])

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Where others of the key and policy were sent less than 100 ms ago, it is sent later, together with those that
        come meanwhile, unless they may be enough for a ban.
        """
        if self._clock is None:
            return await self._sums.strike(self._batcher().loop, Strike(policy, key, reason), weight)
        async with self._turns.setdefault(self._batcher().loop, asyncio.Lock()):
            made, _ = await self._strike(Strike(policy, key, reason), weight, new_name())
        return made

    def strike_later(self, policy: BanPolicy, key: str, weight: int, reason: str) -> bool:
        """Queue a strike until Redis answers again, for at most ten seconds; False if the strike is lost."""
        if self._clock is not None:
            return False
        return self._sums.add(self._batcher().loop, Strike(policy, key, reason), weight)

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
            made: Ban | None = None
            events: list[Event] = []
            if is_due:
                after, made = record.banned(policy, key, strike.reason, self._wall_us())
                events.append(shadow_banned(made) if policy.shadow else banned(made))
                if not policy.shadow and not await self._has_room(made):
                    made, events = None, []
                else:
                    record = after
            return _Change(None if policy.shadow else made, StruckRecord(key, record, heard), events)

        rows, change = await self._update(key, policy.name, decide)
        struck = rows.struck()
        counted = sum(count for _, count in struck.record.strikes) if struck is not None else 0
        made = change.ban if change is not None else None
        return made, policy.after.amount - counted

    @sensible
    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        now_us = await self._now_us()
        made = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us, self._wall_us())
        await self._put(made)
        self._emit((banned(made),))
        return made

    @sensible
    async def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        unsent = self._sums.forget(key)
        _, own, remembered = await self._command("forget", [], self._names_of(key))
        now_us, network = await self._command("lift", [key.encode(), self._new_version()], self._names)
        ban = longest([one for one in map(unpack_ban, (own, network)) if one is not None and not one.is_over(now_us)])
        self._refusals.clear()
        if network:
            await self.read_networks(self._batcher().ask)
        if ban is not None:
            self._emit((unbanned(ban, by),))
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
            names = [self._packing.name_of(key.decode(errors="replace")) for key in some]
            for ban in await asyncio.gather(*(self._stored_ban(batcher, name) for name in names)):
                if ban is not None and not ban.is_over(now_us):
                    found[ban.key] = ban
        return list(found.values())

    async def _stored_ban(self, batcher: Batcher, name: bytes) -> Ban | None:
        return unpack_stored(await self._asked(batcher, name, b"HGET", name, BAN_FIELD))

    def count(self) -> int:
        """Return how many bans Redis had when it was heard last: those in force, and those that ended lately."""
        return self._count

    @sensible
    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and levels, as `core.bans.rows` writes it."""
        bans, records = await self.active(), await self._records()
        return list(to_rows(Bans(bans, records), await self._now_us(), self._wall_us()))

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Take over rows that `dump` returned; of two bans of a key the one that lasts longer stays."""
        stored = from_rows(rows, await self._now_us(), self._wall_us())
        in_force = await self.active()
        new = {ban.key for ban in stored.bans if ban.level} - {ban.key for ban in in_force}
        check_room(self._max_bans, len(new), len(in_force), 0, 0)
        known = {ban.key: ban for ban in in_force}
        longer = [ban for ban in stored.bans if ban.key not in known or lasts_longer(ban, known[ban.key])]
        networks = self.networks
        for ban in longer:
            networks = networks.with_ban(ban) if ban.network() is not None else networks
        for ban in longer:
            if ban.network() is not None:
                await self._put(ban)
        async for bans in in_steps([ban for ban in longer if ban.network() is None]):
            await asyncio.gather(*map(self._put, bans))
        async for records in in_steps(stored.strike_records):
            await asyncio.gather(*(self._load_record(*one) for one in records))
        return len(stored.bans)

    @sensible
    async def reset_windows(self) -> None:
        """Let nothing be handed back that was spent in any window up to now."""
        _, reset = await self._command("reset_all", [self._refusals.latest_us], self._names)
        self.reset_us = max(self.reset_us, *_TIME.unpack(reset))

    # -- refusals of requests ---------------------------------------------------------------------------------------

    def refused_by_network(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> BanRefusal | None:
        """Return the refusal of a question by the ban of a network that is known here, None if there is none."""
        now_us = monotonic_us() + self._networks_ahead_us if self._clock is None else self._clock()
        ban = longest(self._of_networks(subjects_of(checks, subjects), now_us))
        return None if ban is None else BanRefusal(ban.by, ban, now_us, checks)

    def now_us(self) -> int:
        """Return the server's time, as far as it is known here."""
        return monotonic_us() + self._ahead_us if self._clock is None else self._clock()

    # -- news in every answer ------------------------------------------------------------------------------------

    def heard(self, batcher: Batcher, told: bytes, life: bytes) -> None:
        """Record what an answer says about bans.

        Args:
            batcher: The batcher that heard it.
            told: How many bans there are, and the version of those of networks.
            life: The life of the data; empty where it has none.
        """
        (count,) = _COUNT.unpack_from(told)
        if life:
            if life != self._life:
                before, self._life = self._life, life
                if before:
                    self._tell_loss()
            self._count = count
        elif self._read_only:
            batcher.attend(batcher.check_again())
        else:
            self._begin_soon(batcher)
        if told[_COUNT.size :] != self._version and not self._reading:
            self._reading = True
            batcher.attend(self._read_again(batcher))

    @sensible
    async def read_networks(self, ask: Callable[..., Awaitable[Any]]) -> None:
        """Read the bans of networks.

        Args:
            ask: Sends a command about bans.
        """
        names = (len(self._names), *self._names)
        packed, version, fields = await ask(b"EVAL", BANS_SCRIPT.source, *names, b"networks", self._time())
        bans = [read_ban(row) for row in fields[1::2]]
        self.networks, self._version = BannedNetworks(ban for ban in bans if ban is not None), version
        self._refusals.bans.clear()
        self.saw(*_TIME.unpack(packed))
        self._networks_ahead_us = self._ahead_us

    @sensible
    async def hear(self, batcher: Batcher) -> None:
        """Ask what answers say about bans, where the script of windows does not see it."""
        _, told, life, reset = await self._command("news", [], self._names)
        self.reset_us = max(self.reset_us, int(reset))
        self.heard(batcher, told, life)

    async def _read_again(self, batcher: Batcher) -> None:
        try:
            await self.read_networks(batcher.ask)
        finally:
            self._reading = False

    def _begin_soon(self, batcher: Batcher) -> None:
        if not self._begins and monotonic_us() >= self._begin_from_us:
            self._begins = True
            batcher.attend(self._begin(batcher))

    async def _begin(self, batcher: Batcher) -> None:
        """Give the data a life, where nobody has, and learn which it is."""
        meta = self._names[0]
        try:
            await batcher.ask(b"HSETNX", meta, b"life", os.urandom(LIFE_BYTES // 2).hex().encode())
            await batcher.ask(b"PEXPIRE", meta, MAX_WINDOW_US // 1_000)
            self._life = self._life or await batcher.ask(b"HGET", meta, b"life") or b""
        except StoreError:
            self._begin_from_us = monotonic_us() + BEGIN_AGAIN_US
            raise
        finally:
            self._begins = False

    def _tell_loss(self) -> None:
        known = self._count
        message = f"Redis lost its data: counts restart from zero; {known} known bans were lost"
        self._emit((Event("store_reset", message, {"bans": known}),))

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
            ban_ms, record_ms = (left_ms(end_us, rows.now_us, self._slack_ms) for end_us in (ban_ends_us, over_us))
            asked: list[bytes | int] = [field, rows.packed_ban, rows.packed_record, ban, ban_ms, record, record_ms]
            now_us, ban, record, written = await self._command("write", asked, self._names_of(key))
            rows = _Rows(now_us, ban, record)
            if written:
                self._emit(change.events)
                return rows, change
        raise StoreUnavailable("redis: the strikes of a key change with every answer", concerns="key")

    async def _read(self, key: str, policy: str = "") -> _Rows:
        now_us, ban, record = await self._command("read", [policy.encode()], self._names_of(key))
        return _Rows(now_us, ban, record)

    def _names_of(self, key: str) -> tuple[bytes, bytes]:
        return self._packing.name_of(key), self._packing.strikes_name(key)

    async def _put(self, ban: Ban) -> None:
        """Put a ban in force, in the place of one of its key."""
        await self._note(ban)
        row, lives_ms = pack_ban(ban), left_ms(ban.ends_us, self.now_us(), self._slack_ms)
        if ban.network() is None:
            await self._command("put", [row, lives_ms], self._names_of(ban.key))
            return
        asked: list[bytes | int] = [ban.key.encode(), row, lives_ms, MAX_NETWORKS, self._new_version()]
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

    async def _asked(self, batcher: Batcher, name: bytes, *command: bytes) -> Any:
        """Return the answer to a command about a name; None if a value of somebody else stands there."""
        try:
            return await batcher.ask_about(name, *command)
        except StoreUnavailable as error:
            if error.concerns != "key":
                raise
            return None

    async def _records(self) -> list[tuple[str, str, StrikeRecord]]:
        """Return (policy, key, record) of all keys that have one, which are searched for among all names."""
        batcher, found = self._batcher(), list[tuple[str, str, StrikeRecord]]()
        now_us = await self._now_us()
        async for names in in_steps(await batcher.names(self._packing.strikes)):
            asked = await asyncio.gather(*(self._asked(batcher, name, b"HGETALL", name) for name in names))
            for fields in filter(None, asked):
                for policy, row in zip(fields[::2], fields[1::2], strict=True):
                    struck = read_record(row)
                    if struck is not None and struck.record.over_us > now_us:
                        found.append((policy.decode(errors="replace"), struck.key, struck.record))
        return found

    async def _has_room(self, ban: Ban) -> bool:
        """Note an automatic ban; where there are too many, take the note back and return False."""
        if await self._note(ban) <= self._max_bans:
            return True
        await self._batcher().ask(b"ZREM", self.index_name, ban.key.encode())
        if self._throttle.left_out("bans_full", monotonic_us()) is not None:
            self._emit((bans_full(self._max_bans, ban.key),))
        return False

    async def _note(self, ban: Ban) -> int:
        """Note the key of a ban and its end; return how many bans there are."""
        end: bytes | int = b"+inf" if ban.ends_us is None else ban.ends_us
        _, self._count = await self._command("note", [ban.key.encode(), end], self._names)
        return self._count

    async def _now_us(self) -> int:
        now_us, self._count = await self._command("count", [], self._names)
        return int(now_us)

    async def _command(self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes]) -> list[Any]:
        """Run a command of ``lua/bans.lua``; return the server's time, and what else it answers."""
        batcher = self._batcher()
        packed, *answer = await batcher.run(BANS_SCRIPT, keys, [name.encode(), self._time(), *asked])
        if not (self._life or self._read_only):
            self._begin_soon(batcher)
        (now_us,) = _TIME.unpack(packed)
        self.saw(now_us)
        return [now_us, *answer]

    def saw(self, now_us: int) -> None:
        """Note the server's time."""
        self._ahead_us = now_us - monotonic_us()
        # The bans of networks that were read last go by the clock of that time, where it was set back since.
        if self._ahead_us > self._networks_ahead_us - STEP_US:
            self._networks_ahead_us = self._ahead_us

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

    def _time(self) -> int:
        return _REAL if self._clock is None else self._clock()

    def _wall_us(self) -> int:
        return system_us() if self._clock is None else self._clock()

    @property
    def _slack_ms(self) -> int:
        return SLACK_MS if self._clock is None else TEST_SLACK_MS

    def _new_version(self) -> bytes:
        return os.urandom(8)


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
