"""Workers on several hosts, which share a Redis: one bound of wrong tokens, one memory of revoked sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from slidegate import Limiter
from slidegate.admin.access import Access
from slidegate.admin.door import Door

from ..redis_servers import RedisServer, needs_redis
from .visits import READ_TOKEN, TOKEN, Browser, Tool, with_token

pytestmark = needs_redis


@pytest.fixture
async def doors(server: RedisServer) -> AsyncIterator[list[Door]]:
    """The doors of three workers."""
    server.command("FLUSHALL")
    limiters = [Limiter.from_url(server.url, deadline="60s") for _ in range(3)]
    yield [
        Door(Tool().app(), Access(limiter, token=TOKEN, read_token=READ_TOKEN), prefix="/api") for limiter in limiters
    ]
    for limiter in limiters:
        await limiter.close()


async def test_guesses_at_all_workers_at_once_are_no_way_past_the_bound(doors: list[Door]) -> None:
    guesses = [with_token(doors[n % 3], "GET", "/api/items", f"wrong-token-number-{n:03}") for n in range(60)]
    statuses = sorted(answer.status for answer in await asyncio.gather(*guesses))
    assert statuses == [401] * 5 + [429] * 55
    assert (await Browser(doors[0]).log_in()).status == 429


async def test_a_script_may_open_many_connections_at_once(doors: list[Door]) -> None:
    answers = await asyncio.gather(*(with_token(doors[0], "GET", "/api/items") for _ in range(40)))
    assert {answer.status for answer in answers} == {200}
    for door in doors:  # and nothing of it stays charged
        assert (await with_token(door, "GET", "/api/items", "wrong-token-number-1")).status == 401


async def test_a_revoked_session_is_not_remembered_for_ever(doors: list[Door], server: RedisServer) -> None:
    browser = Browser(doors[0])
    await browser.log_in()
    await browser.send("DELETE", "/api/session")
    windows = [key for key in server.command("KEYS", "*") if b":3:w:" in key]
    assert windows
    assert all(0 < server.command("PTTL", key) <= 32 * 86_400_000 for key in windows)
