"""The pytest plugin: fixtures for tests of applications that are limited.

pytest imports this package in every run where slidegate is installed. So it lies beside the package, not in it, and
imports nothing of it before a test asks for a fixture. None of the fixtures acts by itself: a test names those that it
wants, and ``usefixtures`` in the configuration of pytest wants them for all tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slidegate.testing import FakeClock


@pytest.fixture
def slidegate_reset() -> Iterator[Callable[[], None]]:
    """Forget windows, quotas, bans, strikes and figures before the test and after it; call it to forget in between.

    It does so for every limiter of this process that counts in memory. LMDB and Redis are left alone, because others
    may count there too.
    """
    from .app_limits import forget_limits

    forget_limits()
    yield forget_limits
    forget_limits()


@pytest.fixture
def slidegate_clock(slidegate_reset: Callable[[], None]) -> Iterator[FakeClock]:
    """Have the time of all limits stand still at noon of 1 January 2030 (UTC), and move it: ``advance("1m")``.

    Every store in memory goes by it that was given no clock of its own, also one that was made before the test. The
    test begins and ends with nothing counted.
    """
    from slidegate.testing import FakeClock

    from .app_time import APP_TIME, NOON_US

    clock = FakeClock(NOON_US)
    with APP_TIME.by(clock):
        yield clock


@pytest.fixture
def no_limits() -> Iterator[None]:
    """Let everything pass, uncounted, through each middleware and each limiter, as long as the test runs."""
    from .app_limits import without_limits

    with without_limits():
        yield
