"""The bans of a Redis store: commands about them, and how the list that a worker holds is refreshed.

The rules are at work in Redis (``lua/bans``), where every worker strikes and bans. Redis numbers the changes, and every
answer says the number of the last one. Where a worker holds less it says with its next requests what guards them, and
asks for the changes, a part at a time, at most every `REFRESH_EVERY_S`.

Every answer also says which life of the data it belongs to. It is another one after Redis has lost its data or a part
of the bans: then a worker learns the secret again, and puts back the bans that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from ....core.bans.in_force import Ban, BanChange, BanList, Guarded, longest
from ....core.bans.policy import BanPolicy
from ....core.bans.rows import Bans, Row, from_rows, to_rows
from ....core.bans.standing import Standing
from ....core.barred import Barred
from ....core.decision import Check
from ....core.errors import ConfigurationError, StoreError
from ....core.protocols import Clock, Event
from ..packing import bans_script
from ..wire.faults import sensible
from .ban_codec import (
    bytes_of,
    made_name,
    pack_ban,
    pack_guards,
    pack_policy,
    pack_standing,
    text_of,
    unpack_ban,
    unpack_change,
    unpack_standings,
    unpack_told,
)
from .ban_events import Teller, changes
from .ban_replica import NEVER_S, HeldBans
from .strike_sums import Strike, StrikeSums

if TYPE_CHECKING:
    from ..wire.batch import Request
    from ..wire.pipeline import Lane

REFRESH_EVERY_S: Final = 0.1
PARTS: Final = (b"", b":list", b":ends", b":changes", b":history", b":standings", b":over", b":prefixes")
CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
MOST_PARTS: Final = 64
"""How many parts a refresh reads at most; Redis remembers fewer changes."""
LIFE_BYTES: Final = 16

T = TypeVar("T")


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of what would take an event loop long to go through, and let others go on in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)


class RedisBans(HeldBans):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        lane: Returns the lane of the running event loop.
        meta: The name of the hash with the numbers.
        clock: The clock of a test.
        heard: Hears of the life and the number of hand-backs, in an answer to what was sent at a monotonic moment.
        tell: Passes events on.
        most: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(
        self,
        lane: Callable[[], Lane],
        meta: bytes,
        clock: Clock | None,
        heard: Callable[[bytes, float], None],
        tell: Callable[[Sequence[Event]], None],
        most: int,
    ) -> None:
        super().__init__(clock)
        self._lane = lane
        self._keys = [meta + part for part in PARTS]
        self._heard_state = heard
        self._tell = tell
        self._most = most
        self._teller = Teller(tell, most)
        self._refreshing: WeakSet[Lane] = WeakSet()
        self._refreshed_s = NEVER_S
        self._sums = StrikeSums(self._strike)

    @property
    def list_name(self) -> bytes:
        """The name of the hash with the bans."""
        return self._keys[1]

    # -- what users ask for ------------------------------------------------------------------------------------------

    @sensible
    async def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. Changes nothing."""
        (found,), _ = await self._command("find", [pack_guards(guarded)])
        return longest(unpack_told(found)[1])

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Where others of the key and policy were sent less than 100 ms ago, it is sent later, together with those that
        come meanwhile, unless they may be enough for a ban.
        """
        if self._clock is None:
            return await self._sums.strike(self._lane().loop, Strike(policy, key, reason, prefix), weight)
        made, _ = await self._strike(Strike(policy, key, reason, prefix), weight)
        return made

    @sensible
    async def _strike(self, strike: Strike, weight: int) -> tuple[Ban | None, int]:
        """Count strikes in Redis; return the ban that was made, and how many are missing for the next."""
        policy, key = strike.policy, bytes_of(strike.key)
        asked: list[bytes | int] = [pack_policy(policy), key, weight, bytes_of(strike.reason), self._most]
        keys = [self._keys[0] + b":" + bytes_of(made_name(policy))]
        if strike.prefix and policy.prefix is not None:
            why = f"{policy.prefix.after} of its addresses were banned"
            asked += [bytes_of(strike.prefix), pack_policy(policy.prefix), bytes_of(why)]
            keys.append(self._keys[0] + b":" + bytes_of(made_name(policy.prefix)))
        (row, missing), reports = await self._command("strike", asked, keys)
        self._teller.tell(reports, policy)
        return (unpack_ban(key, row) if row else None), missing

    @sensible
    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        known = bytes_of(key)
        asked: list[bytes | int] = [known, -1 if length_us is None else length_us, bytes_of(reason), bytes_of(by)]
        row, reports = await self._command("ban", asked)
        self._teller.tell(reports)
        return unpack_ban(known, row)

    @sensible
    async def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        unsent = self._sums.forget(key)
        changed, reports = await self._command("unban", [bytes_of(key), bytes_of(by)])
        self._teller.tell(reports, by=by)
        return bool(changed) or unsent

    @sensible
    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        await self.refresh(self._lane())
        with self._lock:
            rows, (now_us, wall_us) = list(self.list.by_key.values()), self._time.now_us()
        found: list[Ban] = []
        async for part in in_steps(rows):
            found += [ban for ban in (Ban(*row) for row in part) if not ban.is_over(now_us, wall_us)]
        return found

    @sensible
    async def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        entries = await self._lane().ask(b"LRANGE", self._keys[4], 0, -1)
        return [unpack_change(entry) async for part in in_steps(reversed(entries)) for entry in part]

    @sensible
    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and rungs, as `core.banrows` writes it."""
        bans, standings = await self.active(), list[tuple[str, str, Standing]]()
        async for part in self._scan(self._keys[5], self._lane()):
            for key, row in zip(part[::2], part[1::2], strict=True):
                standings += [(policy, text_of(key), standing) for policy, standing in unpack_standings(row)]
        with self._lock:
            rows = to_rows(Bans(bans, standings), *self._time.now_us())
        return [row async for some in in_steps(rows) for row in some]

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays."""
        lane = self._lane()
        await self.refresh(lane)
        with self._lock:
            known = from_rows(rows, *self._time.now_us())
        await self._check_room(known)
        async for part in in_steps(known.bans):
            await self._load(part)
        async for some in in_steps(known.standings):
            asked: list[bytes | int] = [-1, 0]
            for policy, key, standing in some:
                asked += [bytes_of(key), bytes_of(policy), pack_standing(policy, standing)]
            await self._command("load", asked)
        await self.refresh(lane)
        return len(known.bans)

    @sensible
    async def clear(self) -> None:
        """Forget all bans, strikes, rungs and changes."""
        self._sums.clear()
        await self._command("clear", [])
        with self._lock:
            self.list = BanList()

    async def _load(self, bans: Sequence[Ban], now_us: int = -1) -> None:
        packed = [row for ban in bans for row in (bytes_of(ban.key), pack_ban(ban))]
        await self._command("load", [now_us, len(bans), *packed])

    async def _check_room(self, known: Bans) -> None:
        # Bans made by hand are always recorded, so those that are read need no room either.
        bans = {ban.key for ban in known.bans if ban.rung and self.list.get(ban.key) is None}
        standings, held = {bytes_of(key) for _, key, _ in known.standings}, set[bytes]()
        if standings:
            held = {key async for part in self._scan(self._keys[5], self._lane()) for key in part[::2]}
        for what, new, have in (("bans", bans, len(self.list)), ("standings", standings - held, len(held))):
            if new and len(new) + have > self._most:
                raise ConfigurationError(f"bans: no room for {len(new)} more {what}; raise max_bans={self._most}")

    # -- what requests ask for ---------------------------------------------------------------------------------------

    def at_once(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Barred | None:
        """Return what `judge` does, unless Redis has to be asked."""
        barred = self.judge(checks, guarded)
        if barred is None or not self._is_trusted():
            return None
        bans = self._prolonged_by(checks, guarded)
        if not bans:
            return barred
        if self._clock is not None:
            return None
        self._prolong(bans)
        return self.judge(checks, guarded)

    def refused(self, told: bytes, checks: Sequence[Check], *, prolong: bool) -> Barred | None:
        """Return the refusal of a demand by bans that Redis has found, None where it found none.

        Args:
            told: What Redis says of them.
            checks: The demand.
            prolong: Whether the bans go on by it, where they do.
        """
        now_us, bans = unpack_told(told)
        if prolong and (going_on := [ban for ban in bans if ban.prolong_us]):
            self._prolong(going_on)
            bans = [_gone_on(ban, now_us) for ban in bans]
        ban = longest(bans)
        return None if ban is None else Barred(ban.by, ban, now_us, checks)

    @sensible
    async def look(self, lane: Lane, requests: Sequence[Request]) -> list[Barred | None]:
        """Return the refusals of requests by the bans that stand in Redis, None for each that is not refused."""
        guards = b"".join(request.guards() for request in requests)
        sent_s = monotonic()
        answer, _, number = await self._run(lane, "find", [guards])
        self.heard(lane, number, sent_s)
        return [request.refused(told) for request, told in zip(requests, answer, strict=True)]

    def _prolong(self, bans: Sequence[Ban]) -> None:
        """Let bans go on from now: here at once, in Redis ten times a second each at most."""
        due = [bytes_of(key) for key in self._prolong_here(bans)]
        if due:
            self._lane().attend(self._command("prolong", due))

    # -- what every answer brings ------------------------------------------------------------------------------------

    def heard(self, lane: Lane, number: bytes, sent_s: float) -> None:
        """Take note of the number of the last change in an answer to what was sent at a monotonic moment."""
        self.latest = number
        if number == self.number and not self.restoring:
            self.known_s = max(self.known_s, sent_s)
        elif lane not in self._refreshing:
            self._refreshing.add(lane)
            lane.attend(self._refresh_in_time(lane))

    def lives(self, life: bytes) -> None:
        """Take note of the life of the data in Redis."""
        with self._lock:
            if life == self.life:
                return
            lost, self.life = bool(self.life), life
            if not lost:
                return
            self.restoring, self.number, self.known_s = True, b"", NEVER_S
        message = "redis: data was lost, so counts start anew; the bans that are known here are put back"
        self._tell((Event("store_reset", message),))

    async def notice(self, lane: Lane) -> None:
        """Let Redis notice whether a part of the bans is gone, which begins another life."""
        await self._ask(lane, "since", [b""])

    @sensible
    async def refresh(self, lane: Lane) -> None:
        """Learn of what has changed, a part at a time.

        Raises:
            StoreError: Redis does not answer.
        """
        if self.restoring:
            await self._put_back(lane)
        life, bans, number = self.life, self.list, self.number
        for _ in range(MOST_PARTS):
            asked_s = monotonic()
            found, _, last = await self._run(lane, "since", [number])
            if life and life != self.life:  # what is said of bans that are lost is not true
                await self.refresh(lane)
                return
            if found == 0:
                bans, number = BanList(), last
                async for part in self._scan(self._keys[1], lane):
                    self._apply(bans, part)
            else:
                number = found[0]
            with self._lock:
                if found:
                    self._apply(bans, found[2:])
                if not last or (found and found[1]):
                    self._hold(bans, number, asked_s)
                    return
                if bans is self.list:
                    self.number = number  # the rest is for the next time

    async def _refresh_in_time(self, lane: Lane) -> None:
        try:
            await asyncio.sleep(max(self._refreshed_s + REFRESH_EVERY_S - monotonic(), 0.0))
            if self.restoring or self.number != self.latest:
                with suppress(StoreError):  # the next answer is a reason to try again
                    await self.refresh(lane)
        finally:
            self._refreshed_s = monotonic()
            self._refreshing.discard(lane)

    async def _put_back(self, lane: Lane) -> None:
        """Put back the bans that are held here, after a loss of data."""
        life = self.life
        with self._lock:
            rows = list(self.list.by_key.values())
        async for part in in_steps(rows):
            bans = [Ban(*row) for row in part]
            with self._lock:
                now_us, wall_us = self._time.now_us()
            await self._load([ban for ban in bans if not ban.is_over(now_us, wall_us)], now_us)
        if life == self.life:
            self.restoring = False

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _command(
        self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes]]:
        """Run a command of ``lua/bans/6_rules.lua``; return its answer and what it reports."""
        lane, sent_s = self._lane(), monotonic()
        answer, reports, number = await self._run(lane, name, asked, keys)
        self.heard(lane, number, sent_s)
        with self._lock:
            for key, row in changes(reports):
                self._put(text_of(key), unpack_ban(key, row) if row else None)
        return answer, reports

    async def _run(
        self, lane: Lane, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes], bytes]:
        """Run a command; return its answer, what it reports, and the number of the last change."""
        sent_s = monotonic()
        times, number, state, answer, reports = await self._ask(lane, name, asked, keys)
        self._saw(times, sent_s)
        self._heard_state(state, sent_s)
        if state[:LIFE_BYTES] != self.life:
            await lane.recover()
        return answer, reports, number

    async def _ask(self, lane: Lane, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()) -> Any:
        wall_us = -1 if self._clock is None else self._clock()
        return await lane.run(bans_script(), [*self._keys, *keys], [wall_us, name.encode(), *asked])

    async def _scan(self, name: bytes, lane: Lane) -> AsyncIterator[Sequence[bytes]]:
        """Yield what is in a hash: fields and values, a part at a time."""
        place = b"0"
        while True:
            place, found = await lane.ask(b"HSCAN", name, place, b"COUNT", CHUNK)
            async for part in in_steps(found, 2 * CHUNK):
                yield part
            if place == b"0":
                return


def _gone_on(ban: Ban, now_us: int) -> Ban:
    """Return a ban as it is after a request has prolonged it."""
    if not ban.prolong_us or ban.ends_us is None or now_us + ban.prolong_us <= ban.ends_us:
        return ban
    return replace(ban, ends_us=now_us + ban.prolong_us)
