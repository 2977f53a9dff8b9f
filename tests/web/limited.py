"""One limit at each place where one may stand: in a rule of the middleware, or at an endpoint in each of its forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock


def answer(request: Any) -> Response:
    """Answer as a request says: with a status, and with a field that tells a hit of a cache."""
    status = int(request.headers.get("x-status", "200"))
    return PlainTextResponse("page", status, headers={"X-Cache": request.headers.get("x-hit", "miss")})


def as_dependency(limit: RateLimit) -> ASGIApp:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit)])
    async def page(request: Request) -> Response:
        return answer(request)

    return app


def as_decorator(limit: RateLimit) -> ASGIApp:
    app = FastAPI()

    @app.get("/")
    @limit
    async def page(request: Request) -> Response:
        return answer(request)

    return app


def as_decorator_of_a_sync_endpoint(limit: RateLimit) -> ASGIApp:
    app = FastAPI()

    @app.get("/")
    @limit
    def page(request: Request) -> Response:
        return answer(request)

    return app


def on_the_router(limit: RateLimit) -> ASGIApp:
    router = APIRouter(dependencies=[Depends(limit)])

    @router.get("/")
    async def page(request: Request) -> Response:
        return answer(request)

    app = FastAPI()
    app.include_router(router)
    return app


def in_a_class(limit: RateLimit) -> ASGIApp:
    @limit
    class Page(HTTPEndpoint):
        async def get(self, request: Any) -> Response:
            return answer(request)

    return Starlette(routes=[Route("/", Page)])


FORMS: dict[str, Callable[[RateLimit], ASGIApp]] = {
    "dependency": as_dependency,
    "decorator": as_decorator,
    "sync": as_decorator_of_a_sync_endpoint,
    "router": on_the_router,
    "class": in_a_class,
}
AT = ("rule", *FORMS)


def middleware_of(app: Any, limiter: Limiter | None = None) -> RateLimitMiddleware:
    """Return a middleware for the limits at the endpoints of an application."""
    return RateLimitMiddleware(app, rules=[], limiter=limiter or Limiter(MemoryStore(clock=FakeClock())))


def limited(at: str, limits: Any = (), *, limiter: Limiter | None = None, **options: Any) -> RateLimitMiddleware:
    """Return a middleware with one limit, at one of these places; its page is ``/``."""
    if at != "rule":
        return middleware_of(FORMS[at](RateLimit(limits, **options)), limiter)
    limiter = limiter or Limiter(MemoryStore(clock=FakeClock()))
    rule = Rule("*", limits, **options)
    return RateLimitMiddleware(Starlette(routes=[Route("/", answer)]), rules=[rule], limiter=limiter)
