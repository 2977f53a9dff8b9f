"""The commands about bans."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from inspect import isawaitable
from typing import Any, Final

from ..core.bans.in_force import Ban, BanChange, ban_key, clean_reason
from ..core.bans.policy import BanPolicy
from ..core.bans.targets import NetworkSet, ban_target, hand_ban_key
from ..core.errors import ConfigurationError, quoted
from ..core.limits import MAX_WINDOW_US, check_whole, parse_duration_us
from ..core.protocols import BanBook, Store
from .aio import in_turns, within
from .engine import Engine
from .inspect import KeyStanding, standing_of
from .key_spelling import AnyKey, KeyOf

PERMANENT: Final = "permanent"


class BanCommands:
    """The part of a `Limiter` that deals with bans.

    A ban of an address or network refuses every address in it; a bare IPv6 address means its /64, and
    ``2001:db8::1/128`` exactly itself. Any other key is refused where it is counted.
    """

    store: Store
    engine: Engine

    async def ban(self, key: AnyKey, duration: str | float | timedelta, *, reason: str = "", by: str = "manual") -> Ban:
        """Ban an address, a network or a key; a ban that it has is replaced.

        Args:
            key: ``"203.0.113.7"``, ``"203.0.113.0/24"``, ``"user:42"``, a key as `bans` or the details of an event
                have it, or the key of a value: ``header("X-API-Key").of("k123")``. Write ``f"user:{name}"`` where users
                choose the name: by itself, a name that reads as an address or network bans that.
            duration: How long, up to 400 days, or ``"permanent"``.
            reason: For the operator; clients do not see it. Kept to 256 printable characters.
            by: The person or program that bans.

        Raises:
            ConfigurationError: The key cannot be one, is every address there is, or is a public network wider than an
                IPv4 /8 or an IPv6 /19; or the duration cannot be used.
        """
        length_us = None
        if duration != PERMANENT:
            length_us = parse_duration_us(duration, "ban: duration")
            if length_us > MAX_WINDOW_US:
                raise ConfigurationError(f'ban: duration: expected at most 400 days or "permanent", not {duration!r}')
        if not isinstance(key, KeyOf):
            hand_ban_key(key)
        return await within(self.store.bans.ban(self._ban_key(key), length_us, clean_reason(reason), clean_reason(by)))

    async def unban(self, key: AnyKey, *, by: str = "manual") -> bool:
        """Take the ban of exactly this key back, and forgive it: strikes and rungs are forgotten.

        Returns:
            False if there was nothing to take back. `banned` returns the ban of the network that an address lies in.
        """
        known, who = self._ban_key(key), clean_reason(by)
        lifted = [await within(book.unban(known, who)) for book in self._books()]
        return any(lifted)

    async def banned(self, key: AnyKey) -> Ban | None:
        """Return the ban that refuses a key or address now, its own or that of a network; None if there is none."""
        known = self._ban_key(key)
        _, guards = self.engine.keys.learn(key)
        found = [await within(book.find((known, *guards))) for book in self._books()]
        return next((ban for ban in found if ban is not None), None)

    async def standing(self, key: AnyKey, policies: Iterable[BanPolicy] | None = None) -> KeyStanding:
        """Return how a key stands under ban policies: strikes, how many are needed, rung. Changes nothing.

        Of an address the networks that hold it are shown too, because policies may strike those. Strikes of the last
        100 ms may not have reached a Redis store, and those that this process counted while the store was away are not
        shown.

        Args:
            key: The key.
            policies: The policies that say how many strikes ban; by default those of all gates on this limiter. Under
                others `PolicyStanding.needed` is None.

        Raises:
            ConfigurationError: The key or a policy cannot be used.
            StoreError: The store does not answer.
        """
        known = self.engine.callers.policies() if policies is None else list(policies)
        for policy in known:
            if not isinstance(policy, BanPolicy):
                raise ConfigurationError(
                    f'standing: expected policies such as BanPolicy("20/10m", "1h"), not {quoted(policy)}'
                )
        spelled = self._ban_key(key)
        return await standing_of(self.store.bans, spelled, self.engine.keys.learn(key)[1], known)

    async def bans(self) -> AsyncIterator[Ban]:
        """Yield the bans in force."""
        for book in self._books():
            async for ban in in_turns(await within(book.active())):
                yield ban

    async def history(self, key: AnyKey | None = None) -> AsyncIterator[BanChange]:
        """Yield the latest bans and unbans, oldest first; those of `key` alone if it is given."""
        known = None if key is None else self._ban_key(key)
        changes = [change for book in self._books() for change in await within(book.history())]
        async for change in in_turns(sorted(changes, key=lambda change: change.wall_us)):
            if known is None or change.ban.key == known:
                yield change

    async def strike(
        self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "", *, protected: NetworkSet | None = None
    ) -> Ban | None:
        """Count a strike of `key` under a policy, and return the ban if it made one.

        Nothing is counted while the key is banned, for an address that the policy may not ban, or for a network wider
        than a /24 or a /48, unless the policy bans prefixes as wide as that.

        Args:
            key: The key to strike. Write ``f"user:{name}"`` where users choose the name: by itself, a name that reads
                as an address or network strikes that.
            policy: The policy that the strike counts under.
            weight: How many strikes it stands for, 1 or more.
            reason: For the operator, if the strike bans.
            protected: Networks that must not be banned.

        Raises:
            ConfigurationError: The key, the policy or the weight cannot be used.
            StoreUnavailable: The store does not answer, and `on_error` is ``"deny"``: whether it bans is not known.
        """
        if not isinstance(policy, BanPolicy):
            raise ConfigurationError(f'strike: expected a policy such as BanPolicy("20/10m", "1h"), not {policy!r}')
        check_whole(weight, 1, 2**31 - 1, "strike: weight", "for example 1")
        target = ban_target(policy, self._ban_key(key), protected)
        if target is None:
            return None
        answer = self.engine.strike_target(target, policy, weight, clean_reason(reason))
        return await answer if isawaitable(answer) else answer

    async def export_bans(self) -> AsyncIterator[str]:
        """Yield bans, strikes and rungs as lines of JSON, to write to a file.

        Keys made of API keys and the like are digests: they mean the same only under the same `secret`, or under none.

        Raises:
            StoreError: The store does not answer.
        """
        async for row in in_turns(await within(self.store.bans.dump())):
            yield json.dumps(row, ensure_ascii=True) + "\n"

    async def import_bans(self, lines: Iterable[str]) -> int:
        """Take over the lines that `export_bans` wrote: all of them, or none. Bans have run on since then.

        If a key is banned on both sides, the ban that lasts longer stays; a second import changes nothing. All lines
        are read in one go, which takes seconds for 100,000 bans, so import before you serve.

        Returns:
            How many bans the lines hold that are not over.

        Raises:
            ConfigurationError: A line cannot be read, or there is no room.
        """
        if isinstance(lines, (str, bytes)) or not isinstance(lines, Iterable):
            raise ConfigurationError(f"bans: expected lines, for example an open file, not {quoted(lines)}")
        rows = [_row(number, line) for number, line in enumerate(lines, start=1)]
        return await within(self.store.bans.load(rows))

    def _books(self) -> list[BanBook]:
        """Return the bans of the store, behind the bans made here while it did not answer."""
        failover = self.engine.failover
        local = None if failover is None else failover.local
        return [self.store.bans] if local is None else [local.bans, self.store.bans]

    def _ban_key(self, key: AnyKey) -> str:
        if isinstance(key, KeyOf):
            return hand_ban_key(self.engine.keys.learn(key)[0])
        ban_key(key)
        return self.engine.keys.learn(key)[0]


def _row(number: int, line: object) -> Any:
    try:
        if not isinstance(line, str):
            raise ValueError("no text")
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"bans, line {number}: expected JSON, not {quoted(line)}: {error}") from None
