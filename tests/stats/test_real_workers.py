"""Real workers of uvicorn on a shared store: their stats are those of the client that sent the requests."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..browser.served import PATIENCE_S, Site, served
from ..browser.site import AMOUNT, TOKEN
from ..redis_servers import RedisServer, needs_redis, until

pytestmark = pytest.mark.all

CLIENT = "203.0.113.7"


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "lmdb":
        yield f"lmdb://{tmp_path / 'store'}"
    else:
        with RedisServer() as server:
            yield server.url


def stats(site: Site, window: str = "24h") -> Any:
    """Return what a worker says of all."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.get(f"{site.dashboard}api/stats?window={window}", headers=headers, timeout=PATIENCE_S).json()


def counted(site: Site, window: str = "24h") -> list[int]:
    seen = stats(site, window)["rules"].get("everybody", {"passed": 0, "refused": 0})
    return [seen["passed"], seen["refused"]]


def pids(site: Site) -> set[int]:
    return {worker["pid"] for worker in stats(site)["workers"]}


def test_the_sums_are_those_of_the_client_over_stops_in_order_and_a_kill(store: str) -> None:
    with served(store, workers=2) as (site,):
        assert Counter(site.flood(CLIENT, AMOUNT + 10)) == {200: AMOUNT, 429: 10}
        for window in ("5m", "1h", "24h"):
            until(lambda window=window: counted(site, window) == [AMOUNT, 10], "all workers have published")
        stopped = pids(site)
    # All have stopped in order: what they had counted is there as soon as others ask, and they are gone.
    with served(store, workers=2) as (site,):
        assert counted(site) == [AMOUNT, 10]
        assert not pids(site) & stopped
        site.flood(CLIENT, 10)
        until(lambda: counted(site) == [AMOUNT, 20], "all workers have published")
        with ThreadPoolExecutor(1) as beside:
            storm = beside.submit(site.flood, CLIENT, 30)
            os.kill(max(pids(site)), signal.SIGKILL)
            answers = Counter(storm.result())
        assert set(answers) <= {0, 429}
        site.flood(CLIENT, 10)
        # The killed one has lost no more than it had not published: a part of the storm.
        until(lambda: counted(site)[1] >= 30, "all workers have published")
    with served(store) as (site,):
        admitted, refused = counted(site)
        assert admitted == AMOUNT
        assert 30 <= refused <= 60
