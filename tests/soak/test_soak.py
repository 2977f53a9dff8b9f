"""A short soak: several uvicorn workers, kills, and every promise holds."""

import asyncio

import pytest

from tests.redis_servers import needs_redis
from tests.soak.soaking import soak

pytestmark = pytest.mark.all
STORES = ["lmdb", pytest.param("redis", marks=needs_redis)]


@pytest.mark.parametrize("store", STORES)
def test_a_few_seconds_of_load_and_kills_break_no_promise(store: str) -> None:
    findings = asyncio.run(soak(store, 4, 2, seed=1))
    assert findings.broken == []
    assert findings.lines


@pytest.mark.deep
@pytest.mark.parametrize("store", STORES)
def test_a_minute_of_load_and_kills_breaks_no_promise(store: str) -> None:
    assert asyncio.run(soak(store, 60, 3, seed=2)).broken == []
