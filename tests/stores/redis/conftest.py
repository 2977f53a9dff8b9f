"""What tests of a sick Redis share: a server of their own, and limiters that try it again soon."""

from collections.abc import AsyncIterator, Iterator

import pytest

from slidegate.limiter import breaker

from ...fault_proxy import FaultProxy
from ...redis_servers import RedisServer
from .faults import Place


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def place(own_server: RedisServer) -> AsyncIterator[Place]:
    if not own_server.runs:
        own_server.start()
    own_server.command("FLUSHALL")
    async with FaultProxy(own_server.port) as proxy:
        yield Place(own_server, proxy)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "OPEN_US", 100_000)
