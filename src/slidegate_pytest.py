"""The pytest plugin: fixtures for tests of applications that use slidegate.

pytest imports this module in every run if slidegate is installed. So it is outside the package, and imports it only
when a test uses a fixture. No fixture is automatic: a test requests those that it needs, and ``usefixtures`` in the
configuration of pytest requests them for all tests.
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
"""The start time of a test's clock: noon of 1 January 2030 (UTC). So no test depends on the time of day."""
MOVED: Final = {
    "slidegate.limiter.inspect": "time_ns",
    "slidegate.stores.memory.store": "monotonic_ns",
    "slidegate.stores.system_clock": "time_ns",
    "slidegate.web.headers": "time",
}
"""The modules that read the time, and the name of the function that each uses."""


@pytest.fixture
def slidegate_reset() -> Iterator[Callable[[], None]]:
    """Clear windows, quotas, bans, strikes and stats before and after the test; call it to clear them in between.

    It clears every memory store of this process. LMDB and Redis are not cleared, because other processes may share
    them. Requests in progress keep their permits.
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
    """Stop the time of all limits at noon of 1 January 2030 (UTC); ``advance("1m")`` moves it.

    It applies to every memory store without its own clock, even one created before the test. Memory stores are cleared
    before and after the test.
    """
    from slidegate.testing import FakeClock

    clock = FakeClock(NOON_US)
    with _APP_TIME.by(clock):
        yield clock


@pytest.fixture
def no_limits() -> Iterator[None]:
    """Let everything pass all middlewares and limiters, uncounted, during the test.

    This includes those created before the test. No store is queried, so nothing has to be cleared afterwards.
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
    """Make every middleware let requests through until the block ends."""
    from unittest.mock import patch  # imports asyncio, which not every run needs

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
    """Make every limiter exempt all keys, without a query to its store, until the block ends."""
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
    """Replaces the system's clocks, by a fake clock during a test: memory stores without their own clock use it.

    The modules in `MOVED` are patched to read this clock, each under its own name of the function. A store reads it at
    every call, so it may also have been created before the test. Outside of pytest nothing is patched.

    An object that outlives the test may have kept a patched function. So the functions stay patched, and return the
    system's time between tests. Their monotonic time continues where the last test left it, because a store may rely on
    a monotonic clock.
    """

    def __init__(self) -> None:
        self._clock: FakeClock | None = None
        self._steady: NonDecreasingClock
        self._began_us = 0
        self._ahead_ns = 0  # how far earlier tests have advanced the monotonic time

    def monotonic_ns(self) -> int:
        """Return monotonic time in nanoseconds, even if the fake clock is set back."""
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
        """Use a fake clock until the block ends."""
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
"""The clock of this process."""
