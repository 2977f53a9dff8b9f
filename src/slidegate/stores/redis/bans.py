"""The bans of a Redis store.

The rules are at work in Redis (``lua/bans``), where every worker strikes and bans. Each worker holds the bans in force
in a list of its own, because a request has to be looked up by the networks that it may lie in. Redis numbers the
changes, and every call that decides about requests says up to which number its worker knows: where that is not the
last, nothing is decided, and the worker asks for the changes first. So what one worker bans, the next request of any
other knows, if it goes to Redis at all. One that is refused here, without asking, relies on a list that is at most
`TRUST_S` old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ...core.banlist import Ban, BanChange, BanList, Guarded, longest
from ...core.banpolicy import BanPolicy
from ...core.banrows import Bans, Row, from_rows, to_rows
from ...core.barred import Barred
from ...core.decision import Check
from ...core.errors import ConfigurationError
from ...core.protocols import Clock, Event
from .bancodec import (
    bytes_of,
    made_name,
    pack_ban,
    pack_policy,
    pack_standing,
    text_of,
    unpack_ban,
    unpack_change,
    unpack_standings,
)
from .clock import BansClock
from .script import bans_script
from .sums import Strike, StrikeSums
from .telling import Teller

if TYPE_CHECKING:
    from .lanes import Lane

TRUST_S: Final = 1.0
PROLONG_EVERY_S: Final = 0.1
PARTS: Final = (b"", b":list", b":ends", b":changes", b":history", b":standings", b":over", b":prefixes")
CHUNK: Final = 500
LOOK_OVER: Final = 64

_TIMES: Final = Struct("<qqq")


class RedisBans:
    """Bans for all hosts; made by `RedisStore`.

    Args:
        lane: Returns the lane of the running event loop.
        meta: The name of the hash with the numbers.
        clock: The clock of a test.
        heard: Hears of the number of hand-backs, in an answer to what was sent at a monotonic moment.
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
        self._lane = lane
        self._keys = [meta + part for part in PARTS]
        self._time = BansClock(clock)
        self._clock = clock
        self._heard = heard
        self._most = most
        self._teller = Teller(tell, most)
        self._lock = Lock()
        self.list = BanList()
        self.number = b""
        """Of the last change that is known."""
        self.known_s = float("-inf")
        """When Redis last said that this is the last one, in monotonic time."""
        self._prolonged_s: dict[str, float] = {}
        self._sums = StrikeSums(self._strike)

    # -- what users ask for ------------------------------------------------------------------------------------------

    async def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. Changes nothing."""
        await self.catch_up(self._lane())
        with self._lock:
            return self.list.find(guarded, *self._time.now_us())

    async def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Where others of the key and policy were sent less than 100 ms ago, it is sent later, together with those that
        come meanwhile, unless they may be enough for a ban.
        """
        if self._clock is None:
            return await self._sums.strike(self._lane().loop, Strike(policy, key, reason, prefix), weight)
        made, _ = await self._strike(Strike(policy, key, reason, prefix), weight)
        return made

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

    async def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        known = bytes_of(key)
        asked: list[bytes | int] = [known, -1 if length_us is None else length_us, bytes_of(reason), bytes_of(by)]
        row, reports = await self._command("ban", asked)
        self._teller.tell(reports)
        return unpack_ban(known, row)

    async def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        changed, reports = await self._command("unban", [bytes_of(key), bytes_of(by)])
        self._teller.tell(reports, by=by)
        return bool(changed)

    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        await self.catch_up(self._lane())
        with self._lock:
            now_us, wall_us = self._time.now_us()
            return [ban for ban in self.list if not ban.is_over(now_us, wall_us)]

    async def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        return [unpack_change(entry) for entry in reversed(await self._lane().ask(b"LRANGE", self._keys[4], 0, -1))]

    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and rungs, as `core.banrows` writes it."""
        bans = await self.active()
        standings = [
            (policy, text_of(key), standing)
            for key, row in (await self._scan(self._keys[5])).items()
            for policy, standing in unpack_standings(row)
        ]
        with self._lock:
            return list(to_rows(Bans(bans, standings), *self._time.now_us()))

    async def load(self, rows: Sequence[Row]) -> int:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays."""
        await self.catch_up(self._lane())
        with self._lock:
            known = from_rows(rows, *self._time.now_us())
        await self._check_room(known)
        for first in range(0, len(known.bans), CHUNK):
            part = known.bans[first : first + CHUNK]
            packed = [row for ban in part for row in (bytes_of(ban.key), pack_ban(ban))]
            await self._command("load", [len(part), *packed])
        for first in range(0, len(known.standings), CHUNK):
            asked: list[bytes | int] = [0]
            for policy, key, standing in known.standings[first : first + CHUNK]:
                asked += [bytes_of(key), bytes_of(policy), pack_standing(policy, standing)]
            await self._command("load", asked)
        return len(known.bans)

    async def clear(self) -> None:
        """Forget all bans, strikes, rungs and changes."""
        await self._command("clear", [])

    async def _check_room(self, known: Bans) -> None:
        # Bans made by hand are always recorded, so those that are read need no room either.
        bans = {ban.key for ban in known.bans if ban.rung and self.list.get(ban.key) is None}
        standings = {bytes_of(key) for _, key, _ in known.standings}
        held = await self._scan(self._keys[5]) if standings else {}
        for what, new, have in (("bans", bans, len(self.list)), ("standings", standings - held.keys(), len(held))):
            if new and len(new) + have > self._most:
                raise ConfigurationError(f"bans: no room for {len(new)} more {what}; raise max_bans={self._most}")

    # -- what the store asks for -------------------------------------------------------------------------------------

    def judge(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Barred | None:
        """Return the refusal of a demand by the bans that are known here, if there is one."""
        if not self.list.by_key:
            return None
        with self._lock:
            now_us, wall_us = self._time.now_us()
            self.list.let_go(now_us, wall_us)
            ban = longest(self.list.in_force((*guarded, *(key for _, key, _ in checks)), now_us, wall_us))
            return None if ban is None else Barred(ban.by, ban, now_us, checks)

    def at_once(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Barred | None:
        """Return what `judge` does, unless Redis has to be asked for news, or told what is prolonged."""
        barred = self.judge(checks, guarded)
        now_s = monotonic()
        if barred is None or now_s - self.known_s >= TRUST_S:
            return None
        bans = self._prolonged(checks, guarded)
        if not bans:
            return barred
        if self._clock is not None or any(now_s >= self._prolonged_s.get(ban.key, 0.0) for ban in bans):
            return None
        with self._lock:
            now_us, _ = self._time.now_us()
            for ban in bans:
                self.list.prolong(ban, now_us)
        return self.judge(checks, guarded)

    async def refusal(self, checks: Sequence[Check], guarded: Sequence[Guarded], *, prolong: bool) -> Barred | None:
        """Return the refusal of a demand by a ban, by a list that was read just now, and let bans go on by it."""
        barred = self.judge(checks, guarded)
        if barred is not None and prolong and (bans := self._prolonged(checks, guarded)):
            await self._prolong(bans)
            barred = self.judge(checks, guarded)
        return barred

    def _prolonged(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> list[Ban]:
        """Return the bans that a demand prolongs."""
        with self._lock:
            asked = (*guarded, *(key for _, key, _ in checks))
            return [ban for ban in self.list.in_force(asked, *self._time.now_us()) if ban.prolong_us]

    async def _prolong(self, bans: Sequence[Ban]) -> None:
        """Let bans go on from now: here at once, in Redis ten times a second each at most."""
        now_s, due = monotonic(), set()
        with self._lock:
            now_us, _ = self._time.now_us()
            if len(self._prolonged_s) > len(self.list) + LOOK_OVER:
                self._prolonged_s.clear()
            for ban in bans:
                if self._clock is not None or now_s >= self._prolonged_s.get(ban.key, 0.0):
                    due.add(bytes_of(ban.key))
                    self._prolonged_s[ban.key] = now_s + PROLONG_EVERY_S
                self.list.prolong(ban, now_us)
        if due:
            await self._command("prolong", [*due])

    async def catch_up(self, lane: Lane) -> None:
        """Learn of what has changed."""
        asked_s = monotonic()
        found, _, number = await self._run(lane, "since", [self.number])
        fresh = None
        if found == 0:
            fresh, rows = BanList(), await self._scan(self._keys[1], lane)
        else:
            rows = dict(zip(found[::2], found[1::2], strict=True))
        with self._lock:
            if fresh is not None:
                self.list = fresh
            for key, row in rows.items():
                self.list.remove(text_of(key))
                if row:
                    self.list.add(unpack_ban(key, row))
            self.number = number
            self.known_s = max(self.known_s, asked_s)

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _command(
        self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes]]:
        """Run a command of ``lua/bans/6_rules.lua``; return its answer and what it reports."""
        lane = self._lane()
        answer, reports, number = await self._run(lane, name, asked, keys)
        if number != self.number:
            await self.catch_up(lane)
        return answer, reports

    async def _run(
        self, lane: Lane, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes], bytes]:
        wall_us = -1 if self._clock is None else self._clock()
        sent_s = monotonic()
        said = await lane.run(bans_script(), [*self._keys, *keys], [wall_us, name.encode(), *asked])
        times, number, hands, answer, reports = said
        now_us, wall_us, ahead_us = _TIMES.unpack(times)
        with self._lock:
            self._time.saw_bans(now_us, wall_us, ahead_us, int(sent_s * 1_000_000))
        self._heard(hands, sent_s)
        if not hands:
            await lane.recover()
        return answer, reports, number

    async def _scan(self, name: bytes, lane: Lane | None = None) -> dict[bytes, bytes]:
        """Return what is in a hash, read in parts."""
        found: dict[bytes, bytes] = {}
        place = b"0"
        while True:
            place, part = await (lane or self._lane()).ask(b"HSCAN", name, place, b"COUNT", CHUNK)
            found |= zip(part[::2], part[1::2], strict=True)
            if place == b"0":
                return found
