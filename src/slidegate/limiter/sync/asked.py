"""The methods of a `Limiter` that `SyncLimiter` asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypeAlias

from ...core.bans.in_force import Ban
from ...core.bans.policy import BanPolicy
from ...core.decision import Decision
from ...core.limits import AnyLimit
from ..inspect import KeyStanding, KeyView
from ..key_spelling import AnyKey

Limits: TypeAlias = str | AnyLimit | Sequence[str | AnyLimit]


class Asked(Protocol):
    """A `Limiter`, which this package cannot import: the limiter imports it."""

    async def hit(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = ...) -> Decision:
        """See `Limiter.hit`."""

    async def peek(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = ...) -> Decision:
        """See `Limiter.peek`."""

    async def charge(self, key: AnyKey, limits: Limits, units: int, *, rule: str = ...) -> Decision:
        """See `Limiter.charge`."""

    async def refund(self, decision: Decision) -> bool:
        """See `Limiter.refund`."""

    async def reset(self, key: AnyKey) -> bool:
        """See `Limiter.reset`."""

    async def reset_all(self) -> bool:
        """See `Limiter.reset_all`."""

    async def inspect(self, key: AnyKey, rules: Mapping[str, Limits] | None = None) -> KeyView:
        """See `Limiter.inspect`."""

    async def ban(self, key: AnyKey, duration: str | float | timedelta, *, reason: str = "", by: str = ...) -> Ban:
        """See `Limiter.ban`."""

    async def unban(self, key: AnyKey, *, by: str = ...) -> bool:
        """See `Limiter.unban`."""

    async def banned(self, key: AnyKey) -> Ban | None:
        """See `Limiter.banned`."""

    async def standing(self, key: AnyKey, policies: Iterable[BanPolicy] | None = None) -> KeyStanding:
        """See `Limiter.standing`."""

    def bans(self) -> AsyncIterator[Ban]:
        """See `Limiter.bans`."""

    async def strike(self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "") -> Ban | None:
        """See `Limiter.strike`."""

    async def close(self) -> None:
        """See `Limiter.close`."""
