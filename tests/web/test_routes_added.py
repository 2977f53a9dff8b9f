"""Routes that are added while an application runs."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import RateLimit, RateLimitMiddleware
from slidegate.stats import Statistics

from ..asgi import page, statuses

limited = RateLimit("1/minute")(page)


async def test_a_function_with_a_route_has_a_limit_of_its_own_at_one_that_comes_later() -> None:
    app = Starlette(routes=[Route("/a", limited)])
    middleware = RateLimitMiddleware(app, limits="9/minute")
    statistics = Statistics(middleware.limiter)
    assert await statuses(middleware, 2, "/a") == [200, 429]
    app.router.routes.append(Route("/b", limited))
    assert await statuses(middleware, 2, "/b") == [200, 429]
    assert {"GET /a", "GET /b"} <= set(statistics.stats().routes)


async def test_an_application_that_is_mounted_again_has_a_limit_of_its_own_at_its_new_place() -> None:
    inner, app = FastAPI(), FastAPI()
    inner.get("/a")(RateLimit("1/minute")(page))
    app.mount("/one", inner)
    middleware = RateLimitMiddleware(app)
    assert await statuses(middleware, 2, "/one/a") == [200, 429]
    app.mount("/two", inner)
    assert await statuses(middleware, 2, "/two/a") == [200, 429]
    assert await statuses(middleware, 1, "/one/a") == [429]
