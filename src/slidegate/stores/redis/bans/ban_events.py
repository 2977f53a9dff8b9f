"""Events in words, from the reports of Redis about bans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from time import monotonic
from typing import Final

from ....core.bans.in_force import Ban, shown
from ....core.bans.policy import BanPolicy
from ....core.durations import format_duration
from ....core.store import Event
from .ban_codec import text_of, unpack_ban

BANNED, UNBANNED, SHADOW, CAPPED, FULL, FULL_OF_PREFIXES, DROPPED = range(1, 8)
SAY_EVERY_S: Final = 60.0
PREFIX_SHARE: Final = 10

_HEAD: Final = Struct("<BH")


class Teller:
    """Turns reports into events.

    Args:
        tell: Passes events on.
        most: How many bans may be held.
    """

    def __init__(self, tell: Callable[[Sequence[Event]], None], most: int) -> None:
        self._tell = tell
        self._most = most
        self._next_s: dict[tuple[str, str], float] = {}

    def tell(self, reports: Sequence[bytes], policy: BanPolicy | None = None, by: str = "") -> None:
        """Tell of the changes that a command has made.

        Args:
            reports: The reports of Redis.
            policy: The policy that was at work.
            by: The name of whoever took a ban back.
        """
        events = [event for report in reports for event in self._events(report, policy, by)]
        if events:
            self._tell(events)

    def _events(self, report: bytes, policy: BanPolicy | None, by: str) -> list[Event]:
        kind, length = _HEAD.unpack_from(report)
        key, row = report[_HEAD.size : _HEAD.size + length], report[_HEAD.size + length :]
        if kind in (BANNED, UNBANNED, SHADOW):
            return [_about(kind, unpack_ban(key, row), by)]
        return self._now_and_then(kind, text_of(key), policy)

    def _now_and_then(self, kind: int, key: str, policy: BanPolicy | None) -> list[Event]:
        """Tell of something that may go on and on, at most once a minute."""
        most, name, about = self._most, policy.name if policy else "", ""
        if kind == CAPPED and policy is not None:
            about = name
            message = f"policy {name!r} has made {policy.most} bans; {shown(key)} stays unbanned for now"
            event = Event("bans_capped", message, {"policy": name, "key": key})
        elif kind == DROPPED:
            message = f"the strikes of {most} keys are remembered, so the oldest are forgotten; raise max_bans"
            event = Event("strikes_dropped", message, {"max_bans": most})
        else:
            what = f"room for prefixes (one in {PREFIX_SHARE})" if kind == FULL_OF_PREFIXES else "room"
            message = f"no {what} is left among {most} bans, so {shown(key)} stays unbanned; raise max_bans"
            event = Event("bans_full", message, {"max_bans": most, "key": key})
        now_s = monotonic()
        if now_s < self._next_s.get((event.kind, about), 0.0):
            return []
        self._next_s[event.kind, about] = now_s + SAY_EVERY_S
        return [event]


def changes(reports: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and row of each ban that a command has made; the row is empty where it took one back."""
    for report in reports:
        kind, length = _HEAD.unpack_from(report)
        if kind in (BANNED, UNBANNED):
            key, row = report[_HEAD.size : _HEAD.size + length], report[_HEAD.size + length :]
            yield key, row if kind == BANNED else b""


def _about(kind: int, ban: Ban, by: str) -> Event:
    if kind == UNBANNED:
        return Event("unbanned", f"{shown(ban.key)} was unbanned by {by}", {"key": ban.key, "by": by, "was_by": ban.by})
    if kind == SHADOW:
        length_us = (ban.ends_us or 0) - ban.made_us
        message = f"policy {ban.by!r} would have banned {shown(ban.key)} for {format_duration(length_us)}: {ban.reason}"
        details = {"policy": ban.by, "key": ban.key, "rung": ban.rung, "reason": ban.reason}
        return Event("shadow_banned", message, details)
    until = "for ever" if ban.until is None else f"until {ban.until:%Y-%m-%dT%H:%M:%SZ}"
    told = {"key": ban.key, "by": ban.by, "reason": ban.reason, "rung": ban.rung, "until": ban.until}
    return Event("banned", f"{shown(ban.key)} is banned {until} by {ban.by}: {ban.reason}", told)
