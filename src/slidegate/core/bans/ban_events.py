"""The events about bans, in words: every store tells the same."""

from __future__ import annotations

from typing import Final

from ..durations import format_duration
from ..store import Event
from .in_force import Ban, shown
from .policy import BanPolicy

PREFIX_SHARE: Final = 10
"""One in so many of all bans may be a prefix that a policy banned."""
PAUSED_BY: Final = "outbound"
"""Who makes the bans that are pauses: another server wants no requests of ours for a while."""


def banned(ban: Ban) -> Event:
    """Tell that a ban was made."""
    until = "for ever" if ban.until is None else f"until {ban.until:%Y-%m-%dT%H:%M:%SZ}"
    details = {"key": ban.key, "by": ban.by, "reason": ban.reason, "level": ban.level, "until": ban.until}
    told = f"paused {until}" if ban.by == PAUSED_BY else f"banned {until} by {ban.by}"
    return Event("banned", f"{shown(ban.key)} is {told}: {ban.reason}", details)


def unbanned(ban: Ban, by: str) -> Event:
    """Tell that a ban was taken back."""
    return Event("unbanned", f"{shown(ban.key)} was unbanned by {by}", {"key": ban.key, "by": by, "was_by": ban.by})


def shadow_banned(ban: Ban) -> Event:
    """Tell of the ban that a policy would have made which only reports."""
    length = format_duration((ban.ends_us or 0) - ban.made_us)
    message = f"policy {ban.by!r} would have banned {shown(ban.key)} for {length}: {ban.reason}"
    details = {"policy": ban.by, "key": ban.key, "level": ban.level, "reason": ban.reason}
    return Event("shadow_banned", message, details)


def bans_capped(policy: BanPolicy, key: str) -> Event:
    """Tell that a policy has made as many bans as it may for now."""
    message = f"policy {policy.name!r} has made {policy.most} bans; {shown(key)} stays unbanned for now"
    return Event("bans_capped", message, {"policy": policy.name, "key": key})


def bans_full(max_bans: int, key: str, *, of_prefixes: bool) -> Event:
    """Tell that an automatic ban was not recorded for want of room."""
    room = f"room for prefixes (one in {PREFIX_SHARE})" if of_prefixes else "room"
    message = f"no {room} is left among {max_bans} bans, so {shown(key)} stays unbanned; raise max_bans"
    return Event("bans_full", message, {"max_bans": max_bans, "key": key})


def strikes_dropped(max_bans: int) -> Event:
    """Tell that the oldest strikes are forgotten for want of room."""
    message = f"the strikes of {max_bans} keys are remembered, so the oldest are forgotten; raise max_bans"
    return Event("strikes_dropped", message, {"max_bans": max_bans})
