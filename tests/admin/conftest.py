"""The clock and the ports for tests of operators' tools."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from slidegate.testing import FakeClock

from .admin_client import AdminClient, Operator
from .dashboard_client import NOW_US, Site


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A fake clock with Unix time."""
    clock = FakeClock(NOW_US)
    monkeypatch.setattr(time, "time", lambda: clock.now_us / 1_000_000)
    return clock


@pytest.fixture
def site(clock: FakeClock) -> Site:
    """A dashboard with two tokens."""
    return Site(clock)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A reserved port on which no server listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def admin() -> AdminClient:
    return AdminClient()


@pytest.fixture
def operator(admin: AdminClient) -> Operator:
    return admin.operator()
