"""The pytest plugin: fixtures for tests of rate-limited applications, over the switches of `slidegate.testing`.

pytest imports this module in every run where slidegate is installed. So it is outside the package, and imports
slidegate only when a test requests a fixture. No fixture is automatic: tests request them by name, or ``usefixtures``
in the configuration of pytest requests them for all tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from slidegate.testing import FakeClock

NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""The initial time of the clock. A fixed time, so that tests are reproducible."""


@pytest.fixture
def slidegate_reset() -> Iterator[Callable[[], None]]:
    """Reset windows, quotas, bans, strikes and stats before and after the test; call the fixture to reset in between.

    This affects every limiter of this process with a memory store. LMDB and Redis are not reset, because other
    processes may use them. Requests in progress keep their permits.
    """
    from slidegate.testing import reset_limits

    reset_limits()
    yield reset_limits
    reset_limits()


@pytest.fixture
def slidegate_clock(slidegate_reset: Callable[[], None]) -> Iterator[FakeClock]:
    """Stop the time of all limits at noon of 1 January 2030 (UTC); move it by ``slidegate_clock.advance("1m")``.

    It applies to every memory store without a clock of its own, even if created before the test. The test begins and
    ends with nothing counted.
    """
    from slidegate.testing import FakeClock, limits_clock

    clock = FakeClock()
    clock.set(NOON)
    with limits_clock(clock):
        yield clock


@pytest.fixture
def no_limits() -> Iterator[None]:
    """Disable every middleware and every limiter during the test, even if created before it.

    No store is queried, so nothing is counted.
    """
    from slidegate.testing import limits_off

    with limits_off():
        yield
