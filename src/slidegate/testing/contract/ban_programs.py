"""Random strikes, bans, times and restarts. `ban_player` plays them to a store."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from hypothesis import strategies as st

from ...core.bans.policy import BanPolicy
from .programs import YEAR_2100_US, Dice

SECOND_US = 1_000_000

# (a client, its key, the prefix above it)
CLIENTS = (
    ("192.0.2.7", "192.0.2.7", "192.0.2.0/24"),
    ("192.0.2.8", "192.0.2.8", "192.0.2.0/24"),
    ("192.0.2.9", "192.0.2.9", "192.0.2.0/24"),
    ("2001:db8:1:2::a", "2001:db8:1:2::/64", "2001:db8:1::/56"),
    ("2001:db8:1:3::b", "2001:db8:1:3::/64", "2001:db8:1::/56"),
    ("user:ann", "user:ann", ""),
)
BANNED_BY_HAND = (
    *(key for _, key, _ in CLIENTS),
    "192.0.2.0/24",
    "192.0.2.8/31",
    "2001:db8:1::/56",
    "2001:db8:1:2::a/128",
    "2001:db8::/32",
)


class Strike(NamedTuple):
    """Strike a client under a policy."""

    policy: int
    client: int
    weight: int


class Hit(NamedTuple):
    """Send a request of a client; or peek."""

    client: int
    peeks: bool


class HandBan(NamedTuple):
    """Ban by hand, None for ever."""

    key: str
    length_us: int | None


class Unban(NamedTuple):
    """Take a ban back."""

    key: str


class Wait(NamedTuple):
    """Let time go on."""

    span_us: int


class WaitForEnd(NamedTuple):
    """Let time go on until `offset_us` from the end of the ban that ends next."""

    offset_us: int


class Restart(NamedTuple):
    """Start a new store, whose clock stands elsewhere, with what the old one dumped; `again`: load that twice."""

    ahead_us: int
    again: bool


BanMove: TypeAlias = Strike | Hit | HandBan | Unban | Wait | WaitForEnd | Restart


class BanProgram(NamedTuple):
    """Policies, the time at first, and the moves."""

    start_us: int
    policies: tuple[BanPolicy, ...]
    moves: list[BanMove]


class BanDice(Dice):
    """Turns drawn bytes into moves of bans."""

    def policy(self, name: str) -> BanPolicy:
        """Choose a policy: few strikes, short times, now and then with everything else that a policy can have."""
        duration_s = self.pick((1, 2, 10))
        return BanPolicy(
            f"{self.pick((1, 2, 3, 5, 64))}/{self.pick((1, 3, 10, 60))}s",
            duration_s,
            factor=self.pick((2, 1, 4)),
            longest=duration_s * self.pick((8, 1, 30)),
            jitter=0,
            forgive=self.pick((5, 1, 30, 86_400)),
            name=name,
            action=self.pick(("ban", "ban", "ban", "shadow")),
            prolong=not self.below(3),
            most=self.pick(("60/s", "60/s", "2/10s", "1/1s")),
            prefix_after=self.pick(("2/30s", None, "2/5s", "3/60s")),
        )

    def span_us(self) -> int:  # type: ignore[override]
        """Choose a span of time, often a whole number of seconds or one beside it."""
        whole_us = self.pick((1, 2, 3, 5, 10, 30, 60)) * SECOND_US
        return max(self.pick((whole_us, whole_us - 1, whole_us + 1, self.below(5 * SECOND_US), 86_400 * SECOND_US)), 0)

    def ban_move(self, policies: int) -> BanMove | None:
        """Choose what happens next: mostly strikes."""
        kind = self.below(32)
        if kind == 0:
            return None  # so that shrinking, which turns bytes to 0, makes programs shorter
        client = self.below(len(CLIENTS))
        if kind < 15:
            return Strike(self.below(policies), client, self.pick((1, 1, 2, 3, 64, 1_000)))
        if kind < 20:
            return Hit(client, peeks=kind == 19)
        if kind < 24:
            return Wait(self.span_us())
        if kind < 27:
            return WaitForEnd(self.pick((0, -1, 1)))
        if kind < 29:
            return HandBan(self.pick(BANNED_BY_HAND), self.pick((None, self.span_us(), 2 * SECOND_US)))
        if kind == 29:
            return Restart(self.pick((0, self.span_us(), -self.span_us(), -self.below(2**40))), not self.below(2))
        return Unban(self.pick(BANNED_BY_HAND))


def ban_program(rolled: bytes) -> BanProgram:
    """Make a program out of drawn bytes: policies, a time to start at, and moves until the bytes are used up."""
    dice = BanDice(rolled)
    policies = tuple(dice.policy(name) for name in ("login", "scan")[: dice.pick((1, 2))])
    start_us = dice.pick((0, dice.below(10**9), YEAR_2100_US))
    moves = []
    while dice:
        move = dice.ban_move(len(policies))
        if move is not None:
            moves.append(move)
    return BanProgram(start_us, policies, moves)


def ban_programs() -> st.SearchStrategy[BanProgram]:
    """Draw programs, some short ones and many of 30 to 120 moves."""
    return st.one_of(st.binary(max_size=60), st.binary(min_size=150, max_size=600)).map(ban_program)
