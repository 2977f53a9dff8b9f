"""When a key is banned, and for how long.

A policy counts *strikes* of a key. The strike that makes `after.amount` of them within `after.window_us` bans the key;
the n-th ban in a row lasts ``min(duration * factor ** (n - 1), longest)``, plus jitter, never past `longest`::

    strikes   x x x|                 x x|                        x x x|
    ban            [== duration ==]     .[== duration * factor ==].    [= duration * factor =]
    level     0    1                1   2                        2   1 2
                                                                     ^ clean for `forgive`: one level down

Rules of the state machine (`StrikeRecord`, one for each key and policy):

1. While a ban lasts, strikes are not counted: requests that were on their way when it began change nothing.
2. A ban takes the strikes that led to it; the next one needs as many again.
3. Clean time runs from the later of the last strike and the end of the last ban; each whole `forgive` of it is
   one level less. Nothing has to run for that: it is worked out at the next strike.
4. Up to 64, strikes are exact. Beyond, they are counted by slices, from the start of the slice that they fell in: a ban
   may come a slice late, and never on fewer than `after` in its window.
5. Time here never runs back. A store whose clock can step back goes on from where it was: the step prolongs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from ..limits import Identity
from .policy import BanPolicy


class Strike(NamedTuple):
    """One strike, or the rest of several strikes in one slice."""

    at_us: int
    weight: int
    source: str = ""
    """For a prefix: the address whose ban it is. Each counts once."""


class StrikeRecord:
    """How a key stands under a policy.

    Attributes:
        strikes: The strikes that count towards the next ban, oldest first; never more than `MAX_EXACT` + 1.
        level: How many bans in a row there were when the last one was made.
        last_us: The moment of the last strike.
        until_us: The end of the last ban, 0 if there was none.
    """

    __slots__ = ("last_us", "level", "strikes", "until_us")

    def __init__(
        self, level: int = 0, last_us: int = 0, until_us: int = 0, strikes: list[Strike] | None = None
    ) -> None:
        self.level = level
        self.last_us = last_us
        self.until_us = until_us
        self.strikes: list[Strike] = [] if strikes is None else strikes

    def __repr__(self) -> str:
        return (
            f"<StrikeRecord level={self.level} strikes={self.strikes} last_us={self.last_us} until_us={self.until_us}>"
        )

    def level_at(self, forgive_us: int, now_us: int) -> int:
        """Return the level that is left where each `forgive_us` of clean time takes one."""
        clean_us = now_us - max(self.last_us, self.until_us)
        return max(self.level - max(clean_us, 0) // forgive_us, 0)

    def weight_at(self, window_us: int, now_us: int) -> int:
        """Return the weight of the strikes in a window that ends now."""
        from_us = now_us - window_us
        return sum(strike.weight for strike in self.strikes if strike.at_us > from_us)

    def copy(self) -> StrikeRecord:
        """Return a copy that further strikes leave as it is."""
        return StrikeRecord(self.level, self.last_us, self.until_us, list(self.strikes))

    def strike(self, policy: BanPolicy, now_us: int, weight: int, source: str = "") -> bool:
        """Count a strike; True if a ban is due. It is made by `ban`, or not at all, and then due again."""
        if now_us < self.until_us:
            return False
        self.level = self.level_at(policy.forgive_us, now_us)
        self.last_us = now_us
        amount, from_us = policy.after.amount, now_us - policy.after.window_us
        at_us = now_us - now_us % policy.grain_us
        kept = [s for s in self.strikes if s.at_us > from_us and (not source or s.source != source)]
        weight = min(weight, amount)
        if kept and kept[-1].at_us == at_us and not source:
            kept[-1] = Strike(at_us, min(kept[-1].weight + weight, amount))
        else:
            kept.append(Strike(at_us, weight, source))
        total = sum(strike.weight for strike in kept)
        while total - kept[0].weight >= amount:
            total -= kept.pop(0).weight
        self.strikes = kept
        return total >= amount

    def ban(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Go one level up, and return how long the ban lasts in microseconds."""
        self.level += 1
        self.strikes = []
        length_us = policy.length_us(self.level, key)
        self.until_us = now_us + length_us
        return length_us


class StrikeQueue(Protocol):
    """The strike records of a policy's keys: a queue, in which the key that was struck longest ago comes first."""

    def __len__(self) -> int:
        """Return how many keys have one."""

    def get(self, key: str) -> StrikeRecord | None:
        """Return the strike record of a key. A change of it counts once it is given to `put` or `keep`."""

    def items(self) -> Iterable[tuple[str, StrikeRecord]]:
        """Yield each key and its strike record, the front of the queue first."""

    def put(self, key: str, record: StrikeRecord) -> None:
        """Record the strike record of a key that has none, at the end of the queue."""

    def keep(self, key: str, record: StrikeRecord) -> None:
        """Record a change of a strike record; the key stays where it is in the queue."""

    def take(self, key: str) -> StrikeRecord | None:
        """Take the strike record of a key out, and return it; None if it has none."""


class PolicyState:
    """What is remembered under one policy.

    Attributes:
        name: The name of the policy.
        strikes: The strike records of its keys.
        window_us: The window in which strikes ban; 0 until the first strike, where strike records were loaded.
        forgive_us: The clean time that takes a level, likewise.
        max_rate: What the window of the bans that it made is known by.
        made: That window, see `core.ring`.
    """

    def __init__(self, name: str, strikes: StrikeQueue) -> None:
        self.name = name
        self.strikes = strikes
        self.window_us = self.forgive_us = 0
        self.max_rate: Identity = 0, 0
        self.made = b""

    def follow(self, policy: BanPolicy) -> None:
        """Go on under a policy that may have changed; one with another window counts its bans anew."""
        if self.max_rate != policy.max_rate.same_window:
            self.max_rate, self.made = policy.max_rate.same_window, b""
        self.window_us, self.forgive_us = policy.after.window_us, policy.forgive_us

    def is_over(self, record: StrikeRecord, now_us: int) -> bool:
        """Tell whether a strike record has nothing left to remember."""
        return (
            self.window_us > 0
            and now_us >= record.until_us
            and not record.level_at(self.forgive_us, now_us)
            and not record.weight_at(self.window_us, now_us)
        )


class StoredRecord(NamedTuple):
    """A strike record as a store holds it. Moments are microseconds of the store's time."""

    policy: str
    """The name of the policy."""
    key: str
    record: StrikeRecord
    window_us: int
    """The window of the policy at its last strike; 0 where it was loaded and nothing has struck since."""
    forgive_us: int
    """The clean time that takes a level, likewise."""


StoredRecords: TypeAlias = tuple[int, Sequence[StoredRecord]]
"""The store's time, and strike records at that moment."""


class PolicyStrikes(NamedTuple):
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


def stored_records(states: Iterable[PolicyState], keys: Iterable[str]) -> list[StoredRecord]:
    """Return the strike records of some keys under each policy.

    Args:
        states: What is remembered under each policy.
        keys: The keys.
    """
    listed, records = list(keys), []
    for state in states:
        for key in listed:
            record = state.strikes.get(key)
            if record is not None:
                records.append(StoredRecord(state.name, key, record.copy(), state.window_us, state.forgive_us))
    return records


def policy_strikes(kept: StoredRecord, policy: BanPolicy | None, now_us: int) -> PolicyStrikes | None:
    """Return how a key stands at a moment; None where nothing is left to remember.

    Args:
        kept: The strike record.
        policy: The policy as it is now. Where it is not known, None: the one of the last strike is gone by, and if that
            is not known either, every strike and level counts.
        now_us: The store's time.
    """
    record, window_us, forgive_us = kept.record, kept.window_us, kept.forgive_us
    if policy is not None:
        window_us, forgive_us = policy.after.window_us, policy.forgive_us
    weight = record.weight_at(window_us, now_us) if window_us else sum(one.weight for one in record.strikes)
    level = record.level_at(forgive_us, now_us) if forgive_us else record.level
    if not weight and not level and now_us >= record.until_us:
        return None
    since_us = max(record.last_us, record.until_us)
    until_us = since_us + record.level * forgive_us if level and forgive_us else None
    needed = None if policy is None else policy.after.amount
    return PolicyStrikes(kept.policy, kept.key, weight, needed, level, since_us, until_us)
