"""Tests of an application that use the pytest plugin, as users write them; test_switches.py runs them in order.

The application and its limiter are made at import, and each test but the first would fail if the one before had left
something behind.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import BanPolicy, Limiter, MemoryStore, Quota, RateLimit, RateLimitMiddleware, Rule, strike
from slidegate.testing import FakeClock

limiter = Limiter()
own_time = Limiter(MemoryStore(clock=FakeClock(7)))


@RateLimit("1/minute")
async def search(request: Request) -> PlainTextResponse:
    return PlainTextResponse("found")


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("home")


async def wrong(request: Request) -> PlainTextResponse:
    await strike(request, reason="wrong password")
    return PlainTextResponse("no", 401)


routes = {"/": home, "/search": search, "/wrong": wrong, "/daily": home}
app: Any = Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])
app.add_middleware(
    RateLimitMiddleware,
    limiter=limiter,
    rules=[Rule("/daily", Quota("2/day"), name="quota"), Rule("/", "2/minute"), Rule("/closed", block=True)],
    bans=BanPolicy(after="2/10m", duration="1h", signals={}),
    headers="legacy",
)
app_once_made = TestClient(app)


@pytest.fixture
def client() -> TestClient:
    return app_once_made


def statuses(client: TestClient, path: str, times: int) -> list[int]:
    return [client.get(path).status_code for _ in range(times)]


def test_without_a_fixture_nothing_is_changed(client: TestClient) -> None:
    assert statuses(client, "/", 3) == [200, 200, 429]
    assert statuses(client, "/", 1) == [429]


def test_a_reset_forgets_windows_of_the_test_before(client: TestClient, slidegate_reset: Callable[[], None]) -> None:
    assert statuses(client, "/", 3) == [200, 200, 429]
    assert statuses(client, "/wrong", 3) == [401, 401, 403]
    slidegate_reset()
    assert statuses(client, "/", 3) == [200, 200, 429]
    assert statuses(client, "/wrong", 3) == [401, 401, 403]
    assert asyncio.run(listed()) == ["peer:testclient"]


def test_the_clock_stands_at_noon(client: TestClient, slidegate_clock: FakeClock) -> None:
    assert datetime.fromtimestamp(slidegate_clock.now_us / 1_000_000, UTC) == datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert statuses(client, "/wrong", 3) == [401, 401, 403]
    slidegate_clock.advance("59m")
    assert statuses(client, "/search", 1) == [403]


async def listed() -> list[str]:
    return [ban.key async for ban in limiter.bans()]


def test_the_ban_of_the_test_before_is_gone() -> None:
    assert asyncio.run(listed()) == []


def test_an_earlier_day_is_no_hindrance(client: TestClient, slidegate_clock: FakeClock) -> None:
    slidegate_clock.set(datetime(2020, 2, 28, 23, 59, tzinfo=UTC))
    assert statuses(client, "/daily", 3) == [200, 200, 429]
    slidegate_clock.advance("1m")
    assert statuses(client, "/daily", 2) == [200, 200], "a quota starts again at midnight"
    slidegate_clock.set(datetime(2019, 2, 28, tzinfo=UTC))
    assert statuses(client, "/daily", 1) == [429], "a clock that is set back frees nobody"


def test_after_the_clock_the_quota_of_today_is_free(client: TestClient, slidegate_reset: Callable[[], None]) -> None:
    assert statuses(client, "/daily", 2) == [200, 200]


async def test_limiters_go_by_the_clock_but_for_a_store_with_a_clock_of_its_own(slidegate_clock: FakeClock) -> None:
    for here, after_an_hour in ((Limiter(), True), (limiter, True), (own_time, False)):
        assert [bool(await here.hit("ann", "1/hour")) for _ in range(2)] == [True, False]
        slidegate_clock.advance("1h")
        assert bool(await here.hit("ann", "1/hour")) is after_an_hour


def test_nothing_is_refused_without_limits(client: TestClient, no_limits: None) -> None:
    for path in ("/", "/search", "/daily"):
        assert statuses(client, path, 5) == [200] * 5
    assert statuses(client, "/wrong", 5) == [401] * 5
    assert statuses(client, "/closed", 1) == [404]


def test_afterwards_limits_hold_and_nothing_was_counted(client: TestClient) -> None:
    assert asyncio.run(listed()) == []
    assert statuses(client, "/", 3) == [200, 200, 429]
    assert [bool(limiter.sync.hit("ann", "1/minute")) for _ in range(2)] == [True, False]
