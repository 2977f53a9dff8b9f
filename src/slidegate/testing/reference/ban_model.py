"""Bans as their rules say it, slowly: one plain list of all that happened, looked through anew at each question.

Nothing is shared with the code under test but the parts of a policy. Policies have no jitter here, whole factors,
and strikes few enough to be exact. A policy's ladder knows its own bans alone: those by hand stand beside it. Time is
the store's own, and never runs back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...core.bans.policy import BanPolicy


class Struck(NamedTuple):
    """A strike that counted; `source` is the address whose ban it is, for a prefix."""

    by: str
    key: str
    at_us: int
    weight: int
    source: str


@dataclass
class Made:
    """A ban, also one that a policy only reports.

    Attributes:
        by: The policy, or the name of the operator.
        ends_us: When it ends; None for never.
        level: 0 for one made by hand.
        prolong_us: How long a request while banned makes it go on; 0 if it does not.
        refuses: False for one that is only reported, and for one that another took the place of.
    """

    by: str
    key: str
    at_us: int
    ends_us: int | None
    level: int
    prolong_us: int
    refuses: bool = True

    def lasts(self, now_us: int) -> bool:
        """Tell whether it has not ended."""
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
        changes: (banned or unbanned, key, by whom): the history.
        reports: (policy, key) of each ban that was only reported.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.changes: list[tuple[str, str, str]] = []
        self.reports: list[tuple[str, str]] = []
        self._made_at: list[tuple[str, int]] = []  # (policy, moment) of every ban that counts towards a cap

    def active(self, now_us: int) -> list[Made]:
        """Return the bans in force."""
        return [entry for entry in self.entries if isinstance(entry, Made) and entry.refuses and entry.lasts(now_us)]

    def hit(self, client: str, now_us: int) -> list[Made]:
        """Return the bans that refuse a request of an address or key, and prolong those that requests prolong."""
        found = self.peek(client, now_us)
        for ban in found:
            if ban.prolong_us and ban.ends_us is not None:
                ban.ends_us = max(ban.ends_us, now_us + ban.prolong_us)
        return found

    def peek(self, client: str, now_us: int) -> list[Made]:
        """Return the bans that would refuse a request."""
        return [ban for ban in self.active(now_us) if ban.key == client or _holds(ban.key, client)]

    def ban(self, key: str, length_us: int | None, by: str, now_us: int) -> Made:
        """Ban by hand, in the place of a ban that there is."""
        self._replace(key)
        made = Made(by, key, now_us, None if length_us is None else now_us + length_us, 0, 0)
        self.entries.append(made)
        self.changes.append(("banned", key, by))
        return made

    def unban(self, key: str, by: str, now_us: int) -> None:
        """Take a ban back, and forgive everything."""
        if any(ban.key == key for ban in self.active(now_us)):
            self.changes.append(("unbanned", key, by))
        self.entries = [entry for entry in self.entries if entry.key != key]

    def strike(self, policy: BanPolicy, key: str, weight: int, prefix: str, now_us: int) -> Made | None:
        """Strike, and return the ban that it makes."""
        made = self._strike(policy, key, weight, "", now_us)
        if made is not None and prefix and policy.prefix is not None:
            self._strike(policy.prefix, prefix, 1, key, now_us)
        return made if made is not None and made.refuses else None

    def stand(self, policy: BanPolicy, key: str, now_us: int) -> Stand:
        """Return where a key stands; no more weight is told apart than a ban takes."""
        weight = min(self._weight(policy, key, now_us), policy.after.amount)
        return Stand(self._level(policy, key, now_us), weight)

    def knows(self, policies: Sequence[BanPolicy], key: str, now_us: int) -> bool:
        """Tell whether there is anything about a key to forget."""
        banned = any(ban.key == key for ban in self.active(now_us))
        return banned or any(any(self.stand(policy, key, now_us)) for policy in policies)

    def restart(self) -> None:
        """Forget what does not outlive a process."""
        self.changes, self.reports, self._made_at = [], [], []

    def _strike(self, policy: BanPolicy, key: str, weight: int, source: str, now_us: int) -> Made | None:
        if any(ban.key == key for ban in self.active(now_us)):
            return None
        reports = policy.action == "shadow"
        if reports and any(isinstance(entry, Made) and entry.lasts(now_us) for entry in self._own(policy, key)):
            return None  # a ban that is only reported counts as if it were made
        self.entries.append(Struck(policy.name, key, now_us, weight, source))
        if self._weight(policy, key, now_us) < policy.after.amount or self._is_capped(policy, now_us):
            return None
        self._made_at.append((policy.name, now_us))
        level = self._level(policy, key, now_us) + 1
        length_us = min(policy.duration_us * int(policy.factor) ** (level - 1), policy.longest_us)
        self._replace(key)
        prolong_us = length_us if policy.prolong else 0
        made = Made(policy.name, key, now_us, now_us + length_us, level, prolong_us, refuses=not reports)
        self.entries.append(made)
        if reports:
            self.reports.append((policy.name, key))
        else:
            self.changes.append(("banned", key, policy.name))
        return made

    def _replace(self, key: str) -> None:
        for entry in self.entries:
            if isinstance(entry, Made) and entry.key == key:
                entry.refuses = False

    def _is_capped(self, policy: BanPolicy, now_us: int) -> bool:
        from_us = now_us - policy.max_rate.window_us
        recent = [at_us for by, at_us in self._made_at if by == policy.name and at_us > from_us]
        return len(recent) >= policy.max_rate.amount

    def _own(self, policy: BanPolicy, key: str) -> Iterator[Entry]:
        """Yield everything that happened to a key under a policy."""
        return (entry for entry in self.entries if (entry.by, entry.key) == (policy.name, key))

    def _weight(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Add up the strikes in the window and since the last ban; of a prefix, each address once."""
        counted: list[Struck] = []
        for entry in self._own(policy, key):
            if isinstance(entry, Made):
                counted = []
            elif entry.at_us > now_us - policy.after.window_us:
                counted.append(entry)
        if any(strike.source for strike in counted):
            return len({strike.source for strike in counted})
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
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)
    except ValueError:
        return False
