"""The bans of a Redis store: the commands of users, the refusal of requests, and what answers say about bans.

Bans stand in Redis and nowhere else, and the rules are at work there (``lua/ban_rules.lua``). A request carries the
keys under which bans of its client would stand; which those are depends on the kinds of bans that there are (`Kinds`),
so every answer says them. What was refused is remembered for a moment, see `refusals`.

Every answer also says which life of the data it belongs to. Another life begins after Redis has lost its data or the
bans: then a worker says how many bans it knew of.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ...core.bans.ban import Ban, BanSubject, longest, network_place
from ...core.bans.networks import MAX_NETWORKS, too_many_networks
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.rules import check_room
from ...core.bans.strikes import StrikeRecord
from ...core.decision import BanRefusal, Check
from ...core.errors import StoreUnavailable
from ...core.store import BanStore, Clock, Event
from .ban_rows import (
    Kinds,
    Teller,
    count_of_kinds,
    count_of_networks,
    pack_ban,
    pack_policy,
    pack_record,
    text_of_kinds,
    unpack_ban,
    unpack_records,
    unpack_told,
)
from .link import sensible
from .refusals import RefusalCache
from .script import BANS_SCRIPT
from .strikes import KNOWN_MS, Strike, StrikeSums, new_name

if TYPE_CHECKING:
    from .batch import Batcher

T = TypeVar("T")

PARTS: Final = (b"", b":list", b":ends", b":records", b":over")
LIST, RECORDS = 1, 3
CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
TRIES: Final = 5
"""How often to ask anew because the kinds of bans have changed meanwhile."""
LIFE_BYTES: Final = 16

_TIMES: Final = Struct("<qqq")


class _Answer(NamedTuple):
    """What a command of ``lua/ban_rules.lua`` answers: the bans' time, the server's, the answer, and reports."""

    now_us: int
    wall_us: int
    answer: Any
    reports: list[bytes]


class RedisBans(BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        batcher: Returns the batcher of the running event loop.
        meta: The name of the hash with the numbers.
        clock: The clock of a test.
        refusals: Remembers what was refused.
        tell: Passes events on.
        max_bans: How many bans, and the strikes of how many keys, to hold.
        read_only: Whether nothing is made where nothing of slidegate stands.

    Attributes:
        kinds: Of which kinds the bans are, as Redis has said last.
        reset_us: When all windows were reset, as far as is known here; -1 for never.
    """

    def __init__(
        self,
        batcher: Callable[[], Batcher],
        meta: bytes,
        clock: Clock | None,
        refusals: RefusalCache,
        tell: Callable[[Sequence[Event]], None],
        max_bans: int,
        *,
        read_only: bool,
    ) -> None:
        self.kinds = Kinds(b"")
        self.reset_us = -1
        self._batcher = batcher
        self._names = [meta + part for part in PARTS]
        self._clock = clock
        self._refusals = refusals
        self._tell = tell
        self._max_bans = max_bans
        self._read_only = read_only
        self._teller = Teller(tell, max_bans)
        self._sums = StrikeSums(self._strike)
        self._told = b""  # of which kinds there were how many bans
        self._life = b""
        self._begins = False

    @property
    def list_name(self) -> bytes:
        """The name of the hash with the bans."""
        return self._names[LIST]

    # -- commands of users ------------------------------------------------------------------------------------------

    @sensible
    async def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. Changes nothing."""
        (found,) = await self.look(self._batcher(), [tuple(subjects)])
        return longest(unpack_told(found)[1])

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Where others of the key and policy were sent less than 100 ms ago, it is sent later, together with those that
        come meanwhile, unless they may be enough for a ban.
        """
        if self._clock is None:
            return await self._sums.strike(self._batcher().loop, Strike(policy, key, reason), weight)
        made, _ = await self._strike(Strike(policy, key, reason), weight, new_name())
        return made

    def strike_later(self, policy: BanPolicy, key: str, weight: int, reason: str) -> bool:
        """Count a strike as soon as Redis answers again, if that is within ten seconds; False where it is lost."""
        if self._clock is not None:
            return False
        return self._sums.add(self._batcher().loop, Strike(policy, key, reason), weight)

    @sensible
    async def _strike(self, strike: Strike, weight: int, name: bytes) -> tuple[Ban | None, int]:
        """Count strikes in Redis, once under a name; return the ban that was made, and how many the next one takes."""
        policy, key = strike.policy, strike.key.encode()
        asked: list[bytes | int] = [pack_policy(policy), key, weight, strike.reason.encode(), self._max_bans, KNOWN_MS]
        row, missing = (await self._command("strike", asked, [self._names[0] + b":struck:" + name])).answer
        if not isinstance(missing, int):
            raise TypeError(f"expected a number, not {missing!r}")
        return (unpack_ban(key, row) if row else None), missing

    @sensible
    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        length = -1 if length_us is None else length_us
        asked: list[bytes | int] = [key.encode(), length, reason.encode(), by.encode(), MAX_NETWORKS]
        row = (await self._command("ban", asked)).answer
        if row == b"" and network_place(key) is not None:
            raise too_many_networks(key)
        return unpack_ban(key.encode(), row)

    @sensible
    async def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        unsent = self._sums.forget(key)
        return bool((await self._command("unban", [key.encode()], by=by)).answer) or unsent

    @sensible
    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        now_us, _ = await self._now_us()
        found: dict[str, Ban] = {}  # Redis may name one twice while their number changes
        async for part in self._scan(LIST):
            bans = [unpack_ban(key, row) for key, row in part if key and row]  # under the empty key it holds none
            found |= {ban.key: ban for ban in bans if not ban.is_over(now_us)}
        return list(found.values())

    def count(self) -> int:
        """Return how many bans Redis had when it was heard last: those in force, and those that ended lately."""
        return count_of_kinds(self._told)

    @sensible
    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and levels, as `core.bans.rows` writes it."""
        now_us, wall_us = await self._now_us()
        rows: list[Row] = list(to_rows(Bans([], []), now_us, wall_us))
        async for bans in in_steps(await self.active()):
            rows += list(to_rows(Bans(bans, []), now_us, wall_us))[1:]
        async for records in self._records(now_us):
            rows += list(to_rows(Bans([], records), now_us, wall_us))[1:]
        return rows

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Take over rows that `dump` returned; of two bans of a key the one that lasts longer stays."""
        now_us, wall_us = await self._now_us()
        known = from_rows(rows, now_us, wall_us)
        await self._check_room(known, now_us)
        async for bans in in_steps(known.bans):
            packed = [part for ban in bans for part in (ban.key.encode(), pack_ban(ban))]
            await self._command("load", [len(bans), *packed])
        async for some in in_steps(known.strike_records):
            asked: list[bytes | int] = [0]
            for policy, key, record in some:
                asked += [key.encode(), pack_record(policy, record)]
            await self._command("load", asked)
        return len(known.bans)

    @sensible
    async def reset_windows(self) -> None:
        """Let nothing be handed back that was spent in any window up to now."""
        await self._command("reset_all", [self._refusals.latest_us])

    async def _check_room(self, known: Bans, now_us: int) -> None:
        in_force = {ban.key for ban in await self.active()}
        networks = {ban.key for ban in known.bans if ban.network() is not None} - in_force
        if networks and len(networks) + count_of_networks(self._told) > MAX_NETWORKS:
            raise too_many_networks(min(networks))
        bans = {ban.key for ban in known.bans if ban.level} - in_force  # those made by hand are always recorded
        records, held = {record[:2] for record in known.strike_records}, set[tuple[str, str]]()
        if records:
            held = {record[:2] async for some in self._records(now_us) for record in some}
        check_room(self._max_bans, len(bans), len(in_force), len(records - held), len(held))

    # -- refusals of requests ---------------------------------------------------------------------------------------

    def refused(
        self, told: bytes, checks: Sequence[Check], subjects: Sequence[BanSubject], *, is_hit: bool
    ) -> BanRefusal | None:
        """Return the refusal of a question by bans that Redis has found, None where it found none.

        Args:
            told: The bans, as Redis tells of them.
            checks: The question.
            subjects: The keys and addresses whose bans refuse it.
            is_hit: Whether it is a hit, of which the refusal is remembered.
        """
        now_us, bans = unpack_told(told)
        ban = longest(bans)
        if ban is None:
            return None
        if is_hit:
            self._refusals.learn_ban(subjects, ban, now_us)
        return BanRefusal(ban.by, ban, now_us, checks)

    @sensible
    async def look(self, batcher: Batcher, asked: Sequence[Sequence[BanSubject]]) -> list[bytes]:
        """Return what Redis has found for each of some requests' keys and addresses; see `refused`."""
        for _ in range(TRIES):
            kinds = self.kinds
            found = (await self._run(batcher, "find", [b"".join(map(kinds.keys_of, asked))])).answer
            if len(found) != len(asked):
                raise ValueError(f"expected {len(asked)} answers, not {len(found)}")
            if not asked or kinds.covers(self.kinds):
                return list(found)
        raise StoreUnavailable("redis: the kinds of bans change with every answer")

    # -- news in every answer ------------------------------------------------------------------------------------

    def heard(self, batcher: Batcher, told: bytes, state: bytes, sent_s: float) -> None:
        """Record what an answer says about bans.

        Args:
            batcher: The batcher that heard it.
            told: Of which kinds there are bans.
            state: The life of the data, and the number of the last change.
            sent_s: When its command was sent (monotonic).
        """
        self._refusals.heard(state, sent_s)
        if (text := text_of_kinds(told)) != self.kinds.text:
            self.kinds = Kinds(text)
        life = state[:LIFE_BYTES]
        if life:
            if life != self._life:
                before, self._life = self._life, life
                if before:
                    self._tell_loss()
            self._told = told
        elif self._read_only:
            batcher.attend(batcher.check_again())
        elif not self._begins:
            self._begins = True
            batcher.attend(self._begin(batcher))

    async def _begin(self, batcher: Batcher) -> None:
        """Give the data a life, where nobody has."""
        try:
            await batcher.ask(b"HSETNX", self._names[0], b"life", os.urandom(LIFE_BYTES // 2).hex().encode())
        finally:
            self._begins = False

    def _tell_loss(self) -> None:
        known = self.count()
        message = f"redis: data was lost, so counts start anew, and of the bans that were known here {known} are gone"
        self._tell((Event("store_reset", message, {"bans": known}),))

    # -- commands for Redis ------------------------------------------------------------------------------------------

    async def _command(
        self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = (), *, by: str = ""
    ) -> _Answer:
        """Run a command of ``lua/ban_rules.lua``, tell what it has changed, and return its answer.

        Args:
            name: The command.
            asked: Its arguments.
            keys: The keys that it needs besides those of bans.
            by: The name of whoever takes a ban back.
        """
        answer = await self._run(self._batcher(), name, asked, keys)
        self._teller.tell(answer.reports, by)
        return answer

    async def _run(
        self, batcher: Batcher, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> _Answer:
        sent_s = monotonic()
        wall_us = -1 if self._clock is None else self._clock()
        given: list[bytes | int] = [wall_us, name.encode(), *asked]
        times, kinds, state, answer, reports = await batcher.run(BANS_SCRIPT, [*self._names, *keys], given)
        now_us, wall_us, reset_us = _TIMES.unpack(times)
        self.reset_us = max(self.reset_us, reset_us)
        self.heard(batcher, _text(kinds), _text(state), sent_s)
        return _Answer(now_us, wall_us, answer, reports)

    async def _now_us(self) -> tuple[int, int]:
        """Return the bans' time and the server's."""
        answer = await self._run(self._batcher(), "find", [b""])
        return answer.now_us, answer.wall_us

    async def _scan(self, part: int) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """Yield the fields and values of a hash, a part at a time."""
        batcher, place = self._batcher(), b"0"
        while True:
            place, found = await batcher.ask(b"HSCAN", self._names[part], place, b"COUNT", CHUNK)
            async for some in in_steps(zip(found[::2], found[1::2], strict=True)):
                yield some
            if place == b"0":
                return

    async def _records(self, now_us: int) -> AsyncIterator[list[tuple[str, str, StrikeRecord]]]:
        """Yield (policy, key, record) of each strike record that is not over, a part at a time."""
        async for part in self._scan(RECORDS):
            found = [(policy, key.decode(), record) for key, row in part for policy, record in unpack_records(row)]
            yield [entry for entry in found if entry[2].over_us > now_us]


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks go on in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)


def _text(part: object) -> bytes:
    """Return a part of an answer that is kept, and that later questions carry.

    Raises:
        TypeError: It is no text: kept, it would spoil all of them.
    """
    if not isinstance(part, bytes):
        raise TypeError(f"expected text, not {part!r}")
    return part
