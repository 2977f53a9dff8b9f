"""Stores of each kind, and servers that tests of stores share. A test that stops or fills a server starts its own."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import settings

from slidegate import MemoryStore
from slidegate.testing import FakeClock, RecordingObserver

from ..contract.player import settle
from ..contract.programs import YEAR_2100_US
from ..redis_servers import VALKEY, RedisServer
from .redis.faults import Deployment, on_a_server
from .redis.stores import Ahead, store_of

Opened: TypeAlias = Callable[..., Any]
"""Opens a store, given its options; those of one kind at one `place` share their data, where processes do."""


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return request.path.parent.name


@pytest.fixture
async def opened(kind: str, opened_as: Opened) -> Opened:
    """Open stores of the `kind` that a test is parametrized with; all are closed at its end."""
    return partial(opened_as, kind)


@pytest.fixture
def store(opened: Opened) -> Any:
    """A store; at a place that was made, where a test asks for that first."""
    return opened()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(YEAR_2100_US)


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
async def opened_as(
    tmp_path: Path, observer: RecordingObserver, request: pytest.FixtureRequest
) -> AsyncIterator[Opened]:
    """Open stores, given their kind and their options; all are closed at the end of the test."""
    made: list[Any] = []

    def opened_as(kind: str, name: str = "store", **options: Any) -> Any:
        if kind == "memory":
            made.append(MemoryStore(**options))
        elif kind == "lmdb":
            from slidegate.stores.lmdb import LmdbStore  # Windows has none

            made.append(LmdbStore(tmp_path / name, **{"max_map_size": 1 << 22, **options}))
        else:
            options["clock"] = options.pop("wall_clock", options.get("clock"))  # the server has one clock
            server = request.getfixturevalue("server" if kind == "redis" else kind)
            made.append(store_of(server, **{"prefix": f"{tmp_path.name}-{name}", **options}))
        made[-1].observe(observer)
        return made[-1]

    yield opened_as
    for store in made:
        await settle(store.close())


@pytest.fixture
def fewer_programs() -> Iterator[None]:
    """Play fewer random programs over another transport than on the store, whose arithmetic it is; with `deep` as many.

    Where the same code answers over another wire, or the same file from two processes, they find what is different.
    """
    before = settings.get_current_profile_name()
    settings.load_profile({"default": "transport", "quick": "quick transport"}.get(before, before))
    yield
    settings.load_profile(before)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    """A Redis server of the test alone, with a proxy before it."""
    async with on_a_server() as deployment:
        yield deployment


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    ahead = Ahead()
    clocks = {
        "monotonic": lambda: time.monotonic() + ahead.by_s,
        "monotonic_ns": lambda: time.monotonic_ns() + int(ahead.by_s * 1e9),
    }
    ours = [module for name, module in sys.modules.items() if name.startswith("slidegate.stores.redis")]
    found = [(module, name) for module in ours for name in clocks if name in vars(module)]
    assert {name for _, name in found} == {*clocks}
    for module, name in found:
        monkeypatch.setattr(module, name, clocks[name])
    return ahead


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    with RedisServer(program=VALKEY) as running:
        yield running
