"""The rules by which strikes, bans and unbans change what a store remembers.

`BanRules` decides; it reads and changes the `BanStorage` of a store: dicts in memory, rows in a file. The rules
of one key under one policy are in `core.bans.strikes`; here they meet the bans in force, the caps and the history.

The keys of a policy stand in a queue in the order of their last strikes. Those that have nothing left to remember leave
it at its front, two at a time, as a part of ordinary strikes; keys that were banned go round to its end, so nobody
waits behind them. Where the store is full, the front has to go: the keys that abuse now are at the other end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Protocol

from ..decision import BanRefusal, Check
from ..durations import format_duration
from ..errors import ConfigurationError
from ..logs import Throttle
from ..store import Event
from .ban import Ban, BanChange, lasts_longer
from .policy import BanPolicy
from .rows import Bans
from .strikes import PolicyState, StrikeRecord

MAX_HISTORY: Final = 10_000
SAY_EVERY_US: Final = 60_000_000
STEP: Final = 64
"""How many bans that are over are removed at once where there is no room."""
PREFIX_SHARE: Final = 10
"""One in so many of all bans may be a prefix that a policy banned."""
PAUSED_BY: Final = "outbound"
PAUSED_KEYS: Final = "to:"
"""Who makes the bans that are pauses, and how their keys begin: a server wants no requests of ours for a while."""


class StoredBans(Protocol):
    """Bans by key, those that are over and not removed yet among them. `ActiveBans` is one in memory."""

    def __len__(self) -> int:
        """Return how many there are."""

    @property
    def prefixes(self) -> int:
        """How many of them are of prefixes that policies banned."""

    def get(self, key: str) -> Ban | None:
        """Return the ban of exactly this key, whether or not it is over."""

    def add(self, ban: Ban) -> None:
        """Put a ban in force, in the place of one of the same key."""

    def remove(self, key: str) -> Ban | None:
        """Take a ban out, and return it."""

    def remove_expired(self, now_us: int, wall_us: int, max_count: int = 2) -> bool:
        """Forget bans that are over, no more than `max_count` by each clock; return whether any is left to see."""


class BanStorage(Protocol):
    """What a store remembers about bans, for `BanRules` to read and change."""

    @property
    def active_bans(self) -> StoredBans:
        """The bans in force."""

    def state(self, policy: str) -> PolicyState | None:
        """Return the state of a policy, None if there is none."""

    def open_state(self, policy: str) -> PolicyState:
        """Return the state of a policy, a new one if there is none."""

    def states(self) -> Collection[PolicyState]:
        """Return the states of all policies."""

    def strike_records(self) -> int:
        """Return how many strike records there are under all policies."""

    def remember(self, change: BanChange) -> None:
        """Add a change to the history, of which the last `MAX_HISTORY` are kept."""


class BanRules:
    """The rules, at work on the storage of a store. The store holds its lock, or a transaction, around each call.

    Args:
        storage: What the store remembers.
        max_bans: How many bans, and the strikes of how many keys, to hold.
        throttle: Which events that may go on and on are told, where other rules come after these.

    Attributes:
        events: The events that the store has not told yet; it takes them from here.
    """

    def __init__(self, storage: BanStorage, max_bans: int, throttle: Throttle | None = None) -> None:
        self._storage = storage
        self._max_bans = max_bans
        self._throttle = throttle or Throttle(SAY_EVERY_US)
        self.events: list[Event] = []

    def decide(
        self, bans: Iterable[Ban], checks: Sequence[Check], now_us: int, wall_us: int, *, prolong: bool
    ) -> BanRefusal | None:
        """Return the refusal of a question by those of `bans` that are in force, None if none is."""
        found: Ban | None = None
        for ban in bans:
            if not ban.is_over(now_us, wall_us):
                lasting = self._prolong(ban, now_us) if prolong and ban.prolong_us else ban
                if found is None or lasts_longer(lasting, found):
                    found = lasting
        return None if found is None else BanRefusal(found.by, found, now_us, checks)

    def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str, now_us: int, wall_us: int
    ) -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it."""
        self._storage.active_bans.remove_expired(now_us, wall_us)
        ban = self._strike(policy, key, weight, reason, "", now_us, wall_us)
        if ban is not None and prefix and policy.prefix is not None:
            why = f"{policy.prefix.after} of its addresses were banned"
            self._strike(policy.prefix, prefix, 1, why, key, now_us, wall_us)
        return ban if policy.action == "ban" else None

    def ban(self, key: str, length_us: int | None, reason: str, by: str, now_us: int, wall_us: int) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        self._storage.active_bans.remove_expired(now_us, wall_us)
        ban = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us, wall_us)
        self._put(ban)
        return ban

    def unban(self, key: str, by: str, now_us: int, wall_us: int) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        ban = self._storage.active_bans.remove(key)
        forgotten = False
        for state in self._storage.states():
            record = state.strikes.take(key)
            forgotten |= record is not None and not state.is_over(record, now_us)
        if ban is None or ban.is_over(now_us, wall_us):
            return forgotten
        self._storage.remember(BanChange("unbanned", ban, wall_us, by))
        self.events.append(unbanned(ban, by))
        return True

    def load(self, stored: Bans, now_us: int, wall_us: int) -> int:
        """Take over bans and strike records, and return how many bans. Of two of a key the longer one stays."""
        self._storage.active_bans.remove_expired(now_us, wall_us, len(self._storage.active_bans))
        self.check_room(stored)
        self.take_over(stored, now_us, wall_us)
        return len(stored.bans)

    def take_over(self, stored: Bans, now_us: int, wall_us: int) -> None:
        """Do what `load` does for some of its bans and strike records, for which there is room."""
        bans = self._storage.active_bans
        for ban in stored.bans:
            other = bans.get(ban.key)
            if other is None or other.is_over(now_us, wall_us) or lasts_longer(ban, other):
                bans.add(ban)
        for policy, key, record in stored.strike_records:
            strikes = self._storage.open_state(policy).strikes
            before = strikes.get(key)
            if before is None:
                strikes.put(key, record)
            elif before.last_us <= record.last_us:
                strikes.keep(key, record)

    def check_room(self, stored: Bans) -> None:
        """See that bans and strike records can be taken over; bans made by hand are always recorded, and need no room.

        Raises:
            ConfigurationError: There is no room.
        """
        bans = {("", ban.key) for ban in stored.bans if ban.level}
        records = {(policy, key) for policy, key, _ in stored.strike_records}
        have_bans, have_records = len(self._storage.active_bans), self._storage.strike_records()
        for what, new, have in (("bans", bans, have_bans), ("strike records", records, have_records)):
            if len(new) + have > self._max_bans:  # where all fit, there is nothing to look up
                new = {one for one in new if not self._knows(*one)}
            if new and len(new) + have > self._max_bans:
                raise ConfigurationError(f"bans: no room for {len(new)} more {what}; raise max_bans={self._max_bans}")

    def _knows(self, policy: str, key: str) -> bool:
        if not policy:
            return self._storage.active_bans.get(key) is not None
        state = self._storage.state(policy)
        return state is not None and state.strikes.get(key) is not None

    def _strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, source: str, now_us: int, wall_us: int
    ) -> Ban | None:
        ban = self._storage.active_bans.get(key)
        if ban is not None and not ban.is_over(now_us, wall_us):
            return None
        state = self._storage.open_state(policy.name)
        state.follow(policy)
        record = state.strikes.take(key) or self._new_record(state, now_us)
        if policy.action == "ban":
            record.until_us = min(record.until_us, now_us)  # none is in force: the last one ended by the wall clock
        made_ban = None
        if record.strike(policy, now_us, weight, source) and self._may_ban(policy, key, source, state, now_us, wall_us):
            length_us = record.ban(policy, key, now_us)
            ends_us, prolong_us = now_us + length_us, length_us if policy.prolong else 0
            made_ban = Ban(key, reason, policy.name, record.level, now_us, ends_us, wall_us, prolong_us)
        state.strikes.put(key, record)
        if made_ban is not None and policy.action == "ban":
            self._put(made_ban)
        elif made_ban is not None:
            self.events.append(shadow_banned(made_ban))
        return made_ban

    def _may_ban(self, policy: BanPolicy, key: str, source: str, state: PolicyState, now_us: int, wall_us: int) -> bool:
        """Tell whether a ban that is due can be recorded, and whether the policy may make one more."""
        if policy.action == "ban" and not self._has_room(key, bool(source), now_us, wall_us):
            return False
        state.made, (_, _, _, wait_us) = policy.max_rate.counter.spend(state.made, now_us, 1)
        if wait_us:
            self._say(bans_capped(policy, key), policy.name, now_us)
            return False
        return True

    def _prolong(self, ban: Ban, now_us: int) -> Ban:
        prolonged = ban.prolonged(now_us)
        if prolonged is ban:
            return ban
        self._storage.active_bans.add(prolonged)
        state = self._storage.state(ban.by)
        record = state.strikes.get(ban.key) if state else None
        if state is not None and record is not None and prolonged.ends_us is not None:
            record.until_us = prolonged.ends_us
            state.strikes.keep(ban.key, record)
        return prolonged

    def _put(self, ban: Ban) -> None:
        self._storage.active_bans.add(ban)
        self._storage.remember(BanChange("banned", ban, ban.wall_us, ban.by))
        self.events.append(banned(ban))

    def _has_room(self, key: str, is_prefix: bool, now_us: int, wall_us: int) -> bool:
        """Tell whether one more automatic ban can be recorded."""
        bans, share = self._storage.active_bans, self._max_bans // PREFIX_SHARE
        bans.remove(key)  # the ban that it has is over, and the new one takes its place
        is_left = True
        while (is_full := len(bans) >= self._max_bans or (is_prefix and bans.prefixes >= share)) and is_left:
            is_left = bans.remove_expired(now_us, wall_us, STEP)
        if is_full:
            self._say(bans_full(self._max_bans, key, of_prefixes=len(bans) < self._max_bans), "", now_us)
        return not is_full

    def _new_record(self, state: PolicyState, now_us: int) -> StrikeRecord:
        """Make a strike record, and room for it."""
        strikes = state.strikes
        for _ in range(2):
            first = next(iter(strikes.items()), None)
            if first is None:
                break
            key, record = first
            is_over = state.is_over(record, now_us)
            if not record.level and not is_over:
                break
            strikes.take(key)
            if not is_over:
                strikes.put(key, record)
        if self._storage.strike_records() >= self._max_bans:
            fronts = [(other, *next(iter(other.strikes.items()))) for other in self._storage.states() if other.strikes]
            for other, key, record in fronts:
                if other.is_over(record, now_us):
                    other.strikes.take(key)
                    return StrikeRecord()
            largest, key, _ = max(fronts, key=lambda front: len(front[0].strikes))
            largest.strikes.take(key)
            self._say(strikes_dropped(self._max_bans), "", now_us)
        return StrikeRecord()

    def _say(self, event: Event, about: str, now_us: int) -> None:
        """Tell of something that may go on and on, at most once a minute."""
        if self._throttle.left_out((event.kind, about), now_us) is not None:
            self.events.append(event)


class Steady:
    """Time that goes on from where it was, where a clock steps back."""

    def __init__(self) -> None:
        self._latest_us = 0
        self._ahead_us = 0

    def at(self, clock_us: int) -> int:
        """Return the time at a moment of the clock."""
        now_us = clock_us + self._ahead_us
        if now_us < self._latest_us:
            self._ahead_us += self._latest_us - now_us
            now_us = self._latest_us
        self._latest_us = now_us
        return now_us


def banned(ban: Ban) -> Event:
    """Tell that a ban was made."""
    until = "for ever" if ban.until is None else f"until {ban.until:%Y-%m-%dT%H:%M:%SZ}"
    details = {"key": ban.key, "by": ban.by, "reason": ban.reason, "ban_level": ban.level, "until": ban.until}
    told = f"paused {until}" if _is_pause(ban) else f"banned {until} by {ban.by}"
    return Event("banned", f"{ban.key} is {told}: {ban.reason}", details)


def unbanned(ban: Ban, by: str) -> Event:
    """Tell that a ban was taken back."""
    told = f"the pause of {ban.key} was ended" if _is_pause(ban) else f"{ban.key} was unbanned"
    return Event("unbanned", f"{told} by {by}", {"key": ban.key, "by": by, "was_by": ban.by})


def _is_pause(ban: Ban) -> bool:
    return ban.by == PAUSED_BY and ban.key.startswith(PAUSED_KEYS)


def shadow_banned(ban: Ban) -> Event:
    """Tell of the ban that a policy would have made which only reports."""
    length = format_duration((ban.ends_us or 0) - ban.made_us)
    message = f"policy {ban.by!r} would have banned {ban.key} for {length}: {ban.reason}"
    details = {"policy": ban.by, "key": ban.key, "ban_level": ban.level, "reason": ban.reason}
    return Event("shadow_banned", message, details)


def bans_capped(policy: BanPolicy, key: str) -> Event:
    """Tell that a policy has made as many bans as it may for now."""
    message = f"policy {policy.name!r} has made {policy.max_rate} bans; {key} stays unbanned for now"
    return Event("bans_capped", message, {"policy": policy.name, "key": key})


def bans_full(max_bans: int, key: str, *, of_prefixes: bool) -> Event:
    """Tell that an automatic ban was not recorded for want of room."""
    room = f"room for prefixes (one in {PREFIX_SHARE})" if of_prefixes else "room"
    message = f"no {room} is left among {max_bans} bans, so {key} stays unbanned; raise max_bans"
    return Event("bans_full", message, {"max_bans": max_bans, "key": key})


def strikes_dropped(max_bans: int) -> Event:
    """Tell that the oldest strikes are forgotten for want of room."""
    message = f"the strikes of {max_bans} keys are remembered, so the oldest are forgotten; raise max_bans"
    return Event("strikes_dropped", message, {"max_bans": max_bans})
