"""The time of a whole application, for tests: stores in memory that were given no clock go by one that stands still.

The modules that read the system's clocks are told to read this one instead, each by its own name for the function. A
store asks it at every call, so it makes no difference whether the store was made before the test or in it. The request
path of an application that is not under test does not know of it.

An object that lives longer than the test may have kept that function. So the function stays in its place, and between
tests it returns the system's time. Its monotonic time goes on from where the last test left it, because a store may
rely on it that such a clock never runs back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Final

from slidegate.core.bans.rules import Steady
from slidegate.core.errors import ConfigurationError
from slidegate.testing.clock import FakeClock

NOON_US: Final = int(datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
"""Where the clock of a test begins: noon of 1 January 2030 (UTC). So no test depends on the hour at which it runs."""

MOVED: Final = {
    "slidegate.limiter.inspect": "time_ns",
    "slidegate.stores.memory.store": "monotonic_ns",
    "slidegate.stores.system_clock": "time_ns",
    "slidegate.web.headers": "time",
}
"""The modules that read the time of requests, and the function by which each does."""


class AppTime:
    """The system's clocks, or a fake one in their place."""

    def __init__(self) -> None:
        self._clock: FakeClock | None = None
        self._steady = Steady()
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
        """Go by a fake clock until the block ends.

        Raises:
            ConfigurationError: Another fake clock is in use.
        """
        if self._clock is not None:
            raise ConfigurationError("slidegate_clock: a clock is in use already; two cannot move one application")
        for module, name in MOVED.items():
            setattr(import_module(module), name, getattr(self, name))
        self._steady = Steady()
        self._began_us = self.monotonic_ns() // 1_000 - self._steady.at(clock())
        self._clock = clock
        try:
            yield
        finally:
            latest_ns = self.monotonic_ns()
            self._clock = None
            self._ahead_ns = max(self._ahead_ns, latest_ns - time.monotonic_ns())


APP_TIME: Final = AppTime()
"""The one of this process."""
