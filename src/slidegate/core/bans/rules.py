"""The rules by which strikes, bans and unbans change the data of a store, and their events.

`BanRules` decides, and changes the `BanStorage` of a store: dicts in memory, rows in a file. `core.bans.strikes` counts
the strikes of one key under one policy; this module adds the ban in force and the limits on stored data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from ..durations import format_duration
from ..logs import Throttle
from ..store import Event
from .ban import Ban, lasts_longer
from .networks import BannedNetworks
from .policy import BanPolicy
from .strikes import StrikeRecord

LOG_EVERY_US: Final = 60_000_000
STEP: Final = 64
"""How many expired entries are removed in one step if there is no room."""
PAUSED_BY: Final = "outbound"
PAUSED_KEYS: Final = "to:"
"""The maker and the key prefix of bans that are pauses: a remote server asked us to send no requests for some time."""


class BanStorage(Protocol):
    """At most one ban for each key, and one strike record for each policy and key; may include expired ones."""

    def ban(self, key: str) -> Ban | None:
        """Return the ban of exactly this key."""

    def put_ban(self, ban: Ban) -> None:
        """Store a ban, replacing one of the same key.

        Raises:
            ConfigurationError: Too many networks are banned.
        """

    def remove_ban(self, key: str) -> None:
        """Remove the ban of a key, if it has one."""

    def ban_count(self) -> int:
        """Return how many bans there are."""

    def networks(self) -> BannedNetworks:
        """Return the bans of networks."""

    def record(self, policy: str, key: str) -> StrikeRecord | None:
        """Return the strike record of a key under a policy."""

    def put_record(self, policy: str, key: str, record: StrikeRecord) -> None:
        """Store a strike record, replacing that of the same policy and key."""

    def remove_records(self, key: str) -> list[StrikeRecord]:
        """Remove the strike records of a key under all policies, and return them."""

    def record_count(self) -> int:
        """Return how many strike records there are."""

    def evict_record(self) -> None:
        """Remove a strike record to make room for another."""

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        """Remove at most `max_count` expired bans and records; return whether there may be more."""


class BanRules:
    """Applies the rules to the storage of a store. The store holds a lock or a transaction during each call.

    Args:
        storage: The bans and strike records of the store.
        max_bans: The most bans, and the most strike records, to store.
        throttle: Limits the rate of events that could be repeated with every strike.

    Attributes:
        events: Pending events; the store takes them from here and emits them.
    """

    def __init__(self, storage: BanStorage, max_bans: int, throttle: Throttle) -> None:
        self._storage = storage
        self._max_bans = max_bans
        self._throttle = throttle
        self.events: list[Event] = []

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, now_us: int) -> Ban | None:
        """Count a strike, and ban the key if it reaches the policy's threshold; return the new ban, if any."""
        storage = self._storage
        storage.remove_expired(now_us, 2)
        ban = storage.ban(key)
        if ban is not None and not ban.is_over(now_us):
            return None
        before = storage.record(policy.name, key)
        if before is None:
            self._make_room_for_record(now_us)
        record, is_due = (before or StrikeRecord()).struck(policy, now_us, weight)
        made: Ban | None = None
        if is_due and (policy.shadow or self._has_room(key, now_us)):
            record, made = record.banned(policy, key, reason)
        storage.put_record(policy.name, key, record)
        if made is None or policy.shadow:
            self.events += [] if made is None else [shadow_banned(made)]
            return None
        storage.put_ban(made)
        self.events.append(banned(made))
        return made

    def ban(self, key: str, length_us: int | None, reason: str, by: str, now_us: int) -> Ban:
        """Ban a key by hand, replacing a ban that it already has; a length of None means for ever.

        Raises:
            ConfigurationError: Too many networks are banned.
        """
        self._storage.remove_expired(now_us, 2)
        ban = Ban(key, reason, by, 0, now_us, None if length_us is None else now_us + length_us)
        self._storage.put_ban(ban)
        self.events.append(banned(ban))
        return ban

    def unban(self, key: str, by: str, now_us: int) -> bool:
        """Lift the ban of exactly this key, and forget its strikes and levels; return False if there was nothing."""
        ban = self._storage.ban(key)
        self._storage.remove_ban(key)
        forgotten = any(record.over_us > now_us for record in self._storage.remove_records(key))
        if ban is None or ban.is_over(now_us):
            return forgotten
        self.events.append(unbanned(ban, by))
        return True

    def take_over(self, bans: Iterable[Ban]) -> None:
        """Import bans; of two for a key, the one that ends later is kept."""
        for ban in bans:
            other = self._storage.ban(ban.key)
            if other is None or lasts_longer(ban, other):
                self._storage.put_ban(ban)

    def _has_room(self, key: str, now_us: int) -> bool:
        """Return whether one more automatic ban can be recorded."""
        self._storage.remove_ban(key)  # an expired ban of the key, which the new one replaces
        more = True
        while (is_full := self._storage.ban_count() >= self._max_bans) and more:
            more = self._storage.remove_expired(now_us, STEP)
        if is_full:
            self._emit(bans_full(self._max_bans, key), now_us)
        return not is_full

    def _make_room_for_record(self, now_us: int) -> None:
        if self._storage.record_count() < self._max_bans:
            return
        self._storage.remove_expired(now_us, STEP)
        if self._storage.record_count() >= self._max_bans:
            self._storage.evict_record()
            self._emit(strikes_dropped(self._max_bans), now_us)

    def _emit(self, event: Event, now_us: int) -> None:
        """Emit an event that could be repeated with every strike, at most once a minute."""
        if self._throttle.left_out(event.kind, now_us) is not None:
            self.events.append(event)


def banned(ban: Ban) -> Event:
    """Return the event for a new ban."""
    until = "for ever" if ban.until is None else f"until {ban.until:%Y-%m-%dT%H:%M:%SZ}"
    details = {"key": ban.key, "by": ban.by, "reason": ban.reason, "ban_level": ban.level, "until": ban.until}
    told = f"paused {until}" if _is_pause(ban) else f"banned {until} by {ban.by}"
    return Event("banned", f"{ban.key} is {told}: {ban.reason}", details)


def unbanned(ban: Ban, by: str) -> Event:
    """Return the event for a lifted ban."""
    told = f"the pause of {ban.key} was ended" if _is_pause(ban) else f"{ban.key} was unbanned"
    return Event("unbanned", f"{told} by {by}", {"key": ban.key, "by": by, "was_by": ban.by})


def _is_pause(ban: Ban) -> bool:
    return ban.by == PAUSED_BY and ban.key.startswith(PAUSED_KEYS)


def shadow_banned(ban: Ban) -> Event:
    """Return the event for a ban that a shadow policy would have made."""
    length = format_duration((ban.until_us or 0) - ban.since_us)
    message = f"policy {ban.by!r} would have banned {ban.key} for {length}: {ban.reason}"
    details = {"policy": ban.by, "key": ban.key, "ban_level": ban.level, "reason": ban.reason}
    return Event("shadow_banned", message, details)


def bans_full(max_bans: int, key: str) -> Event:
    """Return the event for an automatic ban that was not recorded for lack of room."""
    message = f"all {max_bans} bans are in use, so {key} was not banned; raise max_bans"
    return Event("bans_full", message, {"max_bans": max_bans, "key": key})


def strikes_dropped(max_bans: int) -> Event:
    """Return the event for strike records that were deleted for lack of room."""
    message = f"all {max_bans} strike records are in use, so others are deleted; raise max_bans"
    return Event("strikes_dropped", message, {"max_bans": max_bans})
