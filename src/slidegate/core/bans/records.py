"""The interface of a store's records of bans, which `core.bans.rules` reads and changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from .in_force import Ban, BanChange
from .policy import BanPolicy
from .standing import Standing

MAX_HISTORY: Final = 10_000


class Standings(Protocol):
    """The standings of a policy's keys: a queue, in which the key that was struck longest ago comes first."""

    def __len__(self) -> int:
        """Return how many keys have one."""

    def get(self, key: str) -> Standing | None:
        """Return the standing of a key. A change of it counts once it is given to `put` or `keep`."""

    def items(self) -> Iterable[tuple[str, Standing]]:
        """Yield each key and its standing, the front of the queue first."""

    def put(self, key: str, standing: Standing) -> None:
        """Record the standing of a key that has none, at the end of the queue."""

    def keep(self, key: str, standing: Standing) -> None:
        """Record a change of a standing; the key stays where it is in the queue."""

    def take(self, key: str) -> Standing | None:
        """Take the standing of a key out, and return it; None if it has none."""


class Ledger:
    """The records of one policy.

    Attributes:
        policy: The policy; None until its first strike, where its standings were loaded.
        standings: The standings of its keys.
        made: The window of the bans that it made, see `core.ring`.
    """

    def __init__(self, standings: Standings) -> None:
        self.policy: BanPolicy | None = None
        self.standings = standings
        self.made = b""

    def follow(self, policy: BanPolicy) -> None:
        """Go on under a policy that may have changed; one with another window counts its bans anew."""
        if self.policy is not None and self.policy.most.same_window != policy.most.same_window:
            self.made = b""
        self.policy = policy

    def is_over(self, standing: Standing, now_us: int) -> bool:
        """Tell whether a standing has nothing left to remember."""
        return self.policy is not None and standing.is_over(self.policy, now_us)


class ActiveBans(Protocol):
    """The bans in force, by key; those that are over and not let go of yet are among them. `BanList` is one."""

    def __len__(self) -> int:
        """Return how many there are."""

    def get(self, key: str) -> Ban | None:
        """Return the ban of exactly this key, whether or not it is over."""

    def add(self, ban: Ban) -> None:
        """Put a ban in force, in the place of one of the same key."""

    def remove(self, key: str) -> Ban | None:
        """Take a ban out, and return it."""

    def prolong(self, ban: Ban, now_us: int) -> Ban:
        """Let a ban that requests prolong go on from now, and return it."""

    def let_go(self, now_us: int, wall_us: int, most: int = 2) -> bool:
        """Forget bans that are over, no more than `most` by each clock; return whether any is left to see."""

    def has_room(self, most: int, now_us: int, wall_us: int) -> bool:
        """Return whether fewer than `most` are in force. Those that are over are forgotten as far as need be."""


class PrefixKeys(Protocol):
    """The keys of prefixes that policies banned; some of these bans may be over. A set of text is one."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __iter__(self) -> Iterator[str]:
        """Yield each."""

    def add(self, key: str, /) -> None:
        """Add one."""

    def intersection_update(self, keys: Iterable[str], /) -> None:
        """Keep those of them that are among some keys."""


class Records(Protocol):
    """The records of a store about bans, for `core.bans.rules` to read and change."""

    @property
    def prefixes(self) -> PrefixKeys:
        """The prefixes that policies banned."""

    @property
    def list(self) -> ActiveBans:
        """The bans in force."""

    def ledger(self, policy: str) -> Ledger | None:
        """Return the ledger of a policy, None if there is none."""

    def open_ledger(self, policy: str) -> Ledger:
        """Return the ledger of a policy, a new one if there is none."""

    def ledgers(self) -> Collection[Ledger]:
        """Return the ledgers of all policies."""

    def standings(self) -> int:
        """Return how many standings there are under all policies."""

    def remember(self, change: BanChange) -> None:
        """Add a change to the history, of which the last `MAX_HISTORY` are kept."""
