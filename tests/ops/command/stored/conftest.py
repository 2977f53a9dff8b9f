"""The stores that the commands are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ....redis_servers import RedisServer, needs_redis
from .stores_at_hand import fill, touch


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that is there and empty."""
    if request.param == "lmdb":
        made = f"lmdb://{tmp_path}/store"
    else:
        server = request.getfixturevalue("server")
        server.command("FLUSHALL")
        made = server.url
    fill(made, touch)
    return made
