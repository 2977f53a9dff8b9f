"""The blocking limiter, for threads without an event loop: scripts, WSGI, Celery.

The methods of a limiter are coroutines. With a synchronous store they never suspend, so the calling thread runs them to
completion: a memory store always, and LMDB unless each commit waits for a disk. All other stores, and calls that queue,
use a thread with an event loop; see `portal`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import timedelta
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ..core.bans.ban import Ban
from ..core.bans.policy import BanPolicy
from ..core.decision import Decision
from ..core.errors import ConfigurationError
from .aio import COMMAND_DEADLINE_S, on_loop
from .engine import Engine
from .inspect import KeyView
from .keys import AnyKey, Limits

if TYPE_CHECKING:
    from .limiter import Limiter
    from .portal import SharedPortal

T = TypeVar("T")

DEFAULT_RULE: Final = "hit"
STEPS: Final = 3
"""The most deadlines that one call may wait for in sequence: a query, a refund, and another query."""
GRACE_S: Final = 5.0
"""The additional time for a busy event loop."""
_COMMAND_S: Final = STEPS * COMMAND_DEADLINE_S + GRACE_S


class SyncLimiter:
    """The blocking limiter that `Limiter.sync` returns: each method blocks, and does what the `Limiter` method does.

    Safe to share between threads, and after `fork`. A thread with a running event loop must not call it.

    All methods may raise:
        ConfigurationError: An event loop runs in this thread; or a value is invalid, as for the `Limiter` method.
        StoreTimeout: The thread that queries the store is blocked, for example by an observer.
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
        """Return what `hit` would return now. Changes nothing."""
        return self._without_loop.ask(self._limiter.peek(key, limits, cost, rule=rule))

    def charge(self, key: AnyKey, limits: Limits, units: int, *, rule: str = DEFAULT_RULE) -> Decision:
        """Record units that are known only now, even beyond the limit; see `Limiter.charge`."""
        return self._without_loop.ask(self._limiter.charge(key, limits, units, rule=rule))

    def refund(self, decision: Decision) -> bool:
        """Refund the units that `decision` charged; see `Limiter.refund`."""
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
        """Lift the ban of exactly this key, and delete its strikes; see `Limiter.unban`."""
        return self._without_loop.command(self._limiter.unban(key, by=by))

    def banned(self, key: AnyKey) -> Ban | None:
        """Return the ban that refuses a key or address now; None if there is none."""
        return self._without_loop.command(self._limiter.banned(key))

    def bans(self) -> list[Ban]:
        """Return the bans in force."""
        return self._without_loop.command(self._list_bans())

    def strike(self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "") -> Ban | None:
        """Count a strike of `key`, for example a wrong password; see `Limiter.strike`."""
        return self._without_loop.ask(self._limiter.strike(key, policy, weight, reason))

    def close(self) -> None:
        """Close the limiter and its store, and end the thread that serves it. A second call does nothing."""
        try:
            self._without_loop.command(self._limiter.close())
        finally:
            self._without_loop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _list_bans(self) -> list[Ban]:
        return [ban async for ban in self._limiter.bans()]


class WithoutLoop:
    """Runs the coroutines of a limiter for threads without an event loop.

    Args:
        engine: The limiter's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._answers_here = engine.store.answers_threads()
        self._portal: SharedPortal | None = None
        if not self._answers_here:
            self.expect_waits()
        deadline_us = 0 if engine.failover is None else engine.failover.deadline_us
        self._max_s = GRACE_S + STEPS * deadline_us / 1_000_000

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a query of a request, within the limiter's deadline.

        Args:
            work: The coroutine.

        Raises:
            ConfigurationError: An event loop runs in this thread.
            StoreTimeout: No answer comes.
        """
        return self._run(work, self._max_s, here=self._answers_here)

    def command(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a command of an operator; see `ask`."""
        return self._run(work, _COMMAND_S, here=self._answers_here)

    def expect_waits(self) -> None:
        """Prepare for calls that have to wait."""
        # Imported here because few processes need it, and now because a child forked during an import could deadlock.
        import anyio._backends._asyncio  # noqa: F401

        from .portal import PORTAL

        self._portal = PORTAL

    def wait(self, work: Coroutine[Any, Any, T], wait_us: int) -> T:
        """Run a call that queues for at most `wait_us`; see `ask`."""
        return self._run(work, min(self._max_s + wait_us / 1_000_000, TIMEOUT_MAX), here=False)

    def release(self) -> None:
        """Release the thread with the event loop."""
        if self._portal is not None:
            self._portal.release(self)

    def _run(self, work: Coroutine[Any, Any, T], max_s: float, *, here: bool) -> T:
        """Run a coroutine in this thread, where it must not suspend, or on the loop for threads."""
        if on_loop():
            work.close()
            raise ConfigurationError(
                "limiter.sync blocks, and would block the event loop that runs in this thread; write `await "
                "limiter.hit(...)`, or with limiter.limited `async with` or `async def`, or call it in a thread, for "
                "example with asyncio.to_thread"
            )
        if here:
            return _at_once(work)
        assert self._portal is not None, "expect_waits was called"
        return self._portal.run(self, work, max_s)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise ConfigurationError("store: answers_threads() returns True, so the store must not await anything")
