"""The bound of places on shared stores: random traffic, as the application sees it from inside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from slidegate import Limiter
from slidegate.core.protocols import HoldsPlaces

from ..redis_servers import VALKEY, RedisCluster, RedisServer, needs_redis, needs_valkey
from .places_traffic import AMOUNTS, play

BOUND_S = 60


@pytest.fixture(
    params=[
        "lmdb",
        pytest.param("redis", marks=needs_redis),
        pytest.param("cluster", marks=needs_redis),
        pytest.param("valkey", marks=[needs_valkey, pytest.mark.deep]),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "lmdb":
        yield f"lmdb://{tmp_path / 'lmdb'}"
    elif request.param == "cluster":
        with RedisCluster() as cluster:
            yield cluster.url
    else:
        with RedisServer(program=VALKEY if request.param == "valkey" else None) as server:
            yield server.url


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 12))])
async def test_the_bound_holds_over_all_ends_of_requests_on_a_shared_store(url: str, seed: int) -> None:
    async with Limiter.from_url(url, deadline=30, on_error="deny") as limiter:
        app = await play(limiter, seed, visits=150)
        assert isinstance(limiter.store, HoldsPlaces)
        async with asyncio.timeout(BOUND_S):
            while limiter.store.places_held():  # noqa: ASYNC110 - hand-backs that are under way end by themselves
                await asyncio.sleep(0.01)
    assert {rule for (rule, _), most in app.most.items() if most == AMOUNTS[rule]}, f"seed {seed}: nothing was full"
