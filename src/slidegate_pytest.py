"""The pytest plugin: fixtures for tests of applications that are limited.

pytest imports this module in every run where slidegate is installed. So it lies beside the package, not in it, and
imports nothing of it before a test asks for a fixture. None of the fixtures acts by itself: a test names those that it
wants, and ``usefixtures`` in the configuration of pytest wants them for all tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from slidegate.core.bans.rules import NonDecreasingClock
    from slidegate.testing import FakeClock

NOON_US: Final = int(datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
"""Where the clock of a test begins: noon of 1 January 2030 (UTC). So no test depends on the hour at which it runs."""
MOVED: Final = {
    "slidegate.limiter.inspect": "time_ns",
    "slidegate.stores.memory.store": "monotonic_ns",
    "slidegate.stores.system_clock": "time_ns",
    "slidegate.web.headers": "time",
}
"""The modules that read the time of requests, and the function by which each does."""


@pytest.fixture
def slidegate_reset() -> Iterator[Callable[[], None]]:
    """Forget windows, quotas, bans, strikes and stats before the test and after it; call it to forget in between.

    It does so for every limiter of this process that counts in memory. LMDB and Redis are left alone, because others
    may count there too. Requests under way keep their permits.
    """
    from slidegate.limiter.engine import all_engines

    def forget() -> None:
        for engine in all_engines():
            engine.forget()

    forget()
    yield forget
    forget()


@pytest.fixture
def slidegate_clock(slidegate_reset: Callable[[], None]) -> Iterator[FakeClock]:
    """Have the time of all limits stand still at noon of 1 January 2030 (UTC), and move it: ``advance("1m")``.

    Every store in memory goes by it that was given no clock of its own, also one that was made before the test. The
    test begins and ends with nothing counted.
    """
    from slidegate.testing import FakeClock

    clock = FakeClock(NOON_US)
    with _APP_TIME.by(clock):
        yield clock


@pytest.fixture
def no_limits() -> Iterator[None]:
    """Let everything pass, uncounted, through each middleware and each limiter, as long as the test runs.

    It holds for those made before, too. Nothing is asked of a store meanwhile, so nothing is left to forget after it.
    """
    from slidegate.limiter.engine import all_engines

    try:
        with _middlewares_off(), _engines_off():
            for engine in all_engines():
                engine.rebuild()
            yield
    finally:
        for engine in all_engines():
            engine.rebuild()


@contextmanager
def _middlewares_off() -> Iterator[None]:
    """Have every middleware let requests through until the block ends."""
    from unittest.mock import patch  # it imports asyncio, which not every run needs

    from slidegate.web.exchange import DISABLED_KEY
    from slidegate.web.middleware import RateLimitMiddleware

    guard = RateLimitMiddleware.__call__

    async def let_through(self: RateLimitMiddleware, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await guard(self, scope, receive, send)
            return
        scope[DISABLED_KEY] = True
        await self.app(scope, receive, send)

    with patch.object(RateLimitMiddleware, "__call__", let_through):
        yield


@contextmanager
def _engines_off() -> Iterator[None]:
    """Have every limiter exempt all keys until the block ends, and ask no store."""
    from unittest.mock import patch

    from slidegate.core.decision import Decision, Reason
    from slidegate.limiter.engine import Engine

    async def exempt(*_: Any) -> Decision:
        return Decision(True, Reason.EXEMPT)

    async def find_ban(*_: Any) -> None:
        return None

    def strike(*_: Any) -> None:
        return None

    with patch.multiple(Engine, counting=False, peek=exempt, charge=exempt, find_ban=find_ban, strike=strike):
        yield


class _AppTime:
    """The system's clocks, or a fake one in their place: stores in memory that were given no clock go by it.

    The modules that read the system's clocks are told to read this one instead, each by its own name for the function.
    A store asks it at every call, so it makes no difference whether the store was made before the test or in it. The
    request path of an application that is not under test does not know of it.

    An object that lives longer than the test may have kept that function. So the function stays in its place, and
    between tests it returns the system's time. Its monotonic time goes on from where the last test left it, because a
    store may rely on it that such a clock never runs back.
    """

    def __init__(self) -> None:
        self._clock: FakeClock | None = None
        self._steady: NonDecreasingClock
        self._began_us = 0
        self._ahead_ns = 0  # how far the tests so far have moved the monotonic time

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never run back, also where the fake clock is set back."""
        if self._clock is None:
            return time.monotonic_ns() + self._ahead_ns
        return self._began_us * 1_000 + self._steady.at(self._clock()) * 1_000

    def time_ns(self) -> int:
        """Return the Unix time in nanoseconds."""
        return time.time_ns() if self._clock is None else self._clock() * 1_000

    def time(self) -> float:
        """Return the Unix time in seconds."""
        return self.time_ns() / 1_000_000_000

    @contextmanager
    def by(self, clock: FakeClock) -> Iterator[None]:
        """Go by a fake clock until the block ends."""
        from slidegate.core.bans.rules import NonDecreasingClock

        for module, name in MOVED.items():
            setattr(import_module(module), name, getattr(self, name))
        self._steady = NonDecreasingClock()
        self._began_us = self.monotonic_ns() // 1_000 - self._steady.at(clock())
        self._clock = clock
        try:
            yield
        finally:
            latest_ns = self.monotonic_ns()
            self._clock = None
            self._ahead_ns = max(self._ahead_ns, latest_ns - time.monotonic_ns())


_APP_TIME: Final = _AppTime()
"""The one of this process."""
