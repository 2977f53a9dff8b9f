"""Workers that share a store share counts and pauses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from slidegate import Limiter
from slidegate.httpx import LimitedTransport, TurnTimeout

from ..redis_servers import RedisServer, needs_redis


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a store that several transports share."""
    with ExitStack() as stack:
        if request.param == "redis":
            yield stack.enter_context(RedisServer()).url
        else:
            yield f"lmdb://{tmp_path}/counts"


async def test_a_pause_reaches_the_workers_that_share_a_store(store_url: str) -> None:
    # On a busy machine no answer of the store may count as late, because each limiter would then pause for itself.
    limiters = [Limiter.from_url(store_url, deadline="5s") for _ in range(2)]
    asked: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(429, headers={"Retry-After": "60"})

    first, second = (
        httpx.AsyncClient(
            transport=LimitedTransport(limits="9/second", limiter=limiter, transport=httpx.MockTransport(refuse))
        )
        for limiter in limiters
    )
    assert (await first.get("http://api.example.com/")).status_code == 429
    with pytest.raises(TurnTimeout):
        await second.get("http://api.example.com/")
    assert len(asked) == 1
    for limiter in limiters:
        await limiter.close()
