"""The blocking limiter, for threads without an event loop: scripts, WSGI, Celery. See `portal` for where it runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from ..core.bans.ban import Ban
from .limiter import Limiter
from .portal import Portal

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Limiter, P], Coroutine[Any, Any, T]],
    run: Callable[[Portal, Coroutine[Any, Any, T]], T],
) -> Callable[Concatenate[SyncLimiter, P], T]:
    """Return a method of `SyncLimiter` that does what one of `Limiter` does, and blocks."""

    @wraps(method)
    def blocking(self: SyncLimiter, /, *args: P.args, **options: P.kwargs) -> T:
        return run(self._limiter.engine.portal, method(self._limiter, *args, **options))

    return blocking


async def _listed(limiter: Limiter) -> list[Ban]:
    """Return the bans in force."""
    return [ban async for ban in limiter.bans()]


class SyncLimiter:
    """The most used methods of `Limiter` as blocking calls: what `Limiter.sync` returns.

    Safe to share between threads, and after `fork`. A thread with a running event loop must not call it. If a thread is
    interrupted while it waits for the store, as by Ctrl-C, the units may stay charged.

    All methods may raise:
        ConfigurationError: An event loop runs in this thread; or a value is invalid, as for the `Limiter` method.
        StoreTimeout: The thread that queries the store is blocked, for example by an observer.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    hit = _blocking(Limiter.hit, Portal.run_query)
    peek = _blocking(Limiter.peek, Portal.run_query)
    charge = _blocking(Limiter.charge, Portal.run_query)
    refund = _blocking(Limiter.refund, Portal.run_query)
    strike = _blocking(Limiter.strike, Portal.run_query)
    reset = _blocking(Limiter.reset, Portal.run_command)
    reset_all = _blocking(Limiter.reset_all, Portal.run_command)
    inspect = _blocking(Limiter.inspect, Portal.run_command)
    ban = _blocking(Limiter.ban, Portal.run_command)
    unban = _blocking(Limiter.unban, Portal.run_command)
    banned = _blocking(Limiter.banned, Portal.run_command)
    bans = _blocking(_listed, Portal.run_command)

    def close(self) -> None:
        """Close the limiter and its store, and end the thread that serves it. A second call does nothing."""
        portal = self._limiter.engine.portal
        try:
            portal.run_command(self._limiter.close())
        finally:
            portal.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
