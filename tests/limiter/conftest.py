"""A limiter on a store in memory, and on one whose answers have to be awaited."""

from collections.abc import Iterator

import pytest

from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

from ..remote_stores import SlowStore


@pytest.fixture(params=[MemoryStore, SlowStore])
def limiter(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Limiter]:
    made = Limiter(request.param(clock=clock), deadline="60s")
    yield made
    made.sync.close()
