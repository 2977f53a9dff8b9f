"""The bans of a memory store.

The strikes of a policy's keys are a dict in the order of their last strike. Those that have nothing left to remember
are let go of from its front, two at a time, as a part of ordinary strikes; keys that were banned go round to its end,
so nobody waits behind them. Where the store is full, the front has to go: whoever abuses now is at the other end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import time_ns
from typing import Final

from ...core.bans.in_force import Ban, BanChange, BanList, Guarded, lasts_longer, longest, shown
from ...core.bans.policy import PREFIX_NAME, BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.standing import Standing
from ...core.barred import Barred
from ...core.decision import Check
from ...core.durations import format_duration
from ...core.errors import ConfigurationError
from ...core.protocols import Clock, Event
from ...core.windows.rings import Ring, new_window

MAX_HISTORY: Final = 10_000
SAY_EVERY_US: Final = 60_000_000
PREFIX_SHARE: Final = 10
"""One in so many of all bans may be a prefix that a policy banned."""


class Ledger:
    """What is remembered under one policy."""

    def __init__(self) -> None:
        self.policy: BanPolicy | None = None  # until its first strike, where the standings were loaded
        # The longest unstruck first. Not a plain dict, which looks for its first entry among all that were deleted.
        self.standings: dict[str, Standing] = OrderedDict()
        self.made: Ring | None = None

    def follow(self, policy: BanPolicy) -> Ring:
        """Go on under a policy that may have changed, and return the window of the bans that it made."""
        most, before = policy.most, self.policy.most if self.policy is not None else None
        if self.made is None or before is None or (before.same_window, before.exact) != (most.same_window, most.exact):
            self.made = new_window(most)
        self.policy = policy
        return self.made

    def is_over(self, standing: Standing, now_us: int) -> bool:
        """Tell whether a standing has nothing left to remember."""
        return self.policy is not None and standing.is_over(self.policy, now_us)


class MemoryBans:
    """Bans in this process; made by `MemoryStore`, and under its lock.

    Args:
        lock: The store's.
        now_us: The store's clock.
        wall_us: Unix time, in microseconds.
        tell: Passes events on; called without the lock.
        most: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(
        self, lock: Lock, now_us: Clock, wall_us: Clock | None, tell: Callable[[Sequence[Event]], None], most: int
    ) -> None:
        self._lock = lock
        self._clock = now_us
        self._wall = wall_us
        self._tell = tell
        self._most = most
        self.list = BanList()
        self._ledgers: dict[str, Ledger] = {}
        self._history: deque[BanChange] = deque(maxlen=MAX_HISTORY)
        self._prefixes: set[str] = set()
        self._latest_us = 0
        self._ahead_us = 0
        self._next_us: dict[tuple[str, str], int] = {}
        self._events: list[Event] = []

    def find(self, guarded: Sequence[Guarded]) -> Ban | None:
        """Return the ban in force that refuses one of `guarded`, the one that lasts longest. Changes nothing."""
        with self._lock:
            return self.list.find(guarded, self._now_us(), self._wall_us())

    def judge(self, checks: Sequence[Check], guarded: Sequence[Guarded], *, prolong: bool) -> Barred | None:
        """Return the refusal of a demand by a ban, if there is one. The store holds the lock."""
        bans = self.list.named((*guarded, *[key for _, key, _ in checks]))
        if not bans:
            return None  # most requests end here
        now_us, wall_us = self._now_us(), self._wall_us()
        bans = [ban for ban in bans if not ban.is_over(now_us, wall_us)]
        if prolong:
            bans = [self._prolong(ban, now_us) if ban.prolong_us else ban for ban in bans]
        ban = longest(bans)
        return None if ban is None else Barred(ban.by, ban, now_us, checks)

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it."""
        with self._lock:
            now_us, wall_us = self._now_us(), self._wall_us()
            self.list.let_go(now_us, wall_us)
            ban = self._strike(policy, key, weight, reason, "", now_us, wall_us)
            if ban is not None and prefix and policy.prefix is not None:
                why = f"{policy.prefix.after} of its addresses were banned"
                self._strike(policy.prefix, prefix, 1, why, key, now_us, wall_us)
            events, self._events = self._events, []
        self._tell(events)
        return ban if policy.action == "ban" else None

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        with self._lock:
            now_us, wall_us = self._now_us(), self._wall_us()
            self.list.let_go(now_us, wall_us)
            ban = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us, wall_us)
            self._put(ban)
            events, self._events = self._events, []
        self._tell(events)
        return ban

    def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and rungs; False if there was neither."""
        with self._lock:
            now_us, wall_us = self._now_us(), self._wall_us()
            ban = self.list.remove(key)
            forgotten = False
            for ledger in self._ledgers.values():
                standing = ledger.standings.pop(key, None)
                forgotten |= standing is not None and not ledger.is_over(standing, now_us)
            events: list[Event] = []
            if ban is not None and not ban.is_over(now_us, wall_us):
                self._history.append(BanChange("unbanned", ban, wall_us, by))
                details = {"key": key, "by": by, "was_by": ban.by}
                events.append(Event("unbanned", f"{shown(key)} was unbanned by {by}", details))
            else:
                ban = None
        self._tell(events)
        return ban is not None or forgotten

    def active(self) -> list[Ban]:
        """Return the bans in force."""
        with self._lock:
            now_us, wall_us = self._now_us(), self._wall_us()
            return [ban for ban in self.list if not ban.is_over(now_us, wall_us)]

    def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        with self._lock:
            return list(self._history)

    def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and rungs, as `core.banrows` writes it."""
        with self._lock:
            now_us, wall_us = self._now_us(), self._wall_us()
            bans = [ban for ban in self.list if not ban.is_over(now_us, wall_us)]
            standings = [
                (name, key, standing)
                for name, ledger in self._ledgers.items()
                for key, standing in ledger.standings.items()
                if not ledger.is_over(standing, now_us)
            ]
            return list(to_rows(Bans(bans, standings), now_us, wall_us))

    def load(self, rows: Sequence[Row]) -> int:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays."""
        with self._lock:
            now_us, wall_us = self._now_us(), self._wall_us()
        known = from_rows(rows, now_us, wall_us)  # takes longer than all the rest, and others need the lock
        with self._lock:
            self.list.let_go(now_us, wall_us, len(self.list))
            self._check_room(known)
            for ban in known.bans:
                other = self.list.get(ban.key)
                if other is None or other.is_over(now_us, wall_us) or lasts_longer(ban, other):
                    self._record(ban)
            for policy, key, standing in known.standings:
                standings = self._ledgers.setdefault(policy, Ledger()).standings
                if key not in standings or standings[key].last_us <= standing.last_us:
                    standings[key] = standing
            return len(known.bans)

    def _check_room(self, known: Bans) -> None:
        # Bans made by hand are always recorded, so those that are read need no room either.
        bans = {ban.key for ban in known.bans if ban.rung and self.list.get(ban.key) is None}
        standings = {
            (name, key)
            for name, key, _ in known.standings
            if name not in self._ledgers or key not in self._ledgers[name].standings
        }
        for what, new, have in (("bans", bans, len(self.list)), ("standings", standings, self._standings())):
            if new and len(new) + have > self._most:
                raise ConfigurationError(f"bans: no room for {len(new)} more {what}; raise max_bans={self._most}")

    def _now_us(self) -> int:
        """Return the store's time; where that steps back, it goes on from where it was."""
        now_us = self._clock() + self._ahead_us
        if now_us < self._latest_us:
            self._ahead_us += self._latest_us - now_us
            now_us = self._latest_us
        self._latest_us = now_us
        return now_us

    def _wall_us(self) -> int:
        return time_ns() // 1000 if self._wall is None else self._wall()

    def _strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, source: str, now_us: int, wall_us: int
    ) -> Ban | None:
        ban = self.list.get(key)
        if ban is not None and not ban.is_over(now_us, wall_us):
            return None
        ledger = self._ledgers.setdefault(policy.name, Ledger())
        made = ledger.follow(policy)
        standing = ledger.standings.pop(key, None) or self._new_standing(ledger, now_us)
        ledger.standings[key] = standing
        if policy.action == "ban":
            standing.until_us = min(standing.until_us, now_us)  # none is in force: the last one ended by the wall clock
        if not standing.strike(policy, now_us, weight, source):
            return None
        if policy.action == "ban" and not self._has_room(key, bool(source), now_us, wall_us):
            return None
        if made.spend(now_us, policy.most.amount, 1)[3]:
            message = f"policy {policy.name!r} has made {policy.most} bans; {shown(key)} stays unbanned for now"
            self._say(Event("bans_capped", message, {"policy": policy.name, "key": key}), policy.name, now_us)
            return None
        length_us = standing.ban(policy, key, now_us)
        ends_us, prolong_us = now_us + length_us, length_us if policy.prolong else 0
        made_ban = Ban(key, reason, policy.name, standing.rung, now_us, ends_us, wall_us, prolong_us)
        if policy.action == "ban":
            self._put(made_ban)
        else:
            told = f"policy {policy.name!r} would have banned {shown(key)} for {format_duration(length_us)}: {reason}"
            details = {"policy": policy.name, "key": key, "rung": standing.rung, "reason": reason}
            self._events.append(Event("shadow_banned", told, details))
        return made_ban

    def _prolong(self, ban: Ban, now_us: int) -> Ban:
        prolonged = self.list.prolong(ban, now_us)
        ledger = self._ledgers.get(ban.by)
        standing = ledger.standings.get(ban.key) if ledger else None
        if standing is not None and prolonged.ends_us is not None:
            standing.until_us = prolonged.ends_us
        return prolonged

    def _put(self, ban: Ban) -> None:
        self._record(ban)
        self._history.append(BanChange("banned", ban, ban.wall_us, ban.by))
        until = "for ever" if ban.until is None else f"until {ban.until:%Y-%m-%dT%H:%M:%SZ}"
        details = {"key": ban.key, "by": ban.by, "reason": ban.reason, "rung": ban.rung, "until": ban.until}
        self._events.append(Event("banned", f"{shown(ban.key)} is banned {until} by {ban.by}: {ban.reason}", details))

    def _record(self, ban: Ban) -> None:
        self.list.add(ban)
        if ban.rung and ban.by.endswith(PREFIX_NAME):
            self._prefixes.add(ban.key)

    def _has_room(self, key: str, is_prefix: bool, now_us: int, wall_us: int) -> bool:
        """Tell whether one more automatic ban can be recorded."""
        self.list.let_go(now_us, wall_us, 64)
        self.list.remove(key)  # what it has is over, and what is recorded takes its place
        share = self._most // PREFIX_SHARE
        if is_prefix and len(self._prefixes) >= share:
            bans = (self.list.get(prefix) for prefix in self._prefixes)
            self._prefixes = {ban.key for ban in bans if ban is not None and ban.rung}
        if len(self.list) < self._most and (not is_prefix or len(self._prefixes) < share):
            return True
        what = f"room for prefixes (one in {PREFIX_SHARE})" if is_prefix and len(self.list) < self._most else "room"
        message = f"no {what} is left among {self._most} bans, so {shown(key)} stays unbanned; raise max_bans"
        self._say(Event("bans_full", message, {"max_bans": self._most, "key": key}), "", now_us)
        return False

    def _new_standing(self, ledger: Ledger, now_us: int) -> Standing:
        """Make a standing, and room for it."""
        for _ in range(2):
            first = next(iter(ledger.standings), None)
            if first is None:
                break
            standing = ledger.standings[first]
            if not standing.rung and not ledger.is_over(standing, now_us):
                break
            del ledger.standings[first]
            if not ledger.is_over(standing, now_us):
                ledger.standings[first] = standing
        if self._standings() >= self._most:
            largest = max(self._ledgers.values(), key=lambda other: len(other.standings))
            del largest.standings[next(iter(largest.standings))]
            message = f"the strikes of {self._most} keys are remembered, so the oldest are forgotten; raise max_bans"
            self._say(Event("strikes_dropped", message, {"max_bans": self._most}), "", now_us)
        return Standing()

    def _standings(self) -> int:
        return sum(len(ledger.standings) for ledger in self._ledgers.values())

    def _say(self, event: Event, about: str, now_us: int) -> None:
        """Tell of something that may go on and on, at most once a minute."""
        if now_us >= self._next_us.get((event.kind, about), 0):
            self._next_us[event.kind, about] = now_us + SAY_EVERY_US
            self._events.append(event)
