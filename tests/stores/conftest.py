"""Stores of each kind, and servers that tests of stores share. A test that stops or fills a server starts its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from slidegate import MemoryStore

from ..contract.player import settle
from ..redis_servers import VALKEY, RedisServer
from .redis.stores import store_of

Opened: TypeAlias = Callable[..., Any]
"""Opens a store, given its options; those of one kind at one `place` share their data, where processes do."""


@pytest.fixture
async def opened(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    """Open stores of the `kind` that a test is parametrized with; all are closed at its end."""
    made: list[Any] = []

    def opened(place: str = "store", **options: Any) -> Any:
        if kind == "memory":
            made.append(MemoryStore(**options))
        elif kind == "lmdb":
            from slidegate.stores.lmdb import LmdbStore  # Windows has none

            made.append(LmdbStore(tmp_path / place, **{"map_size": 1 << 20, **options}))
        else:
            options.pop("wall_clock", None)  # it is the server's, as the other one
            server = request.getfixturevalue("server")
            made.append(store_of(server, prefix=f"{tmp_path.name}-{place}", **options))
        return made[-1]

    yield opened
    for store in made:
        await settle(store.close())


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    with RedisServer(program=VALKEY) as running:
        yield running
