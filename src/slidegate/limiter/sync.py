"""The blocking limiter, for threads without an event loop: scripts, WSGI, Celery.

The methods of a limiter are coroutines. With a synchronous store they never suspend, so the calling thread runs them to
completion: a memory store always, and LMDB unless each commit waits for a disk. All other stores, and calls that queue,
use an event loop in a thread of its own; see `portal`.
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
from .portal import PORTAL

if TYPE_CHECKING:
    from .limiter import Limiter

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

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._engine = limiter.engine

    def hit(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = DEFAULT_RULE) -> Decision:
        """Charge `cost` units to `key` if every limit has room for them; see `Limiter.hit`.

        If the thread is interrupted while it waits for the store, as by Ctrl-C, the units may stay charged.
        """
        return run_query(self._engine, self._limiter.hit(key, limits, cost, rule=rule))

    def peek(self, key: AnyKey, limits: Limits, cost: int = 1, *, rule: str = DEFAULT_RULE) -> Decision:
        """Return what `hit` would return now. Changes nothing."""
        return run_query(self._engine, self._limiter.peek(key, limits, cost, rule=rule))

    def charge(self, key: AnyKey, limits: Limits, units: int, *, rule: str = DEFAULT_RULE) -> Decision:
        """Record units that are known only now, even beyond the limit; see `Limiter.charge`."""
        return run_query(self._engine, self._limiter.charge(key, limits, units, rule=rule))

    def refund(self, decision: Decision) -> bool:
        """Refund the units that `decision` charged; see `Limiter.refund`."""
        return run_query(self._engine, self._limiter.refund(decision))

    def reset(self, key: AnyKey) -> bool:
        """Forget the windows of `key` under every rule. Returns False if there were none."""
        return run_command(self._engine, self._limiter.reset(key))

    def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule; see `Limiter.reset_all`."""
        return run_command(self._engine, self._limiter.reset_all())

    def inspect(self, key: AnyKey, rules: Mapping[str, Limits] | None = None) -> KeyView:
        """Return all windows of `key`, slice by slice; see `Limiter.inspect`."""
        return run_command(self._engine, self._limiter.inspect(key, rules))

    def ban(self, key: AnyKey, duration: str | float | timedelta, *, reason: str = "", by: str = "manual") -> Ban:
        """Ban an address, a network or a key; see `Limiter.ban`."""
        return run_command(self._engine, self._limiter.ban(key, duration, reason=reason, by=by))

    def unban(self, key: AnyKey, *, by: str = "manual") -> bool:
        """Lift the ban of exactly this key, and delete its strikes; see `Limiter.unban`."""
        return run_command(self._engine, self._limiter.unban(key, by=by))

    def banned(self, key: AnyKey) -> Ban | None:
        """Return the ban that refuses a key or address now; None if there is none."""
        return run_command(self._engine, self._limiter.banned(key))

    def bans(self) -> list[Ban]:
        """Return the bans in force."""
        return run_command(self._engine, self._list_bans())

    def strike(self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "") -> Ban | None:
        """Count a strike of `key`, for example a wrong password; see `Limiter.strike`."""
        return run_query(self._engine, self._limiter.strike(key, policy, weight, reason))

    def close(self) -> None:
        """Close the limiter and its store, and end the thread that serves it. A second call does nothing."""
        try:
            run_command(self._engine, self._limiter.close())
        finally:
            PORTAL.release(self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _list_bans(self) -> list[Ban]:
        return [ban async for ban in self._limiter.bans()]


def run_query(engine: Engine, work: Coroutine[Any, Any, T], wait_us: int = 0) -> T:
    """Run a query of a request, within the limiter's deadline.

    Args:
        engine: The engine of the limiter.
        work: The coroutine.
        wait_us: How long it may also wait for room, in microseconds.

    Raises:
        ConfigurationError: An event loop runs in this thread.
        StoreTimeout: No answer comes.
    """
    deadline_us = 0 if engine.failover is None else engine.failover.deadline_us
    return _run(engine, work, GRACE_S + (STEPS * deadline_us + wait_us) / 1_000_000, suspends=wait_us > 0)


def run_command(engine: Engine, work: Coroutine[Any, Any, T]) -> T:
    """Run a command of an operator; see `run_query`."""
    return _run(engine, work, _COMMAND_S)


def _run(engine: Engine, work: Coroutine[Any, Any, T], max_s: float, *, suspends: bool = False) -> T:
    """Run a coroutine: in this thread if it never suspends, else in the portal."""
    if on_loop():
        work.close()
        raise ConfigurationError(
            "limiter.sync blocks, and would block the event loop that runs in this thread; write `await "
            "limiter.hit(...)`, or with limiter.limited `async with` or `async def`, or call it in a thread, for "
            "example with asyncio.to_thread"
        )
    if suspends or not engine.store.answers_threads():
        return PORTAL.run(engine, work, min(max_s, TIMEOUT_MAX))
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise ConfigurationError("store: answers_threads() returns True, so the store must not await anything")
