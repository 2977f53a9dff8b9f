"""One limit at each place where one may stand: in a rule of the middleware, or at an endpoint in each of its forms."""

import functools
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


def answer(request: Request) -> Response:
    """Answer as a request says: with a status, and with a field that tells a hit of a cache."""
    status = int(request.headers.get("x-status", "200"))
    return PlainTextResponse("page", status, headers={"X-Cache": request.headers.get("x-hit", "miss")})


async def page(request: Request) -> Response:
    return answer(request)


def dependency(limit: RateLimit, endpoint: Any = page, **options: Any) -> ASGIApp:
    app = FastAPI(**options)
    app.api_route("/", methods=METHODS, dependencies=[Depends(limit)])(endpoint)
    return app


def dependency_of_a_router(limit: RateLimit, endpoint: Any = page, **options: Any) -> ASGIApp:
    app, router = FastAPI(**options), APIRouter(dependencies=[Depends(limit)])
    router.api_route("/", methods=METHODS)(endpoint)
    app.include_router(router)
    return app


def decorator(limit: RateLimit, endpoint: Any = page, **options: Any) -> ASGIApp:
    app = FastAPI(**options)
    app.api_route("/", methods=METHODS)(limit(endpoint))
    return app


def decorator_in_starlette(limit: RateLimit, endpoint: Any = page, **options: Any) -> ASGIApp:
    return Starlette(routes=[Route("/", limit(endpoint), methods=METHODS)], **options)


def class_of(endpoint: Any, decorate: Callable[[Any], Any]) -> type[HTTPEndpoint]:
    """Return an endpoint class with a method that answers as a function does."""

    async def get(self: object, request: Request) -> Response:
        return await endpoint(request)  # type: ignore[no-any-return]

    return type("Page", (HTTPEndpoint,), dict.fromkeys(map(str.lower, METHODS), decorate(get)))


def endpoint_class(limit: RateLimit, endpoint: Any = page, **options: Any) -> ASGIApp:
    return Starlette(routes=[Route("/", limit(class_of(endpoint, lambda method: method)))], **options)


def method_of_an_endpoint_class(limit: RateLimit, endpoint: Any = page, **options: Any) -> ASGIApp:
    return Starlette(routes=[Route("/", class_of(endpoint, limit))], **options)


def wrapping(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate an endpoint as anybody does."""

    @functools.wraps(endpoint)
    async def wrapped(*args: Any, **options: Any) -> Any:
        return await endpoint(*args, **options)

    return wrapped


METHODS = ["GET", "HEAD", "POST", "PUT"]
EACH = (
    dependency,
    dependency_of_a_router,
    decorator,
    decorator_in_starlette,
    endpoint_class,
    method_of_an_endpoint_class,
)
"""All forms of a limit at an endpoint, which is at ``/``; each takes a function, sync or not."""
FORMS: dict[str, Callable[[RateLimit], ASGIApp]] = {
    "dependency": dependency,
    "decorator": decorator,
    "sync": lambda limit: decorator(limit, answer),
    "router": dependency_of_a_router,
    "class": endpoint_class,
}
AT = ("rule", *FORMS)


def middleware_of(app: Any, limiter: Limiter | None = None) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, rules=[], limiter=limiter or Limiter(MemoryStore(clock=FakeClock())))


def limited(at: str, limits: Any = (), *, limiter: Limiter | None = None, **options: Any) -> RateLimitMiddleware:
    """Return a middleware with one limit, at one of these places; its page is ``/``."""
    if at != "rule":
        return middleware_of(FORMS[at](RateLimit(limits=limits or None, **options)), limiter)
    limiter = limiter or Limiter(MemoryStore(clock=FakeClock()))
    rule = Rule("*", limits, **options)
    return RateLimitMiddleware(Starlette(routes=[Route("/", answer, methods=METHODS)]), rules=[rule], limiter=limiter)
