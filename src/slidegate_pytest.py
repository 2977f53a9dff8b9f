"""The pytest plugin: fixtures for tests of rate-limited applications.

pytest imports this module in every run where slidegate is installed. So it is outside the package, and imports
slidegate only when a test requests a fixture. No fixture is automatic: tests request them by name, or ``usefixtures``
in the configuration of pytest requests them for all tests.
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
"""The initial time of the clock: noon of 1 January 2030 (UTC). A fixed time, so that tests are reproducible."""
MOVED: Final = {
    "slidegate.limiter.inspect": "time_ns",
    "slidegate.stores.memory.store": "monotonic_ns",
    "slidegate.stores.system_clock": "time_ns",
    "slidegate.web.headers": "time",
}
"""The modules that read the time of requests, each with the name of the function that it calls."""


@pytest.fixture
def slidegate_reset() -> Iterator[Callable[[], None]]:
    """Reset windows, quotas, bans, strikes and stats before and after the test; call the fixture to reset in between.

    This affects every limiter of this process with a memory store. LMDB and Redis are not reset, because other
    processes may use them. Requests in progress keep their permits.
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
    """Stop the time of all limits at noon of 1 January 2030 (UTC); move it by ``slidegate_clock.advance("1m")``.

    It applies to every memory store without a clock of its own, even if created before the test. The test begins and
    ends with nothing counted.
    """
    from slidegate.testing import FakeClock

    clock = FakeClock(NOON_US)
    with _APP_TIME.by(clock):
        yield clock


@pytest.fixture
def no_limits() -> Iterator[None]:
    """Disable every middleware and every limiter during the test, even if created before it.

    No store is queried, so nothing is counted.
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
    """Make every middleware pass all requests until the block ends."""
    from unittest.mock import patch  # imports asyncio, which not every test run needs

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
    """Make every limiter exempt all keys, without calling its store, until the block ends."""
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
    """Replaces the system clocks with a fake one, for memory stores without a clock of their own.

    The functions that modules call to read the system clocks are patched with methods of this object. A store reads
    the clock at every call, so stores created before the test use it too. Without the fixture nothing is patched.

    An object that outlives the test may keep a reference to the patched function. So the patch stays in place, and
    returns the system time between tests. Its monotonic time continues from the end of the last test, because stores
    rely on a clock that never runs backwards.
    """

    def __init__(self) -> None:
        self._clock: FakeClock | None = None
        self._steady: NonDecreasingClock
        self._began_us = 0
        self._ahead_ns = 0  # how far tests have advanced the monotonic time

    def monotonic_ns(self) -> int:
        """Return monotonic nanoseconds, even if the fake clock is set back."""
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
"""The instance of this process."""
