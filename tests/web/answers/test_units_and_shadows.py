"""Stats of rules beside their requests: the units that they charged, and the refusals of their shadows."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule
from slidegate.limiter.shared_stats import Publisher

from ...asgi import page
from ...limiter.shared_store import Board


@RateLimit("100/minute", cost=4, name="costly")
async def costly(request: Request) -> PlainTextResponse:
    return PlainTextResponse("costly")


def site(limiter: Limiter, *rules: Rule, **options: Any) -> TestClient:
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=list(rules), **options)
    return TestClient(Starlette(routes=[Route("/item", page), Route("/costly", costly)], middleware=[middleware]))


@pytest.fixture
def limiter() -> Limiter:
    return Limiter()


def test_units_are_fixed_or_those_of_the_function(limiter: Limiter) -> None:
    client = site(
        limiter,
        Rule("/item", "12/minute", cost=5, name="fixed"),
        Rule("/item", "1000/minute", cost=lambda request: int(request.query_params.get("n", 1)), name="asked"),
        Rule("*", "1000/minute", name="all"),
    )
    for n in (1, 10, 100):
        client.get("/item", params={"n": n})
    for window in ("1m", "1h", "24h"):
        rules, total = limiter.stats(window).rules, limiter.stats(window).total
        assert (total.passed, total.refused) == (2, 1)
        assert {name: rules[name].units for name in ("fixed", "asked", "all")} == {"fixed": 10, "asked": 11, "all": 2}
        assert total.units == 23


def test_a_cost_of_nothing_and_a_cost_at_an_endpoint(limiter: Limiter) -> None:
    client = site(limiter, Rule("*", "100/minute", cost=lambda request: 0, name="free"))
    assert client.get("/costly").status_code == client.get("/item").status_code == 200
    rules = limiter.stats().rules
    assert (rules["free"].passed, rules["free"].units) == (2, 0)
    assert (rules["costly"].passed, rules["costly"].units) == (1, 4)


def test_a_shadow_tells_what_it_would_have_refused_beside_what_passed(limiter: Limiter) -> None:
    shadow = Rule("*", "2/minute", shadow=True, name="stricter")
    client = site(limiter, Rule("*", "4/minute", name="now"), shadow)
    for _ in range(6):
        client.get("/item")
    stats = limiter.stats()
    assert (stats.rules["stricter"].shadow_refused, stats.rules["now"].passed, stats.rules["now"].refused) == (2, 4, 2)
    assert (stats.total.shadow_refused, stats.total.passed) == (2, 4)
    assert set(stats.routes) == {"(no route)", "GET /item"}
    assert sum(point.shadow_refused for point in limiter.chart("1h", rule="stricter").points) == 2


def test_without_statistics_there_are_none(limiter: Limiter) -> None:
    cost = Rule("*", "100/minute", cost=lambda request: 3, name="cost")
    client = site(limiter, Rule("*", "1/minute", shadow=True), cost, statistics=False)
    for _ in range(3):
        client.get("/item")
    stats = limiter.stats()
    assert (stats.rules, stats.total.units, stats.total.shadow_refused) == ({}, 0, 0)


def test_the_end_of_a_server_publishes_the_last_stats() -> None:
    board, limiter = Board(), Limiter()
    limiter.engine.publisher = Publisher(board, limiter.engine.statistics)
    with site(limiter, Rule("*", "100/minute", name="all")) as client:
        client.get("/item")
        assert board.writings == 0
    written = {rollup for rollup, _, _ in board.rows}
    assert written == {"5s", "1m", "5m", "workers"}
