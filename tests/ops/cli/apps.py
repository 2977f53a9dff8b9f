"""Applications with the mistakes that `slidegate check` finds, and one without."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Host, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import Limiter, RateLimitMiddleware, Rule
from tests.asgi import page
from tests.web import frameworks


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    sys.stdout.write("start\n")
    yield
    sys.stdout.write("end\n")


ROUTES = [Route("/items/{id:int}", page), Mount("/admin", routes=[Route("/users", page)])]

healthy = Starlette(routes=ROUTES, lifespan=lifespan)
healthy.add_middleware(RateLimitMiddleware, limits="600/minute")
healthy.add_middleware(CORSMiddleware, expose_headers=["Retry-After", "RateLimit", "RateLimit-Policy"])


def raising() -> object:
    raise RuntimeError("a\nb\x1b[2J")


broken = Starlette(middleware=[Middleware(RateLimitMiddleware, limits="5/minit")])
broken_below = Starlette(routes=[Mount("/v1", broken)])


@asynccontextmanager
async def no_database(app: Starlette) -> AsyncIterator[None]:
    raise RuntimeError("no\ndatabase")
    yield


failing = Starlette(lifespan=no_database)


def raises(error: BaseException) -> ASGIApp:
    async def raising(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return raising


no_lifespan, exiting = raises(AssertionError("this application knows no lifespan")), raises(SystemExit("no settings"))


async def printing(scope: object, receive: object, send: object) -> None:
    sys.stdout.write("starting\n")


def printing_factory() -> object:
    sys.stdout.write("made\n")
    return printing


async def stuck(scope: object, receive: object, send: object) -> None:
    await asyncio.Event().wait()


def limited(app: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, limits="600/minute")


def stored() -> RateLimitMiddleware:
    limiter = Limiter.from_url(os.environ["STORE"])
    return RateLimitMiddleware(frameworks.bare, limits="5/m; 50/hour", limiter=limiter)


# A mounted application builds its stack at its first request.
mounted = Starlette(routes=[Mount("/v1", Starlette(middleware=[Middleware(limited)]))])
of_a_route = Starlette(routes=[Host("example.com", Router([Route("/", page, middleware=[Middleware(limited)])]))])


def of_a_router() -> ASGIApp:
    router, app = APIRouter(), FastAPI()
    router.routes.append(Mount("/v1", limited(frameworks.bare)))
    app.include_router(router)
    return app


def of_a_closure() -> ASGIApp:
    inside = limited(frameworks.bare)

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        await inside(scope, receive, send)

    return wrapped


PATCHED = Middleware(RateLimitMiddleware, rules=[Rule("/two", "5/minute", methods=["PATCH"])])
half = Starlette(routes=[Route("/one", page)], middleware=[PATCHED])


def wsgi(environ: object, start_response: object) -> list[bytes]:
    return [b"hello"]


# A mounted application creates its middlewares at its first request.
unbuildable = Starlette(routes=[Mount("/v1", Starlette(middleware=[Middleware(CORSMiddleware, unknown=1)]))])


shop, bare_shop = FastAPI(), FastAPI()


@shop.get("/items/{id}")
@shop.post("/login")
def endpoint(id: int = 0) -> None:
    raise AssertionError("the endpoint is called")


for app in (shop, bare_shop):
    app.mount("/inner", RateLimitMiddleware(FastAPI(), limits="1/hour"))
shop.add_middleware(RateLimitMiddleware, rules=[Rule("/health", exempt=True), Rule("*", "5/minute", name="all")])
