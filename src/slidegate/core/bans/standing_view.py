"""How a key stands under ban policies, for people who look at one client. Nothing here changes a standing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .policy import BanPolicy
from .records import Ledger
from .standing import Standing


class KeptStanding(NamedTuple):
    """A standing as a store holds it. Moments are microseconds of the store's time."""

    policy: str
    """The name of the policy."""
    key: str
    standing: Standing
    window_us: int
    """The window of the policy at its last strike; 0 where the standing was loaded and nothing has struck since."""
    forgive_us: int
    """The clean time that takes a level, likewise."""


KeptStandings: TypeAlias = tuple[int, Sequence[KeptStanding]]
"""The store's time, and standings at that moment."""


class PolicyStanding(NamedTuple):
    """How a key stands under one policy. Moments are microseconds of the store's time."""

    policy: str
    """The name of the policy; that of a policy for prefixes ends with ``/prefix``."""
    key: str
    """The key that was struck: the one that was asked about, or a network that holds it."""
    strikes: int
    """The weight of the strikes that count towards the next ban, 0 or more."""
    needed: int | None
    """How many strikes ban; None where the policy is not known."""
    level: int
    """How many bans in a row there were, less those that clean time has taken."""
    clean_since_us: int
    """When clean time began: the last strike, or the end of the last ban, which lies ahead while that lasts."""
    clean_until_us: int | None
    """When clean time will have taken the last level; None where there is none, or the policy is not known."""


def kept_standings(ledgers: Mapping[str, Ledger], keys: Iterable[str]) -> list[KeptStanding]:
    """Return the standings of some keys under each policy.

    Args:
        ledgers: The records of each policy, by its name.
        keys: The keys.
    """
    asked, found = list(keys), []
    for name, ledger in ledgers.items():
        policy = ledger.policy
        window_us, forgive_us = (0, 0) if policy is None else (policy.after.window_us, policy.forgive_us)
        for key in asked:
            standing = ledger.standings.get(key)
            if standing is not None:
                found.append(KeptStanding(name, key, standing.copy(), window_us, forgive_us))
    return found


def policy_standing(kept: KeptStanding, policy: BanPolicy | None, now_us: int) -> PolicyStanding | None:
    """Return how a key stands at a moment; None where nothing is left to remember.

    Args:
        kept: The standing.
        policy: The policy as it is now. Where it is not known, None: the one of the last strike is gone by, and if that
            is not known either, every strike and level counts.
        now_us: The store's time.
    """
    standing, window_us, forgive_us = kept.standing, kept.window_us, kept.forgive_us
    if policy is not None:
        window_us, forgive_us = policy.after.window_us, policy.forgive_us
    weight = standing.weight_at(window_us, now_us) if window_us else sum(one.weight for one in standing.strikes)
    level = standing.level_at(forgive_us, now_us) if forgive_us else standing.level
    if not weight and not level and now_us >= standing.until_us:
        return None
    since_us = max(standing.last_us, standing.until_us)
    until_us = since_us + standing.level * forgive_us if level and forgive_us else None
    needed = None if policy is None else policy.after.amount
    return PolicyStanding(kept.policy, kept.key, weight, needed, level, since_us, until_us)
