"""`default_limits`: each route by itself; exemptions and limits at the endpoint take the place of defaults."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware
from slidegate.testing import FakeClock

from ..asgi import hello, page, statuses
from .limited import wrapping
from .middlewares import counted
from .stage import expanded


async def other(request: Any) -> PlainTextResponse:
    return PlainTextResponse("other")


@RateLimit.exempt
async def health(request: Any) -> PlainTextResponse:
    return PlainTextResponse("well")


def limited(app: ASGIApp, default_limits: Any = "2/minute", **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(
        app, default_limits=default_limits, limiter=Limiter(MemoryStore(clock=FakeClock())), **options
    )


@RateLimit.exempt
class Base(HTTPEndpoint):
    async def get(self, request: Any) -> PlainTextResponse:
        return PlainTextResponse("hi")


class Child(Base):
    pass


API = Router([Route("/api", page)])
INNER = [Route("/items/{item:int}", page), Route("/", health), Route("/free/", health), Route("/b/", page)]
ROUTES = [
    Route("/a", page, methods=["GET", "PUT"]),
    Route("/a", other, methods=["POST"]),
    Route("/b/", page),
    Route("/free/", health),
    Route("/free/{rest:path}", health),
    Route("/below", wrapping(RateLimit.exempt(wrapping(page)))),
    Route("/above", RateLimit.exempt(wrapping(page))),
    Route("/limited", RateLimit("30/minute", name="own")(RateLimit.exempt(wrapping(page)))),
    Route("/base", Base),
    Route("/child", Child),
    Mount("/v1/{tenant}", routes=INNER),
    Mount("/raw", hello),
    Mount("/exempt", RateLimit.exempt(StaticFiles(directory=Path(__file__).parent))),
    Host("api.example.org", API),
    Host("{sub}.example.net", API),
    Host("www.example.org", Router([Route("/api", page)])),
]
INCLUDED = APIRouter()
for own, above in (("/in", ""), ("", "/around"), ("/in", "/around/deep")):
    INNERMOST = APIRouter(prefix=own)
    for method in ("GET", "POST"):
        INNERMOST.add_api_route("/parts/{number}", page, methods=[method])
    INNERMOST.add_api_route("/free", health)
    INCLUDED.include_router(INNERMOST, prefix=above)


def test_each_route_is_a_bucket_unless_it_is_exempt(texts: Callable[..., None]) -> None:
    """Also where the application alone tells its routes, because something between hides them."""

    def label(request_line: str) -> str:
        method, _, target = request_line.partition(" ")
        host, _, path = target.partition("/")
        found = set[str]()
        for stack in ([], [GZipMiddleware], [limited, GZipMiddleware]):
            app = FastAPI(routes=ROUTES, middleware=[Middleware(one) for one in stack], openapi_url=None)
            app.include_router(INCLUDED, prefix="/v2")
            middleware = app if limited in stack else limited(app)
            counting = counted(middleware, f"/{expanded(path)}", method, headers={"host": host or "example.com"})
            found.add(", ".join(asyncio.run(counting)) or "exempt")
        return "\n".join(found)

    texts(Path(__file__).with_name("routes.txt"), "> ", label)


async def test_a_route_with_a_pattern_of_its_own_is_asked_all_the_same() -> None:
    login = Route("/login", page)
    login.path_regex = re.compile(login.path_regex.pattern, re.IGNORECASE)
    app = limited(Starlette(routes=[login, Route("/other", page)]))
    assert await statuses(app, 1, "/login") == [200]
    assert await statuses(app, 2, "/LOGIN") == [200, 429]
    assert await statuses(app, 1, "/other") == [200]
    app.app.router.routes.append(Route("/late", page))
    assert await statuses(app, 3, "/late") == [200, 200, 429], "a route that was added at last is its own bucket"
