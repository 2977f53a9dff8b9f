"""A site with a dashboard, and its clock."""

import time

import pytest

from slidegate.testing import FakeClock

from .site import NOW_US, Site


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A fake clock, which is also the system's."""
    clock = FakeClock(NOW_US)
    monkeypatch.setattr(time, "time", lambda: clock.now_us / 1_000_000)
    return clock


@pytest.fixture
def site(clock: FakeClock) -> Site:
    return Site(clock)
