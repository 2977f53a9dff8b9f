"""The bans of a Redis store: the commands of users, the refusal of requests, and polling for changes.

The ban of a key is beside its windows, see ``lua/banned.lua``, and the windows script
reads the bans of a request's keys when it decides the request. Strikes are counted by the rules of `core.bans` on rows
that were read, and written back by compare-and-set; a worker that loses the race reads again.

The bans of networks are a short list. Every worker keeps a copy, polls its version once a second, and reads it again
when the version has changed. A sorted set of all banned keys, by end, counts and lists the bans.

The poll also returns the identity of the data, called its life. It changes when Redis has lost its data; a worker then
reports how many bans it knew of. The first poll also looks whether Redis evicts keys, and so limits and bans.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from ...core.bans.ban import Ban, BanSubject, lasts_longer, longest
from ...core.bans.networks import MAX_NETWORKS, BannedNetworks, too_many_networks
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Row, from_rows, to_rows
from ...core.bans.rules import LOG_EVERY_US, banned, bans_full, shadow_banned, unbanned
from ...core.bans.strikes import StrikeRecord
from ...core.decision import Check, Decision, refused_by_ban
from ...core.errors import StoreUnavailable
from ...core.logs import Throttle
from ...core.store import BanStore, Event
from .ban_rows import (
    StruckRecord,
    left_ms,
    pack_ban,
    pack_record,
    unpack_ban,
    unpack_record,
)
from .clock import monotonic_us
from .errors import sensible
from .strikes import KNOWN_US, Strike, StrikeSums, new_name

if TYPE_CHECKING:
    from .batch import Ask, Shared

T = TypeVar("T")

CHUNK: Final = 200
"""How many bans are read or written in one step, which blocks an event loop, or Redis, for about 2 ms."""
TRIES: Final = 3
"""How often a strike is decided, if another worker changes the rows of its key each time."""
_KEEPS: Final = "noeviction"
_POLICY: Final = re.compile(r"^maxmemory_policy:([a-z-]+)", re.MULTILINE)
_BOUNDED: Final = re.compile(r"^maxmemory:[1-9]", re.MULTILINE)


class _Rows(NamedTuple):
    """The ban of a key and its strike record under a policy, and the server's time when they were read."""

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
    """The new rows of a key, and the events to emit when they are written."""

    ban: Ban | None
    struck: StruckRecord | None
    events: Sequence[Event]


class RedisBans(BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        shared: The parts of the store.

    Attributes:
        networks: The bans of networks, as last read from Redis.
        version: The version of `networks`; they are read again when Redis reports another one.
    """

    def __init__(self, shared: Shared) -> None:
        meta = shared.packing.meta
        self.networks = BannedNetworks()
        self._shared = shared
        self._time = shared.time
        self._batcher = shared.batcher
        self._names = meta, meta + b":index", meta + b":networks"
        self._sums = StrikeSums(self._strike)
        # With a test clock strikes are not batched, so they are sent one after another.
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._throttle = Throttle(LOG_EVERY_US)
        self.version = b""
        self._count = 0
        self._life = b""
        self._evicting = ""

    # -- commands of users ------------------------------------------------------------------------------------------

    @sensible
    async def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the longest-lasting ban in force on any of `subjects`; None if there is none. Changes nothing."""
        await self.read_networks()
        keys = dict.fromkeys(subject for subject in subjects if isinstance(subject, str))
        own = await self._of_keys([self._shared.packing.name_of(key) for key in keys])
        return longest([*own, *self._of_networks(subjects, self._time.now_us())])

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike; return the ban if it caused one.

        Strikes of a key and policy within 100 ms are sent together, later, unless they could trigger a ban.
        """
        if self._time.is_real:
            return await self._sums.strike(self._batcher().loop, Strike(policy, key, reason), weight)
        async with self._turns.setdefault(self._batcher().loop, asyncio.Lock()):
            made, _ = await self._strike(Strike(policy, key, reason), weight, new_name())
        return made

    @sensible
    async def _strike(self, strike: Strike, weight: int, name: str) -> tuple[Ban | None, int]:
        """Count strikes in Redis, once per `name`; return the ban they caused, and how many more trigger one."""
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
            after, made = record.banned(policy, key, strike.reason)
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
        """Ban a key manually, permanently if `length_us` is None; replaces a ban of the key."""
        now_us = await self._now_us()
        made = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us)
        await (self._put([made]) if made.network() is None else self._put_network(made))
        self._shared.tell((banned(made),))
        return made

    @sensible
    async def unban(self, key: str, by: str) -> bool:
        """Lift the ban of exactly this key, and delete its strikes and levels; False if it had none of these."""
        unsent = self._sums.forget(key)
        keys = [*self._names, *self._names_of(key)]
        answer = await self._batcher().command(b"unban", keys, [key.encode(), os.urandom(8)])
        now_us, own, network, remembered = answer
        ban = longest([one for one in map(unpack_ban, (own, network)) if one is not None and not one.is_over(now_us)])
        self._shared.refusals.change_all()
        if network:
            await self.read_networks()
        if ban is not None:
            self._shared.tell((unbanned(ban, by),))
        return ban is not None or bool(remembered) or unsent

    @sensible
    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        await self.read_networks()
        now_us = await self._now_us()
        found = {ban.key: ban for ban in self.networks.bans.values() if not ban.is_over(now_us)}
        _, keys = await self._batcher().command(b"keys", self._names)
        async for some in in_steps(keys):
            names = [self._shared.packing.name_of(key.decode()) for key in some]
            found.update((ban.key, ban) for ban in await self._of_keys(names))
        return list(found.values())

    def count(self) -> int:
        """Return how many bans Redis last reported: those in force, and some that have ended since."""
        return self._count

    @sensible
    async def dump(self) -> list[Row]:
        """Return the bans in force, as rows of `core.bans.rows`."""
        return to_rows(await self.active())

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Import rows that `dump` returned; of two bans of a key the longer-lasting one is kept."""
        bans = from_rows(rows, await self._now_us())
        known = {ban.key: ban for ban in await self.active()}
        longer = [ban for ban in bans if ban.key not in known or lasts_longer(ban, known[ban.key])]
        for ban in longer:
            if ban.network() is not None:  # raises if there are too many
                await self._put_network(ban)
        async for some in in_steps([ban for ban in longer if ban.network() is None]):
            await self._put(some)
        return len(bans)

    # -- refusals of requests ---------------------------------------------------------------------------------------

    def refused_by_network(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the refusal of a question by a network ban that this worker knows; None if there is none."""
        now_us = self._time.now_us()
        ban = longest(self._of_networks(subjects, now_us))
        return None if ban is None else refused_by_ban(ban, now_us, checks)

    # -- news --------------------------------------------------------------------------------------------------------

    @sensible
    async def hear(self, ask: Ask) -> None:
        """Poll for changes: the number of bans, the bans of networks, and the identity of the data.

        Args:
            ask: Sends the commands, outside the queue of requests.

        Raises:
            StoreUnavailable: The store is read-only, and Redis has no slidegate data.
        """
        begins = b"" if self._shared.read_only else os.urandom(8).hex().encode()
        is_first = not self._life
        _, count, version, life, memory = await ask(b"news", self._names, [begins, int(is_first)])
        if self._shared.read_only and not life:
            raise StoreUnavailable(f"redis: no slidegate data under {self._names[0].decode()}")
        if is_first:
            self._tell_eviction(memory.decode(errors="replace"))
        known, self._count = self._count, count
        before, self._life = self._life, life
        if before not in (b"", life):
            message = f"Redis lost its data: counts restart from zero; {known} known bans were lost"
            self._shared.tell((Event("store_reset", message, {"bans": known}),))
        if version != self.version:
            await self.read_networks(ask)

    def _tell_eviction(self, memory: str) -> None:
        """Emit an event if Redis evicts keys when it is full; if the user may not run INFO, nothing is known."""
        found = _POLICY.search(memory)
        if found is None or found[1] in (_KEEPS, self._evicting) or not _BOUNDED.search(memory):
            return
        self._evicting = found[1]
        evicts = f"Redis evicts keys when it is full (maxmemory-policy {found[1]})"
        message = f"{evicts}, so limits and bans are lost; set maxmemory-policy {_KEEPS}"
        self._shared.tell((Event("store_evicts", message, {"policy": found[1]}),))

    @sensible
    async def read_networks(self, ask: Ask | None = None) -> None:
        """Read the bans of networks; `ask` as for `hear`, by default through the queue."""
        _, version, rows = await (ask or self._batcher().command)(b"networks", self._names)
        bans = [ban for row in rows if (ban := unpack_ban(row)) is not None]
        self.networks, self.version = BannedNetworks(bans), version
        self._shared.refusals.change_all()

    # -- commands for Redis ------------------------------------------------------------------------------------------

    async def _update(
        self, key: str, policy: str, decide: Callable[[_Rows], Awaitable[_Change | None]]
    ) -> tuple[_Rows, _Change | None]:
        """Change the ban of a key, and its strike record under a policy, by compare-and-set.

        Args:
            key: The key.
            policy: The name of the policy.
            decide: Returns the change for the current rows; None for none. Called again if another worker was faster.

        Returns:
            The rows afterwards, and the change.

        Raises:
            StoreUnavailable: Other workers were faster in each of `TRIES` attempts.
        """
        field, rows = policy.encode(), await self._read(key, policy)
        for _ in range(TRIES):
            change = await decide(rows)
            if change is None:
                return rows, None
            ban, record = pack_ban(change.ban), pack_record(change.struck)
            ban_ends_us = 0 if change.ban is None else change.ban.until_us
            over_us = 0 if change.struck is None else change.struck.record.over_us
            ban_ms, record_ms = (left_ms(end_us, rows.now_us, self._time.slack_ms) for end_us in (ban_ends_us, over_us))
            asked: list[bytes | int] = [field, rows.packed_ban, rows.packed_record, ban, ban_ms, record, record_ms]
            now_us, ban, record, written = await self._batcher().command(b"write", self._names_of(key), asked)
            rows = _Rows(now_us, ban, record)
            if written:
                self._shared.tell(change.events)
                return rows, change
        raise StoreUnavailable(f"redis: {TRIES} updates of a key's strikes lost to other workers", concerns="key")

    async def _read(self, key: str, policy: str = "") -> _Rows:
        now_us, ban, record = await self._batcher().command(b"read", self._names_of(key), [policy.encode()])
        return _Rows(now_us, ban, record)

    def _names_of(self, key: str) -> tuple[bytes, bytes]:
        return self._shared.packing.name_of(key), self._shared.packing.strikes_name(key)

    async def _put(self, bans: Sequence[Ban]) -> None:
        """Store bans of keys in one call; each replaces one of the same key."""
        keys, args, now_us = [*self._names], list[bytes | int](), self._time.now_us()
        for ban in bans:
            keys.append(self._shared.packing.name_of(ban.key))
            left = left_ms(ban.until_us, now_us, self._time.slack_ms)
            args += [ban.key.encode(), _end_of(ban), pack_ban(ban), left]
        _, self._count = await self._batcher().command(b"put", keys, args)

    async def _put_network(self, ban: Ban) -> None:
        """Store the ban of a network; replaces one of the same key."""
        left = left_ms(ban.until_us, self._time.now_us(), self._time.slack_ms)
        args = [ban.key.encode(), _end_of(ban), pack_ban(ban), left, MAX_NETWORKS, os.urandom(8)]
        keys = [*self._names, self._shared.packing.name_of(ban.key)]
        _, written = await self._batcher().command(b"ban_network", keys, args)
        if not written:
            raise too_many_networks(ban.key)
        await self.read_networks()

    async def _of_keys(self, names: Sequence[bytes]) -> list[Ban]:
        """Return the bans in force of the keys with these hashes, read in one call."""
        if not names:
            return []
        _, rows = await self._batcher().command(b"bans", names)
        return [ban for row in rows if (ban := unpack_ban(row)) is not None]

    async def _has_room(self, ban: Ban) -> bool:
        """Add an automatic ban to the index; if there are too many, remove it again and return False."""
        _, self._count = await self._batcher().command(b"note", self._names, [ban.key.encode(), _end_of(ban)])
        if self._count <= self._shared.max_bans:
            return True
        await self._batcher().command(b"drop", self._names, [ban.key.encode()])
        if self._throttle.left_out("bans_full", monotonic_us()) is not None:
            self._shared.tell((bans_full(self._shared.max_bans, ban.key),))
        return False

    async def _now_us(self) -> int:
        now_us, self._count = await self._batcher().command(b"note", self._names)
        return int(now_us)

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
        return [ban for ban in found if not ban.is_over(now_us)]


def _end_of(ban: Ban) -> bytes | int:
    """Return the end of a ban in the index."""
    return b"+inf" if ban.until_us is None else ban.until_us


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks run in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)
