"""The events of bans, levels and strikes."""

from __future__ import annotations

from typing import Final

from ..durations import format_duration
from ..store import Event
from .ban import Ban

PAUSED_BY: Final = "outbound"
PAUSED_KEYS: Final = "to:"
"""The maker and the key prefix of bans that are pauses: a remote server asked us to send no requests for some time."""


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


def strikes_dropped(max_keys: int) -> Event:
    """Return the event for strikes that were not counted, because a window for them had no room."""
    message = f"all {max_keys} keys are in use, so strikes of further keys are not counted; raise max_keys"
    return Event("strikes_dropped", message, {"max_keys": max_keys})
