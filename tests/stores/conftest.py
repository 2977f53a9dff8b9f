"""Further servers that tests of stores share. A test that stops or fills one starts its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..redis_servers import VALKEY, RedisCluster, RedisServer


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    with RedisServer(program=VALKEY) as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running
