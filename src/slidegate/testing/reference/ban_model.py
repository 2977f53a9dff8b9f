"""Bans as their rules say it, slowly: one plain list of all that happened, looked through anew at each question.

Nothing is shared with the code under test but the parts of a policy. Policies have whole factors here, and strikes few
enough to be exact. A policy's ladder knows its own bans alone: those by hand stand beside it. Time is the store's own,
and never runs back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...core.bans.policy import BanPolicy


class Struck(NamedTuple):
    """A strike that counted."""

    by: str
    key: str
    at_us: int
    weight: int


@dataclass
class Made:
    """A ban, also one that a policy only reports.

    Attributes:
        by: The policy, or the name of the operator.
        ends_us: When it ends; None for never.
        level: 0 for one made by hand.
        refuses: False for one that is only reported, and for one that another took the place of.
    """

    by: str
    key: str
    at_us: int
    ends_us: int | None
    level: int
    refuses: bool = True

    def lasts(self, now_us: int) -> bool:
        """Return whether it has not ended."""
        return self.ends_us is None or now_us < self.ends_us


Entry: TypeAlias = Struck | Made


class Stand(NamedTuple):
    """Where a key stands under a policy: the level that is left, and how much counts towards the next ban."""

    level: int
    weight: int


class BanModel:
    """Every strike and every ban since the beginning, but for those that were forgiven.

    Attributes:
        entries: All of them, in their order.
        changes: (banned or unbanned, key) of each.
        reports: (policy, key) of each ban that was only reported.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.changes: list[tuple[str, str]] = []
        self.reports: list[tuple[str, str]] = []

    def active(self, now_us: int) -> list[Made]:
        """Return the bans in force."""
        return [entry for entry in self.entries if isinstance(entry, Made) and entry.refuses and entry.lasts(now_us)]

    def refusing(self, address: str, key: str, now_us: int) -> list[Made]:
        """Return the bans that refuse a request of an address that is counted by a key."""
        return [ban for ban in self.active(now_us) if ban.key == key or (not ban.level and _holds(ban.key, address))]

    def ban(self, key: str, length_us: int | None, by: str, now_us: int) -> Made:
        """Ban by hand, in the place of a ban that there is."""
        self._replace(key)
        made = Made(by, key, now_us, None if length_us is None else now_us + length_us, 0)
        self.entries.append(made)
        self.changes.append(("banned", key))
        return made

    def unban(self, key: str, now_us: int) -> None:
        """Take a ban back, and forgive everything."""
        if any(ban.key == key for ban in self.active(now_us)):
            self.changes.append(("unbanned", key))
        self.entries = [entry for entry in self.entries if entry.key != key]

    def strike(self, policy: BanPolicy, key: str, weight: int, now_us: int) -> Made | None:
        """Strike, and return the ban that it makes."""
        if any(ban.key == key for ban in self.active(now_us)):
            return None
        if policy.shadow and any(isinstance(entry, Made) and entry.lasts(now_us) for entry in self._own(policy, key)):
            return None  # a ban that is only reported counts as if it were made
        self.entries.append(Struck(policy.name, key, now_us, weight))
        if self._weight(policy, key, now_us) < policy.after.amount:
            return None
        level = self._level(policy, key, now_us) + 1
        length_us = min(policy.duration_us * int(policy.factor) ** (level - 1), policy.longest_us)
        self._replace(key)
        made = Made(policy.name, key, now_us, now_us + length_us, level, refuses=not policy.shadow)
        self.entries.append(made)
        if policy.shadow:
            self.reports.append((policy.name, key))
            return None
        self.changes.append(("banned", key))
        return made

    def stand(self, policy: BanPolicy, key: str, now_us: int) -> Stand:
        """Return where a key stands; no more weight is told apart than a ban takes."""
        weight = min(self._weight(policy, key, now_us), policy.after.amount)
        return Stand(self._level(policy, key, now_us), weight)

    def knows(self, policies: Sequence[BanPolicy], key: str, now_us: int) -> bool:
        """Return whether there is anything about a key to forget."""
        banned = any(ban.key == key for ban in self.active(now_us))
        return banned or any(any(self.stand(policy, key, now_us)) for policy in policies)

    def restart(self) -> None:
        """Forget what does not outlive a process."""
        self.changes, self.reports = [], []

    def _replace(self, key: str) -> None:
        for entry in self.entries:
            if isinstance(entry, Made) and entry.key == key:
                entry.refuses = False

    def _own(self, policy: BanPolicy, key: str) -> Iterator[Entry]:
        """Yield everything that happened to a key under a policy."""
        return (entry for entry in self.entries if (entry.by, entry.key) == (policy.name, key))

    def _weight(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Add up the strikes in the window and since the last ban."""
        counted: list[Struck] = []
        for entry in self._own(policy, key):
            if isinstance(entry, Made):
                counted = []
            elif entry.at_us > now_us - policy.after.window_us:
                counted.append(entry)
        return sum(strike.weight for strike in counted)

    def _level(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Climb the ladder: one up for each ban, one down for each whole `forgive` of clean time."""
        level = clean_from_us = 0
        for entry in self._own(policy, key):
            if isinstance(entry, Struck):
                level = max(level - max(entry.at_us - clean_from_us, 0) // policy.forgive_us, 0)
                clean_from_us = entry.at_us
            elif entry.ends_us is not None:
                level += 1
                clean_from_us = entry.ends_us
        return max(level - max(now_us - clean_from_us, 0) // policy.forgive_us, 0)


def _holds(network: str, address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
        return (getattr(found, "ipv4_mapped", None) or found) in ipaddress.ip_network(network)
    except ValueError:
        return False
