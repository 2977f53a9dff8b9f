"""Statistics as users attach them: shadow refusals, one recording per limiter, publication at shutdown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware, Rule
from slidegate.stats import Statistics

from ..asgi import page
from .shared_store import Board, Staff


def site(limiter: Limiter, *rules: Rule, **options: Any) -> TestClient:
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=list(rules), **options)
    return TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware]))


@pytest.fixture
def limiter() -> Limiter:
    return Limiter()


def test_a_shadow_tells_what_it_would_have_refused_beside_what_passed(limiter: Limiter) -> None:
    shadow = Rule("*", "2/minute", shadow=True, name="stricter")
    statistics = Statistics(limiter)
    client = site(limiter, Rule("*", "4/minute", name="now"), shadow)
    for _ in range(6):
        client.get("/item")
    stats = statistics.stats()
    assert (stats.rules["stricter"].shadow_refused, stats.rules["now"].passed, stats.rules["now"].refused) == (2, 4, 2)
    assert (stats.total.shadow_refused, stats.total.passed) == (2, 4)
    assert set(stats.routes) == {"(no route)", "GET /item"}
    assert sum(point.shadow_refused for point in statistics.chart("1h", rule="stricter").points) == 2


def test_the_end_of_a_server_publishes_the_last_stats() -> None:
    board = Board()
    with site(Staff(board), Rule("*", "100/minute", name="all")) as client:
        client.get("/item")
        assert board.writings == 0
    written = {rollup for rollup, _, _ in board.rows}
    assert written == {"5s", "1m", "5m", "workers"}


def test_an_application_that_closes_its_limiter_publishes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter.from_url(f"lmdb://{tmp_path / 'counts'}")
    Statistics(limiter)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await limiter.close()

    middleware = Middleware(RateLimitMiddleware, limits="100/minute", limiter=limiter)
    with TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware], lifespan=lifespan)) as client:
        client.get("/item")
    assert not [record.message for record in caplog.records if "not published" in record.message]


def test_who_attaches_statistics_twice_counts_once(limiter: Limiter) -> None:
    first, second = Statistics(limiter), Statistics(limiter)
    client = site(limiter, Rule("*", "100/minute", name="all"))
    client.get("/item")
    assert first.stats().total.passed == second.stats().total.passed == 1


async def test_questions_without_http_are_no_requests(limiter: Limiter) -> None:
    statistics = Statistics(limiter)
    await limiter.hit("user:1", "1/minute")
    assert statistics.stats().total.seen.events == {}


@pytest.mark.parametrize("wrong", [None, "limiter", Limiter])
def test_statistics_of_what_is_no_limiter_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"limiter: expected a Limiter, for example Limiter\(\), not"):
        Statistics(wrong)
