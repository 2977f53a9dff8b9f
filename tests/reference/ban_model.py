"""The reference model of bans: a plain list of all strikes and bans, evaluated from scratch at each call.

It shares only the parameters of policies with the code under test. Here factors are integers, and strikes few enough to
be counted exactly. The ladder of a policy includes only its own bans, not those of operators, and none that was
imported. Time is Unix time.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, TypeAlias

from slidegate import BanPolicy


class Struck(NamedTuple):
    """A strike that counted."""

    by: str
    key: str
    at_us: int
    weight: int


@dataclass
class Made:
    """A ban, including those of shadow policies.

    Attributes:
        by: The policy, or the name of the operator.
        until_us: When it ends; None for a permanent ban.
        level: The level of the ladder; 0 for a ban by an operator.
        refuses: False for a shadow ban and for a ban that was replaced.
        is_imported: Whether it is no rung of the ladder of its policy any more.
    """

    by: str
    key: str
    since_us: int
    until_us: int | None
    level: int
    refuses: bool = True
    is_imported: bool = False

    def lasts(self, now_us: int) -> bool:
        """Return whether it has not ended."""
        return self.until_us is None or now_us < self.until_us


Entry: TypeAlias = Struck | Made


class BanModel:
    """All strikes and bans, except those removed by `unban`.

    Attributes:
        entries: The strikes and bans in chronological order.
        changes: ("banned", "unbanned" or "shadow_banned", key) for each change, as the events of a store.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.changes: list[tuple[str, str]] = []

    def active(self, now_us: int) -> list[Made]:
        """Return the active bans."""
        return [entry for entry in self.entries if isinstance(entry, Made) and entry.refuses and entry.lasts(now_us)]

    def refusing(self, address: str, key: str, now_us: int) -> list[Made]:
        """Return the bans that refuse a request from an address with the given key."""
        return [ban for ban in self.active(now_us) if ban.key == key or (not ban.level and _holds(ban.key, address))]

    def ban(self, key: str, length_us: int | None, by: str, now_us: int) -> Made:
        """Ban a key as an operator, replacing its ban if it has one."""
        self._replace(key)
        made = Made(by, key, now_us, None if length_us is None else now_us + length_us, 0)
        self.entries.append(made)
        self.changes.append(("banned", key))
        return made

    def load(self, bans: Sequence[Made], now_us: int) -> int:
        """Import bans; of two that refuse the same the one that ends later stays. Return how many are in force."""
        lasting = [replace(ban, refuses=True, is_imported=True) for ban in bans if ban.lasts(now_us)]
        for ban in lasting:
            others = [one for one in self.active(now_us) if (one.key, _is_wide(one)) == (ban.key, _is_wide(ban))]
            if all(one.until_us is not None and (ban.until_us or inf) > one.until_us for one in others):
                for one in others:
                    one.refuses = False
                self.entries.append(ban)
        return len(lasting)

    def unban(self, key: str, now_us: int) -> None:
        """Remove the bans and strikes of a key."""
        if any(ban.key == key for ban in self.active(now_us)):
            self.changes.append(("unbanned", key))
        self.entries = [entry for entry in self.entries if entry.key != key]

    def strike(self, policy: BanPolicy, key: str, weight: int, now_us: int) -> Made | None:
        """Record a strike; return the ban that it makes, or None."""
        if any(ban.key == key for ban in self.active(now_us)):
            return None
        if policy.shadow and any(isinstance(entry, Made) and entry.lasts(now_us) for entry in self._own(policy, key)):
            return None  # as under an active ban, strikes do not count during a shadow ban
        self.entries.append(Struck(policy.name, key, now_us, weight))
        if self._weight(policy, key, now_us) < policy.after.amount:
            return None
        level = self._level(policy, key, now_us) + 1
        length_us = min(policy.duration_us * int(policy.factor) ** (level - 1), policy.longest_us)
        self._replace(key)
        made = Made(policy.name, key, now_us, now_us + length_us, level, refuses=not policy.shadow)
        self.entries.append(made)
        self.changes.append(("shadow_banned" if policy.shadow else "banned", key))
        return None if policy.shadow else made

    def knows(self, policies: Sequence[BanPolicy], key: str, now_us: int) -> bool:
        """Return whether a key has a ban, a level or strikes."""
        banned = any(ban.key == key for ban in self.active(now_us))
        counts = (self._level, self._weight)
        return banned or any(count(policy, key, now_us) for count in counts for policy in policies)

    def _replace(self, key: str) -> None:
        for entry in self.entries:
            if isinstance(entry, Made) and entry.key == key:
                entry.refuses = False

    def _own(self, policy: BanPolicy, key: str) -> Iterator[Entry]:
        """Yield the strikes and bans of a key under a policy."""
        return (
            entry
            for entry in self.entries
            if (entry.by, entry.key) == (policy.name, key) and not getattr(entry, "is_imported", False)
        )

    def _weight(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Return the weight of the strikes within the window and since the last ban."""
        counted: list[Struck] = []
        for entry in self._own(policy, key):
            if isinstance(entry, Made):
                counted = []
            elif entry.at_us > now_us - policy.after.window_us:
                counted.append(entry)
        return sum(strike.weight for strike in counted)

    def _level(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Return the level: one up for each ban, one down for each full `forgive` period since the end of the last."""
        level = ended_us = 0
        for entry in self._own(policy, key):
            if isinstance(entry, Made) and entry.until_us is not None:
                level = max(level - max(entry.since_us - ended_us, 0) // policy.forgive_us, 0) + 1
                ended_us = entry.until_us
        return max(level - max(now_us - ended_us, 0) // policy.forgive_us, 0)


def _is_wide(ban: Made) -> bool:
    """Return whether a ban refuses the addresses of a network, and not only the client that is counted by its key."""
    try:
        network = ipaddress.ip_network(ban.key)
        return not ban.level and network.prefixlen != {4: 32, 6: 64}[network.version]
    except ValueError:
        return False


def _holds(network: str, address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
        return (getattr(found, "ipv4_mapped", None) or found) in ipaddress.ip_network(network)
    except ValueError:
        return False
