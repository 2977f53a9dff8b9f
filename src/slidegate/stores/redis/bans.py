"""The bans of a Redis store: the commands of users, the refusal of requests, and news of changes.

The rules are at work in Redis (``lua/ban_rules.lua``), where every worker strikes and bans. Where a worker holds less
than Redis has (`BanCache`), it sends the guards of its next requests with them, and asks for the changes, a part at a
time, at most every `REFRESH_EVERY_S`, however often bans change; no request waits for that.

Every answer also says which life of the data it belongs to. Another life begins after Redis has lost its data or a part
of the bans: then a worker forgets the bans that it holds, and says how many those were.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from ...core.bans.active import ActiveBans
from ...core.bans.ban import Ban, BanChange, BanSubject, longest
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.strikes import StoredRecord, StoredRecords, StrikeRecord
from ...core.decision import BanRefusal, Check
from ...core.errors import ConfigurationError, StoreError
from ...core.store import BanStore, Clock, Event
from .ban_cache import NEVER_S, BanCache
from .ban_rows import (
    UNGUARDED,
    Teller,
    bytes_of,
    changes,
    made_name,
    pack_ban,
    pack_guards,
    pack_policy,
    pack_record,
    text_of,
    unpack_ban,
    unpack_change,
    unpack_records,
    unpack_told,
)
from .link import sensible
from .script import bans_script
from .strikes import KNOWN_MS, Strike, StrikeSums, new_name

if TYPE_CHECKING:
    from .batch import Batcher

T = TypeVar("T")

UNSEEN: Final = b"?"
"""The number of a request that no list has let pass: the bans in Redis have to be looked at."""
REFRESH_EVERY_S: Final = 0.1
PARTS: Final = (b"", b":list", b":ends", b":changes", b":history", b":standings", b":over", b":prefixes")
LIST, HISTORY, STANDINGS = 1, 4, 5
CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
MAX_PARTS: Final = 64
"""How many parts a refresh reads at most; Redis remembers fewer changes."""
LIFE_BYTES: Final = 16

_TIMES: Final = Struct("<qqqq")


class RedisBans(BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        batcher: Returns the batcher of the running event loop.
        meta: The name of the hash with the numbers.
        clock: The clock of a test.
        heard: Hears of the life and the number of hand-backs in an answer, and when its command was sent (monotonic).
        tell: Passes events on.
        most: How many bans, and the strikes of how many keys, to hold.
        read_only: Whether nothing is made where nothing of slidegate stands.

    Attributes:
        cache: The bans that are held here.
    """

    def __init__(
        self,
        batcher: Callable[[], Batcher],
        meta: bytes,
        clock: Clock | None,
        heard: Callable[[bytes, float], None],
        tell: Callable[[Sequence[Event]], None],
        most: int,
        *,
        read_only: bool,
    ) -> None:
        self.cache = BanCache(clock)
        self._batcher = batcher
        self._keys = [meta + part for part in PARTS]
        self._clock = clock
        self._heard_state = heard
        self._tell = tell
        self._most = most
        self._read_only = read_only
        self._teller = Teller(tell, most)
        self._sums = StrikeSums(self._strike)
        self._life = b""
        self._begins = False
        self._refreshing: WeakSet[Batcher] = WeakSet()
        self._refreshed_s = NEVER_S

    @property
    def list_name(self) -> bytes:
        """The name of the hash with the bans."""
        return self._keys[LIST]

    # -- commands of users ------------------------------------------------------------------------------------------

    @sensible
    async def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. Changes nothing."""
        (found,) = await self._command("find", [pack_guards(subjects)])
        return longest(unpack_told(found)[1])

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Where others of the key and policy were sent less than 100 ms ago, it is sent later, together with those that
        come meanwhile, unless they may be enough for a ban.
        """
        if self._clock is None:
            return await self._sums.strike(self._batcher().loop, Strike(policy, key, reason, prefix), weight)
        made, _ = await self._strike(Strike(policy, key, reason, prefix), weight, new_name())
        return made

    @sensible
    async def _strike(self, strike: Strike, weight: int, name: bytes) -> tuple[Ban | None, int]:
        """Count strikes in Redis, once under a name; return the ban that was made, and how many the next one takes."""
        policy, key = strike.policy, bytes_of(strike.key)
        asked: list[bytes | int] = [pack_policy(policy), key, weight, bytes_of(strike.reason), self._most, KNOWN_MS]
        keys = [self._keys[0] + b":struck:" + name, self._keys[0] + b":" + bytes_of(made_name(policy))]
        if strike.prefix and policy.prefix is not None:
            why = f"{policy.prefix.after} of its addresses were banned"
            asked += [bytes_of(strike.prefix), pack_policy(policy.prefix), bytes_of(why)]
            keys.append(self._keys[0] + b":" + bytes_of(made_name(policy.prefix)))
        row, missing = await self._command("strike", asked, keys, policy=policy)
        if not isinstance(missing, int):
            raise TypeError(f"expected a number, not {missing!r}")
        return (unpack_ban(key, row) if row else None), missing

    @sensible
    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        known = bytes_of(key)
        asked: list[bytes | int] = [known, -1 if length_us is None else length_us, bytes_of(reason), bytes_of(by)]
        return unpack_ban(known, await self._command("ban", asked))

    @sensible
    async def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        unsent = self._sums.forget(key)
        return bool(await self._command("unban", [bytes_of(key), bytes_of(by)], by=by)) or unsent

    @sensible
    async def strike_records(self, keys: Sequence[str]) -> StoredRecords:
        """Return how each of some keys stands under each policy. Changes nothing.

        Strikes that workers have not sent yet, those of the last 100 ms, are left out.
        """
        now_us, *rows = await self._command("strike_records", [bytes_of(key) for key in keys])
        return int(now_us), [
            StoredRecord(policy, key, record, window_us, forgive_us)
            for key, row in zip(keys, rows, strict=True)
            for policy, record, window_us, forgive_us in unpack_records(row)
        ]

    @sensible
    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        await self.refresh(self._batcher())
        return [ban async for part in in_steps(self.cache.in_force()) for ban in part]

    async def active_parts(self) -> AsyncIterator[Sequence[Ban]]:
        """Yield the bans in force, a part at a time, without the list of this worker: no more are held than a part has.

        A ban may come twice while the number of bans changes, as Redis reads its hashes.
        """
        batcher = self._batcher()
        await self._run(batcher, "find", [UNGUARDED])  # tells the time of bans
        async for part in self._scan(LIST, batcher):
            times = self.cache.now_us()
            # Under the empty key Redis holds no ban.
            yield [ban for ban in (unpack_ban(key, row) for key, row in part if key and row) if not ban.is_over(*times)]

    async def dump_parts(self) -> AsyncIterator[Sequence[Row]]:
        """Yield what `dump` returns, a part at a time; a ban may come twice, as in `active_parts`."""
        yield self._rows(Bans([], []))
        async for bans in self.active_parts():
            yield self._rows(Bans(list(bans), []))[1:]
        async for part in self._scan(STANDINGS, self._batcher()):
            yield self._rows(Bans([], _records_in(part)))[1:]

    def _rows(self, known: Bans) -> list[Row]:
        return list(to_rows(known, *self.cache.now_us()))

    def count(self) -> int:
        """Return how many bans are in force, of those that this worker holds."""
        return self.cache.count()

    @sensible
    async def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        entries = await self._batcher().ask(b"LRANGE", self._keys[HISTORY], 0, -1)
        return [unpack_change(entry) async for part in in_steps(reversed(entries)) for entry in part]

    @sensible
    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and levels, as `core.bans.rows` writes it."""
        bans, batcher = await self.active(), self._batcher()
        strike_records = [row async for part in self._scan(STANDINGS, batcher) for row in _records_in(part)]
        rows = to_rows(Bans(bans, strike_records), *self.cache.now_us())
        return [row async for some in in_steps(rows) for row in some]

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Take over rows that `dump` returned; of two bans of a key the one that lasts longer stays."""
        batcher = self._batcher()
        await self.refresh(batcher)
        known = from_rows(rows, *self.cache.now_us())
        await self._check_room(known, batcher)
        async for bans in in_steps(known.bans):
            packed = [part for ban in bans for part in (bytes_of(ban.key), pack_ban(ban))]
            await self._command("load", [len(bans), *packed])
        async for some in in_steps(known.strike_records):
            asked: list[bytes | int] = [0]
            for policy, key, record in some:
                asked += [bytes_of(key), bytes_of(policy), pack_record(policy, record)]
            await self._command("load", asked)
        await self.refresh(batcher)
        return len(known.bans)

    @sensible
    async def clear(self) -> None:
        """Forget all bans, strikes, levels and changes."""
        self._sums.clear()
        await self._command("clear", [])
        self.cache.active_bans = ActiveBans()

    @sensible
    async def reset_windows(self) -> None:
        """Let nothing be handed back that was spent in any window up to now."""
        await self._command("reset_all", [])

    async def _check_room(self, known: Bans, batcher: Batcher) -> None:
        # Bans made by hand are always recorded, so those that are read need no room either.
        in_force = {ban.key for ban in self.cache.in_force()}
        bans = {ban.key for ban in known.bans if ban.level} - in_force
        strike_records, held = {record[:2] for record in known.strike_records}, set[tuple[str, str]]()
        if strike_records:
            held = {row[:2] async for part in self._scan(STANDINGS, batcher) for row in _records_in(part)}
        for what, new, have in (("bans", bans, len(in_force)), ("strike records", strike_records - held, len(held))):
            if new and len(new) + have > self._most:
                raise ConfigurationError(f"bans: no room for {len(new)} more {what}; raise max_bans={self._most}")

    # -- refusals of requests ---------------------------------------------------------------------------------------

    def at_once(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> BanRefusal | None:
        """Return the refusal by a ban that is held, or None where Redis has to be asked."""
        cache = self.cache
        refusal = cache.judge(checks, subjects)
        if refusal is None or not cache.is_trusted():
            return None
        bans = cache.prolonged_by(checks, subjects)
        if not bans:
            return refusal
        if self._clock is not None:
            return None
        self._prolong(bans)
        return cache.judge(checks, subjects)

    def refused(self, told: bytes, checks: Sequence[Check], *, prolong: bool) -> BanRefusal | None:
        """Return the refusal of a demand by bans that Redis has found, None where it found none.

        Args:
            told: The bans, as Redis tells of them.
            checks: The demand.
            prolong: Whether the bans go on by it, where they do.
        """
        now_us, bans = unpack_told(told)
        if prolong and (going_on := [ban for ban in bans if ban.prolong_us]):
            self._prolong(going_on)
            bans = [_gone_on(ban, now_us) for ban in bans]
        ban = longest(bans)
        return None if ban is None else BanRefusal(ban.by, ban, now_us, checks)

    @sensible
    async def look(self, batcher: Batcher, guards: Sequence[bytes]) -> list[bytes]:
        """Return what Redis has found for each of some guards; see `refused`."""
        sent_s = monotonic()
        answer, _, number = await self._run(batcher, "find", [b"".join(guards)])
        self.heard(batcher, number, sent_s)
        if len(answer) != len(guards):
            raise ValueError(f"expected {len(guards)} answers, not {len(answer)}")
        return list(answer)

    def _prolong(self, bans: Sequence[Ban]) -> None:
        """Let bans go on from now: here at once, and in Redis."""
        due = [bytes_of(key) for key in self.cache.prolong(bans)]
        if due:
            self._batcher().attend(self._command("prolong", due))

    # -- news in every answer ------------------------------------------------------------------------------------

    def heard(self, batcher: Batcher, number: bytes, sent_s: float) -> None:
        """Record the number of the last change of bans in an answer; `sent_s` is when its call was sent (monotonic)."""
        cache = self.cache
        cache.latest = number
        if number == cache.number:
            cache.known_s = max(cache.known_s, sent_s)
        elif batcher not in self._refreshing:
            self._refreshing.add(batcher)
            batcher.attend(self._refresh_in_time(batcher))

    def heard_state(self, batcher: Batcher, state: bytes, sent_s: float) -> None:
        """Record the life of the data in Redis and the number of hand-backs, as an answer says them together."""
        self._heard_state(state, sent_s)
        life = state[:LIFE_BYTES]
        if life and life != self._life:
            before, self._life = self._life, life
            if before:
                self._forget_all()
        elif not life and self._read_only:
            batcher.attend(batcher.check_again())
        elif not life and not self._begins:
            self._begins = True
            batcher.attend(self._begin(batcher))

    async def _begin(self, batcher: Batcher) -> None:
        """Give the data a life, where nobody has."""
        try:
            await batcher.ask(b"HSETNX", self._keys[0], b"life", os.urandom(LIFE_BYTES // 2).hex().encode())
        finally:
            self._begins = False

    def _forget_all(self) -> None:
        """Forget the bans that are held here, because Redis has lost its data."""
        known = self.cache.forget()
        message = f"redis: data was lost, so counts start anew, and of the bans that were known here {known} are gone"
        self._tell((Event("store_reset", message, {"bans": known}),))

    @sensible
    async def refresh(self, batcher: Batcher) -> None:
        """Learn which bans have changed, a part at a time.

        Raises:
            StoreError: Redis does not answer.
        """
        cache, life = self.cache, self._life
        bans, number = cache.active_bans, cache.number
        for _ in range(MAX_PARTS):
            asked_s = monotonic()
            found, _, last = await self._run(batcher, "since", [number])
            if life and life != self._life:  # an answer about lost bans is not true
                life, bans, number = self._life, cache.active_bans, cache.number
                continue
            if found == 0:
                bans, number = ActiveBans(), last
                async for part in self._scan(LIST, batcher):
                    cache.put(part, bans)
            else:
                number = sendable(found[0])
                cache.put(_pairs(found[2:]), bans)
            if not last or (found and found[1]):
                cache.hold(bans, number, asked_s)
                return
            if bans is cache.active_bans:
                cache.number = number  # the rest is for the next time

    async def _refresh_in_time(self, batcher: Batcher) -> None:
        try:
            await asyncio.sleep(max(self._refreshed_s + REFRESH_EVERY_S - monotonic(), 0.0))
            if self.cache.number != self.cache.latest:
                with suppress(StoreError):  # the next answer is a reason to try again
                    await self.refresh(batcher)
        finally:
            self._refreshed_s = monotonic()
            self._refreshing.discard(batcher)

    # -- commands for Redis ------------------------------------------------------------------------------------------

    async def _command(
        self,
        name: str,
        asked: Sequence[bytes | int],
        keys: Sequence[bytes] = (),
        *,
        policy: BanPolicy | None = None,
        by: str = "",
    ) -> Any:
        """Run a command of ``lua/ban_rules.lua``, hold and tell what it has changed, and return its answer.

        Args:
            name: The command.
            asked: Its arguments.
            keys: The keys that it needs besides those of bans.
            policy: The policy that is at work.
            by: The name of whoever takes a ban back.
        """
        batcher, sent_s = self._batcher(), monotonic()
        answer, reports, number = await self._run(batcher, name, asked, keys)
        self.heard(batcher, number, sent_s)
        self.cache.put(changes(reports))
        self._teller.tell(reports, policy, by)
        return answer

    async def _run(
        self, batcher: Batcher, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes], bytes]:
        """Run a command; return its answer, its reports, and the number of the last change."""
        sent_s = monotonic()
        wall_us = -1 if self._clock is None else self._clock()
        given: list[bytes | int] = [wall_us, name.encode(), *asked]
        times, number, state, answer, reports = await batcher.run(bans_script(), [*self._keys, *keys], given)
        number, state = sendable(number), sendable(state)
        self.heard_state(batcher, state, sent_s)
        self.cache.saw(_TIMES.unpack(times), sent_s)
        return answer, reports, number

    async def _scan(self, part: int, batcher: Batcher) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """Yield the fields and values of a hash, a part at a time."""
        place = b"0"
        while True:
            place, found = await batcher.ask(b"HSCAN", self._keys[part], place, b"COUNT", CHUNK)
            async for some in in_steps(_pairs(found)):
                yield some
            if place == b"0":
                return


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _records_in(part: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str, StrikeRecord]]:
    """Return (policy, key, record) for the fields and values of the hash of strike records."""
    return [(policy, text_of(key), record) for key, row in part for policy, record, _, _ in unpack_records(row)]


def _gone_on(ban: Ban, now_us: int) -> Ban:
    """Return a ban as it is after a request has prolonged it."""
    if not ban.prolong_us or ban.ends_us is None or now_us + ban.prolong_us <= ban.ends_us:
        return ban
    return ban._replace(ends_us=now_us + ban.prolong_us)


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks go on in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)


def sendable(part: object) -> bytes:
    """Return a part of an answer that every later question carries.

    Raises:
        TypeError: It is no text: kept, it would spoil all of them.
    """
    if not isinstance(part, bytes):
        raise TypeError(f"expected text, not {part!r}")
    return part
