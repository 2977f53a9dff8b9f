"""The example of plans, wrong passwords, shadows and hot clients does what it says."""

from __future__ import annotations

import logging

import httpx
import pytest

from examples.tiers.app import make_app
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock, RecordingObserver


def browser(observer: RecordingObserver | None = None) -> httpx.AsyncClient:
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[observer] if observer else [])
    transport = httpx.ASGITransport(app=make_app(limiter), client=("203.0.113.9", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://app.test")


async def count_admitted(client: httpx.AsyncClient, count: int, key: str | None = None) -> int:
    headers = {"X-API-Key": key} if key else {}
    answers = [(await client.get(f"/articles/{n}", headers=headers)).status_code for n in range(count)]
    return answers.count(200)


async def test_everybody_gets_what_their_plan_says() -> None:
    async with browser() as client:
        assert await count_admitted(client, 20) == 10
        assert await count_admitted(client, 5, "not-a-key") == 0, "a made-up key is the same anonymous client"
        assert await count_admitted(client, 80, "free-key") == 60
        assert await count_admitted(client, 700, "pro-key") == 600
        assert await count_admitted(client, 700, "staff-key") == 700


async def test_only_wrong_passwords_are_counted() -> None:
    async with browser() as client:
        right = [(await client.post("/accounts/login?password=open sesame")).status_code for _ in range(20)]
        wrong = [(await client.post("/accounts/login?password=guess")).status_code for _ in range(8)]
    assert right == [200] * 20
    assert wrong == [401] * 5 + [429] * 3


async def test_the_shadow_reports_and_the_hot_client_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    observer = RecordingObserver(without=["refused", "near_limit"])
    with caplog.at_level(logging.WARNING, logger="tiers"):
        async with browser(observer) as client:
            assert await count_admitted(client, 150, "pro-key") == 150
    assert observer.kinds == ["shadow_refused"] * 120
    assert [record.getMessage() for record in caplog.records] == ["hot client: 203.0.113.9, 100/5s"]
