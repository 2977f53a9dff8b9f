"""Workers on several hosts, which share a Redis: one bound of wrong tokens, one memory of revoked sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from slidegate import Limiter
from slidegate.dashboard import Dashboard

from ..redis_servers import RedisServer, needs_redis
from .dashboard_client import LOOK, TOKEN, Browser, with_token

pytestmark = needs_redis


@pytest.fixture
async def workers(server: RedisServer) -> AsyncIterator[list[Dashboard]]:
    """The dashboards of three workers."""
    server.command("FLUSHALL")
    limiters = [Limiter.from_url(server.url, deadline="60s") for _ in range(3)]
    yield [Dashboard(limiter, token=TOKEN) for limiter in limiters]
    for limiter in limiters:
        await limiter.close()


async def test_guesses_at_all_workers_at_once_are_no_way_past_the_bound(workers: list[Dashboard]) -> None:
    guesses = [with_token(workers[n % 3], "GET", LOOK, f"wrong-token-number-{n:03}") for n in range(60)]
    statuses = sorted(answer.status for answer in await asyncio.gather(*guesses))
    assert statuses == [401] * 5 + [429] * 55
    assert (await Browser(workers[0]).log_in()).status == 429


async def test_a_script_may_open_many_connections_at_once(workers: list[Dashboard]) -> None:
    answers = await asyncio.gather(*(with_token(workers[0], "GET", LOOK) for _ in range(40)))
    assert {answer.status for answer in answers} == {200}
    for worker in workers:  # and nothing of it stays charged
        assert (await with_token(worker, "GET", LOOK, "wrong-token-number-1")).status == 401


async def test_a_revoked_session_is_not_remembered_for_ever(workers: list[Dashboard], server: RedisServer) -> None:
    browser = Browser(workers[0])
    await browser.log_in()
    await browser.send("DELETE", "/api/session")
    windows = [key for key in server.command("KEYS", "*") if b":w:" in key]
    assert windows
    assert all(0 < server.command("PTTL", key) <= 32 * 86_400_000 for key in windows)
