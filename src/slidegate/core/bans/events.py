"""The events of bans, levels and strikes."""

from __future__ import annotations

from ..durations import format_duration
from ..events import Event
from .ban import Ban


def banned(ban: Ban) -> Event:
    """Return the event for a new ban."""
    span = "for ever"
    if ban.until is not None:
        span = f"until {ban.until:%Y-%m-%dT%H:%M:%SZ}"
    message = f"{ban.key} is banned {span} by {ban.by}{_because(ban)}"
    details = {"key": ban.key, "by": ban.by, "reason": ban.reason, "ban_level": ban.level, "until": ban.until}
    return Event("banned", message, details)


def unbanned(ban: Ban, by: str) -> Event:
    """Return the event for a lifted ban."""
    details = {"key": ban.key, "by": by, "was_by": ban.by}
    return Event("unbanned", f"{ban.key} was unbanned by {by}", details)


def shadow_banned(ban: Ban) -> Event:
    """Return the event for a ban that a shadow policy would have made; bans of policies end."""
    assert ban.until_us is not None, "a ban of a policy ends"
    span = format_duration(ban.until_us - ban.since_us)
    message = f"policy {ban.by!r} would have banned {ban.key} for {span}{_because(ban)}"
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


def _because(ban: Ban) -> str:
    """Return the end of a message, with the reason of a ban if it has one."""
    if not ban.reason:
        return ""
    return f": {ban.reason}"
