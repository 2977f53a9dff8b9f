"""Runs coroutines of a limiter for threads without an event loop; see `portal` for where they run."""

from __future__ import annotations

from collections.abc import Coroutine
from threading import TIMEOUT_MAX
from typing import Any, Final, TypeVar

from ..core.errors import ConfigurationError
from ..core.store import COMMAND_DEADLINE_S
from ..stores.shared import on_loop
from .engine import Engine

T = TypeVar("T")

STEPS: Final = 3
"""The most deadlines that one call may wait for in sequence: a query, a refund, and another query."""
GRACE_S: Final = 5.0
"""The additional time for a busy event loop."""
_COMMAND_S: Final = STEPS * COMMAND_DEADLINE_S + GRACE_S


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
    """Run a coroutine: in this thread if it never suspends, as on a closed limiter, else in the portal."""
    if on_loop():
        work.close()
        raise ConfigurationError(
            "limiter.sync blocks, and would block the event loop that runs in this thread; write `await "
            "limiter.hit(...)`, or with limiter.limited `async with` or `async def`, or call it in a thread, for "
            "example with asyncio.to_thread"
        )
    if not engine.closed and (suspends or not engine.store.answers_threads):
        return engine.portal.run(work, min(max_s, TIMEOUT_MAX))
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise ConfigurationError("store: answers_threads is true, so the store must not await anything")
