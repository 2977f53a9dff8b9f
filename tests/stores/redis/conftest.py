"""What tests of Redis share: stores, and a server of their own with a proxy before it."""

from collections.abc import AsyncIterator

import pytest

from slidegate.stores.redis import RedisStore

from ...redis_servers import RedisServer
from .faults import Deployment, on_a_server
from .stores import store_at, workers_at


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    async with store_at(server) as store:
        yield store


@pytest.fixture
async def workers(server: RedisServer) -> AsyncIterator[list[RedisStore]]:
    """Two stores of the same data."""
    async with workers_at(server, 2) as workers:
        yield workers


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with on_a_server() as deployment:
        yield deployment
