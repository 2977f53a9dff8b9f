"""A limiter for threads that have no event loop: scripts, WSGI, Celery.

The methods of a limiter are coroutines. A store that answers at once suspends none, so the thread itself runs it to its
end: a memory store always, and LMDB unless each commit waits for a disk. For all other stores, and for calls that wait
in line, a thread with an event loop does; see `portal`.
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
"""The most deadlines in a row that one call may wait for: the question, a refund, and the next question."""
GRACE_S: Final = 5.0
"""How much longer a loop with a lot to do may take."""
_COMMAND_S: Final = STEPS * COMMAND_DEADLINE_S + GRACE_S


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

    def bans(self) -> list[Ban]:
        """Return the bans in force."""
        return self._without_loop.command(self._list_bans())

    def strike(self, key: AnyKey, policy: BanPolicy, weight: int = 1, reason: str = "") -> Ban | None:
        """Count a strike of `key`, for example a wrong password; see `Limiter.strike`."""
        return self._without_loop.ask(self._limiter.strike(key, policy, weight, reason))

    def close(self) -> None:
        """Close the limiter and its store, and end the thread that serves it. A second call does nothing."""
        self._without_loop.close(self._limiter.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _list_bans(self) -> list[Ban]:
        return [ban async for ban in self._limiter.bans()]


class WithoutLoop:
    """Asks in a thread without an event loop.

    Args:
        engine: Asks the store of the limiter.
    """

    def __init__(self, engine: Engine) -> None:
        store, failover = engine.store, engine.failover
        self._answers_here = store.answers_threads()
        self._portal: SharedPortal | None = None
        if not self._answers_here:
            self.expect_waits()
        self._max_s = GRACE_S + (0.0 if failover is None else STEPS * failover.deadline_us / 1_000_000)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a question about a request, which has the limiter's deadline.

        Args:
            work: The coroutine that asks.

        Raises:
            ConfigurationError: An event loop runs in this thread.
            StoreTimeout: No answer comes.
        """
        return self._run(work, self._max_s)

    def command(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a command of a person; see `ask`."""
        return self._run(work, _COMMAND_S)

    def expect_waits(self) -> None:
        """Be ready to do work that has to wait."""
        # Most processes need none; and a child that is forked while another thread imports cannot do so later.
        import anyio._backends._asyncio  # noqa: F401

        from .portal import PORTAL

        self._portal = PORTAL

    def wait(self, work: Coroutine[Any, Any, T], wait_us: int) -> T:
        """Return the answer to a request that waits in line, at most so long; see `ask`."""
        assert self._portal is not None, "it was told to expect waits"
        _expect_no_loop(work)
        return self._portal.run(self, work, min(self._max_s + wait_us / 1_000_000, TIMEOUT_MAX))

    def close(self, work: Coroutine[Any, Any, None]) -> None:
        """Close the limiter."""
        try:
            self._run(work, _COMMAND_S)
        finally:
            self.release()

    def release(self) -> None:
        """Need the event loop no longer."""
        if self._portal is not None:
            self._portal.release(self)

    def _run(self, work: Coroutine[Any, Any, T], max_s: float) -> T:
        _expect_no_loop(work)
        if self._answers_here or self._portal is None:
            return _at_once(work)
        return self._portal.run(self, work, max_s)


def _expect_no_loop(work: Coroutine[Any, Any, object]) -> None:
    if on_loop():
        work.close()
        raise ConfigurationError(
            "limiter.sync waits for its answer, and the event loop that runs in this thread would stand still "
            "meanwhile; write `await limiter.hit(...)`, or with limiter.limited `async with` or `async def`, or "
            "call it in a thread, as with asyncio.to_thread"
        )


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise ConfigurationError("store: its answers_threads() is true, so it must not wait for an event loop")
