"""Routes that are added while an application runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from slidegate import RateLimit, RateLimitMiddleware, Rule

from ..asgi import page, statuses

limited = RateLimit("1/minute")(page)


def included() -> tuple[Any, Callable[[str], None]]:
    """Return an application with an included router, and what adds a route to that."""
    router, app = APIRouter(), FastAPI()
    router.add_route("/a", limited)
    app.include_router(router)
    return app, lambda path: router.add_route(path, limited)


def mounted() -> tuple[Any, Callable[[str], None]]:
    """Return an application with a mounted router, and what adds a route to that."""
    router = Router([Route("/a", limited)])
    return Starlette(routes=[Mount("", router)]), lambda path: router.routes.append(Route(path, limited))


@pytest.mark.parametrize("made", [included, mounted])
async def test_a_function_with_a_route_has_a_limit_of_its_own_at_one_that_comes_later(made: Any) -> None:
    app, add = made()
    middleware = RateLimitMiddleware(app, limits="9/minute")
    assert await statuses(middleware, 2, "/a") == [200, 429]
    add("/b")
    found = await statuses(middleware, 2, "/b")
    if found == [404, 404]:
        pytest.skip("this FastAPI takes no routes after a router was included")
    assert found == [200, 429]
    assert {"GET /a", "GET /b"} <= set(middleware.limiter.stats().routes)


async def test_a_directory_mounted_later_is_counted_at_paths_that_were_asked_before(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("run()")
    app = Starlette(routes=[Route("/", page)])
    middleware = RateLimitMiddleware(app, rules=[Rule("/static/a.js", "2/minute")])
    assert await statuses(middleware, 4, "/static/a.js/") == [404] * 4, "Starlette takes a final slash as it is written"
    app.mount("/static", StaticFiles(directory=tmp_path))
    assert await statuses(middleware, 3, "/static/a.js/") == [200, 200, 429], "what serves files takes no notice of it"


async def test_an_application_that_is_mounted_again_has_a_limit_of_its_own_at_its_new_place() -> None:
    inner, app = FastAPI(), FastAPI()
    inner.get("/a")(RateLimit("1/minute")(page))
    app.mount("/one", inner)
    middleware = RateLimitMiddleware(app)
    assert await statuses(middleware, 2, "/one/a") == [200, 429]
    app.mount("/two", inner)
    assert await statuses(middleware, 2, "/two/a") == [200, 429]
    assert await statuses(middleware, 1, "/one/a") == [429]
