"""The bans of a Redis store: the commands of users, and the refusal of requests.

The rules are at work in Redis (``lua/ban_rules.lua``), where every worker strikes and bans. `ban_cache` sends the
commands, keeps the list of this worker up to date, and answers from that list.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from ...core.bans.in_force import Ban, BanChange, BanList, Guarded, longest
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.standing import Standing
from ...core.bans.standing_view import KeptStanding, KeptStandings
from ...core.barred import Barred
from ...core.decision import Check
from ...core.errors import ConfigurationError
from ...core.store import BanStore, Clock, Event
from .ban_cache import BanCache, in_steps
from .ban_rows import (
    UNGUARDED,
    Teller,
    bytes_of,
    made_name,
    pack_guards,
    pack_policy,
    pack_standing,
    text_of,
    unpack_ban,
    unpack_change,
    unpack_standings,
    unpack_told,
)
from .faults import sensible
from .strikes import KNOWN_MS, Strike, StrikeSums, new_name

if TYPE_CHECKING:
    from .batch import Batcher

_COUNTED: Final = 1_000
"""How many bans that have ended are forgotten when the others are counted."""


class RedisBans(BanCache, BanStore):
    """Bans for all hosts; made by `RedisStore`.

    Args:
        most: How many bans, and the strikes of how many keys, to hold. The others are those of `BanCache`.
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
        super().__init__(batcher, meta, clock, heard, tell, read_only=read_only)
        self._most = most
        self._teller = Teller(tell, most)
        self._sums = StrikeSums(self._strike)

    # -- commands of users ------------------------------------------------------------------------------------------

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
        (row, missing), reports = await self._command("strike", asked, keys)
        self._teller.tell(reports, policy)
        if not isinstance(missing, int):
            raise TypeError(f"expected a number, not {missing!r}")
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
    async def standings(self, keys: Sequence[str]) -> KeptStandings:
        """Return how each of some keys stands under each policy. Changes nothing.

        Strikes that workers have not sent yet, those of the last 100 ms, are left out.
        """
        (now_us, *rows), _ = await self._command("standings", [bytes_of(key) for key in keys])
        return int(now_us), [
            KeptStanding(policy, key, standing, window_us, forgive_us)
            for key, row in zip(keys, rows, strict=True)
            for policy, standing, window_us, forgive_us in unpack_standings(row)
        ]

    @sensible
    async def active(self) -> list[Ban]:
        """Return the bans in force."""
        await self.refresh(self._batcher())
        with self._lock:
            rows, (now_us, wall_us) = list(self.list.by_key.values()), self._time.now_us()
        found: list[Ban] = []
        async for part in in_steps(rows):
            found += [ban for ban in (Ban(*row) for row in part) if not ban.is_over(now_us, wall_us)]
        return found

    async def active_parts(self) -> AsyncIterator[Sequence[Ban]]:
        """Yield the bans in force, a part at a time, without the list of this worker: no more are held than a part has.

        A ban may come twice while the number of bans changes, as Redis reads its hashes.
        """
        batcher = self._batcher()
        await self._run(batcher, "find", [UNGUARDED])  # tells the time of bans
        async for part in self._scan(self._keys[1], batcher):
            with self._lock:
                now_us, wall_us = self._time.now_us()
            # Under the empty key Redis holds no ban.
            bans = [unpack_ban(key, row) for key, row in zip(part[::2], part[1::2], strict=True) if key and row]
            yield [ban for ban in bans if not ban.is_over(now_us, wall_us)]

    async def dump_parts(self) -> AsyncIterator[Sequence[Row]]:
        """Yield what `dump` returns, a part at a time; a ban may come twice, as in `active_parts`."""
        yield self._rows(Bans([], []))
        async for bans in self.active_parts():
            yield self._rows(Bans(list(bans), []))[1:]
        async for part in self._scan(self._keys[5], self._batcher()):
            yield self._rows(Bans([], _standings_in(part)))[1:]

    def _rows(self, known: Bans) -> list[Row]:
        with self._lock:
            return list(to_rows(known, *self._time.now_us()))

    def count(self) -> int:
        """Return how many bans are in force, of those that this worker holds."""
        with self._lock:
            self.list.let_go(*self._time.now_us(), most=_COUNTED)
            return len(self.list)

    @sensible
    async def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        entries = await self._batcher().ask(b"LRANGE", self._keys[4], 0, -1)
        return [unpack_change(entry) async for part in in_steps(reversed(entries)) for entry in part]

    @sensible
    async def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and rungs, as `core.bans.rows` writes it."""
        bans, standings = await self.active(), list[tuple[str, str, Standing]]()
        async for part in self._scan(self._keys[5], self._batcher()):
            standings += _standings_in(part)
        with self._lock:
            rows = to_rows(Bans(bans, standings), *self._time.now_us())
        return [row async for some in in_steps(rows) for row in some]

    @sensible
    async def load(self, rows: Sequence[Row]) -> int:
        """Take over rows that `dump` returned; of two bans of a key the one that lasts longer stays."""
        batcher = self._batcher()
        await self.refresh(batcher)
        with self._lock:
            known = from_rows(rows, *self._time.now_us())
        await self._check_room(known)
        async for part in in_steps(known.bans):
            await self._load(part)
        async for some in in_steps(known.standings):
            asked: list[bytes | int] = [0]
            for policy, key, standing in some:
                asked += [bytes_of(key), bytes_of(policy), pack_standing(policy, standing)]
            await self._command("load", asked)
        await self.refresh(batcher)
        return len(known.bans)

    @sensible
    async def clear(self) -> None:
        """Forget all bans, strikes, rungs and changes."""
        self._sums.clear()
        await self._command("clear", [])
        with self._lock:
            self.list = BanList()

    @sensible
    async def reset_windows(self) -> None:
        """Let nothing be handed back that was spent in any window up to now."""
        await self._command("reset_all", [])

    async def _check_room(self, known: Bans) -> None:
        # Bans made by hand are always recorded, so those that are read need no room either.
        with self._lock:
            times = self._time.now_us()
            in_force = {ban.key for ban in self.list if not ban.is_over(*times)}
        bans = {ban.key for ban in known.bans if ban.rung} - in_force
        standings, held = {standing[:2] for standing in known.standings}, set[tuple[str, str]]()
        if standings:
            batcher = self._batcher()
            held = {
                standing[:2] async for part in self._scan(self._keys[5], batcher) for standing in _standings_in(part)
            }
        for what, new, have in (("bans", bans, len(in_force)), ("standings", standings - held, len(held))):
            if new and len(new) + have > self._most:
                raise ConfigurationError(f"bans: no room for {len(new)} more {what}; raise max_bans={self._most}")

    # -- refusals of requests ---------------------------------------------------------------------------------------

    def at_once(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Barred | None:
        """Return the refusal that `judge` gives, or None where Redis has to be asked."""
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
            told: The bans, as Redis tells of them.
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
    async def look(self, batcher: Batcher, guards: Sequence[bytes]) -> list[bytes]:
        """Return what Redis has found for each of some guards; see `refused`."""
        sent_s = monotonic()
        answer, _, number = await self._run(batcher, "find", [b"".join(guards)])
        self.heard(batcher, number, sent_s)
        if len(answer) != len(guards):
            raise ValueError(f"expected {len(guards)} answers, not {len(answer)}")
        return list(answer)

    def _prolong(self, bans: Sequence[Ban]) -> None:
        """Let bans go on from now: here at once, in Redis ten times a second each at most."""
        due = [bytes_of(key) for key in self._prolong_here(bans)]
        if due:
            self._batcher().attend(self._command("prolong", due))


def _standings_in(part: Sequence[bytes]) -> list[tuple[str, str, Standing]]:
    """Return (policy, key, standing) for the fields and values of the hash of standings."""
    rows = zip(part[::2], part[1::2], strict=True)
    return [(policy, text_of(key), standing) for key, row in rows for policy, standing, _, _ in unpack_standings(row)]


def _gone_on(ban: Ban, now_us: int) -> Ban:
    """Return a ban as it is after a request has prolonged it."""
    if not ban.prolong_us or ban.ends_us is None or now_us + ban.prolong_us <= ban.ends_us:
        return ban
    return ban._replace(ends_us=now_us + ban.prolong_us)
