"""The words of a `Limiter` for threads that have no event loop: scripts, WSGI, Celery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ...core.bans.in_force import Ban
from ...core.bans.policy import BanPolicy
from ...core.decision import Decision
from ..inspect import KeyStanding, KeyView
from ..key_spelling import AnyKey, Limits
from .without_loop import WithoutLoop

if TYPE_CHECKING:
    from ..limiter import Limiter

DEFAULT_RULE: Final = "hit"


class SyncLimiter:
    """The limiter that `Limiter.sync` returns: each method waits for its answer, and decides as its namesake does.

    Safe to share between threads, and after `fork`. A thread in which an event loop runs must not call it.

    All methods may raise:
        ConfigurationError: An event loop runs in this thread; or a value cannot be used, as for the namesake.
        StoreTimeout: The thread that asks the store stands still, for example in an observer that blocks.
    """

    def __init__(self, limiter: Limiter, without_loop: WithoutLoop) -> None:
        self._limiter = limiter
        self._without_loop = without_loop

    def hit(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = DEFAULT_RULE) -> Decision:
        """Charge `cost` units to `key` if every limit has room for them; see `Limiter.hit`.

        If the thread is interrupted while it waits for the store, as by Ctrl-C, the units may stay charged.
        """
        return self._without_loop.ask(self._limiter.hit(key, limits, cost, rule=rule))

    def peek(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = DEFAULT_RULE) -> Decision:
        """Say what `hit` would answer now. Changes nothing."""
        return self._without_loop.ask(self._limiter.peek(key, limits, cost, rule=rule))

    def charge(self, key: AnyKey, limits: Limits, units: int, *, rule: str = DEFAULT_RULE) -> Decision:
        """Record units that are known only now, even beyond the limit; see `Limiter.charge`."""
        return self._without_loop.ask(self._limiter.charge(key, limits, units, rule=rule))

    def refund(self, decision: Decision) -> bool:
        """Hand back the units that `decision` charged; see `Limiter.refund`."""
        return self._without_loop.ask(self._limiter.refund(decision))

    def reset(self, key: AnyKey) -> bool:
        """Forget the windows of `key` under every rule. Returns False if there were none."""
        return self._without_loop.command(self._limiter.reset(key))

    def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule; see `Limiter.reset_all`."""
        return self._without_loop.command(self._limiter.reset_all())

    def inspect(self, key: AnyKey, rules: Mapping[str, Limits] | None = None) -> KeyView:
        """Return all windows of `key`, slice by slice; see `Limiter.inspect`."""
        return self._without_loop.command(self._limiter.inspect(key, rules))

    def ban(self, key: AnyKey, duration: str | float | timedelta, *, reason: str = "", by: str = "manual") -> Ban:
        """Ban an address, a network or a key; see `Limiter.ban`."""
        return self._without_loop.command(self._limiter.ban(key, duration, reason=reason, by=by))

    def unban(self, key: AnyKey, *, by: str = "manual") -> bool:
        """Take the ban of exactly this key back, and forgive it; see `Limiter.unban`."""
        return self._without_loop.command(self._limiter.unban(key, by=by))

    def banned(self, key: AnyKey) -> Ban | None:
        """Return the ban that refuses a key or address now; None if there is none."""
        return self._without_loop.command(self._limiter.banned(key))

    def standing(self, key: AnyKey, policies: Iterable[BanPolicy] | None = None) -> KeyStanding:
        """Return how a key stands under ban policies; see `Limiter.standing`."""
        return self._without_loop.command(self._limiter.standing(key, policies))

    def bans(self) -> list[Ban]:
        """Return the bans in force."""
        return self._without_loop.command(self._list_bans())

    def strike(self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "") -> Ban | None:
        """Count a strike of `key`, for example a wrong password; see `Limiter.strike`."""
        return self._without_loop.ask(self._limiter.strike(key, policy, weight, reason))

    def close(self) -> None:
        """Close the limiter and its store, and let go of the thread that asked it. A second call does nothing."""
        self._without_loop.close(self._limiter.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _list_bans(self) -> list[Ban]:
        return [ban async for ban in self._limiter.bans()]
