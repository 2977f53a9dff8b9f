"""A short soak: several uvicorn workers, kills, and every promise holds."""

import asyncio

import pytest

from tests.redis_servers import needs_redis
from tests.soak.__main__ import soak

pytestmark = pytest.mark.all


@pytest.mark.parametrize("store", ["lmdb", pytest.param("redis", marks=needs_redis)])
@pytest.mark.parametrize(
    ("seconds", "workers", "seed"), [(4, 2, 1), pytest.param(60, 3, 2, marks=pytest.mark.deep, id="a minute")]
)
def test_load_and_kills_break_no_promise(store: str, seconds: float, workers: int, seed: int) -> None:
    findings = asyncio.run(soak(store, seconds, workers, seed))
    assert findings.broken == []
    assert findings.lines
