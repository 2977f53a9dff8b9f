"""How a thread without an event loop asks a limiter, whose methods are coroutines.

A store that answers at once suspends no coroutine, so the thread itself runs it to its end: a memory store always, and
LMDB unless each commit waits for a disk. For all other stores a thread with an event loop does; see `portal`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...core.errors import ConfigurationError
from ...core.protocols import AnswersThreads
from ..aio import COMMAND_DEADLINE_S, on_loop
from ..engine import Engine

if TYPE_CHECKING:
    from .portal import SharedPortal

T = TypeVar("T")

STEPS: Final = 3
"""The most deadlines in a row that one call may wait for: the question, a refund, and the next question."""
GRACE_S: Final = 5.0
"""How much longer a loop with a lot to do may take."""
_COMMAND_S: Final = STEPS * COMMAND_DEADLINE_S + GRACE_S


class WithoutLoop:
    """Asks in a thread without an event loop.

    Args:
        engine: Those of the limiter.
    """

    def __init__(self, engine: Engine) -> None:
        store, failover = engine.store, engine.failover
        alone = engine.per_process or (isinstance(store, AnswersThreads) and store.answers_threads())
        self._portal = None if alone else _shared_portal()
        self._most_s = GRACE_S + (0.0 if failover is None else STEPS * failover.deadline_us / 1_000_000)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a question about a request, which has the limiter's deadline.

        Args:
            work: The coroutine that asks.

        Raises:
            ConfigurationError: An event loop runs in this thread.
            StoreTimeout: No answer comes.
        """
        return self._run(work, self._most_s)

    def command(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a command of a person; see `ask`."""
        return self._run(work, _COMMAND_S)

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

    def _run(self, work: Coroutine[Any, Any, T], most_s: float) -> T:
        if on_loop():
            work.close()
            raise ConfigurationError(
                "limiter.sync waits for its answer, and the event loop that runs in this thread would stand still "
                "meanwhile; write `await limiter.hit(...)`, or with limiter.limited `async with` or `async def`, or "
                "call it in a thread, as with asyncio.to_thread"
            )
        return at_once(work) if self._portal is None else self._portal.run(self, work, most_s)


def _shared_portal() -> SharedPortal:
    # Only here: most processes need none. And not later: a child that is forked while another thread imports cannot.
    import anyio._backends._asyncio  # noqa: F401

    from .portal import PORTAL

    return PORTAL


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise ConfigurationError("store: its answers_threads() is true, so it must not wait for an event loop")
