"""An event loop whose time is a fake clock's: where nothing is left to do, the clock moves to the next timer."""

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, TypeVar

from anyio.to_thread import current_default_thread_limiter
from hypothesis.stateful import RuleBasedStateMachine

from slidegate.testing import FakeClock

T = TypeVar("T")


class VirtualTime:
    """Makes the running event loop go by a clock, which tests may move as well."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = FakeClock(10**9) if clock is None else clock
        self.began_us = self.loop_us = self.clock()
        loop: Any = asyncio.get_running_loop()
        # Not the time of the clock: beyond 2**24 seconds a float has no nanoseconds, and no timer comes due.
        loop.time = lambda: self.passed_s
        self._select = loop._selector.select
        loop._selector.select = self._jump
        self._threads = current_default_thread_limiter()

    def end(self) -> None:
        """Let the loop go by its own time again, where threads that virtual time does not know have to go on."""
        loop: Any = asyncio.get_running_loop()
        del loop.time
        loop._selector.select = self._select

    @property
    def passed_s(self) -> float:
        """The seconds that tasks have slept through."""
        return (self.loop_us - self.began_us) / 1_000_000

    def _jump(self, timeout: float | None = None) -> Any:
        ready = self._select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None or self._threads.borrowed_tokens:  # a thread has to go on first, and does at this moment
            return self._select(None)
        span_us = max(math.ceil(timeout * 1_000_000 - 0.01), 1)
        self.loop_us += span_us
        self.clock.advance(us=span_us)
        return ready


async def use_virtual_time(clock: FakeClock | None = None) -> VirtualTime:
    """Make the running event loop go by a clock."""
    return VirtualTime(clock)


class OnALoop(RuleBasedStateMachine):
    """A state machine with an event loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)  # type: ignore[no-any-return, call-overload]

    def teardown(self) -> None:
        self.loop.close()


async def turns(count: int = 20) -> None:
    """Let other tasks go on for some turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)
